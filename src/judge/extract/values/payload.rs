//! Unwraps arguments and results from the envelopes of frameworks.

use std::sync::{Arc, LazyLock};

use memchr::memmem::Finder;
use otlp::span::{Value, is_unfinished_json};
use serde::de::IgnoredAny;
use serde_json::{Map, Value as Json};

use super::{non_finite, python};
use crate::extract::tool_call::{Payload, StoredPart};

/// A value as received.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Raw<'a> {
    pub(crate) value: Value<'a>,
    pub(crate) cut: bool,
    /// True if the sender declares the value as plain text, which must not be parsed.
    pub(crate) plain: bool,
}

impl Raw<'_> {
    /// Returns true if the end is missing: because of our limit, or, as unfinished JSON shows,
    /// because of the SDK's.
    pub(crate) fn is_cut(&self) -> bool {
        let text = match self.value {
            Value::Str(text) | Value::Json(text) => text,
            _ => "",
        };
        self.cut || is_unfinished_json(text.as_bytes())
    }
}

/// The envelope that a framework puts around arguments or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Envelope {
    /// No envelope, unless the value has a recognisable shape (a serialised LangChain message, JSON
    /// within JSON).
    #[default]
    Plain,
    /// `{"kwargs": {…}}`, together with `args` and other entries of the framework.
    Kwargs,
    /// `{"input_str": "{'a': 1}", "tags": …, "metadata": …}` with a Python literal inside;
    /// JavaScript: `{"args": ["{…}"]}`.
    InputStr,
    /// A list of content blocks: `[{"json": {…}}]`, `[{"text": "…"}]`.
    Blocks,
    /// `{"result": …}`.
    Result,
}

/// A result without its envelopes, and the facts about the call that the envelopes contained.
#[derive(Debug)]
pub(crate) struct OpenedResult {
    pub(crate) payload: Payload,
    pub(crate) call_id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) failed: bool,
}

struct Parsed {
    text: Arc<str>,
    json: Json,
    kept: StoredPart,
}

impl Parsed {
    /// Marks a cut value as unreadable, because it is the content of an unopened envelope.
    fn unopened(self) -> Self {
        let kept = match self.kept {
            StoredPart::Whole => StoredPart::Whole,
            _ => StoredPart::Unreadable,
        };
        Self { kept, ..self }
    }
}

impl From<Parsed> for Payload {
    fn from(Parsed { text, json, kept }: Parsed) -> Self {
        Self::read(text, json, kept)
    }
}

/// Unwraps the arguments of a call, at most `max_size` bytes.
pub(crate) fn open_args(raw: Raw<'_>, envelope: Envelope, max_size: usize) -> Payload {
    if let Some(text) = bare(raw, envelope, max_size) {
        return Payload::unread(text, parse_literal);
    }
    let received = received(raw);
    if received.kept != StoredPart::Whole || raw.plain {
        let is_enveloped = envelope != Envelope::Plain && !raw.plain;
        let received = if is_enveloped { received.unopened() } else { received };
        return bounded(received, max_size).into();
    }
    let opened = match (&received.json, envelope) {
        (Json::Object(map), Envelope::Kwargs) => kwargs(map),
        (Json::Object(map), Envelope::InputStr) => input_str(map),
        _ => None,
    };
    bounded(opened.unwrap_or_else(|| literal(received)), max_size).into()
}

/// Unwraps the result of a call, at most `max_size` bytes.
pub(crate) fn open_result(raw: Raw<'_>, envelope: Envelope, max_size: usize) -> OpenedResult {
    let has_known_shape = |text: &str| {
        text.trim_start().starts_with('{')
            && SHAPES
                .iter()
                .any(|word| word.find(text.as_bytes()).is_some())
    };
    let mut opened = OpenedResult {
        payload: Payload::unread("", parse_result),
        call_id: None,
        name: None,
        failed: false,
    };
    opened.payload = match bare(raw, envelope, max_size).filter(|text| !has_known_shape(text)) {
        Some(text) => Payload::unread(text, parse_result),
        None => {
            let mut read = received(raw);
            if read.kept == StoredPart::Whole && !raw.plain {
                read = match open(read.json, envelope, &mut opened) {
                    Ok(inner) => read_json(inner),
                    Err(json) => Parsed { json, ..read },
                };
            } else if !raw.plain && (envelope != Envelope::Plain || may_be_opened(&read.text)) {
                read = read.unopened();
            }
            bounded(read, max_size).into()
        }
    };
    opened
}

/// Every envelope with a recognisable shape contains one of these words.
static SHAPES: LazyLock<[Finder<'static>; 3]> =
    LazyLock::new(|| ["\"tool", "\"ToolMessage", "\"subAgentThreadId"].map(Finder::new));

/// Returns true for an object. Only the end of an object shows whether it is an envelope.
fn may_be_opened(text: &str) -> bool {
    text.trim_start().starts_with('{')
}

/// Returns the text of a value that needs no unwrapping; `None` if the value may be in an envelope,
/// is cut or too long, is declared as plain text, or is a JSON string. Most of these texts are
/// never parsed, because no criterion reads them.
fn bare<'a>(raw: Raw<'a>, envelope: Envelope, max_size: usize) -> Option<&'a str> {
    let (Value::Str(text) | Value::Json(text)) = raw.value else {
        return None;
    };
    let is_wrapped = match envelope {
        Envelope::Plain => false,
        Envelope::Kwargs => memchr::memmem::find(text.as_bytes(), b"\"kwargs\"").is_some(),
        Envelope::InputStr | Envelope::Blocks | Envelope::Result => true,
    };
    let is_bare =
        !is_wrapped && !raw.cut && !raw.plain && text.len() <= max_size && is_its_own_text(text);
    is_bare.then_some(text)
}

/// Returns true if the text is shown as received. Only a JSON string is shown differently, without
/// its quotes.
fn is_its_own_text(text: &str) -> bool {
    !text.trim_start().starts_with('"')
}

/// Reads arguments or a result in a model's message: a JSON value, or its text.
pub(crate) fn of_message(json: Json, max_size: usize) -> Payload {
    match json {
        Json::String(text) if text.len() <= max_size && is_its_own_text(&text) => {
            Payload::unread(&text, parse_literal)
        }
        json => bounded(literal(read_json(json)), max_size).into(),
    }
}

/// Reads a JSON value: the text of a string, compact JSON of other values.
fn read_json(json: Json) -> Parsed {
    match json {
        Json::String(text) => of_text(&text),
        other => Parsed {
            text: other.to_string().into(),
            json: other,
            kept: StoredPart::Whole,
        },
    }
}

/// Reads a text; parses it if it is JSON.
fn of_text(text: &str) -> Parsed {
    let (json, kept) = parse(text);
    match json {
        // A JSON string may contain JSON; otherwise the value is the text between the quotes.
        Json::String(inner) if inner != text => Parsed {
            json: nested(&inner),
            text: inner.into(),
            kept,
        },
        json => Parsed {
            text: text.into(),
            json,
            kept,
        },
    }
}

fn received(raw: Raw<'_>) -> Parsed {
    let mut read = match raw.value {
        Value::Str(text) | Value::Json(text) if raw.plain || raw.cut => Parsed {
            text: text.into(),
            json: Json::String(text.to_owned()),
            kept: match (raw.cut, raw.plain) {
                (false, _) => StoredPart::Whole,
                (true, true) => StoredPart::BeginningOfText,
                (true, false) => StoredPart::Beginning,
            },
        },
        Value::Str(text) | Value::Bytes(text) => of_text(text),
        Value::Json(text) => Parsed {
            text: text.into(),
            json: parse(text).0,
            kept: StoredPart::Whole,
        },
        Value::Bool(value) => read_json(Json::Bool(value)),
        Value::Int(value) => read_json(value.into()),
        Value::Double(value) => read_json(match serde_json::Number::from_f64(value) {
            Some(number) => Json::Number(number),
            None => Json::from(non_finite::word(value)),
        }),
    };
    if raw.cut && read.kept == StoredPart::Whole {
        read.kept = StoredPart::Unreadable;
    }
    read
}

/// Parses JSON, or returns the text as a JSON string. Numbers retain all their digits. Text that
/// begins as JSON and ends early was cut by an attribute limit of its SDK. JSON that serde_json
/// cannot parse (nested more than 128 deep, or with serde_json's own key) also counts as cut, so
/// that no sender can hide arguments in it.
pub(super) fn parse(text: &str) -> (Json, StoredPart) {
    let trimmed = text.trim_start();
    let as_text = || Json::String(text.to_owned());
    if !trimmed.starts_with(|char: char| {
        matches!(char, '{' | '[' | '"' | '-' | 't' | 'f' | 'n') || char.is_ascii_digit()
    }) {
        return (as_text(), StoredPart::Whole);
    }
    let json = serde_json::from_str(trimmed).or_else(|error| {
        let mended = non_finite::quoted(trimmed).ok_or(error)?;
        serde_json::from_str(&mended)
    });
    match json {
        Ok(json) => (json, StoredPart::Whole),
        Err(error) if error.is_eof() && trimmed.starts_with(['{', '[']) => {
            (as_text(), StoredPart::Beginning)
        }
        Err(error) if error.is_eof() => (as_text(), StoredPart::Whole),
        Err(_) if serde_json::from_str::<IgnoredAny>(trimmed).is_ok() => {
            (as_text(), StoredPart::Unreadable)
        }
        Err(_) => (as_text(), StoredPart::Whole),
    }
}

/// Parses JSON or text without a known envelope.
fn parse_result(text: &str) -> (Json, StoredPart) {
    match parse(text) {
        (json, StoredPart::Beginning) if may_be_opened(text) => (json, StoredPart::Unreadable),
        parsed => parsed,
    }
}

/// Parses a string inside JSON if its text begins like a list or an object.
fn nested(text: &str) -> Json {
    if text.trim_start().starts_with(['{', '[']) {
        parse(text).0
    } else {
        Json::String(text.to_owned())
    }
}

/// Parses arguments that an instrumentation wrote with Python's `repr`.
fn literal(read: Parsed) -> Parsed {
    match &read.json {
        Json::String(text)
            if read.kept == StoredPart::Whole && text.trim_start().starts_with('{') =>
        {
            match python_object(text) {
                Some(json) => Parsed { json, ..read },
                None => read,
            }
        }
        _ => read,
    }
}

fn python_object(text: &str) -> Option<Json> {
    python::parse(text).filter(Json::is_object)
}

/// Parses JSON, or an object in Python's notation.
fn parse_literal(text: &str) -> (Json, StoredPart) {
    match parse(text) {
        (Json::String(_), StoredPart::Whole) if text.trim_start().starts_with('{') => {
            let json = python_object(text).unwrap_or_else(|| text.into());
            (json, StoredPart::Whole)
        }
        parsed => parsed,
    }
}

fn kwargs(map: &Map<String, Json>) -> Option<Parsed> {
    let kwargs = map.get("kwargs")?.as_object()?;
    if !map.keys().all(|key| {
        matches!(
            key.as_str(),
            "kwargs" | "args" | "sanitize_inputs_outputs" | "callback"
        )
    }) {
        return None;
    }
    let args = map
        .get("args")
        .and_then(Json::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    match (kwargs.is_empty(), args) {
        (true, [only @ Json::Object(_)]) => Some(read_json(only.clone())),
        (true, [_, ..]) => None,
        _ => Some(read_json(Json::Object(kwargs.clone()))),
    }
}

fn input_str(map: &Map<String, Json>) -> Option<Parsed> {
    if let Some(text) = map.get("input_str").and_then(Json::as_str) {
        return Some(literal(of_text(text)));
    }
    match map.get("args")?.as_array()?.as_slice() {
        [Json::String(text)] if map.len() == 1 => Some(literal(of_text(text))),
        [only @ Json::Object(_)] if map.len() == 1 => Some(read_json(only.clone())),
        _ => None,
    }
}

/// Returns the content of the envelope as `Ok`, or the value itself as `Err`.
fn open(json: Json, envelope: Envelope, opened: &mut OpenedResult) -> Result<Json, Json> {
    let Json::Object(mut map) = json else {
        return if envelope == Envelope::Blocks { blocks(json) } else { Err(json) };
    };
    // LangChain's tools return a serialised ToolMessage, alone or as the only output of a run.
    if let Some(message) = tool_message(&mut map) {
        opened.call_id = text_of(message.get("tool_call_id"));
        opened.name = text_of(message.get("name"));
        opened.failed = message.get("status").and_then(Json::as_str) == Some("error");
        let content = message.get("content").cloned().unwrap_or_default();
        return Ok(blocks(content).unwrap_or_else(|content| content));
    }
    // A serialised `ToolOutput`.
    if map.contains_key("raw_output") && map.contains_key("tool_name") {
        opened.failed = map.get("is_error").and_then(Json::as_bool) == Some(true);
        return Ok(map.remove("raw_output").unwrap_or_default());
    }
    // The answer of a sub-agent, with everything that it did.
    if map.contains_key("subAgentThreadId") && map.contains_key("text") {
        return Ok(map.remove("text").unwrap_or_default());
    }
    if envelope == Envelope::Result && map.len() == 1 && map.contains_key("result") {
        return Ok(map.remove("result").unwrap_or_default());
    }
    Err(Json::Object(map))
}

fn tool_message(map: &mut Map<String, Json>) -> Option<Map<String, Json>> {
    if let Some(Json::Object(output)) = map.get_mut("output") {
        return tool_message(output);
    }
    let is_tool = map.get("type").and_then(Json::as_str) == Some("tool");
    if is_tool && let Some(Json::Object(data)) = map.get_mut("data") {
        return Some(std::mem::take(data));
    }
    if is_tool && map.contains_key("content") && map.contains_key("tool_call_id") {
        return Some(std::mem::take(map));
    }
    let class = map
        .get("id")
        .and_then(Json::as_array)
        .and_then(|path| path.last())
        .and_then(Json::as_str);
    if class.is_some_and(|class| class.starts_with("ToolMessage"))
        && let Some(Json::Object(kwargs)) = map.get_mut("kwargs")
    {
        return Some(std::mem::take(kwargs));
    }
    None
}

/// Returns the content of content blocks: for a single block its content, for several a list.
fn blocks(json: Json) -> Result<Json, Json> {
    let Json::Array(items) = &json else {
        return Err(json);
    };
    let contents: Option<Vec<Json>> = items.iter().map(block).collect();
    match contents {
        Some(mut contents) if contents.len() == 1 => Ok(contents.remove(0)),
        Some(contents) if contents.len() > 1 => Ok(Json::Array(contents)),
        _ => Err(json),
    }
}

fn block(item: &Json) -> Option<Json> {
    let map = item.as_object()?;
    let is_block = map
        .keys()
        .all(|key| matches!(key.as_str(), "type" | "text" | "json" | "id" | "index"));
    is_block.then(|| map.get("json").or_else(|| map.get("text")).cloned())?
}

fn text_of(json: Option<&Json>) -> Option<String> {
    json.and_then(Json::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn bounded(read: Parsed, max_size: usize) -> Parsed {
    if read.text.len() <= max_size {
        return read;
    }
    let end = (0..=max_size)
        .rev()
        .find(|&end| read.text.is_char_boundary(end))
        .unwrap_or_default();
    let text: Arc<str> = read.text[..end].into();
    let kept = match (read.kept, read.json) {
        (StoredPart::Whole, Json::String(_)) => StoredPart::BeginningOfText,
        (StoredPart::Whole, Json::Array(_) | Json::Object(_)) => StoredPart::Beginning,
        (StoredPart::Whole, _) => StoredPart::Unreadable,
        (kept, _) => kept,
    };
    Parsed {
        json: Json::String(text.as_ref().to_owned()),
        text,
        kept,
    }
}
