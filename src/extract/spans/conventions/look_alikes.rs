//! Pure. The conventions that differ only in their words: one attribute names the kind of span, and
//! the parts of a call have keys of their own.

use super::super::convention::{Convention, Kinds};
use super::super::key_bits::KeyBits;
use super::super::keys;
use crate::extract::values::Envelope;
use crate::span::KeyId;

/// Langfuse's SDK.
pub(super) const LANGFUSE: Convention = row(
    "langfuse",
    keys::LANGFUSE_TYPE,
    Kinds {
        tool: &["tool"],
        agent: &["agent"],
        model: &["generation"],
        name_in_span: Some(whole_name),
        call_id: &[keys::LANGFUSE_CALL_ID],
        args: &[keys::LANGFUSE_INPUT],
        result: &[keys::LANGFUSE_OUTPUT],
        // The trace's agent is the root's: below it each agent has its own name.
        agent_name: &[keys::LANGFUSE_AGENT, keys::LANGFUSE_TRACE_AGENT],
        ..Kinds::NONE
    },
);

/// judgeval: exports every span twice, first when it starts.
pub(super) const JUDGMENT: Convention = row(
    "judgment",
    keys::JUDGMENT_KIND,
    Kinds {
        tool: &["tool"],
        agent: &["agent"],
        model: &["llm"],
        name_in_span: Some(whole_name),
        args: &[keys::JUDGMENT_INPUT],
        result: &[keys::JUDGMENT_OUTPUT],
        ..Kinds::NONE
    },
);

/// MLflow tracing: the type is a quoted word.
pub(super) const MLFLOW: Convention = row(
    "mlflow",
    keys::MLFLOW_TYPE,
    Kinds {
        tool: &["TOOL"],
        agent: &["AGENT"],
        model: &["LLM", "CHAT_MODEL"],
        name_in_span: Some(whole_name),
        args: &[keys::MLFLOW_INPUT],
        result: &[keys::MLFLOW_OUTPUT],
        ..Kinds::NONE
    },
);

/// LangSmith's OpenTelemetry export: a failed tool has the status OK and an `exception` event;
/// agents have no span, only names.
pub(super) const LANGSMITH: Convention = row(
    "langsmith",
    keys::LANGSMITH_KIND,
    Kinds {
        tool: &["tool"],
        model: &["llm"],
        name: &[keys::GEN_AI_TOOL_NAME],
        poor_name_in_span: Some(whole_name),
        args: &[keys::GEN_AI_PROMPT],
        args_in: Envelope::InputStr,
        result: &[keys::GEN_AI_COMPLETION],
        ..Kinds::NONE
    },
);

/// Genkit: tools, models and flows share the key of their name, so that only the subtype
/// distinguishes them; a failed tool fails all spans above it too.
///
/// - Error: `genkit:state` is `error`.
pub(super) const GENKIT: Convention = row(
    "genkit",
    keys::GENKIT_SUBTYPE,
    Kinds {
        tool: &["tool"],
        agent: &["flow"],
        model: &["model"],
        name: &[keys::GENKIT_NAME],
        poor_name_in_span: Some(whole_name),
        args: &[keys::GENKIT_INPUT],
        result: &[keys::GENKIT_OUTPUT],
        failed: Some(|span| span.is(keys::GENKIT_STATE, "error")),
        agent_name: &[keys::GENKIT_NAME],
        ..Kinds::NONE
    },
);

/// VoltAgent: a sub-agent's spans carry its parent's name beside its own. Its one `llm` span covers
/// the whole run, so that it makes no turns.
///
/// - Error: `error.message` is there.
pub(super) const VOLTAGENT: Convention = row(
    "voltagent",
    keys::SPAN_TYPE,
    Kinds {
        tool: &["tool"],
        agent: &["agent"],
        name: &[keys::TOOL_NAME],
        poor_name_in_span: Some(|name| name.strip_prefix("tool.execution:")),
        call_id: &[keys::TOOL_CALL_ID],
        // `tool.parameters` is the schema.
        args: &[keys::PLAIN_INPUT],
        result: &[keys::PLAIN_OUTPUT],
        failed: Some(|span| span.has(keys::ERROR_MESSAGE)),
        caller: &[keys::SUBAGENT_NAME, keys::ENTITY_NAME, keys::AGENT_NAME],
        agent_name: &[keys::SUBAGENT_NAME, keys::ENTITY_NAME, keys::AGENT_NAME],
        ..Kinds::NONE
    },
);

/// The Model Context Protocol's clients and servers: `tools/call` is a tool call, also in the
/// server's process. `jsonrpc.request.id` numbers the requests of a connection and is no call id of
/// a model.
pub(super) const MCP: Convention = row(
    "mcp",
    keys::MCP_METHOD,
    Kinds {
        tool: &["tools/call"],
        name: &[keys::GEN_AI_TOOL_NAME],
        // The SDK's own client span `MCP send tools/call X` has no attribute with the name.
        name_in_span: Some(|name| Some(name.rsplit_once("tools/call ")?.1)),
        ..Kinds::NONE
    },
);

const fn row(name: &'static str, kind: KeyId, kinds: Kinds) -> Convention {
    Convention {
        name,
        marks: KeyBits::new(&[kind]),
        kinds: Kinds {
            kind: Some(kind),
            ..kinds
        },
        ..Convention::NONE
    }
}

fn whole_name(span_name: &str) -> Option<&str> {
    Some(span_name)
}
