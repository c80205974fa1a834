//! LiteLLM's callback `otel`: the span of a request names the calls but not their ids. The ids are
//! only in the span of the provider's raw answer below it, as the `repr` of Python lists.

use otlp::span::KeyBits;

use super::super::convention::{Convention, RecognisedSpans, Refine};
use super::super::keys;

/// LiteLLM's callback `otel`. The span of a request, `litellm_request`, is recognised as `gen_ai`.
/// Its calls get their ids from the span of the raw answer below it, which has the provider's own
/// text as Python literals. Below a span of the application there is no `litellm_request`: LiteLLM
/// then writes each reply to the application's span, with `gen_ai.operation.name` = `chat`, and
/// overwrites the previous reply. In that case only the raw answers are model calls.
///
/// - Tool call: has no span; calls are read from the replies.
/// - Model call: a span `raw_gen_ai_request`. Its reply is in `llm.*.choices`, `llm.*.content`
///   (Anthropic), `llm.*.output` (Bedrock, OpenAI's Responses), `llm.*.candidates` (Gemini) or
///   `llm.*.message` (Ollama, Cohere), where `*` is the provider.
pub(super) const LITELLM: Convention = Convention {
    name: "litellm",
    span_names: &[RAW_REQUEST],
    reply_is_above: true,
    is_model: Some(|span| span.name() == RAW_REQUEST),
    refine: Some(Refine {
        when: KeyBits::new(&[keys::OPERATION]),
        apply: distrust_mixed_replies,
    }),
    ..Convention::NONE
};

const REQUEST: &str = "litellm_request";
const RAW_REQUEST: &str = "raw_gen_ai_request";

fn distrust_mixed_replies(spans: &mut RecognisedSpans<'_, '_>) {
    for span_idx in 0..spans.spans.len() {
        if let Some(parent) = spans.parent[span_idx]
            && spans.spans[span_idx].view.name() == RAW_REQUEST
            && spans.spans[parent].view.name() != REQUEST
        {
            spans.spans[parent].is_model = false;
        }
    }
}
