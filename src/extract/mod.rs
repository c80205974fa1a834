//! Pure. A closed trace in, its trajectory out. Knows how tool calls are spelled; does not know
//! what is expected of them.

mod settings;
mod tool_call;

mod keys;

mod convention;
mod recognise;
mod slim;

mod claude_code;
mod gen_ai;
mod genkit;
mod haystack;
mod judgment;
mod langfuse;
mod langsmith;
mod llama_index;
mod log_calls;
mod log_messages;
mod mastra;
mod mcp;
mod mlflow;
mod openinference;
mod span_name;
mod tool_name;
mod traceloop;
mod vercel_ai;
mod voltagent;

mod messages;
mod payload;
mod python;
mod tree;

mod answers;
mod autogen;
mod brought;
mod calls;
mod doubts;
mod glob;
mod handoffs;
mod joins;
mod notes;
mod outline;
mod trajectory;
mod turns;
mod words;

#[cfg(test)]
mod tests;

use convention::Convention;

pub use answers::{Answer, Told, answers};
pub use brought::{Bringing, Brought, CASE_ID, CRITERIA, EXPECT, Said};
pub use glob::glob_matches;
pub use keys::keys;
pub use log_calls::log_call;
pub use notes::{Note, TakenFor, notes};
pub use recognise::{Recogniser, mark};
pub use settings::{Handoffs, HouseConvention, Tools};
pub use slim::slim;
pub use tool_call::{Doubt, Payload, ToolCall};
pub use trajectory::{AgentRun, Doubts, Subject, Trajectory, trajectory};

/// The conventions in the order in which they are asked; the first that recognises a tool call
/// names it. Marks of one product come before those that many share, since products copy the shared
/// ones onto their spans.
const CONVENTIONS: &[Convention] = &[
    log_calls::LOG_CALLS,
    claude_code::CLAUDE_CODE,
    langfuse::LANGFUSE,
    judgment::JUDGMENT,
    mlflow::MLFLOW,
    langsmith::LANGSMITH,
    genkit::GENKIT,
    vercel_ai::VERCEL_AI,
    voltagent::VOLTAGENT,
    mastra::MASTRA,
    traceloop::TRACELOOP,
    haystack::HAYSTACK,
    openinference::OPENINFERENCE,
    mcp::MCP,
    gen_ai::GEN_AI,
    tool_name::TOOL_NAME,
    span_name::SPAN_NAMES,
];
