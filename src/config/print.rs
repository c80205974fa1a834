//! Writes a configuration as YAML: every key, with secrets masked and the source of each value that
//! is not a default.

use located::{lift_inlined, to_commented_yaml};
use serde_json::Value;

use super::Config;

impl Config {
    /// Returns the effective configuration. A value from a file, a variable or a flag is followed
    /// by its source.
    pub fn to_yaml(&self) -> String {
        to_commented_yaml(&self.to_value(), &|key| {
            self.source_of(key).map(str::to_owned)
        })
    }

    /// Returns the effective configuration, with secrets masked.
    pub(super) fn to_value(&self) -> Value {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        lift_inlined(&mut value);
        value
    }
}
