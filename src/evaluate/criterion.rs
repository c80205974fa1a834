//! Pure. What is expected of a trajectory: a name, a selector, a scope, one evaluator and a threshold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One registered criterion.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// Unique name.
    pub name: String,
}

/// What one evaluation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The whole trace.
    #[default]
    Trace,
    /// Each agent run.
    Agent,
}

impl Scope {
    /// The word of the configuration and of the jsonl lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Agent => "agent",
        }
    }
}
