//! LiteLLM's callback `otel`: the span of a request names the calls but not their ids. Those
//! are only in the span of the provider's raw answer below it, as the `repr` of Python lists.

use super::super::convention::Convention;

/// LiteLLM's callback `otel`. The span of a request, `litellm_request`, is recognised as `gen_ai`;
/// its calls take their ids from the raw answer below it, which holds the provider's own words as
/// Python literals.
///
/// - Tool call: none has a span; calls are read from the replies.
/// - Model call: a span `raw_gen_ai_request`. Its reply is in `llm.*.choices`, `llm.*.content`
///   (Anthropic), `llm.*.output` (Bedrock, OpenAI's Responses), `llm.*.candidates` (Gemini) or
///   `llm.*.message` (Ollama, Cohere), where `*` is the provider.
pub(super) const LITELLM: Convention = Convention {
    name: "litellm",
    span_names: &[RAW_REQUEST],
    reply_is_above: true,
    is_model: Some(|span| span.name() == RAW_REQUEST),
    ..Convention::NONE
};

const RAW_REQUEST: &str = "raw_gen_ai_request";
