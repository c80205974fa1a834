//! A criterion for one run that could not be built: its expectation could not be parsed, or
//! does not go with the registered criterion. It keeps what an `error` evaluation reports.

use std::sync::Arc;

use serde_json::json;

use super::{Criterion, CriterionSeverity, Scope, Selector, digest};
use crate::evaluate::comparison::score::EvaluationError;

/// An expectation of one run that is in error. It stands beside the criteria and is reported like
/// one, always as `error`.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidCriterion {
    /// The name that evaluations carry.
    pub name: String,
    /// Trajectories for which the error is reported.
    pub select: Selector,
    /// Scope of one evaluation.
    pub scope: Scope,
    /// The severity that evaluations carry.
    pub severity: Option<CriterionSeverity>,
    /// The threshold that evaluations carry.
    pub threshold: f64,
    /// The evaluator that was meant; `unknown` where that cannot be read.
    pub evaluator: &'static str,
    /// The error.
    pub error: EvaluationError,
    revision: String,
}

impl InvalidCriterion {
    /// One for every trajectory. The revision is that of the `text` that could not be used.
    pub(crate) fn new(
        name: &str,
        evaluator: &'static str,
        text: &str,
        error: EvaluationError,
    ) -> Self {
        let (select, scope) = (Selector::default(), Scope::default());
        let mut invalid = Self {
            name: name.to_owned(),
            select,
            scope,
            severity: None,
            threshold: 1.0,
            evaluator,
            error,
            revision: String::new(),
        };
        invalid.revision = invalid.digest("", text);
        invalid
    }

    /// In place of a criterion, for the trajectories that it selects.
    pub(crate) fn in_place_of(
        criterion: &Criterion,
        evaluator: &'static str,
        text: &str,
        error: EvaluationError,
    ) -> Self {
        let mut invalid = Self {
            select: criterion.select.clone(),
            scope: criterion.scope,
            severity: criterion.severity,
            threshold: criterion.threshold,
            ..Self::new(&criterion.name, evaluator, text, error)
        };
        invalid.revision = invalid.digest(&criterion.description, text);
        invalid
    }

    /// Identifies the text that is in error, as a criterion's revision identifies its parameters.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    fn digest(&self, description: &str, text: &str) -> String {
        digest(json!({
            "name": self.name,
            "description": description,
            "select": self.select,
            "scope": self.scope,
            "evaluate": { "unusable": { "evaluator": self.evaluator, "text": text } },
            "threshold": self.threshold,
        }))
    }
}

/// A criterion as one run is judged by it: applicable, or in error.
pub(crate) type Applied = Result<Arc<Criterion>, Arc<InvalidCriterion>>;
