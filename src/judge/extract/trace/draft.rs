//! A tool call under construction, which the steps of `calls` complete one after the other.

use super::turns::Owner;
use crate::extract::spans::SpanIdx;
use crate::extract::tool_call::ToolCall;

/// The name of a call whose span names no tool.
pub(crate) const UNNAMED: &str = "(unnamed)";

/// The number of calls up to which comparing pairs is cheaper than building a table.
pub(crate) const A_FEW: usize = 16;

/// Maximum number of calls with the same id that are searched for another report of a call. Only a
/// sender that reuses ids has more.
pub(crate) const MAX_TWINS: usize = 8;

#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) call: ToolCall,
    pub(crate) span: SpanIdx,
    /// The owner of the call's turn.
    pub(crate) owner: Owner,
    /// The enclosing call.
    pub(crate) inside: Option<SpanIdx>,
    /// The number of the owner's turns that had started before the call.
    pub(crate) n_turns: usize,
    /// True if nothing names the tool reliably: the name is a placeholder, or comes from a span
    /// name that may be a class name. A better name replaces it.
    pub(crate) poorly_named: bool,
    /// True if the span itself decides whether the call failed, by an error or by the status OK.
    pub(crate) settled: bool,
    /// True if a span of the call has uncut, comparable arguments in a map; set only in a trace
    /// that was cut short. A span with other arguments then reports another call.
    pub(crate) has_clear_map: bool,
    /// The end of the last failed attempt within the call.
    pub(crate) failed_until: u64,
}
