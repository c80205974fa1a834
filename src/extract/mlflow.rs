//! Pure. MLflow tracing: the type is a quoted word, the name of a tool is the span's name alone. A
//! span in, the call, run or model call it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, is, raw};
use super::keys;

pub(super) const MLFLOW: Convention = Convention {
    name: "mlflow",
    marks: keys::bit(keys::MLFLOW_TYPE),
    is_call,
    call,
    agent_run,
    is_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::MLFLOW_TYPE, "TOOL")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        name: Some(Cow::Borrowed(span.name())),
        args: raw(span, keys::MLFLOW_INPUT),
        result: raw(span, keys::MLFLOW_OUTPUT),
        ..Call::default()
    }
}

fn agent_run<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    is(span, keys::MLFLOW_TYPE, "AGENT").then_some(Cow::Borrowed(span.name()))
}

fn is_model(span: &View<'_>) -> bool {
    is(span, keys::MLFLOW_TYPE, "LLM") || is(span, keys::MLFLOW_TYPE, "CHAT_MODEL")
}
