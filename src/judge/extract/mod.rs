//! Turns a closed trace into its trajectory. Depends on how frameworks record tool calls, but not
//! on criteria.
//!
//! The folder has layers; a file imports only files of its own layer and of layers below, and no
//! two files import each other. From the bottom up:
//!
//! 1. `settings`, `glob`, `uncertainty`, `tool_call`, `model_use`: helpers of the other layers
//! 2. `values`: arguments, results and messages as JSON, independent of spans
//! 3. `spans`: the interpretation of a single span; only `conventions` and `keys` name frameworks
//! 4. `trace`: roles, turns and calls, derived from all spans of a trace
//! 5. `trajectory`, `session`: the result

mod glob;
mod model_use;
mod settings;
mod tool_call;
mod uncertainty;

mod values;

mod spans;

mod trace;

mod trajectory;

mod session;

#[cfg(test)]
mod tests;

pub use glob::glob_matches;
pub use model_use::{ModelUse, Tokens};
pub use settings::{CustomConvention, Handoffs, SpanKind, Tools};
pub use spans::expectation_keys::{CASE_ID, CRITERIA, EXPECT, SpanExpectationPolicy};
pub use spans::recognise::Recogniser;
pub use spans::stored_keys::stored_keys;
pub use spans::watch::AlarmWatch;
pub use tool_call::{CallPart, CapturedParts, Payload, ToolCall};
pub use trace::capture::set_captured;
pub use trace::cross_trace_results::{CrossTraceResult, cross_trace_results};
pub use trace::expectation_attributes::{ExpectationAttributes, StatedValue};
pub use trace::half_arrived::{HalfArrived, MissingHalf, half_arrived};
pub use trace::span_report::{SpanReport, SpanRole, span_reports};
pub use trace::unrecognised::{Unrecognised, unrecognised};
pub use trajectory::{AgentRun, SessionTurns, Subject, Trajectory, trajectory};
pub use uncertainty::{CallUncertainty, TrajectoryUncertainty};
pub(crate) use values::equality;
