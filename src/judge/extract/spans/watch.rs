//! Tells on arrival which calls can violate a criterion that raises alarms, so that traces without
//! such calls cost nothing while they are open.

use regex::{RegexSet, RegexSetBuilder};

use super::recognise::Recognised;
use super::view::View;

/// Maximum bytes of all compiled patterns. With larger ones every call is watched.
const MAX_COMPILED_SIZE: usize = 4 << 20;

/// The calls to watch for.
#[derive(Debug, Clone)]
pub struct Watch {
    /// Patterns of names; `None` for calls of all tools.
    names: Option<RegexSet>,
    /// True for model calls, too.
    models: bool,
}

impl Watch {
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

    /// Returns true if the span is such a call. A call whose span does not name it is watched:
    /// other spans may name it.
    pub(super) fn watches(&self, recognised: &Recognised<'_>, span: &View<'_>) -> bool {
        let Some(call) = recognised.call else {
            return recognised.synthesized || (self.models && recognised.model.is_some());
        };
        let Some(names) = &self.names else {
            return true;
        };
        let name = call.call(span).name;
        name.is_none_or(|name| names.is_match(&name))
    }
}
