//! The certainty of the trajectory of a trace that was cut short, for each call and for the
//! evaluated span. `trace` sets it. For a complete trace, only [`CallUncertainty::error`] has a
//! meaning.

/// The ways in which spans missing from a cut trace could change a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallUncertainty {
    /// True if the call may turn out to be no call, the same call as another in the list, or a call
    /// of another name.
    pub may_go: bool,
    /// True if a missing call of the same name may enclose this one. The two then count as one
    /// call, with the start, the arguments and the end of the outer call.
    pub may_fold: bool,
    /// The line of the call. Calls of one line never change their order; calls of different lines
    /// may.
    pub line: u32,
    /// True if the arguments may change.
    pub args: bool,
    /// True if a call that encloses this one may have other arguments.
    pub outer_args: bool,
    /// True if the result may change.
    pub result: bool,
    /// True if it may change whether the call failed. The outcome of a call known only from
    /// messages is unknown even in a complete trace.
    pub error: bool,
}

/// The ways in which spans missing from a cut trace could change the evaluated span.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrajectoryUncertainty {
    /// True if another span may turn out to be the evaluated span, with another agent and other
    /// attributes.
    pub subject: bool,
    /// True if another span may turn out to be the topmost span.
    pub root: bool,
    /// True if the evaluated span may turn out to belong to another service.
    pub service: bool,
    /// True if nothing is certain: for example, the agent run may turn out to be one that is not
    /// judged separately.
    pub all: bool,
}
