//! A criterion: a name, a selector, a scope, one evaluator and a threshold. Loading checks the
//! criterion, so a loaded criterion can always be applied.

mod alarm;
mod expectation;
mod invalid;
mod selector;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use text::hex;

use crate::evaluate::evaluators::{Evaluator, WatchedCalls, WrittenEvaluator};
use crate::evaluate::parameters::optional::written;
use crate::evaluate::parameters::pattern::{FieldError, PatternCompiler, PatternLimits};
use crate::extract::AlarmWatch;

pub use alarm::Alarm;
pub use expectation::{Expectation, Paired, Unfit, pair};
pub(super) use invalid::Applied;
pub use invalid::InvalidCriterion;
pub use selector::{Glob, Selector};

/// The name of the criterion that a run sends for itself.
pub const EXPECTED: &str = "expect";

/// The name of the criterion that judges a run if no selected criterion has the evaluator of the
/// run's example.
pub const EXAMPLE: &str = "example";

/// A registered criterion. Deserialising builds it; its revision is a digest of the canonical form.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "WrittenCriterion")]
#[schemars(with = "WrittenCriterion", description = "")]
pub struct Criterion {
    /// Unique name.
    pub name: String,
    /// A description for people.
    pub description: String,
    /// Selects the trajectories to judge.
    pub select: Selector,
    /// Scope of one evaluation.
    pub scope: Scope,
    /// The evaluator and its parameters.
    pub evaluate: Evaluator,
    /// Severity of a fail, if the criterion has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub severity: Option<CriterionSeverity>,
    /// The form of alarms about violations in open runs; `None` if the criterion raises no alarms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alarm: Option<Alarm>,
    /// The lowest score that passes, 0 to 1.
    pub threshold: f64,
    #[serde(skip)]
    revision: String,
}

impl Criterion {
    /// Returns warnings about valid but probably unintended settings, one sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.evaluate.warnings();
        if self.threshold == 0.0 {
            warnings
                .push("`threshold` is 0: every score passes; write a number above 0".to_owned());
        }
        warnings
    }

    /// Returns the first 12 hex digits of the SHA-256 of the canonical form (compact JSON with
    /// sorted keys). It does not depend on where the criterion was written, on the order of its
    /// keys, or on whether defaults are written.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Returns the number of patterns in the parameters.
    pub fn n_patterns(&self) -> usize {
        self.evaluate.clone().patterns_mut().len()
    }

    /// Returns a copy of this criterion with other evaluator parameters and a new revision.
    pub(crate) fn with(&self, evaluate: Evaluator) -> Self {
        let threshold = evaluate.threshold(Some(self.threshold));
        let mut criterion = Self {
            evaluate,
            threshold,
            ..self.clone()
        };
        criterion.revision = digest(json!(criterion));
        criterion
    }

    /// Creates a criterion that selects every trajectory, with the evaluator's default threshold
    /// unless `threshold` is given.
    pub(crate) fn of_all(name: &str, evaluate: Evaluator, threshold: Option<f64>) -> Self {
        let mut criterion = Self {
            name: name.to_owned(),
            description: String::new(),
            select: Selector::default(),
            scope: Scope::default(),
            severity: None,
            alarm: None,
            threshold: evaluate.threshold(threshold),
            evaluate,
            revision: String::new(),
        };
        criterion.revision = digest(json!(criterion));
        criterion
    }

    /// Returns which calls can raise an alarm of one of these criteria; `None` without criteria.
    pub(crate) fn watch(alarms: &[Arc<Self>]) -> Option<Arc<AlarmWatch>> {
        let alarms = alarms.iter();
        let watched = alarms.filter_map(|criterion| criterion.evaluate.watched().ok());
        let all = watched.reduce(|one, other| WatchedCalls {
            names: one.names.zip(other.names).map(|(mut names, more)| {
                names.extend(more);
                names
            }),
            models: one.models || other.models,
            ..one
        })?;
        Some(Arc::new(AlarmWatch::new(all.names, all.models)))
    }

    /// Returns true if the criterion limits model calls or their tokens.
    pub fn reads_usage(&self) -> bool {
        self.evaluate.reads_models()
    }

    /// Returns the attribute keys that the selector reads. The scan must store these attributes.
    pub fn selector_attributes(&self) -> impl Iterator<Item = &str> {
        self.select.attributes.keys().map(String::as_str)
    }
}

impl WrittenCriterion {
    /// Compiles the evaluator's patterns and returns the criterion.
    ///
    /// # Errors
    /// Returns the errors of [`WrittenEvaluator::compile`], or an error if `alarm` or `scope` does
    /// not suit the evaluator.
    pub fn compile(self, compiler: &mut PatternCompiler) -> Result<Criterion, Vec<FieldError>> {
        let evaluate = self.evaluate.compile(compiler).map_err(|errors| {
            let errors = errors.into_iter();
            errors
                .map(|error| error.below(&["evaluate"]))
                .collect::<Vec<_>>()
        })?;
        let threshold = evaluate.threshold(self.threshold);
        if self.alarm.is_some() {
            let error = match (self.scope, evaluate.watched()) {
                (Scope::Agent, _) => Some(
                    "`alarm` needs `scope: trace` or `session`: which calls an agent made itself \
                     is known only when the trace has closed"
                        .to_owned(),
                ),
                (_, Err(reason)) => Some(format!(
                    "`alarm` needs a criterion that can be permanently violated by one call; \
                     {reason}"
                )),
                (_, Ok(watched)) if watched.most >= threshold => Some(format!(
                    "`alarm` would never be raised: after any violation, the score may still reach \
                     {}, and `threshold` is {threshold}; raise it, or move what can be permanently \
                     violated to a criterion of its own",
                    (watched.most * 100.0).round() / 100.0
                )),
                (_, Ok(_)) => None,
            };
            if let Some(message) = error {
                return Err(vec![FieldError::of_key(&["alarm"], message)]);
            }
        }
        if self.scope == Scope::Session && evaluate.reads_duration() {
            return Err(vec![FieldError::of_key(
                &["evaluate", evaluate.name(), "max_duration"],
                "a session also lasts while its user thinks: limit the duration of each turn, \
                 with `scope: trace`",
            )]);
        }
        let mut criterion = Criterion {
            description: self.description,
            select: self.select,
            scope: self.scope,
            severity: self.severity,
            alarm: self.alarm,
            ..Criterion::of_all(&self.name, evaluate, Some(threshold))
        };
        criterion.revision = digest(json!(criterion));
        Ok(criterion)
    }
}

impl TryFrom<WrittenCriterion> for Criterion {
    type Error = String;

    /// Compiles the patterns under the limits for files.
    fn try_from(source: WrittenCriterion) -> Result<Self, String> {
        source
            .compile(&mut PatternCompiler::new(PatternLimits::FILE))
            .map_err(|errors| FieldError::join(&errors))
    }
}

fn digest(mut canonical: Value) -> String {
    canonical.sort_all_objects();
    hex(&Sha256::digest(canonical.to_string())[..6])
}

/// A criterion as it is written: a selector of trajectories, and an expectation.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WrittenCriterion {
    /// Unique name; shown in metrics, score spans and events.
    #[serde(deserialize_with = "free_name")]
    #[schemars(length(min = 1))]
    name: String,
    /// A description for people.
    #[serde(default)]
    description: String,
    /// The trajectories to judge; all if left out.
    #[serde(default)]
    select: Selector,
    /// Scope of one evaluation: the whole trace, each agent run, or all turns of a session.
    #[serde(default)]
    scope: Scope,
    /// Severity of a fail. Shown with scores; does not change a verdict.
    #[serde(default, deserialize_with = "written")]
    #[schemars(with = "CriterionSeverity")]
    severity: Option<CriterionSeverity>,
    /// Report the first violation immediately, while the run is still open.
    #[serde(default, deserialize_with = "alarm::written")]
    #[schemars(with = "Alarm")]
    alarm: Option<Alarm>,
    /// The expectation: one evaluator with its parameters.
    evaluate: WrittenEvaluator,
    /// The lowest score that passes; 1.0 if left out (`execution_order`: 0.5).
    #[serde(default, deserialize_with = "from_0_to_1")]
    #[schemars(with = "f64", range(min = 0, max = 1))]
    threshold: Option<f64>,
}

/// Parses a name that is neither blank nor reserved.
fn free_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    if name.trim().is_empty() {
        return Err(D::Error::custom(
            "a criterion needs a name that is not blank: metrics and score spans show it",
        ));
    }
    let taken = [
        (EXPECTED, "a run's own expectation (`spanscore.expect`)"),
        (EXAMPLE, "an entry of an example file"),
    ];
    match taken.iter().find(|(taken, _)| name == *taken) {
        Some((_, whose)) => Err(D::Error::custom(format_args!(
            "a criterion is named `{name}`, a name that is reserved for {whose}: rename it"
        ))),
        None => Ok(name),
    }
}

fn from_0_to_1<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let threshold = f64::deserialize(deserializer)?;
    if (0.0..=1.0).contains(&threshold) {
        Ok(Some(threshold))
    } else {
        Err(D::Error::custom(format_args!(
            "a threshold is a number from 0 to 1, since scores are; found {threshold}"
        )))
    }
}

/// Severity of a fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CriterionSeverity {
    /// Worth knowing.
    Info,
    /// Worth a look.
    Warning,
    /// Worth waking somebody.
    Critical,
}

impl CriterionSeverity {
    /// Returns the word used in the configuration and in all outputs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
}

/// Scope of one evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// The whole trace.
    #[default]
    Trace,
    /// Each agent run: the calls that it made itself.
    Agent,
    /// All turns of a session; each turn is a trace.
    Session,
}

impl Scope {
    /// Returns the word used in the configuration and in jsonl lines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Agent => "agent",
            Self::Session => "session",
        }
    }
}
