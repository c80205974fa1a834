//! An evaluation: a trajectory, a criterion, the verdict, and the findings behind the verdict. The
//! findings are rendered as text on first use.

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use otlp::span::SpanId;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use text::{code, hex};

use super::uncertainty;
use crate::evaluate::comparison::rows::{AlignmentRow, MAX_ROWS};
use crate::evaluate::comparison::score::{
    EvaluationError, Explain, Judgement, Missing, PathsSeen, ReadBy, Rendered, UnusableValue,
    Verdict,
};
use crate::evaluate::criterion::{Criterion, CriterionSeverity, InvalidCriterion, Scope};
use crate::evaluate::evaluators::Evidence;
use crate::extract::{Subject, Trajectory};

/// The judgement of one trajectory by one criterion.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// The criterion, or an invalid expectation.
    pub criterion: JudgedBy,
    /// The judged trajectory; with `scope: agent`, only the calls of one agent run.
    pub trajectory: Arc<Trajectory>,
    /// From 0 to 1; `None` for `not_evaluated` and `error`.
    pub value: Option<f64>,
    pub verdict: Verdict,
    /// Set for the label `error` only.
    pub error: Option<EvaluationError>,
    /// The number of expected calls, exported as `spanscore.calls.expected`.
    pub n_expected: usize,
    /// The evidence, rendered by [`Self::explanation`], [`Self::details`] and [`Self::offending`].
    pub findings: Findings,
    /// 0 for the first judgement; every changed judgement increments it. Set by the pipeline.
    pub revision: u32,
    /// The previous revision; `None` for revision 0. Set by the pipeline.
    pub previous: Option<Previous>,
    /// True if the evaluation may have been reported before, with the same content. Set while a log
    /// is replayed.
    pub replayed: bool,
    /// Set by the pipeline.
    pub stage: Stage,
}

/// The stage at which an evaluation is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// The verdict on a closed trace or session.
    #[default]
    Final,
    /// An alarm: a `fail` of a trace or session that is still open. The final verdict will repeat
    /// it, unless the alarm is withdrawn.
    Alarm,
    /// Withdraws an alarm for which there is no final verdict.
    WithdrawnAlarm,
}

/// The previous revision of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Previous {
    /// The span evaluated in that revision. May differ, because a trace's topmost span may arrive
    /// late.
    pub subject: Option<SpanId>,
    pub verdict: Verdict,
    /// The revision's number.
    pub revision: u32,
}

/// The criterion of an evaluation, or an invalid expectation.
#[derive(Debug, Clone)]
pub enum JudgedBy {
    Criterion(Arc<Criterion>),
    /// An unusable expectation. Its evaluation is an `error`.
    Invalid(Arc<InvalidCriterion>),
}

/// The findings behind an evaluation. Text is rendered on first use: most evaluations are only
/// counted, and rendering would take half the time of judging.
#[derive(Debug, Clone)]
pub struct Findings {
    basis: Option<Basis>,
    text: OnceLock<Box<EvaluationText>>,
}

/// The source of the rendered text. Findings whose text was fixed at construction have none.
#[derive(Debug, Clone)]
pub(super) struct Basis {
    pub(super) evidence: Evidence,
    /// The missing evidence; only for `not_evaluated`. Boxed because it is rare, and evaluations
    /// are moved often.
    pub(super) missing: Option<Box<Missing>>,
    pub(super) unusable: Option<Box<UnusableValue>>,
    pub(super) paths: PathsSeen,
    /// The call that cannot be judged; only for `error`.
    pub(super) faulty_call: Option<usize>,
    pub(super) explain: Explain,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EvaluationText {
    /// The explanation for people.
    pub explanation: String,
    /// The evaluator's details, a JSON object.
    pub details: Value,
    /// The calls to blame, as indices in the trajectory.
    pub offending: Vec<usize>,
}

// === impl Evaluation ===

impl Evaluation {
    /// Returns the explanation for people.
    pub fn explanation(&self) -> &str {
        &self.text().explanation
    }

    /// Returns the evaluator's details, a JSON object.
    pub fn details(&self) -> &Value {
        &self.text().details
    }

    /// Returns the calls to blame, as indices in `trajectory.tool_calls`.
    pub fn offending(&self) -> &[usize] {
        &self.text().offending
    }

    /// Renders rows that show expectations next to calls, if there are any. Not cached, because
    /// rows are read only when somebody inspects one run.
    pub fn alignment(&self) -> Vec<AlignmentRow> {
        let mut rows = self.report(true).rows;
        rows.truncate(MAX_ROWS);
        rows
    }

    /// Returns an id that an alarm shares with the final verdict: the first 16 bytes of
    /// SHA-256(trace id ‖ criterion name), or for a session of SHA-256(service ‖ 0 ‖ session ‖ 0 ‖
    /// criterion name), in hex. `None` for a verdict on a trace by a criterion without alarms.
    pub fn verdict_id(&self) -> Option<String> {
        let raises_alarms =
            matches!(&self.criterion, JudgedBy::Criterion(criterion) if criterion.alarm.is_some());
        let hash = self.session_hash().or_else(|| {
            let (trace_id, name) = (self.trajectory.trace_id, self.criterion.name());
            let of_trace = Sha256::new_with_prefix(trace_id.as_bytes()).chain_update(name);
            (raises_alarms || self.stage != Stage::Final).then_some(of_trace)
        });
        Some(hex(&hash?.finalize()[..16]))
    }

    /// Returns the span to which a score is attached: the evaluated span. For an alarm, returns the
    /// first call to blame, because the evaluated span of an open trace may change. A call in an
    /// earlier turn of the session is in another trace, so the evaluated span is returned instead.
    pub fn subject(&self) -> Option<Cow<'_, Subject>> {
        let subject = self.trajectory.subject.as_ref()?;
        let call = self
            .offending()
            .first()
            .filter(|_| self.stage == Stage::Alarm);
        let is_here = |call: &&usize| self.trajectory.trace_of(**call) == self.trajectory.trace_id;
        let call = call.filter(is_here);
        let call = call.and_then(|call| self.trajectory.tool_calls.get(*call));
        Some(match call.and_then(|call| Some((call, call.span_id?))) {
            None => Cow::Borrowed(subject),
            Some((call, span_id)) => Cow::Owned(Subject {
                span_id,
                name: Arc::clone(&call.name),
                start_unix_nanos: call.start_unix_nanos,
                end_unix_nanos: call.end_unix_nanos,
                ..subject.clone()
            }),
        })
    }

    /// Hashes the identity of a verdict on a session. The hash does not depend on the session's
    /// last turn, which may change. `None` for a verdict on a trace.
    pub fn session_hash(&self) -> Option<Sha256> {
        self.trajectory.turns.as_ref()?;
        let session = self.trajectory.session_hash()?;
        Some(session.chain_update(self.criterion.name()))
    }

    /// Hashes everything that outputs show, except the names of the calls and of the criterion. If
    /// two revisions have the same hash, the outputs have not changed.
    pub fn hash_shown<H: Hasher>(&self, state: &mut H) {
        (self.value.map(f64::to_bits), self.verdict, &self.error).hash(state);
        match &self.findings.basis {
            Some(basis)
                if !basis.explain.values
                    && self.verdict != Verdict::Error
                    && !self.names_calls_by_values() =>
            {
                let missing = basis.missing.as_ref();
                let reasons =
                    missing.map(|it| uncertainty::reasons(it, &self.trajectory, &basis.explain));
                (
                    &basis.evidence,
                    reasons,
                    &basis.unusable,
                    basis.paths.nowhere,
                )
                    .hash(state);
            }
            // Hash the text, because the evidence contains no values, and an error shows only some
            // of the evidence.
            _ => (self.explanation(), self.details().to_string()).hash(state),
        }
    }

    /// Returns true if values may decide which calls, or which length of a copy, the text names.
    fn names_calls_by_values(&self) -> bool {
        let JudgedBy::Criterion(criterion) = &self.criterion else {
            return false;
        };
        self.verdict != Verdict::Pass && criterion.evaluate.follows_paths()
    }

    /// Returns this evaluation with another copy of its trajectory, such as a copy without values.
    /// The text is rendered again on first use, unless it was fixed at construction.
    pub fn with_trajectory(&self, trajectory: Arc<Trajectory>) -> Self {
        let text = match self.findings.basis {
            Some(_) => OnceLock::new(),
            None => self.findings.text.clone(),
        };
        let findings = Findings {
            basis: self.findings.basis.clone(),
            text,
        };
        Self {
            criterion: self.criterion.clone(),
            trajectory,
            error: self.error.clone(),
            findings,
            ..*self
        }
    }

    /// Returns this evaluation with its explanation only, because the given trajectory lacks some
    /// of the calls.
    pub fn with_explanation_only(&self, trajectory: Arc<Trajectory>) -> Self {
        Self {
            criterion: self.criterion.clone(),
            trajectory,
            error: self.error.clone(),
            findings: EvaluationText::from(self.explanation().to_owned()).into(),
            ..*self
        }
    }

    /// Returns true if there is no verdict because of an earlier turn of the session.
    pub(super) fn awaits_session(&self) -> bool {
        let basis = self.findings.basis.as_ref();
        let missing = basis.and_then(|basis| basis.missing.as_ref());
        missing.is_some_and(|missing| missing.earlier_turn.is_some())
    }

    pub(super) fn paths(&self) -> PathsSeen {
        let basis = self.findings.basis.as_ref();
        basis.map_or_else(PathsSeen::default, |basis| basis.paths)
    }

    /// Describes the first value that the criterion could not use.
    pub(super) fn unusable(&self) -> Option<String> {
        let unusable = self.findings.basis.as_ref()?.unusable.as_ref()?;
        let consequence = match unusable.reader {
            ReadBy::Args => {
                "which a pattern under `args` never matches: compare values with `where`".to_owned()
            }
            ReadBy::Operator(operator) => {
                format!("which `{operator}` never matches: continue the path to a text in it")
            }
            ReadBy::Condition => {
                "which only `exists: false` matches: where it may be missing, write \
                                  `exists: true` beside the operator"
                    .to_owned()
            }
            ReadBy::Addend => "so `total` adds nothing for that call: where it may be missing, \
                               narrow `a` to calls that have it (`exists: true`)"
                .to_owned(),
            ReadBy::Key => {
                "so that call agrees with no other: where it may be missing, narrow the rule to \
                 calls that have it (`exists: true`)"
                    .to_owned()
            }
        };
        Some(format!(
            "{} of {} is {}, {consequence}",
            code(&unusable.path),
            self.trajectory.called(unusable.call_idx),
            unusable.kind
        ))
    }

    fn text(&self) -> &EvaluationText {
        self.findings.text.get_or_init(|| Box::new(self.render()))
    }

    /// Renders the findings; empty if the text was fixed at construction.
    fn report(&self, with_rows: bool) -> Rendered {
        match (&self.findings.basis, &self.criterion) {
            (Some(basis), JudgedBy::Criterion(criterion)) => {
                let judgement = Judgement {
                    trajectory: &self.trajectory,
                    verdict: self.verdict,
                    explain: &basis.explain,
                    with_rows,
                };
                criterion.evaluate.report(&basis.evidence, &judgement)
            }
            _ => Rendered::default(),
        }
    }

    fn render(&self) -> EvaluationText {
        let Rendered {
            text,
            mut offending,
            details,
            ..
        } = self.report(false);
        offending.sort_unstable();
        offending.dedup();
        let basis = self.findings.basis.as_ref();
        let (mut explanation, offending) = match (self.verdict, &self.error) {
            (Verdict::Pass, _) => (text, Vec::new()),
            (Verdict::NotEvaluated, _) => {
                let reasons = basis.and_then(|basis| {
                    let missing = basis.missing.as_ref()?;
                    Some(uncertainty::reasons(
                        missing,
                        &self.trajectory,
                        &basis.explain,
                    ))
                });
                let reasons = reasons.unwrap_or_default();
                let explanation = format!("not evaluated: {reasons}. So far: {text}");
                (explanation, Vec::new())
            }
            (Verdict::Error, Some(error)) => {
                let faulty_call = basis.and_then(|basis| basis.faulty_call);
                (error.message.clone(), faulty_call.into_iter().collect())
            }
            (Verdict::Fail | Verdict::Error, _) => (text, offending),
        };
        let nowhere = match &self.criterion {
            JudgedBy::Criterion(criterion) => criterion.evaluate.nowhere(self.paths().nowhere),
            JudgedBy::Invalid(_) => Vec::new(),
        };
        for unmatched in self.unusable().into_iter().chain(nowhere) {
            explanation.push_str(&format!("; {unmatched}"));
        }
        EvaluationText {
            explanation,
            details,
            offending,
        }
    }
}

// === impl JudgedBy ===

impl JudgedBy {
    pub fn name(&self) -> &str {
        match self {
            Self::Criterion(criterion) => &criterion.name,
            Self::Invalid(invalid) => &invalid.name,
        }
    }

    /// Returns the evaluator's name; `unknown` if the name could not be parsed.
    pub fn evaluator(&self) -> &'static str {
        match self {
            Self::Criterion(criterion) => criterion.evaluate.name(),
            Self::Invalid(invalid) => invalid.evaluator,
        }
    }

    pub fn scope(&self) -> Scope {
        match self {
            Self::Criterion(criterion) => criterion.scope,
            Self::Invalid(invalid) => invalid.scope,
        }
    }

    /// Returns the severity of a fail; `None` if the criterion has none.
    pub fn severity(&self) -> Option<CriterionSeverity> {
        match self {
            Self::Criterion(criterion) => criterion.severity,
            Self::Invalid(invalid) => invalid.severity,
        }
    }

    /// Returns the lowest score that passes.
    pub fn threshold(&self) -> f64 {
        match self {
            Self::Criterion(criterion) => criterion.threshold,
            Self::Invalid(invalid) => invalid.threshold,
        }
    }

    pub fn revision(&self) -> &str {
        match self {
            Self::Criterion(criterion) => criterion.revision(),
            Self::Invalid(invalid) => invalid.revision(),
        }
    }
}

// === impl Findings, EvaluationText ===

impl From<Basis> for Findings {
    fn from(basis: Basis) -> Self {
        Self {
            basis: Some(basis),
            text: OnceLock::new(),
        }
    }
}

impl From<EvaluationText> for Findings {
    fn from(text: EvaluationText) -> Self {
        Self {
            basis: None,
            text: OnceLock::from(Box::new(text)),
        }
    }
}

impl From<String> for EvaluationText {
    /// Creates a text without details or offending calls.
    fn from(explanation: String) -> Self {
        Self {
            explanation,
            details: json!({}),
            offending: Vec::new(),
        }
    }
}
