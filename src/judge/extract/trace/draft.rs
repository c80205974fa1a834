//! A tool call on its way into the trajectory: what the steps of `calls` pass on to each
//! other.

use super::turns::Owner;
use crate::extract::spans::SpanIdx;
use crate::extract::tool_call::ToolCall;

/// The name of a call whose span names no tool.
pub(crate) const UNNAMED: &str = "(unnamed)";

/// Up to this many calls are compared pair by pair: building a table would cost more.
pub(crate) const A_FEW: usize = 16;

/// Most calls of one id that are searched for another report of a call: only a sender that repeats
/// its ids makes more.
pub(crate) const MAX_TWINS: usize = 8;

/// A call that is not complete yet.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) call: ToolCall,
    pub(crate) span: SpanIdx,
    /// Whose turn it belongs to.
    pub(crate) owner: Owner,
    /// The call that it was made in.
    pub(crate) inside: Option<SpanIdx>,
    /// Number of its owner's turns that had started before it.
    pub(crate) n_turns: usize,
    /// The name says little (a class): a better one replaces it.
    pub(crate) poorly_named: bool,
    /// The own span decides whether it failed, by an error or by the status OK.
    pub(crate) settled: bool,
    /// End of the last failed attempt within it.
    pub(crate) failed_until: u64,
}
