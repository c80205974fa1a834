//! The view of a span or log record that conventions read: its name, its built-in keys, and its
//! values by key.

use std::borrow::Cow;
use std::ops::Deref;

use otlp::span::{Event, IndexedAttributes, KeyBits, KeyId, ScopeHash, SpanRow, Value};

use super::keys;
use crate::extract::values::Raw;

/// A span or log record. Its attributes are indexed, because conventions look up many keys, most of
/// which are absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a> {
    attributes: IndexedAttributes<'a>,
    is_record: bool,
    scope: ScopeHash,
}

impl<'a> Deref for View<'a> {
    type Target = IndexedAttributes<'a>;

    #[inline]
    fn deref(&self) -> &IndexedAttributes<'a> {
        &self.attributes
    }
}

impl<'a> View<'a> {
    #[inline]
    pub(crate) fn new(attributes: IndexedAttributes<'a>, span: &SpanRow) -> Self {
        Self {
            attributes,
            is_record: span.is_record,
            scope: span.scope,
        }
    }

    pub(crate) fn is_record(&self) -> bool {
        self.is_record
    }

    pub(crate) fn scope(&self) -> ScopeHash {
        self.scope
    }

    pub(crate) fn has_any(&self, keys: KeyBits) -> bool {
        self.present().intersects(keys)
    }

    /// Returns true if an attribute states the span's kind, in any convention.
    pub(crate) fn names_kind(&self) -> bool {
        self.has_any(keys::OWN_KINDS)
            || self.has_any(keys::KINDS)
                && keys::GENERAL_KINDS
                    .iter()
                    .any(|(key, words)| words.iter().any(|word| self.is(*key, word)))
    }

    /// Returns the value of the first of these attributes that is present, as received.
    pub(crate) fn first_raw(&self, keys: &[KeyId]) -> Option<Raw<'a>> {
        keys.iter()
            .find(|&&key| self.has(key))
            .and_then(|&key| self.raw(key))
    }

    /// Returns an attribute's value as received. An empty string is also a value.
    pub(crate) fn raw(&self, key: KeyId) -> Option<Raw<'a>> {
        let attribute = self.attribute(key)?;
        let mime_type = match key {
            keys::INPUT_VALUE => self.str(keys::INPUT_MIME),
            keys::OUTPUT_VALUE => self.str(keys::OUTPUT_MIME),
            _ => None,
        };
        Some(Raw {
            value: attribute.value,
            cut: attribute.cut,
            plain: mime_type == Some("text/plain"),
        })
    }

    /// Returns the first text among these attributes that is not empty.
    pub(crate) fn first_text(&self, keys: &[KeyId]) -> Option<Cow<'a, str>> {
        let mut present = keys.iter().filter(|&&key| self.has(key));
        present.find_map(|&key| self.text(key))
    }

    /// Reads a name or id: a string without the quotes that some frameworks add, or an integer as
    /// digits.
    #[inline]
    pub(crate) fn text(&self, key: KeyId) -> Option<Cow<'a, str>> {
        if !self.has(key) {
            return None;
        }
        self.present_text(key)
    }

    fn present_text(&self, key: KeyId) -> Option<Cow<'a, str>> {
        match self.str(key) {
            Some("") => None,
            Some(text) => unquoted(text).filter(|text| !text.is_empty()),
            None => match self.get(key)? {
                Value::Int(number) => Some(Cow::Owned(number.to_string())),
                _ => None,
            },
        }
    }

    pub(crate) fn is(&self, key: KeyId, word: &str) -> bool {
        self.has(key) && self.str(key).is_some_and(|text| is_word(text, word))
    }

    pub(crate) fn is_true(&self, key: KeyId) -> bool {
        match self.get(key) {
            Some(Value::Bool(value)) => value,
            Some(Value::Str(text)) => text.eq_ignore_ascii_case("true"),
            _ => false,
        }
    }

    /// Returns true if the attribute is `false`, as a boolean or as text.
    pub(crate) fn is_false(&self, key: KeyId) -> bool {
        self.is(key, "false") || self.get(key) == Some(Value::Bool(false))
    }
}

/// Returns true if the text equals the word, ignoring case and surrounding quotes.
pub(crate) fn is_word(text: &str, word: &str) -> bool {
    let is_quoted = text.len() > word.len();
    let text = if is_quoted { text.trim_matches('"') } else { text };
    text.eq_ignore_ascii_case(word)
}

pub(crate) fn event_value(event: Event<'_>, key: KeyId) -> Option<Raw<'_>> {
    let attribute = event.attributes().find(|attribute| attribute.key == key)?;
    Some(Raw {
        value: attribute.value,
        cut: attribute.cut,
        plain: false,
    })
}

/// Removes the quotes that some SDKs write around a string: `"\"billing_agent\""`. Returns `None`
/// for `null`, and for `<not specified>`, which marks a missing call id.
pub(crate) fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    if text.len() > 1 && text.starts_with('"') && text.ends_with('"') {
        return Some(serde_json::from_str::<String>(text).map_or(Cow::Borrowed(text), Cow::Owned))
            .filter(|text| *text != "null");
    }
    (!matches!(text, "null" | "<not specified>")).then_some(Cow::Borrowed(text))
}

/// Returns the rest of a span's name after a leading word.
pub(crate) fn name_after<'a>(span_name: &'a str, word: &str) -> Option<&'a str> {
    let rest = span_name.strip_prefix(word)?;
    (rest.starts_with([' ', ':']))
        .then(|| rest.trim_start_matches([' ', ':']))
        .filter(|rest| !rest.is_empty())
}

/// Returns an attribute as the text that selectors compare: numbers and booleans as JSON.
pub(crate) fn attribute_text(value: Value<'_>) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::Str(text) | Value::Json(text) => Cow::Borrowed(text),
        Value::Bool(value) => Cow::Owned(value.to_string()),
        Value::Int(value) => Cow::Owned(value.to_string()),
        Value::Double(value) => Cow::Owned(serde_json::Value::from(value).to_string()),
        Value::Bytes(_) => return None,
    })
}
