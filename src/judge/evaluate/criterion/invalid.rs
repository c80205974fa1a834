//! A criterion for one run that could not be built, because the run's expectation did not parse or
//! contradicts the registered criterion. Contains the fields of its `error` evaluation.

use std::sync::Arc;

use serde_json::json;

use super::{Criterion, CriterionSeverity, Scope, Selector, digest};
use crate::evaluate::comparison::score::EvaluationError;

/// An unusable expectation of one run. It is reported like a criterion, always as `error`.
#[derive(Debug, Clone, PartialEq)]
pub struct InvalidCriterion {
    /// The name in evaluations.
    pub name: String,
    /// Selects the trajectories for which the error is reported.
    pub select: Selector,
    /// Scope of one evaluation.
    pub scope: Scope,
    /// The severity in evaluations.
    pub severity: Option<CriterionSeverity>,
    /// The threshold in evaluations.
    pub threshold: f64,
    /// The intended evaluator; `unknown` if the name could not be parsed.
    pub evaluator: &'static str,
    pub error: EvaluationError,
    revision: String,
}

impl InvalidCriterion {
    /// Creates an invalid criterion that selects every trajectory; its revision is derived from
    /// `text`: the rejected text, or the id of the run's example.
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

    /// Creates an invalid criterion that replaces `criterion` for the trajectories that it selects.
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

    /// Returns the revision, a digest of the rejected text (or the example's id) and of the
    /// criterion's own fields.
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

/// A criterion as applied to one run, or the reason why an expectation is unusable.
pub(crate) type Applied = Result<Arc<Criterion>, Arc<InvalidCriterion>>;
