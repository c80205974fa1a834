//! The certainty of a trajectory of a trace that was cut short: for each call, and for the
//! evaluated span. All false for a trace that is complete. Only types; `trace` sets them.

/// The changes that the rest of a trace cut short could make to a call, besides adding calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallUncertainty {
    /// True if it may turn out to be no call, the same call as another of the list, or a call of
    /// another name.
    pub may_go: bool,
    /// A call of the same name may lie around it, and then counts for both: that call began
    /// earlier, and has arguments and an end of its own.
    pub may_fold: bool,
    /// Calls of one line stay in their order; between lines the order may change.
    pub line: u32,
    /// True if its arguments may change.
    pub args: bool,
    /// True if its result may change.
    pub result: bool,
    /// The failure may change; for a call known from messages alone it is unknown, also in a
    /// complete trace.
    pub error: bool,
}

/// The changes that the rest of a trace cut short could make to the owner of the trajectory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TrajectoryUncertainty {
    /// Another span may turn out to be the evaluated one: another agent, other attributes.
    pub subject: bool,
    /// Another span may turn out to be the topmost one.
    pub root: bool,
    /// The evaluated span may turn out to be another service's.
    pub service: bool,
    /// Nothing about it is certain: for example, the agent run may turn out to be one that is not
    /// judged on its own.
    pub all: bool,
}
