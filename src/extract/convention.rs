//! Pure. What a convention is: how it tells a tool call, an agent run and a model call from other
//! spans, and where it keeps the parts of a call. Values are borrowed from the span and not parsed
//! here; knows nothing of other spans.

use std::borrow::Cow;

use super::keys::{self, Bits};
use crate::span::{Attribute, Event, IndexedAttributes, KeyId, Span, Value};

/// One way in which frameworks spell their spans. Each lives in a file of its own, named like it.
#[derive(Debug)]
pub(super) struct Convention {
    /// The file's name, and the word in `ToolCall::convention`.
    pub(super) name: &'static str,
    /// No span without one of these attributes is of this convention; `SPAN_NAME` where the span's
    /// name alone can tell.
    pub(super) marks: Bits,
    /// Is this span a tool call?
    pub(super) is_call: fn(&View<'_>) -> bool,
    /// The call that it is then.
    pub(super) call: for<'a> fn(&View<'a>) -> Call<'a>,
    /// The name of the agent whose run this span is.
    pub(super) agent_run: for<'a> fn(&View<'a>) -> Option<Cow<'a, str>>,
    /// Is this span a call of a model?
    pub(super) is_model: fn(&View<'_>) -> bool,
}

/// A span, its name, and which of the built-in keys it has: conventions ask for many keys, most of
/// which are not there.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) span: &'a Span,
    attributes: IndexedAttributes<'a>,
}

const N_WORDS: usize = IndexedAttributes::N_INDEXED_KEYS / 64;
const _: () = assert!(
    keys::N_BUILT_IN <= IndexedAttributes::N_INDEXED_KEYS,
    "a view has a bit for every built-in key"
);

/// Some of the built-in keys, as bits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AnyOf([Bits; N_WORDS]);

impl AnyOf {
    pub(super) const fn new(keys: &[KeyId]) -> Self {
        let mut words = [0; N_WORDS];
        let mut at = 0;
        while at < keys.len() {
            words[keys[at].0 as usize / 64] |= 1 << (keys[at].0 % 64);
            at += 1;
        }
        Self(words)
    }

    pub(super) const fn or(self, other: Self) -> Self {
        let ([a, b, c], [d, e, f]) = (self.0, other.0);
        Self([a | d, b | e, c | f])
    }

    /// Is one of them one of those?
    pub(super) fn has_any_of(self, keys: Self) -> bool {
        self.0
            .iter()
            .zip(keys.0)
            .any(|(ours, theirs)| ours & theirs != 0)
    }

    /// Is a key one of them?
    pub(super) fn has(self, key: KeyId) -> bool {
        self.0
            .get(usize::from(key.0 / 64))
            .is_some_and(|word| word & 1 << (key.0 % 64) != 0)
    }
}

impl<'a> View<'a> {
    #[inline]
    pub(super) fn new(span: &'a Span) -> Self {
        Self {
            span,
            attributes: span.kept.index(),
        }
    }

    /// Is there an attribute with one of these marks?
    pub(super) fn has_any(&self, marks: Bits) -> bool {
        self.attributes.present()[0] & marks != 0
    }

    /// The built-in keys of which there is an attribute.
    pub(super) fn present(&self) -> AnyOf {
        AnyOf(self.attributes.present())
    }

    /// The marks of which there is an attribute.
    pub(super) fn marks(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rest = self.attributes.present()[0];
        std::iter::from_fn(move || {
            let mark = rest.trailing_zeros() as usize;
            rest &= rest.wrapping_sub(1);
            (mark < 64).then_some(mark)
        })
    }

    /// Is there an attribute with one of these keys?
    pub(super) fn has_any_of(&self, keys: AnyOf) -> bool {
        self.present().has_any_of(keys)
    }

    pub(super) fn has(&self, key: KeyId) -> bool {
        self.attributes.has(key)
    }

    pub(super) fn attribute(&self, key: KeyId) -> Option<Attribute<'a>> {
        self.attributes.attribute(key)
    }

    pub(super) fn get(&self, key: KeyId) -> Option<Value<'a>> {
        self.attributes.get(key)
    }

    pub(super) fn text(&self, key: KeyId) -> Option<&'a str> {
        self.attributes.text(key)
    }

    pub(super) fn name(&self) -> &'a str {
        self.attributes.name()
    }

    pub(super) fn events(&self) -> impl Iterator<Item = Event<'a>> + use<'a> {
        self.attributes.events()
    }
}

/// Marks of a convention that looks at the span's name.
pub(super) const SPAN_NAME: Bits = Bits::MAX;

/// A tool call as its span tells it; what is missing is filled in from the generic keys, then from
/// the models' messages.
#[derive(Debug, Default)]
pub(super) struct Call<'a> {
    pub(super) name: Option<Cow<'a, str>>,
    /// A poor name, such as a class: used only where nothing else names the call.
    pub(super) last_name: Option<&'a str>,
    pub(super) call_id: Option<Cow<'a, str>>,
    pub(super) args: Option<Raw<'a>>,
    pub(super) args_in: Envelope,
    pub(super) result: Option<Raw<'a>>,
    pub(super) result_in: Envelope,
    pub(super) agent: Option<Cow<'a, str>>,
    /// The framework's own mark of a failure.
    pub(super) failed: bool,
    /// The status ERROR proves nothing here: it leaks from one span to the next.
    pub(super) status_lies: bool,
}

/// A value as it was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) value: Value<'a>,
    pub(super) cut: bool,
    /// The sender says that it is plain text: never parse it.
    pub(super) plain: bool,
}

/// What a framework wraps around arguments or a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Envelope {
    /// Nothing, but for the envelopes that are told by their shape (a serialised LangChain message,
    /// JSON within JSON).
    #[default]
    Plain,
    /// `{"kwargs": {…}}`, with `args` and other things of the framework beside it.
    Kwargs,
    /// `{"input_str": "{'a': 1}", "tags": …, "metadata": …}` with a Python literal inside;
    /// JavaScript: `{"args": ["{…}"]}`.
    InputStr,
    /// A list of content blocks: `[{"json": {…}}]`, `[{"text": "…"}]`.
    Blocks,
    /// `{"result": …}`.
    Result,
}

/// The first of these attributes that is there.
pub(super) fn first_raw<'a>(span: &View<'a>, keys: &[KeyId]) -> Option<Raw<'a>> {
    keys.iter().find_map(|&key| raw(span, key))
}

/// An attribute's value as it was received; an empty string says nothing of itself, but is a value.
pub(super) fn raw<'a>(span: &View<'a>, key: KeyId) -> Option<Raw<'a>> {
    let attribute = span.attribute(key)?;
    let mime = match key {
        keys::INPUT_VALUE => span.text(keys::INPUT_MIME),
        keys::OUTPUT_VALUE => span.text(keys::OUTPUT_MIME),
        _ => None,
    };
    Some(Raw {
        value: attribute.value,
        cut: attribute.cut,
        plain: mime == Some("text/plain"),
    })
}

/// The first of these attributes that holds a text that is not empty.
pub(super) fn first_text<'a>(span: &View<'a>, keys: &[KeyId]) -> Option<Cow<'a, str>> {
    keys.iter().find_map(|&key| text(span, key))
}

/// A name or id: a string without the quotes that some frameworks leave around it; numbers as their
/// digits.
pub(super) fn text<'a>(span: &View<'a>, key: KeyId) -> Option<Cow<'a, str>> {
    if !span.has(key) {
        return None;
    }
    if let Some(text) = span.text(key) {
        return unquoted(text).filter(|text| !text.is_empty());
    }
    match span.get(key)? {
        Value::Int(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

/// `"\"billing_agent\""` is how Langfuse and MLflow write a string; `<not specified>` how Google's
/// ADK writes that it has no call id.
pub(super) fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    if text.len() > 1 && text.starts_with('"') && text.ends_with('"') {
        return Some(serde_json::from_str::<String>(text).map_or(Cow::Borrowed(text), Cow::Owned))
            .filter(|text| *text != "null");
    }
    (!matches!(text, "null" | "<not specified>")).then_some(Cow::Borrowed(text))
}

/// Is the attribute this word, in whatever case and with or without quotes around it?
pub(super) fn is(span: &View<'_>, key: KeyId, word: &str) -> bool {
    span.text(key).is_some_and(|text| {
        let text = if text.len() > word.len() {
            text.trim_matches('"')
        } else {
            text
        };
        text.eq_ignore_ascii_case(word)
    })
}

/// Is the attribute true?
pub(super) fn is_true(span: &View<'_>, key: KeyId) -> bool {
    match span.get(key) {
        Some(Value::Bool(value)) => value,
        Some(Value::Str(text)) => text.eq_ignore_ascii_case("true"),
        _ => false,
    }
}

/// What follows a word at the start of a span's name.
pub(super) fn name_after<'a>(span: &View<'a>, word: &str) -> Option<&'a str> {
    let rest = span.name().strip_prefix(word)?;
    (rest.starts_with([' ', ':']))
        .then(|| rest.trim_start_matches([' ', ':']))
        .filter(|rest| !rest.is_empty())
}

/// Of a convention in which every span with its marks is a call.
pub(super) fn is_always_call(_: &View<'_>) -> bool {
    true
}

/// Of a convention without tool calls.
pub(super) fn is_never_call(_: &View<'_>) -> bool {
    false
}

/// The call of such a convention, which nobody asks for.
pub(super) fn no_call<'a>(_: &View<'a>) -> Call<'a> {
    Call::default()
}

/// A convention without agent runs.
pub(super) fn no_agent_run<'a>(_: &View<'a>) -> Option<Cow<'a, str>> {
    None
}

/// A convention without model spans.
pub(super) fn no_model(_: &View<'_>) -> bool {
    false
}
