//! Pure. The attributes and events that the stages read, as one visible table: what the scan keeps
//! of a span. The built-in keys have constant ids, by position; configured names follow. Knows how
//! keys are spelled; not what they mean.

use crate::span::{Keep, KeyId, KeyRule, KeySet, WantedBody};

use super::Tools;

/// Declares the table once: a constant per row, its id being its position, and the rows themselves.
macro_rules! keys {
    ($($(#[doc = $section:literal])* $name:ident = $key:literal $keep:ident,)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "one name for the row and for its constant")]
        enum Row { $($name),* }

        $($(#[doc = $section])* pub(super) const $name: KeyId = KeyId(Row::$name as u16);)*

        const RULES: &[KeyRule] = &[$(KeyRule { key: $key, keep: Keep::$keep }),*];
    };
}

keys! {
    // Marks: what a span says it is. They come first, since their presence is a bit of one word
    // (`present`).
    OPERATION = "gen_ai.operation.name" Value,
    OI_KIND = "openinference.span.kind" Value,
    TRACELOOP_KIND = "traceloop.span.kind" Value,
    LANGFUSE_TYPE = "langfuse.observation.type" Value,
    LANGSMITH_KIND = "langsmith.span.kind" Value,
    JUDGMENT_KIND = "judgment.span_kind" Value,
    MLFLOW_TYPE = "mlflow.spanType" Value,
    GENKIT_SUBTYPE = "genkit:metadata:subtype" Value,
    GENKIT_TYPE = "genkit:type" Value,
    AI_OPERATION = "ai.operationId" Value,
    MASTRA_TYPE = "mastra.span.type" Value,
    MCP_METHOD = "mcp.method.name" Value,
    VOLTAGENT_TYPE = "span.type" Value,
    UIPATH_TYPE = "span_type" Value,
    TOOL_NAME = "tool.name" Value,
    GEN_AI_TOOL_NAME = "gen_ai.tool.name" Value,
    AGENT_NAME = "agent.name" Value,
    SYNTHESIZED = "tool.synthesized" Value,
    AI_PROMPT_TOOLS = "ai.prompt.tools" Presence,
    SMOLAGENTS_STEPS = "smolagents.max_steps" Presence,
    LOG_TRACE_ID = "spanscore.log.trace_id" Own,

    // Names of tools.
    AI_TOOL_NAME = "ai.toolCall.name" Value,
    GENKIT_NAME = "genkit:name" Value,
    TRACELOOP_ENTITY = "traceloop.entity.name" Value,
    FUNCTION_NAME = "tool_name" Value,
    GEMINI_NAME = "function_name" Value,

    // Call ids.
    GEN_AI_CALL_ID = "gen_ai.tool.call.id" Value,
    GEN_AI_CALL_ID_GEMINI = "gen_ai.tool.call_id" Value,
    OI_CALL_ID = "tool_call.id" Value,
    TOOL_ID = "tool.id" Value,
    TOOL_CALL_ID = "tool.call.id" Value,
    TOOL_CALL_ID_FLAT = "tool.call_id" Value,
    AI_CALL_ID = "ai.toolCall.id" Value,
    LANGFUSE_CALL_ID = "langfuse.observation.metadata.tool_call_id" Value,
    TOOL_USE_ID = "tool_use_id" Value,
    CODEX_CALL_ID = "call_id" Value,

    // Arguments.
    GEN_AI_ARGS = "gen_ai.tool.call.arguments" Value,
    INPUT_VALUE = "input.value" Value,
    TRACELOOP_INPUT = "traceloop.entity.input" Value,
    LANGFUSE_INPUT = "langfuse.observation.input" Value,
    JUDGMENT_INPUT = "judgment.input" Value,
    MLFLOW_INPUT = "mlflow.spanInputs" Value,
    GENKIT_INPUT = "genkit:input" Value,
    VOLTAGENT_INPUT = "input" Value,
    AI_ARGS = "ai.toolCall.args" Value,
    ADK_ARGS = "gcp.vertex.agent.tool_call_args" Value,
    TOOL_ARGS = "tool.args" Value,
    TOOL_ARGUMENTS = "tool.arguments" Value,
    TOOL_INPUT = "tool.input" Value,
    PYDANTIC_ARGS = "tool_arguments" Value,
    CLAUDE_ARGS = "tool_parameters" Value,
    CLAUDE_INPUT = "tool_input" Value,
    CODEX_ARGS = "arguments" Value,
    GEMINI_ARGS = "function_args" Value,
    GEN_AI_PROMPT = "gen_ai.prompt" Value,

    // Results.
    GEN_AI_RESULT = "gen_ai.tool.call.result" Value,
    OUTPUT_VALUE = "output.value" Value,
    TRACELOOP_OUTPUT = "traceloop.entity.output" Value,
    LANGFUSE_OUTPUT = "langfuse.observation.output" Value,
    JUDGMENT_OUTPUT = "judgment.output" Value,
    MLFLOW_OUTPUT = "mlflow.spanOutputs" Value,
    GENKIT_OUTPUT = "genkit:output" Value,
    VOLTAGENT_OUTPUT = "output" Value,
    AI_RESULT = "ai.toolCall.result" Value,
    ADK_RESULT = "gcp.vertex.agent.tool_response" Value,
    TOOL_RESULT = "tool.result" Value,
    TOOL_OUTPUT = "tool.output" Value,
    PYDANTIC_RESULT = "tool_response" Value,
    GEN_AI_COMPLETION = "gen_ai.completion" Value,

    // How they are written.
    ADK_EVENT = "gcp.vertex.agent.event_id" Presence,
    INPUT_MIME = "input.mime_type" Value,
    OUTPUT_MIME = "output.mime_type" Value,

    // Errors.
    ERROR_TYPE = "error.type" Value,
    TOOL_STATUS = "gen_ai.tool.status" Value,
    TASK_STATUS = "gen_ai.task.status" Value,
    LANGFUSE_LEVEL = "langfuse.observation.level" Value,
    GENKIT_STATE = "genkit:state" Value,
    TOOL_SUCCESS = "tool.success" Value,
    ERROR_MESSAGE = "error.message" Value,

    // Agents.
    GEN_AI_AGENT = "gen_ai.agent.name" Value,
    GEN_AI_AGENT_ID = "gen_ai.agent.id" Value,
    PYDANTIC_AGENT = "agent_name" Value,
    GRAPH_NODE = "graph.node.id" Value,
    AI_FUNCTION = "ai.telemetry.functionId" Value,
    LANGFUSE_AGENT = "langfuse.observation.metadata.lc_agent_name" Value,
    LANGFUSE_TRACE_AGENT = "langfuse.trace.metadata.lc_agent_name" Value,
    LANGSMITH_AGENT = "langsmith.metadata.lc_agent_name" Value,
    TRACELOOP_AGENT = "traceloop.association.properties.lc_agent_name" Value,
    TRACELOOP_WORKFLOW = "traceloop.workflow.name" Value,
    SUBAGENT_NAME = "subagent.name" Value,
    ENTITY_NAME = "entity.name" Value,
    METADATA = "metadata" Value,

    // Graph nodes.
    LANGFUSE_NODE = "langfuse.observation.metadata.langgraph_node" Value,
    LANGFUSE_STEP = "langfuse.observation.metadata.langgraph_step" Value,
    LANGSMITH_NODE = "langsmith.metadata.langgraph_node" Value,
    LANGSMITH_STEP = "langsmith.metadata.langgraph_step" Value,
    TRACELOOP_NODE = "traceloop.association.properties.langgraph_node" Value,
    TRACELOOP_STEP = "traceloop.association.properties.langgraph_step" Value,

    // Sessions.
    CONVERSATION_ID = "gen_ai.conversation.id" Value,
    SESSION_ID = "session.id" Value,
    JUDGMENT_SESSION = "judgment.session_id" Value,
    TRACELOOP_SESSION = "traceloop.association.properties.session_id" Value,
    TRACELOOP_THREAD = "traceloop.association.properties.thread_id" Value,
    LANGSMITH_SESSION = "langsmith.metadata.session_id" Value,
    LANGSMITH_THREAD = "langsmith.metadata.thread_id" Value,
    PLAIN_CONVERSATION_ID = "conversation.id" Value,
    ADK_SESSION = "gcp.vertex.agent.session_id" Value,
    LANGFUSE_SESSION = "langfuse.session.id" Value,
    AI_SESSION_METADATA = "ai.telemetry.metadata.sessionId" Value,
    AI_SESSION_CONTEXT = "ai.settings.context.sessionId" Value,
    MASTRA_SESSION = "mastra.metadata.sessionId" Value,

    // Messages of models.
    OUTPUT_MESSAGES = "gen_ai.output.messages" Messages,
    AI_TOOL_CALLS = "ai.response.toolCalls" Messages,
    ADK_RESPONSE = "gcp.vertex.agent.llm_response" Messages,
    OI_OUTPUT_MESSAGES = "llm.output_messages.*tool_call*" Messages,
    COMPLETION_CALLS = "gen_ai.completion.*tool_calls*" Messages,
    LOG_BODY = "spanscore.log.body" Own,
    INPUT_MESSAGES = "gen_ai.input.messages" Messages,
    OI_INPUT_MESSAGES = "llm.input_messages." Value,

    // Events, and what they carry.
    EXCEPTION = "exception" Presence,
    TOOL_MESSAGE = "gen_ai.tool.message" Presence,
    CHOICE = "gen_ai.choice" Presence,
    CONTENT = "content" Value,
    MESSAGE = "message" Value,

    // Log records that report tool calls.
    PROMPT_ID = "prompt.id" Value,
    PROMPT_ID_FLAT = "prompt_id" Value,
    SEQUENCE = "event.sequence" Value,
    DURATION_MS = "duration_ms" Value,
    SUCCESS = "success" Value,

    // Updates of one span.
    JUDGMENT_UPDATE = "judgment.update_id" Value,
}

/// What the scan must keep, and how much of it: the built-in keys, then those that the settings
/// name, then `extra` (what selectors read and scores copy). With `previous` every key of that set
/// keeps its id, so that spans taken under it can still be read.
pub fn keys<'a>(
    tools: &Tools,
    extra: impl IntoIterator<Item = &'a str>,
    previous: Option<&KeySet>,
) -> KeySet {
    let mut keys = previous.cloned().unwrap_or_else(|| KeySet::new(RULES));
    for name in tools.attributes() {
        keys.add(name, Keep::Value);
    }
    for name in extra {
        keys.add(name, Keep::Value);
    }
    let reports = super::log_calls::EVENTS
        .iter()
        .map(|&event| (event, WantedBody::Not));
    keys.want_records(
        reports
            .chain(super::log_messages::EVENTS.iter().copied())
            .collect(),
    );
    keys.max_value_size = tools.max_value_size;
    keys.max_messages_size = tools.max_messages_size;
    keys
}

/// A bit for each of the first 64 keys of the table.
pub(super) type Bits = u64;

/// The bit of a key that is a mark.
pub(super) const fn bit(key: KeyId) -> Bits {
    if key.0 < 64 { 1 << key.0 } else { 0 }
}

/// Marks that give a span a kind, in whatever convention.
pub(super) const KINDS: Bits = bit(OPERATION)
    | bit(OI_KIND)
    | bit(TRACELOOP_KIND)
    | bit(LANGFUSE_TYPE)
    | bit(LANGSMITH_KIND)
    | bit(JUDGMENT_KIND)
    | bit(MLFLOW_TYPE)
    | bit(GENKIT_SUBTYPE)
    | bit(GENKIT_TYPE)
    | bit(AI_OPERATION)
    | bit(MASTRA_TYPE)
    | bit(MCP_METHOD)
    | bit(VOLTAGENT_TYPE)
    | bit(UIPATH_TYPE);

/// How many keys are built in.
pub(super) const N_BUILT_IN: usize = RULES.len();

/// Long values that only a tool call's, an agent's or a model's span needs.
pub(super) fn is_payload(key: KeyId) -> bool {
    (GEN_AI_ARGS.0..=GEN_AI_COMPLETION.0).contains(&key.0)
        || is_message(key)
        || matches!(key, CONTENT | MESSAGE)
}

/// Results of calls, and outputs of runs and models.
pub(super) fn is_result(key: KeyId) -> bool {
    (GEN_AI_RESULT.0..=GEN_AI_COMPLETION.0).contains(&key.0)
}

/// Messages of models.
pub(super) fn is_message(key: KeyId) -> bool {
    (OUTPUT_MESSAGES.0..=OI_INPUT_MESSAGES.0).contains(&key.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_the_id_of_its_position() {
        let keys = KeySet::new(RULES);
        assert_eq!(keys.len(), RULES.len(), "a key stands twice in the table");
        assert_eq!(keys.id("gen_ai.operation.name"), Some(OPERATION));
        assert_eq!(keys.id(crate::span::LogCall::TRACE_ID), Some(LOG_TRACE_ID));
        assert_eq!(keys.id(crate::span::LogCall::BODY), Some(LOG_BODY));
        assert_eq!(keys.id("judgment.update_id"), Some(JUDGMENT_UPDATE));
        assert_eq!(usize::from(JUDGMENT_UPDATE.0) + 1, N_BUILT_IN);
        const { assert!(LOG_TRACE_ID.0 < 64, "marks are the first 64 keys") };
    }

    #[test]
    fn configured_names_follow_and_a_wider_set_keeps_the_ids() {
        let tools = Tools {
            name_attributes: vec!["tool.name".into(), "acme.tool".into()],
            ..Tools::default()
        };
        let first = keys(&tools, ["env"], None);
        let second = keys(&Tools::default(), ["deployment"], Some(&first));
        assert_eq!(first.id("tool.name"), Some(TOOL_NAME));
        assert_eq!(first.id("acme.tool"), second.id("acme.tool"));
        assert_eq!(second.len(), first.len() + 1);
    }

    #[test]
    fn a_star_within_a_key_asks_for_what_follows_it() {
        let keys = KeySet::new(RULES);
        let found = keys
            .find(b"llm.output_messages.0.message.tool_calls.1.tool_call.id")
            .unwrap();
        assert_eq!(
            (found.key, found.suffix),
            (
                OI_OUTPUT_MESSAGES,
                b"0.message.tool_calls.1.tool_call.id".as_slice()
            )
        );
        assert!(
            keys.find(b"llm.output_messages.0.message.content")
                .is_none()
        );
    }
}
