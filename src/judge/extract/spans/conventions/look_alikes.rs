//! The conventions that differ mainly in keys and values: one attribute names the kind of span, and
//! each field of a call has its own key.

use std::borrow::Cow;

use otlp::span::{KeyBits, KeyId, Value};

use super::super::convention::{Convention, Kinds};
use super::super::keys;
use super::super::view::event_value;
use crate::extract::values::{Envelope, Raw};

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
        // The trace's agent is the root's agent; below the root each agent has its own name.
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

/// MLflow tracing: the value of the type is in quotes.
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

/// LangSmith's OpenTelemetry export: a failed tool has the status OK and an `exception` event with
/// the text of its result; agents have no span, only names.
///
/// - Result: `gen_ai.completion`, else `exception.message` of the event `exception`.
pub(super) const LANGSMITH: Convention = Convention {
    call: Some(|span| {
        let mut call = LANGSMITH_KINDS.call(span);
        let says_nothing = |raw: &Raw<'_>| matches!(raw.value, Value::Str("" | "{}" | "null"));
        if call.result.as_ref().is_none_or(says_nothing) {
            let mut events = span.events();
            let exception = events.find(|event| event.name == keys::EXCEPTION);
            let text = exception.and_then(|event| event_value(event, keys::EXCEPTION_MESSAGE));
            call.result = text.or(call.result);
        }
        call
    }),
    ..row("langsmith", keys::LANGSMITH_KIND, LANGSMITH_KINDS)
};

const LANGSMITH_KINDS: Kinds = Kinds {
    kind: Some(keys::LANGSMITH_KIND),
    tool: &["tool"],
    model: &["llm"],
    name: &[keys::GEN_AI_TOOL_NAME],
    poor_name_in_span: Some(whole_name),
    args: &[keys::GEN_AI_PROMPT],
    args_in: Envelope::InputStr,
    result: &[keys::GEN_AI_COMPLETION],
    ..Kinds::NONE
};

/// Genkit: tools, models and flows share the key of their name, so only the subtype distinguishes
/// them; a failed tool also fails all spans above it.
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

/// VoltAgent: a sub-agent's spans have its parent's name as well as its own. The only `llm` span
/// covers the whole run, so it marks no turns.
///
/// - Agent run: `span.type` is `agent`; or `entity.type` is `agent` and there is no `span.type`
///   (spans inside a run repeat the run's `entity.type`).
/// - Error: the span has `error.message`.
pub(super) const VOLTAGENT: Convention = Convention {
    marks: KeyBits::new(&[keys::SPAN_TYPE, keys::ENTITY_TYPE]),
    agent_run: Some(|span| {
        let is_root = !span.has(keys::SPAN_TYPE) && span.is(keys::ENTITY_TYPE, "agent");
        let name = || span.first_text(VOLTAGENT_KINDS.agent_name);
        (is_root || VOLTAGENT_KINDS.is(span, VOLTAGENT_KINDS.agent))
            .then(|| name().unwrap_or(Cow::Borrowed(span.name())))
    }),
    ..row("voltagent", keys::SPAN_TYPE, VOLTAGENT_KINDS)
};

const VOLTAGENT_KINDS: Kinds = Kinds {
    kind: Some(keys::SPAN_TYPE),
    tool: &["tool"],
    agent: &["agent"],
    name: &[keys::TOOL_NAME],
    poor_name_in_span: Some(|name| name.strip_prefix("tool.execution:")),
    call_id: &[keys::TOOL_CALL_ID],
    // `tool.parameters` contains the tool's schema, not the arguments.
    args: &[keys::PLAIN_INPUT],
    result: &[keys::PLAIN_OUTPUT, keys::ERROR_MESSAGE],
    failed: Some(|span| span.has(keys::ERROR_MESSAGE)),
    caller: &[keys::SUBAGENT_NAME, keys::ENTITY_NAME, keys::AGENT_NAME],
    agent_name: &[keys::SUBAGENT_NAME, keys::ENTITY_NAME, keys::AGENT_NAME],
    ..Kinds::NONE
};

/// Clients and servers of the Model Context Protocol: `tools/call` is a tool call, also in the
/// server's process. `jsonrpc.request.id` numbers the requests of a connection and is not a model's
/// call id.
pub(super) const MCP: Convention = Convention {
    written_by_many: true,
    ..row(
        "mcp",
        keys::MCP_METHOD,
        Kinds {
            tool: &["tools/call"],
            name: &[keys::GEN_AI_TOOL_NAME],
            // The SDK's own client span `MCP send tools/call X` has no attribute with the name.
            name_in_span: Some(|name| Some(name.rsplit_once("tools/call ")?.1)),
            ..Kinds::NONE
        },
    )
};

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
