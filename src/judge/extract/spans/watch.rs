//! Decides on arrival which calls can violate a criterion that raises alarms. Open traces without
//! such calls are not judged for alarms, except after a change of the rules.

use regex::{RegexSet, RegexSetBuilder};

/// Maximum bytes of all compiled patterns. If they need more, every call is watched.
const MAX_COMPILED_SIZE: usize = 4 << 20;

/// The calls to watch for.
#[derive(Debug, Clone)]
pub struct AlarmWatch {
    /// Patterns of names; `None` for calls of all tools.
    names: Option<RegexSet>,
    /// True if model calls are also watched.
    models: bool,
}

impl AlarmWatch {
    /// Watches for tool calls whose name matches one of `names` (all tool calls if `None`), and for
    /// model calls if `models` is true.
    pub fn new(names: Option<Vec<String>>, models: bool) -> Self {
        let compiled = |names| {
            let mut builder = RegexSetBuilder::new::<Vec<String>, _>(names);
            builder.size_limit(MAX_COMPILED_SIZE).build().ok()
        };
        Self {
            names: names.and_then(compiled),
            models,
        }
    }

    /// Returns true if calls with this name are watched. A call whose span does not name the tool
    /// is watched, because other spans may name it.
    pub(super) fn watches(&self, name: Option<&str>) -> bool {
        let names = self.names.as_ref().zip(name);
        names.is_none_or(|(names, name)| names.is_match(name))
    }

    pub(super) fn watches_models(&self) -> bool {
        self.models
    }
}
