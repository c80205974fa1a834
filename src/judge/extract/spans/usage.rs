//! Reads how many tokens a span says that a model read and wrote. Looks at one span.

use otlp::span::{KeyId, Value};

use super::keys;
use super::view::View;

/// The tokens of a model call, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Read and written, as far as that was recorded.
    pub(crate) tokens: [u64; 2],
    /// True if all of it was recorded.
    pub(crate) is_whole: [bool; 2],
}

impl Usage {
    /// Nothing was recorded.
    pub(crate) const UNRECORDED: Self = Self {
        tokens: [0; 2],
        is_whole: [false; 2],
    };

    /// The usage that a span records; `None` if it names neither side.
    pub(crate) fn of(span: &View<'_>) -> Option<Self> {
        if !span.has_any(keys::USAGE) {
            return None;
        }
        let sides = [
            first(span, keys::INPUT_TOKENS).map(|input| with_cached(input, span)),
            first(span, keys::OUTPUT_TOKENS),
        ];
        sides.iter().any(Option::is_some).then(|| Self {
            tokens: sides.map(Option::unwrap_or_default),
            is_whole: sides.map(|side| side.is_some()),
        })
    }

    /// The sum with that of another model call.
    pub(crate) fn and(self, other: Self) -> Self {
        let both = |at: usize| self.tokens[at].saturating_add(other.tokens[at]);
        let is_whole = |at: usize| self.is_whole[at] && other.is_whole[at];
        Self {
            tokens: [both(0), both(1)],
            is_whole: [is_whole(0), is_whole(1)],
        }
    }
}

/// The conventions count cached tokens as input. Some producers leave them out, which shows where
/// they are more than the input.
fn with_cached(input: u64, span: &View<'_>) -> u64 {
    let number = |keys| first(span, keys).unwrap_or_default();
    let cached = number(keys::CACHE_READS).saturating_add(number(keys::CACHE_WRITES));
    if cached > input { input.saturating_add(cached) } else { input }
}

/// The first of these attributes that holds a number, those of the span's own product before
/// copies.
fn first(span: &View<'_>, keys: &[KeyId]) -> Option<u64> {
    let is_original = |key: &&KeyId| match **key {
        keys::OI_PROMPT_USAGE
        | keys::OI_COMPLETION_USAGE
        | keys::OI_CACHE_READ
        | keys::OI_CACHE_WRITE => span.has(keys::OI_KIND),
        keys::AI_INPUT_USAGE
        | keys::AI_PROMPT_USAGE
        | keys::AI_OUTPUT_USAGE
        | keys::AI_COMPLETION_USAGE => span.has(keys::AI_OPERATION),
        _ => false,
    };
    let originals = keys.iter().filter(is_original);
    originals
        .chain(keys)
        .find_map(|key| number(span.get(*key)?))
}

/// A whole number, 0 or more. JavaScript's exporters write numbers as doubles.
fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        // Above 2^53, a double is no count.
        Value::Double(number) if (0.0..=9_007_199_254_740_992.0).contains(&number) => {
            (number.fract() == 0.0).then_some(number as u64)
        }
        Value::Str(text) => text.parse().ok(),
        _ => None,
    }
}
