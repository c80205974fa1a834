//! Decides on arrival which calls can violate a criterion that raises alarms, so that traces
//! without such calls cost nothing while they are open.

use regex::{RegexSet, RegexSetBuilder};

/// Maximum bytes of all compiled patterns. With larger ones every call is watched.
const MAX_COMPILED_SIZE: usize = 4 << 20;

/// The calls to watch for.
#[derive(Debug, Clone)]
pub struct AlarmWatch {
    /// Patterns of names; `None` for calls of all tools.
    names: Option<RegexSet>,
    /// True for model calls, too.
    models: bool,
}

impl AlarmWatch {
    /// Watches for calls whose name matches one of `names` (`None`: for all calls of tools), and
    /// with `models` for model calls.
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

    /// Returns true for a call of this name. A call whose span does not name it is watched: other
    /// spans may name it.
    pub(super) fn watches(&self, name: Option<&str>) -> bool {
        let names = self.names.as_ref().zip(name);
        names.is_none_or(|(names, name)| names.is_match(name))
    }

    /// Returns true if model calls are watched.
    pub(super) fn watches_models(&self) -> bool {
        self.models
    }
}
