//! Pure. MLflow tracing: the type is a quoted word, the name of a tool is the span's name alone. A span in, the call, run or model call
//! it is out.

use std::borrow::Cow;

use super::convention::{Call, Convention, is, raw};
use super::keys;
use crate::span::Span;

pub(super) const MLFLOW: Convention = Convention { name: "mlflow", marks: keys::bit(keys::MLFLOW_TYPE), tool_call, agent_run, is_model };

fn tool_call(span: &Span) -> Option<Call<'_>> {
    is(span, keys::MLFLOW_TYPE, "TOOL").then(|| Call {
        name: Some(Cow::Borrowed(span.name())),
        args: raw(span, keys::MLFLOW_INPUT),
        result: raw(span, keys::MLFLOW_OUTPUT),
        ..Call::default()
    })
}

fn agent_run(span: &Span) -> Option<Cow<'_, str>> {
    is(span, keys::MLFLOW_TYPE, "AGENT").then_some(Cow::Borrowed(span.name()))
}

fn is_model(span: &Span) -> bool {
    is(span, keys::MLFLOW_TYPE, "LLM") || is(span, keys::MLFLOW_TYPE, "CHAT_MODEL")
}
