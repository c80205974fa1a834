//! Judges trajectories: criteria state expectations, evaluators score them. This module does not
//! depend on how a tool call was recorded, where a criterion was written, or who reads the scores.
//!
//! The layers, from the bottom up; imports only point down: `comparison` (calls against
//! expectations), `parameters` (how expectations are written), `rules` (judges rules over calls),
//! `evaluators` (one file each), `criterion`, `judge`.

mod comparison;
mod parameters;

mod rules;

mod evaluators;

mod criterion;

mod judge;

pub use comparison::lcs;
pub(crate) use comparison::order::{Concurrency, Intervals};
pub use comparison::rows::{AlignmentRow, RowKind};
pub use comparison::score::{EvaluationError, Explain, Verdict};
pub use comparison::value_path::{PathValues, ValuePath};
pub use criterion::{
    Alarm, Criterion, CriterionSeverity, EXAMPLE, EXPECTED, Expectation, Glob, InvalidCriterion,
    Paired, Scope, Selector, Unfit, WrittenCriterion, pair,
};
pub use evaluators::{Evaluator, ExpectedTool, WrittenEvaluator, evaluator_named};
pub use judge::{
    Coverage, CriterionCoverage, Evaluation, EvaluationText, Expectations, Findings, FromSpans,
    JudgedBy, Previous, SearchBudget, SpanExpectations, Stage, judge, judge_run, judge_within,
    no_longer_expected, searched_size, withdraw, withdraw_alarm,
};
pub use parameters::field_aliases::is_misspelling_of;
pub use parameters::names::Names;
pub use parameters::pattern::{FieldError, PatternCompiler, PatternLimits};
pub use parameters::rule::RULE_TEMPLATES;
pub(crate) use rules::effort::effort;
