//! Selects the trajectories to which a criterion applies, by globs over service, root, agent, calls
//! and attributes.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::evaluate::parameters::limits::scalar;
use crate::evaluate::parameters::optional::written;
use crate::extract::{Trajectory, glob_matches};

/// Selects the trajectories that a criterion judges: trajectories that satisfy all given fields;
/// all trajectories if no field is given.
///
/// Patterns are globs: `*` matches any text, `?` one character. A glob must match the whole text,
/// and is case-sensitive.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Selector {
    /// `service.name` of the evaluated span's resource.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Glob")]
    pub service: Option<Glob>,
    /// Name of the topmost span at or above the evaluated span.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Glob")]
    pub root: Option<Glob>,
    /// Name of the agent or of the evaluated agent run; empty for a trajectory without an agent.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Glob")]
    pub agent: Option<Glob>,
    /// Only trajectories with a call of a matching name.
    #[serde(deserialize_with = "written", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Glob")]
    pub calls: Option<Glob>,
    /// Attributes of the evaluated span or else of its resource, each with a glob for its value;
    /// numbers and booleans match as their JSON text.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, Glob>,
}

impl Selector {
    /// Returns true if the criterion judges this trajectory.
    pub fn matches(&self, trajectory: &Trajectory) -> bool {
        let holds =
            |glob: &Option<Glob>, text: &str| glob.as_ref().is_none_or(|glob| glob.matches(text));
        holds(&self.service, &trajectory.service)
            && holds(&self.root, &trajectory.root)
            && (holds(&self.agent, trajectory.agent.as_deref().unwrap_or_default())
                || trajectory
                    .own_run()
                    .is_some_and(|name| holds(&self.agent, name)))
            && self.calls.as_ref().is_none_or(|glob| {
                trajectory
                    .tool_calls
                    .iter()
                    .any(|call| glob.matches(&call.name))
            })
            && self.attributes.iter().all(|(key, glob)| {
                trajectory
                    .subject
                    .as_ref()
                    .and_then(|subject| subject.attribute(key))
                    .is_some_and(|value| glob.matches(value))
            })
    }

    /// Returns true if the selector, which matches a trace that was cut short, certainly also
    /// matches the complete trace.
    pub(crate) fn matches_for_good(&self, trajectory: &Trajectory) -> bool {
        let uncertainty = trajectory.uncertainty;
        let reads =
            |glob: &Option<Glob>| glob.as_ref().is_some_and(|glob| !glob.matches_everything());
        let reads_subject = reads(&self.agent) || !self.attributes.is_empty();
        let may_fail = (uncertainty.service && reads(&self.service))
            || (uncertainty.root && reads(&self.root))
            || (uncertainty.subject && reads_subject);
        let stays_called = |glob: &Glob| {
            trajectory
                .tool_calls
                .iter()
                .any(|call| !call.uncertainty.may_go && glob.matches(&call.name))
        };
        !may_fail && self.calls.as_ref().is_none_or(stays_called)
    }
}

/// A pattern that must match the whole text: `*` matches any text, `?` one character.
#[derive(Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(
    description = "`*` matches any text, `?` one character; the whole text must match, \
                   case-sensitively.",
    extend("type" = ["string", "number", "boolean"])
)]
pub struct Glob(String);

impl Glob {
    /// Returns true if the whole text matches. The time is at most proportional to text × pattern.
    pub fn matches(&self, text: &str) -> bool {
        glob_matches(&self.0, text)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    fn matches_everything(&self) -> bool {
        self.0 == "*"
    }
}

impl From<&str> for Glob {
    fn from(pattern: &str) -> Self {
        Self(pattern.to_owned())
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Glob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        scalar(deserializer, "a glob such as `shop-*`", |pattern| {
            Ok(Self::from(pattern))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_the_whole_text() {
        for (pattern, text, matches) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("shop-*", "shop-eu", true),
            ("shop-*", "my-shop-eu", false),
            ("*-eu", "shop-eu-eu", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("caf?", "café", true),
            ("caf?", "caf", false),
            ("?", "é", true),
            ("Shop", "shop", false),
            ("**", "x", true),
        ] {
            assert_eq!(
                Glob::from(pattern).matches(text),
                matches,
                "`{pattern}` on `{text}`"
            );
        }
    }

    #[test]
    fn hostile_stars_stay_quadratic() {
        assert!(!Glob::from("*a*a*a*a*a*a*a*a*a*a*b").matches(&"a".repeat(20_000)));
    }
}
