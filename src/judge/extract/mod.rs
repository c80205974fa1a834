//! Turns a closed trace into its trajectory. Knows how tool calls are spelled; knows nothing
//! of what is expected of them.
//!
//! The room has floors; a file imports only files of its own floor and of floors below, and no two
//! files import each other. From the ground up:
//!
//! 1. `settings`, `glob`, `uncertainty`, `tool_call`, `model_use`: types that every floor uses
//! 2. `values`: arguments, results and messages as JSON; knows no span
//! 3. `spans`: what a single span says; its folder `conventions` alone knows frameworks by name
//! 4. `trace`: roles, turns and calls, derived from all spans of a trace
//! 5. `trajectory`: the result

mod glob;
mod model_use;
mod settings;
mod tool_call;
mod uncertainty;

mod values;

mod spans;

mod trace;

mod trajectory;

#[cfg(test)]
mod tests;

pub use glob::glob_matches;
pub use model_use::{ModelUse, Tokens};
pub use settings::{CustomConvention, Handoffs, SpanKind, Tools};
pub use spans::expectation_keys::{CASE_ID, CRITERIA, EXPECT, SpanExpectationPolicy};
pub use spans::kept_keys::kept_keys;
pub use spans::log_records::{PlacedRecord, place, trace_of_record};
pub use spans::recognise::Recogniser;
pub use tool_call::{CallPart, CapturedParts, Payload, ToolCall};
pub use trace::capture::set_captured;
pub use trace::cross_trace_results::{CrossTraceResult, cross_trace_results};
pub use trace::expectation_attributes::{ExpectationAttributes, StatedValue};
pub use trace::half_arrived::{HalfArrived, MissingHalf, half_arrived};
pub use trace::span_report::{SpanReport, SpanRole, span_reports};
pub use trace::unrecognised::{Unrecognised, unrecognised};
pub use trajectory::{AgentRun, Subject, Trajectory, trajectory};
pub use uncertainty::{CallUncertainty, TrajectoryUncertainty};
pub(crate) use values::equality;
