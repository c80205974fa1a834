//! Pure. LangSmith's OpenTelemetry export. A failed tool has the status OK and an `exception`
//! event. A span in, the call or model call it is out; agents have no span, only names.

use super::convention::{Call, Convention, View, is, no_agent_run, raw, text};
use super::keys;

pub(super) const LANGSMITH: Convention = Convention {
    name: "langsmith",
    marks: keys::bit(keys::LANGSMITH_KIND),
    is_call,
    call,
    agent_run: no_agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::LANGSMITH_KIND, "tool")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: text(span, keys::GEN_AI_TOOL_NAME),
        last_name: Some(span.name()),
        args: raw(span, keys::GEN_AI_PROMPT),
        args_in: super::convention::Envelope::InputStr,
        result: raw(span, keys::GEN_AI_COMPLETION),
        ..Call::default()
    }
}

fn is_model(span: &View<'_>) -> bool {
    is(span, keys::LANGSMITH_KIND, "llm")
}
