//! Pure. A trajectory and criteria in, evaluations out. Knows what is expected; does not know how a tool call was spelled,
//! where a criterion was written, or who reads the scores.

mod criterion;
mod lcs;
mod score;
mod tool_call_order;

pub use criterion::{Criterion, Scope};
pub use score::{Evaluation, EvaluationError, Explain, Verdict};
