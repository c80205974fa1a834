//! How far a trajectory of a trace that was cut short can be trusted: for each call, and for
//! the evaluated span. All false for a trace that is complete. Only types; `trace` sets them.

/// How the rest of a trace cut short could change a call, besides adding calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallUncertainty {
    /// It may turn out to be no call, the same call as another of the list, or a call of another
    /// name.
    pub may_go: bool,
    /// A call of the same name may lie around it, and then counts for both: that call began
    /// earlier, and has arguments and an end of its own.
    pub may_fold: bool,
    /// Calls of one line stay in their order; between lines the order may change.
    pub line: u32,
    /// Its arguments may change.
    pub args: bool,
    /// Its result may change.
    pub result: bool,
    /// Whether it failed may change; for a call that is known from messages alone, nothing says it,
    /// also in a complete trace.
    pub error: bool,
}

/// How the rest of a trace cut short could change the owner of the trajectory.
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
