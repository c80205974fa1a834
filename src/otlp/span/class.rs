//! The class of a span: `extract` assigns it on arrival, and assembly stores it with the span.

/// The class of a span. Assembly uses the class to recognise a top span; extraction uses it to read
/// the span's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanClass {
    /// True for a tool call by any convention, spans of MCP servers included.
    pub tool_call: bool,
    /// True for an agent run.
    pub agent_run: bool,
    /// True for a model call.
    pub model: bool,
    /// True if the framework marks the span as unfinished (`judgment.update_id=0`, with an end
    /// equal to the start).
    pub partial: bool,
    /// The framework's update counter; 0 if there is none. If two versions have the same end, the
    /// version with the higher counter wins.
    pub update: u32,
    /// The conventions that recognised the span.
    pub recognition: Recognition,
}

impl SpanClass {
    /// Returns true for an agent run or a model call.
    pub fn is_agent_work(&self) -> bool {
        self.agent_run || self.model
    }
}

/// The conventions that recognised a span, as numbers that only `extract` interprets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recognition {
    /// The version of the recogniser, which changes with the recogniser's settings; 0 for a log
    /// record, or if the version counter has overflowed. A span with another version is recognised
    /// again, and may lack attributes.
    pub recogniser_version: u8,
    /// The convention of a tool call; 0 if none.
    pub call: u16,
    /// The convention of an agent run; 0 if none.
    pub agent: u16,
    /// The convention of a model call; 0 if none.
    pub model: u16,
}
