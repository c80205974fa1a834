//! Reads the numbers of a model's input and output tokens, as the model's span recorded them.

use otlp::span::{KeyId, Value};

use super::keys;
use super::view::View;

/// The tokens of one or more model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Input tokens, output tokens and their total. Input or output is 0 if it was not recorded;
    /// the total is their sum if it was not recorded, or if both were.
    pub(crate) tokens: [u64; 3],
    /// True for each number that is known for all calls.
    pub(crate) is_whole: [bool; 3],
}

/// The values that distinguish two model calls made at the same time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsageReport<'a> {
    response_id: Option<&'a str>,
    /// Input tokens, and output tokens.
    tokens: [Option<u64>; 2],
    /// Cached tokens; the input tokens may include them.
    n_cached: u64,
}

impl<'a> UsageReport<'a> {
    pub(crate) fn of(span: &View<'a>) -> Self {
        Self {
            response_id: span.str(keys::RESPONSE_ID).filter(|id| !id.is_empty()),
            tokens: [keys::INPUT_TOKENS, keys::OUTPUT_TOKENS].map(|keys| first(span, keys)),
            n_cached: cached(span),
        }
    }

    /// Returns true if both report the same call. If both have a response id, only the ids count.
    /// Else `None` if only the input tokens or only the output tokens differ, because
    /// instrumentations may count differently.
    pub(crate) fn is_of_one_call(&self, other: &Self) -> Option<bool> {
        if let (Some(one), Some(other)) = (self.response_id, other.response_id) {
            return Some(one == other);
        }
        let differ =
            |at: usize, [of_one, of_other]: [u64; 2]| match (self.tokens[at], other.tokens[at]) {
                (Some(one), Some(other)) => {
                    one != other
                        && one.checked_add(of_one) != Some(other)
                        && other.checked_add(of_other) != Some(one)
                }
                _ => false,
            };
        match [
            differ(0, [self.n_cached, other.n_cached]),
            differ(1, [0; 2]),
        ] {
            [true, true] => Some(false),
            [false, false] => Some(true),
            _ => None,
        }
    }

    pub(crate) fn complete(&mut self, other: Self) {
        self.response_id = self.response_id.or(other.response_id);
        self.n_cached = self.n_cached.max(other.n_cached);
        for (own, of_other) in self.tokens.iter_mut().zip(other.tokens) {
            *own = own.or(of_other);
        }
    }
}

impl Usage {
    pub(crate) const UNRECORDED: Self = Self {
        tokens: [0; 3],
        is_whole: [false; 3],
    };

    /// Returns the usage that a span records; `None` if it records no number.
    pub(crate) fn of(span: &View<'_>) -> Option<Self> {
        if !span.has_any(keys::USAGE) {
            return None;
        }
        let sides = [
            first(span, keys::INPUT_TOKENS).map(|input| with_cached(input, span)),
            first(span, keys::OUTPUT_TOKENS),
        ];
        let [input, output] = sides.map(Option::unwrap_or_default);
        let both = input.saturating_add(output);
        // Input and output tokens are more exact than a recorded total, which may exclude cached
        // tokens.
        let total = if let [Some(_), Some(_)] = sides {
            Some(both)
        } else {
            first(span, keys::TOTAL_TOKENS).map(|total| total.max(both))
        };
        let [has_input, has_output] = sides.map(|side| side.is_some());
        let is_whole = [has_input, has_output, total.is_some()];
        is_whole.contains(&true).then(|| Self {
            tokens: [input, output, total.unwrap_or(both)],
            is_whole,
        })
    }

    /// Returns `own` if it records input or output tokens; else the usage of the inner spans; else
    /// the total in `own`.
    pub(crate) fn or_within(
        own: Option<Self>,
        within: impl FnOnce() -> Option<Self>,
    ) -> Option<Self> {
        let sides = own.filter(|own| own.is_whole[..2].contains(&true));
        let within = || within().filter(|within| *within != Self::UNRECORDED);
        sides.or_else(within).or(own)
    }

    /// Returns lower bounds for the tokens of a call that was recorded twice: with this usage, and
    /// with a usage of at least `least`.
    pub(crate) fn least_of_one_call(self, least: [u64; 3]) -> [u64; 3] {
        let [input, output] = [0, 1].map(|side| {
            let is_less = self.is_whole[side] && self.tokens[side] < least[side];
            if is_less { self.tokens[side] } else { least[side] }
        });
        [input, output, input.saturating_add(output)]
    }

    pub(crate) fn and(self, other: Self) -> Self {
        let at = [0, 1, 2];
        Self {
            tokens: at.map(|at| self.tokens[at].saturating_add(other.tokens[at])),
            is_whole: at.map(|at| self.is_whole[at] && other.is_whole[at]),
        }
    }
}

/// Adds cached tokens that the producer did not count. The conventions count cached tokens as
/// input, so a number of cached tokens above the input shows that they were not counted.
fn with_cached(input: u64, span: &View<'_>) -> u64 {
    let cached = cached(span);
    if cached > input { input.saturating_add(cached) } else { input }
}

/// Returns the number of tokens that came from a cache or were written to one.
fn cached(span: &View<'_>) -> u64 {
    let number = |keys| first(span, keys).unwrap_or_default();
    number(keys::CACHE_READS).saturating_add(number(keys::CACHE_WRITES))
}

/// Returns the first number among these attributes. Attributes of the span's own product precede a
/// normaliser's copies.
fn first(span: &View<'_>, keys: &[KeyId]) -> Option<u64> {
    let is_original = |key: &&KeyId| match **key {
        keys::OI_PROMPT_USAGE
        | keys::OI_COMPLETION_USAGE
        | keys::OI_CACHE_READ
        | keys::OI_CACHE_WRITE
        | keys::OI_TOTAL_USAGE => span.has(keys::OI_KIND),
        keys::AI_INPUT_USAGE
        | keys::AI_PROMPT_USAGE
        | keys::AI_OUTPUT_USAGE
        | keys::AI_COMPLETION_USAGE
        | keys::AI_CACHE_READ
        | keys::AI_CACHED
        | keys::AI_CACHE_WRITE
        | keys::AI_TOTAL_USAGE => span.has(keys::AI_OPERATION),
        _ => false,
    };
    let originals = keys.iter().filter(is_original);
    originals
        .chain(keys)
        .find_map(|key| number(span.get(*key)?))
}

/// Parses a whole number, 0 or more. JavaScript's exporters write numbers as doubles.
fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        // A double above 2^53 is not an exact count.
        Value::Double(number) if (0.0..=9_007_199_254_740_992.0).contains(&number) => {
            (number.fract() == 0.0).then_some(number as u64)
        }
        Value::Str(text) => text.parse().ok(),
        _ => None,
    }
}
