//! The class of a span, which `extract` finds when the span arrives and assembly keeps with it.

/// The class of a span: assembly needs it to recognise a top span, judgement to read the span
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanClass {
    /// A tool call by any convention (also an MCP server's span).
    pub tool_call: bool,
    /// An agent run.
    pub agent_run: bool,
    /// A model call.
    pub model: bool,
    /// The framework marks it as exported before its end (`judgment.update_id=0` with end = start).
    pub partial: bool,
    /// The framework's update counter, 0 if there is none: of two versions with the same end the
    /// higher one wins.
    pub update: u32,
    /// The conventions that recognised it.
    pub recognition: Recognition,
}

/// The conventions that recognised a span, as numbers that only `extract` can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recognition {
    /// The version of the recogniser, which changes with its settings; 0 if nothing is noted. A
    /// span with another version is recognised again, and may lack attributes.
    pub recogniser_version: u8,
    /// The convention of a tool call, 0 for none.
    pub call: u8,
    /// The convention of an agent run, 0 for none.
    pub agent: u8,
    /// The convention of a model call, 0 for none.
    pub model: u8,
}
