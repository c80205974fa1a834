//! A configuration in, its YAML out: every key, secrets masked, and where a value came from that is
//! no default.

use serde_json::Value;

use super::Config;
use crate::located::to_commented_yaml;

impl Config {
    /// The effective configuration. What comes from a file, a variable or a flag says so behind it.
    pub fn to_yaml(&self) -> String {
        let value = serde_json::to_value(self).unwrap_or(Value::Null);
        to_commented_yaml(&value, &|key| self.source_of(key).map(str::to_owned))
    }
}
