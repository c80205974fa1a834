//! The table of the attributes and events that extraction reads. The scan stores them, and the
//! attributes that settings and criteria name.

use otlp::span::{KeyBits, KeyId, KeyRule, Retention};

/// The purpose of a key's value. It decides which keys identify a span's kind, and which values are
/// pruned from spans that do not need them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Names the kind of span, in some convention.
    Kind,
    /// Lets a convention recognise a span, without giving it a kind.
    Mark,
    /// The arguments of a call, or the input of a run or model: a long value that is usually read
    /// only from calls.
    Args,
    /// The result of a call, or the output of a run or model: a long value.
    Result,
    /// The messages of a model: a long value.
    Message,
    /// Another long value: an attribute of an event or of a runtime's message.
    Payload,
    /// A number of tokens of a model call, or the id of its response.
    Usage,
    /// A short value that is stored for every span.
    Field,
}

/// Declares the table. A row consists of a constant (its id is the row's position), the key, the
/// form in which the scan stores the value, and the value's class.
macro_rules! keys {
    ($($(#[doc = $section:literal])* $name:ident = $key:literal $rule:ident $class:ident,)*) => {
        #[expect(
            non_camel_case_types,
            clippy::upper_case_acronyms,
            reason = "one name for the row and for its constant"
        )]
        enum Row { $($name),* }

        $($(#[doc = $section])* pub(crate) const $name: KeyId = KeyId(Row::$name as u16);)*

        pub(super) const RULES: &[KeyRule] =
            &[$(KeyRule { key: $key, rule: Retention::$rule }),*];

        const CLASSES: &[(KeyId, Class)] = &[$(($name, Class::$class)),*];
    };
}

keys! {
    // Keys that state the kind of a span, or help to recognise it.
    OPERATION = "gen_ai.operation.name" Value Kind,
    OI_KIND = "openinference.span.kind" Value Kind,
    TRACELOOP_KIND = "traceloop.span.kind" Value Kind,
    LANGFUSE_TYPE = "langfuse.observation.type" Value Kind,
    LANGSMITH_KIND = "langsmith.span.kind" Value Kind,
    JUDGMENT_KIND = "judgment.span_kind" Value Kind,
    MLFLOW_TYPE = "mlflow.spanType" Value Kind,
    GENKIT_SUBTYPE = "genkit:metadata:subtype" Value Kind,
    GENKIT_TYPE = "genkit:type" Value Kind,
    AI_OPERATION = "ai.operationId" Value Kind,
    MASTRA_TYPE = "mastra.span.type" Value Kind,
    MCP_METHOD = "mcp.method.name" Value Kind,
    SPAN_TYPE = "span.type" Value Kind,
    SPAN_TYPE_FLAT = "span_type" Value Kind,
    ENTITY_TYPE = "entity.type" Value Mark,
    TOOL_NAME = "tool.name" Value Mark,
    GEN_AI_TOOL_NAME = "gen_ai.tool.name" Value Mark,
    AGENT_NAME = "agent.name" Value Mark,
    LOGFIRE_TEMPLATE = "logfire.msg_template" Value Mark,
    SYNTHESIZED = "tool.synthesized" Value Field,
    AI_PROMPT_TOOLS = "ai.prompt.tools" Presence Field,
    SMOLAGENTS_STEPS = "smolagents.max_steps" Presence Field,

    // Names of tools.
    AI_TOOL_NAME = "ai.toolCall.name" Value Field,
    GENKIT_NAME = "genkit:name" Value Field,
    TRACELOOP_ENTITY = "traceloop.entity.name" Value Field,
    PLAIN_TOOL_NAME = "tool_name" Value Field,
    PLAIN_FUNCTION_NAME = "function_name" Value Field,
    PLAIN_NAME = "name" Value Field,
    LOGFIRE_MESSAGE = "logfire.msg" Value Field,

    // Call ids.
    GEN_AI_CALL_ID = "gen_ai.tool.call.id" Value Field,
    GEN_AI_CALL_ID_FLAT = "gen_ai.tool.call_id" Value Field,
    OI_CALL_ID = "tool_call.id" Value Field,
    TOOL_ID = "tool.id" Value Field,
    TOOL_CALL_ID = "tool.call.id" Value Field,
    TOOL_CALL_ID_FLAT = "tool.call_id" Value Field,
    AI_CALL_ID = "ai.toolCall.id" Value Field,
    LANGFUSE_CALL_ID = "langfuse.observation.metadata.tool_call_id" Value Field,
    TOOL_USE_ID = "tool_use_id" Value Field,
    PLAIN_CALL_ID = "call_id" Value Field,

    // Arguments.
    GEN_AI_ARGS = "gen_ai.tool.call.arguments" Value Args,
    INPUT_VALUE = "input.value" Value Args,
    TRACELOOP_INPUT = "traceloop.entity.input" Value Args,
    LANGFUSE_INPUT = "langfuse.observation.input" Value Args,
    JUDGMENT_INPUT = "judgment.input" Value Args,
    MLFLOW_INPUT = "mlflow.spanInputs" Value Args,
    GENKIT_INPUT = "genkit:input" Value Args,
    PLAIN_INPUT = "input" Value Args,
    AI_ARGS = "ai.toolCall.args" Value Args,
    ADK_ARGS = "gcp.vertex.agent.tool_call_args" Value Args,
    TOOL_ARGS = "tool.args" Value Args,
    TOOL_ARGUMENTS = "tool.arguments" Value Args,
    TOOL_INPUT = "tool.input" Value Args,
    PLAIN_TOOL_ARGUMENTS = "tool_arguments" Value Args,
    TOOL_PARAMETERS = "tool_parameters" Value Args,
    PLAIN_TOOL_INPUT = "tool_input" Value Args,
    PLAIN_ARGUMENTS = "arguments" Value Args,
    PLAIN_FUNCTION_ARGS = "function_args" Value Args,
    GEN_AI_PROMPT = "gen_ai.prompt" Value Args,

    // Results.
    GEN_AI_RESULT = "gen_ai.tool.call.result" Value Result,
    OUTPUT_VALUE = "output.value" Output Result,
    TRACELOOP_OUTPUT = "traceloop.entity.output" Output Result,
    LANGFUSE_OUTPUT = "langfuse.observation.output" Output Result,
    JUDGMENT_OUTPUT = "judgment.output" Output Result,
    MLFLOW_OUTPUT = "mlflow.spanOutputs" Output Result,
    GENKIT_OUTPUT = "genkit:output" Output Result,
    PLAIN_OUTPUT = "output" Value Result,
    AI_RESULT = "ai.toolCall.result" Value Result,
    ADK_RESULT = "gcp.vertex.agent.tool_response" Value Result,
    TOOL_RESULT = "tool.result" Value Result,
    TOOL_OUTPUT = "tool.output" Value Result,
    PLAIN_TOOL_RESPONSE = "tool_response" Value Result,
    GEN_AI_COMPLETION = "gen_ai.completion" Output Result,
    ANTHROPIC_RESULT = "anthropic.tool_result.content" Value Result,

    // Attributes that show the form of a value.
    ADK_EVENT = "gcp.vertex.agent.event_id" Presence Field,
    INPUT_MIME = "input.mime_type" Value Field,
    OUTPUT_MIME = "output.mime_type" Value Field,

    // Errors.
    ERROR_TYPE = "error.type" Value Field,
    TOOL_STATUS = "gen_ai.tool.status" Value Field,
    PLAIN_TOOL_STATUS = "tool.status" Value Field,
    TASK_STATUS = "gen_ai.task.status" Value Field,
    LANGFUSE_LEVEL = "langfuse.observation.level" Value Field,
    GENKIT_STATE = "genkit:state" Value Field,
    TOOL_SUCCESS = "tool.success" Value Field,
    ERROR_MESSAGE = "error.message" Value Field,
    PLAIN_ERROR = "error" Presence Field,

    // Agents.
    GEN_AI_AGENT = "gen_ai.agent.name" Value Field,
    GEN_AI_AGENT_ID = "gen_ai.agent.id" Value Field,
    GEN_AI_WORKFLOW = "gen_ai.workflow.name" Value Field,
    TRANSFER_MODE = "gen_ai.transfer.mode" Value Field,
    PLAIN_AGENT_NAME = "agent_name" Value Field,
    GRAPH_NODE = "graph.node.id" Value Field,
    AI_FUNCTION = "ai.telemetry.functionId" Value Field,
    LANGFUSE_AGENT = "langfuse.observation.metadata.lc_agent_name" Value Field,
    LANGFUSE_TRACE_AGENT = "langfuse.trace.metadata.lc_agent_name" Value Field,
    LANGSMITH_AGENT = "langsmith.metadata.lc_agent_name" Value Field,
    TRACELOOP_AGENT = "traceloop.association.properties.lc_agent_name" Value Field,
    TRACELOOP_WORKFLOW = "traceloop.workflow.name" Value Field,
    SUBAGENT_NAME = "subagent.name" Value Field,
    ENTITY_NAME = "entity.name" Value Field,
    METADATA = "metadata" Value Field,

    // Graph nodes.
    LANGFUSE_NODE = "langfuse.observation.metadata.langgraph_node" Value Field,
    LANGFUSE_STEP = "langfuse.observation.metadata.langgraph_step" Value Field,
    LANGSMITH_NODE = "langsmith.metadata.langgraph_node" Value Field,
    LANGSMITH_STEP = "langsmith.metadata.langgraph_step" Value Field,
    TRACELOOP_NODE = "traceloop.association.properties.langgraph_node" Value Field,
    TRACELOOP_STEP = "traceloop.association.properties.langgraph_step" Value Field,

    // Sessions.
    CONVERSATION_ID = "gen_ai.conversation.id" Value Field,
    SESSION_ID = "session.id" Value Field,
    JUDGMENT_SESSION = "judgment.session_id" Value Field,
    TRACELOOP_SESSION = "traceloop.association.properties.session_id" Value Field,
    TRACELOOP_THREAD = "traceloop.association.properties.thread_id" Value Field,
    LANGSMITH_SESSION = "langsmith.metadata.session_id" Value Field,
    LANGSMITH_THREAD = "langsmith.metadata.thread_id" Value Field,
    PLAIN_CONVERSATION_ID = "conversation.id" Value Field,
    ADK_SESSION = "gcp.vertex.agent.session_id" Value Field,
    LANGFUSE_SESSION = "langfuse.session.id" Value Field,
    AI_SESSION_METADATA = "ai.telemetry.metadata.sessionId" Value Field,
    AI_SESSION_CONTEXT = "ai.settings.context.sessionId" Value Field,
    MASTRA_SESSION = "mastra.metadata.sessionId" Value Field,
    GROUP_ID = "group_id" Value Field,
    AGENT_TRACE_ID = "agent_trace_id" Presence Field,

    // Messages of models.
    OUTPUT_MESSAGES = "gen_ai.output.messages" Reply Message,
    AI_TOOL_CALLS = "ai.response.toolCalls" Reply Message,
    ADK_RESPONSE = "gcp.vertex.agent.llm_response" Reply Message,
    OI_OUTPUT_MESSAGES = "llm.output_messages.*tool_call*" Reply Message,
    COMPLETION_CALLS = "gen_ai.completion.*tool_calls*" Reply Message,
    COMPLETION_FUNCTIONS = "gen_ai.completion.*function_call*" Reply Message,
    RAW_CHOICES = "llm.*.choices" Reply Message,
    RAW_CONTENT = "llm.*.content" Reply Message,
    RAW_OUTPUT = "llm.*.output" Reply Message,
    RAW_CANDIDATES = "llm.*.candidates" Reply Message,
    RAW_MESSAGE = "llm.*.message" Reply Message,
    LOG_BODY = "spanscore.log.body" Own Message,
    INPUT_MESSAGES = "gen_ai.input.messages" Request Message,
    OI_INPUT_MESSAGES = "llm.input_messages." Request Message,
    // This key shows that a reply was flattened, even if the reply has no calls.
    OI_OUTPUT_ROLE = "llm.output_messages.0.message.role" Presence Message,
    // This key shows whether the model called tools, even if its messages were not captured.
    FINISH_REASONS = "gen_ai.response.finish_reasons" Value Field,
    LOST_REPLY = "spanscore.lost.reply" Own Message,
    LOST_REQUEST = "spanscore.lost.request" Own Message,

    // Input and output tokens of a model.
    INPUT_USAGE = "gen_ai.usage.input_tokens" Selected Usage,
    PROMPT_USAGE = "gen_ai.usage.prompt_tokens" Selected Usage,
    OI_PROMPT_USAGE = "llm.token_count.prompt" Selected Usage,
    LLM_PROMPT_USAGE = "llm.usage.prompt_tokens" Selected Usage,
    AI_INPUT_USAGE = "ai.usage.inputTokens" Selected Usage,
    AI_PROMPT_USAGE = "ai.usage.promptTokens" Selected Usage,
    OUTPUT_USAGE = "gen_ai.usage.output_tokens" Selected Usage,
    COMPLETION_USAGE = "gen_ai.usage.completion_tokens" Selected Usage,
    OI_COMPLETION_USAGE = "llm.token_count.completion" Selected Usage,
    LLM_COMPLETION_USAGE = "llm.usage.completion_tokens" Selected Usage,
    AI_OUTPUT_USAGE = "ai.usage.outputTokens" Selected Usage,
    AI_COMPLETION_USAGE = "ai.usage.completionTokens" Selected Usage,
    CACHE_READ = "gen_ai.usage.cache_read.input_tokens" Selected Usage,
    CACHE_READ_FLAT = "gen_ai.usage.cache_read_input_tokens" Selected Usage,
    OI_CACHE_READ = "llm.token_count.prompt_details.cache_read" Selected Usage,
    AI_CACHE_READ = "ai.usage.inputTokenDetails.cacheReadTokens" Selected Usage,
    AI_CACHED = "ai.usage.cachedInputTokens" Selected Usage,
    CACHE_WRITE = "gen_ai.usage.cache_write.input_tokens" Selected Usage,
    CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens" Selected Usage,
    CACHE_CREATION_FLAT = "gen_ai.usage.cache_creation_input_tokens" Selected Usage,
    OI_CACHE_WRITE = "llm.token_count.prompt_details.cache_write" Selected Usage,
    AI_CACHE_WRITE = "ai.usage.inputTokenDetails.cacheWriteTokens" Selected Usage,
    TOTAL_USAGE = "gen_ai.usage.total_tokens" Selected Usage,
    OI_TOTAL_USAGE = "llm.token_count.total" Selected Usage,
    LLM_TOTAL_USAGE = "llm.usage.total_tokens" Selected Usage,
    AI_TOTAL_USAGE = "ai.usage.totalTokens" Selected Usage,
    // This key distinguishes model calls that were made at the same time.
    RESPONSE_ID = "gen_ai.response.id" Selected Usage,

    // Events and their attributes.
    EXCEPTION = "exception" Presence Field,
    EXCEPTION_MESSAGE = "exception.message" Value Payload,
    TOOL_MESSAGE = "gen_ai.tool.message" Presence Field,
    CHOICE = "gen_ai.choice" Presence Field,
    CONTENT = "content" Value Payload,
    MESSAGE = "message" Output Payload,

    // Log records that report tool calls.
    PROMPT_ID = "prompt.id" Value Field,
    PROMPT_ID_FLAT = "prompt_id" Value Field,
    SEQUENCE = "event.sequence" Value Field,
    DURATION_MS = "duration_ms" Value Field,
    SUCCESS = "success" Value Field,

    // Updates of one span.
    UPDATE_ID = "judgment.update_id" Value Field,
}

pub(super) const N_BUILT_IN: usize = RULES.len();
const _: () = assert!(
    N_BUILT_IN <= KeyBits::CAPACITY,
    "a set has a bit for every built-in key"
);

/// Keys that give a span a kind, in any convention.
pub(crate) const KINDS: KeyBits = of_class(Class::Kind);

/// Keys with names so general that applications also use them. Only the listed values are kinds.
pub(super) const GENERAL_KINDS: &[(KeyId, &[&str])] = &[
    (
        SPAN_TYPE,
        &[
            "agent",
            "embedding",
            "guardrail",
            "llm",
            "memory",
            "middleware",
            "retriever",
            "scorer",
            "summary",
            "tool",
            "vector",
            "workflow",
            "workflow-step",
        ],
    ),
    (SPAN_TYPE_FLAT, &["agentRun", "completion"]),
];

/// Keys that give a span a kind with any value: all [`KINDS`] except the keys of [`GENERAL_KINDS`].
pub(super) const OWN_KINDS: KeyBits = KINDS.without(KeyBits::new(&[SPAN_TYPE, SPAN_TYPE_FLAT]));

/// Keys by which some convention recognises a span.
pub(super) const MARKS: KeyBits = KINDS.union(of_class(Class::Mark));

const fn of_class(class: Class) -> KeyBits {
    let mut keys = KeyBits::NONE;
    let mut row = 0;
    while row < CLASSES.len() {
        let (key, class_of_row) = CLASSES[row];
        if class_of_row as u8 == class as u8 {
            keys = keys.union(KeyBits::new(&[key]));
        }
        row += 1;
    }
    keys
}

const RESULT_KEYS: KeyBits = of_class(Class::Result);
const MESSAGE_KEYS: KeyBits = of_class(Class::Message);
/// Keys of long values, which `prune` drops from spans that do not need them.
pub(super) const PAYLOADS: KeyBits = of_class(Class::Args)
    .union(RESULT_KEYS)
    .union(MESSAGE_KEYS)
    .union(of_class(Class::Payload));

pub(crate) const USAGE: KeyBits = of_class(Class::Usage);

/// Returns the names of [`USAGE`].
pub(super) fn usage_keys() -> impl Iterator<Item = &'static str> {
    let rows = RULES.iter().filter(|rule| rule.rule == Retention::Selected);
    rows.map(|rule| rule.key)
}

pub(super) fn is_payload(key: KeyId) -> bool {
    PAYLOADS.contains(key)
}

pub(super) fn is_result(key: KeyId) -> bool {
    RESULT_KEYS.contains(key)
}

pub(super) fn is_message(key: KeyId) -> bool {
    MESSAGE_KEYS.contains(key)
}

// === Keys that any convention may use; the first one present wins ===

pub(super) const TOOL_NAMES: &[KeyId] =
    &[GEN_AI_TOOL_NAME, TOOL_NAME, AI_TOOL_NAME, PLAIN_TOOL_NAME];

pub(super) const CALL_IDS: &[KeyId] = &[
    GEN_AI_CALL_ID,
    GEN_AI_CALL_ID_FLAT,
    OI_CALL_ID,
    TOOL_ID,
    TOOL_CALL_ID,
    TOOL_CALL_ID_FLAT,
    AI_CALL_ID,
    TOOL_USE_ID,
];

pub(super) const ARGS: &[KeyId] = &[
    GEN_AI_ARGS,
    AI_ARGS,
    INPUT_VALUE,
    TRACELOOP_INPUT,
    ADK_ARGS,
    TOOL_ARGUMENTS,
    TOOL_ARGS,
    TOOL_INPUT,
    PLAIN_TOOL_ARGUMENTS,
];

pub(super) const RESULTS: &[KeyId] = &[
    GEN_AI_RESULT,
    AI_RESULT,
    OUTPUT_VALUE,
    TRACELOOP_OUTPUT,
    ADK_RESULT,
    TOOL_RESULT,
    TOOL_OUTPUT,
    PLAIN_TOOL_RESPONSE,
];

/// Keys that name a span's own agent, the most specific first: a sub-agent's span can also name the
/// agent that called it.
pub(super) const AGENTS: &[KeyId] = &[
    SUBAGENT_NAME,
    GEN_AI_AGENT,
    AGENT_NAME,
    PLAIN_AGENT_NAME,
    LANGFUSE_AGENT,
    LANGSMITH_AGENT,
    TRACELOOP_AGENT,
    AI_FUNCTION,
    ENTITY_NAME,
];

/// The name of a span's entity, which a normaliser copies to `gen_ai.agent.name`.
pub(super) const COPIED_TO_AGENT: KeyId = TRACELOOP_ENTITY;

pub(super) const SESSIONS: &[KeyId] = &[
    SESSION_ID,
    CONVERSATION_ID,
    JUDGMENT_SESSION,
    LANGFUSE_SESSION,
    TRACELOOP_SESSION,
    TRACELOOP_THREAD,
    LANGSMITH_SESSION,
    LANGSMITH_THREAD,
    PLAIN_CONVERSATION_ID,
    ADK_SESSION,
    AI_SESSION_METADATA,
    AI_SESSION_CONTEXT,
    MASTRA_SESSION,
];

/// A key with a general name: its value is a session only if the span also has the second key.
pub(super) const SESSION_BESIDE: (KeyId, KeyId) = (GROUP_ID, AGENT_TRACE_ID);

/// The kind keys of OpenInference and Traceloop. If a span has one of them, its keys of the
/// OpenTelemetry conventions are copies that a normaliser added (see `conventions/gen_ai.rs`).
pub(super) const COPIED_KINDS: KeyBits = KeyBits::new(&[OI_KIND, TRACELOOP_KIND]);

/// The keys of a graph node's name and of its step.
pub(super) const NODES: &[(KeyId, KeyId)] = &[
    (LANGFUSE_NODE, LANGFUSE_STEP),
    (LANGSMITH_NODE, LANGSMITH_STEP),
    (TRACELOOP_NODE, TRACELOOP_STEP),
];

/// Attributes that can mark a failed call, each with the value that marks it.
pub(super) const FAILURES: &[(KeyId, &str)] = &[
    (TOOL_STATUS, "error"),
    (PLAIN_TOOL_STATUS, "error"),
    (TASK_STATUS, "failure"),
    (LANGFUSE_LEVEL, "ERROR"),
];

// Entries of `metadata`, as LangChain's instrumentation writes it.
pub(super) const METADATA_AGENT: &str = "lc_agent_name";
pub(super) const METADATA_NODE: &str = "langgraph_node";
pub(super) const METADATA_STEP: &str = "langgraph_step";

pub(super) const REPLIES: &[KeyId] = &[
    OUTPUT_MESSAGES,
    AI_TOOL_CALLS,
    LANGFUSE_OUTPUT,
    GENKIT_OUTPUT,
    MLFLOW_OUTPUT,
    JUDGMENT_OUTPUT,
    ADK_RESPONSE,
    GEN_AI_COMPLETION,
    OUTPUT_VALUE,
    TRACELOOP_OUTPUT,
    RAW_CHOICES,
    RAW_CONTENT,
    RAW_OUTPUT,
    RAW_CANDIDATES,
    RAW_MESSAGE,
    LOG_BODY,
];

pub(super) const INPUT_TOKENS: &[KeyId] = &[
    INPUT_USAGE,
    PROMPT_USAGE,
    OI_PROMPT_USAGE,
    LLM_PROMPT_USAGE,
    AI_INPUT_USAGE,
    AI_PROMPT_USAGE,
];

pub(super) const OUTPUT_TOKENS: &[KeyId] = &[
    OUTPUT_USAGE,
    COMPLETION_USAGE,
    OI_COMPLETION_USAGE,
    LLM_COMPLETION_USAGE,
    AI_OUTPUT_USAGE,
    AI_COMPLETION_USAGE,
];

/// Keys of the number of input tokens that came from a cache.
pub(super) const CACHE_READS: &[KeyId] = &[
    CACHE_READ,
    CACHE_READ_FLAT,
    OI_CACHE_READ,
    AI_CACHE_READ,
    AI_CACHED,
];

/// Keys of the number of input tokens that were written to a cache.
pub(super) const CACHE_WRITES: &[KeyId] = &[
    CACHE_WRITE,
    CACHE_CREATION,
    CACHE_CREATION_FLAT,
    OI_CACHE_WRITE,
    AI_CACHE_WRITE,
];

pub(super) const TOTAL_TOKENS: &[KeyId] =
    &[TOTAL_USAGE, OI_TOTAL_USAGE, LLM_TOTAL_USAGE, AI_TOTAL_USAGE];

#[cfg(test)]
mod tests {
    use super::*;
    use otlp::span::{KeySet, Span};

    #[test]
    fn every_row_has_the_id_of_its_position() {
        let keys = KeySet::new(RULES);
        assert_eq!(keys.len(), RULES.len(), "a key stands twice in the table");
        assert_eq!(keys.id("gen_ai.operation.name"), Some(OPERATION));
        assert_eq!(keys.id(Span::RECORD_BODY), Some(LOG_BODY));
        assert_eq!(keys.id(Span::LOST_REPLY), Some(LOST_REPLY));
        assert_eq!(keys.id(Span::LOST_REQUEST), Some(LOST_REQUEST));
        assert_eq!(keys.id("judgment.update_id"), Some(UPDATE_ID));
    }

    #[test]
    fn a_class_is_a_matter_of_the_row() {
        assert!(KINDS.contains(OPERATION) && !KINDS.contains(TOOL_NAME));
        assert!(MARKS.contains(TOOL_NAME) && !MARKS.contains(SYNTHESIZED));
        assert!(is_payload(GEN_AI_PROMPT) && !is_result(GEN_AI_PROMPT));
        assert!(is_payload(OUTPUT_VALUE) && is_result(OUTPUT_VALUE));
        assert!(is_payload(OI_INPUT_MESSAGES) && is_message(OI_INPUT_MESSAGES));
        assert!(is_payload(CONTENT) && !is_payload(ERROR_MESSAGE));
    }

    #[test]
    fn a_star_within_a_key_asks_for_what_follows_it() {
        let keys = KeySet::new(RULES);
        let found = keys
            .find(b"llm.output_messages.0.message.tool_calls.1.tool_call.id")
            .unwrap();
        let suffix = b"0.message.tool_calls.1.tool_call.id".as_slice();
        assert_eq!((found.key, found.suffix), (OI_OUTPUT_MESSAGES, suffix));
        let other = keys.find(b"llm.output_messages.0.message.content");
        assert!(other.is_none());
        let raw = keys.find(b"llm.azure_ai.choices").unwrap();
        assert_eq!((raw.key, raw.suffix), (RAW_CHOICES, b"".as_slice()));
        for other in [
            "llm.choices",
            "llm..choices",
            "llm.openai.choices.0",
            "llm.a.b.choices",
        ] {
            assert!(keys.find(other.as_bytes()).is_none(), "{other}");
        }
    }
}
