//! Parses the expectations on a run's spans. The judged agent must not be able to weaken its own
//! judgement: its expectations can only add criteria, and an expectation that does not parse is an
//! `error`. Compiled patterns are dropped after the judgement, so runs cannot fill the memory with
//! patterns.

use std::collections::BTreeSet;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use text::{abbreviated, truncated};

use crate::evaluate::comparison::score::EvaluationError;
use crate::evaluate::criterion::{Applied, Criterion, EXPECTED, InvalidCriterion};
use crate::evaluate::evaluators::{Evaluator, WrittenEvaluator};
use crate::evaluate::parameters::pattern::{FieldError, PatternCompiler, PatternLimits};
use crate::extract::{
    CRITERIA, EXPECT, ExpectationAttributes, Payload, SpanExpectationPolicy, StatedValue, ToolCall,
    equality,
};

/// Maximum work for one expectation: its bytes times the calls that it is compared with, which
/// takes at most a few seconds of one core. Searches with its patterns have their own limit, as in
/// every evaluation.
const MAX_COST: usize = 64 << 20;
/// Maximum number of patterns in a run's expectation. Together they are at most as large as one
/// pattern of a file.
const MAX_PATTERNS: usize = 32;
/// Maximum characters of a span's text that an error message quotes.
const MAX_SHOWN: usize = 64;
/// Maximum number of mistakes that an error message lists.
const MAX_MISTAKES: usize = 5;

/// The kinds of expectations that are read from spans (`expectations.from_spans`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FromSpans {
    /// No expectations.
    Off,
    /// Names of registered criteria, which then apply to the run regardless of their selectors
    /// (`spanscore.criteria`).
    #[default]
    NamesOnly,
    /// Names of criteria, and the run's own expectation (`spanscore.expect`).
    Full,
}

impl FromSpans {
    /// Returns the word used in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NamesOnly => "names-only",
            Self::Full => "full",
        }
    }

    /// Returns the attributes that the scan must store.
    pub fn policy(self, max_size: usize) -> SpanExpectationPolicy {
        SpanExpectationPolicy {
            criteria: self != Self::Off,
            expect: self == Self::Full,
            max_size,
        }
    }
}

/// A run's own expectations.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpanExpectations {
    /// The registered criteria that apply to the run regardless of their selectors.
    pub names: BTreeSet<String>,
    /// The criterion [`EXPECTED`], built from the run's own expectation. An error if any
    /// expectation of the run is unusable.
    pub own: Option<Result<Arc<Criterion>, Arc<InvalidCriterion>>>,
}

impl SpanExpectations {
    /// Parses the expectations of a run with these calls. Expectations of one span that together
    /// exceed `max_size` were cut when they were received.
    pub fn read(
        attributes: &ExpectationAttributes,
        calls: &[ToolCall],
        is_registered: impl Fn(&str) -> bool,
        max_size: usize,
    ) -> Self {
        let mut mistakes = Mistakes::default();
        let mut names = BTreeSet::new();
        for said in &attributes.criteria {
            for name in mistakes
                .note(read_names(said, max_size))
                .unwrap_or_default()
            {
                if is_registered(&name) {
                    names.insert(name);
                } else {
                    let name = shown(&name);
                    mistakes.0.push(mistake(
                        "unknown_criterion",
                        said,
                        CRITERIA,
                        &format!("names `{name}`, but no such criterion is registered"),
                    ));
                }
            }
        }
        let expected = mistakes
            .note(read_expectation(&attributes.expect, calls, max_size))
            .flatten();
        let own: Option<Applied> = match mistakes.in_one() {
            Some(error) => {
                let said = attributes.criteria.iter().chain(&attributes.expect);
                let texts = said.map(|said| said.text.as_deref().unwrap_or_default());
                let text = texts.collect::<Vec<_>>().join("\n");
                let evaluator = expected.map_or("unknown", |evaluator| evaluator.name());
                let invalid = InvalidCriterion::new(EXPECTED, evaluator, &text, error);
                Some(Err(Arc::new(invalid)))
            }
            None => expected
                .map(|evaluator| Ok(Arc::new(Criterion::of_all(EXPECTED, evaluator, Some(1.0))))),
        };
        Self { names, own }
    }
}

/// Returns a stand-in for a run's own criterion whose evaluation is withdrawn. Only the names of
/// the criterion and of its evaluator are known at that time.
pub fn no_longer_expected(name: &str, evaluator: &'static str) -> InvalidCriterion {
    let error = EvaluationError {
        kind: "no_longer_expected",
        message: "the run does not have this expectation any more".to_owned(),
    };
    InvalidCriterion::new(name, evaluator, "", error)
}

/// Parses a list of names: separated by commas, or a JSON array, whose names may contain commas.
fn read_names(said: &StatedValue, max_size: usize) -> Result<Vec<String>, EvaluationError> {
    let text = whole(said, CRITERIA, max_size)?;
    if text.trim_start().starts_with('[') {
        return serde_json::from_str(text)
            .map_err(|error| unreadable(said, CRITERIA, "a list of names", &error));
    }
    Ok(text
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Parses the expectation of a run. Several spans may repeat it in different spellings.
fn read_expectation(
    said: &[StatedValue],
    calls: &[ToolCall],
    max_size: usize,
) -> Result<Option<Evaluator>, EvaluationError> {
    let Some((first, others)) = said.split_first() else {
        return Ok(None);
    };
    let expected = read_evaluator(first, calls, max_size)?;
    // Compared as canonical forms, which costs no compiling.
    let canonical = |said: &StatedValue| -> Option<Value> {
        let text = said.text.as_deref().filter(|_| !said.cut)?;
        let evaluator: WrittenEvaluator = serde_json::from_str(text).ok()?;
        serde_json::to_value(evaluator).ok()
    };
    let first_form = canonical(first);
    let differs = |other: &&StatedValue| match (&first_form, canonical(other)) {
        (Some(first), Some(other)) => equality::equal(first, &other) != Some(true),
        _ => true,
    };
    let others: Vec<String> = others.iter().filter(differs).map(place).collect();
    if others.is_empty() {
        return Ok(Some(expected));
    }
    let places = others[..others.len().min(MAX_MISTAKES)].join(" and ");
    let message = if others.len() <= MAX_MISTAKES {
        format!("conflicts with that of {places}: keep one")
    } else {
        format!(
            "differs from {} others, among them those of {places}: keep one spelling",
            others.len()
        )
    };
    Err(mistake("conflicting_expectations", first, EXPECT, &message))
}

fn read_evaluator(
    said: &StatedValue,
    calls: &[ToolCall],
    max_size: usize,
) -> Result<Evaluator, EvaluationError> {
    let text = whole(said, EXPECT, max_size)?;
    let too_large = || {
        let message = format!(
            "is too large to compare with {} calls: shorten it, or register a criterion instead",
            calls.len()
        );
        mistake("expectation_too_large", said, EXPECT, &message)
    };
    if text.len().saturating_mul(calls.len()) > MAX_COST {
        return Err(too_large());
    }
    const EXPECTED_FORM: &str = "an `evaluate` block in JSON";
    let source: WrittenEvaluator =
        serde_json::from_str(text).map_err(|error| match wrong_number_of_keys(text, &error) {
            Some(message) => mistake("unreadable_expectation", said, EXPECT, &message),
            None => unreadable(said, EXPECT, EXPECTED_FORM, &error),
        })?;
    let mut compiler = PatternCompiler::new(PatternLimits::network(MAX_PATTERNS));
    let evaluator = source.compile(&mut compiler).map_err(|errors| {
        let errors = truncated(&FieldError::join(&errors), 4 * MAX_SHOWN).to_owned();
        let message = format!("is not {EXPECTED_FORM}: {errors}");
        mistake("unreadable_expectation", said, EXPECT, &message)
    })?;
    Ok(evaluator)
}

/// Describes an expectation whose map does not have exactly one key, the evaluator's name: it has
/// none, the same key twice, or several. serde_json would report only `expected value`, or that the
/// first key is unknown.
fn wrong_number_of_keys(text: &str, error: &serde_json::Error) -> Option<String> {
    let map: Map<String, Value> = serde_json::from_str(text).ok()?;
    let keys: Vec<String> = map.keys().map(|key| format!("`{}`", shown(key))).collect();
    Some(match keys.as_slice() {
        [] => "names no evaluator: write one, such as `tool_calls`, with its fields".to_owned(),
        [key] if error.is_syntax() => format!("has the key {key} twice: keep one"),
        [_] => return None,
        keys => {
            let keys = keys[..keys.len().min(MAX_MISTAKES)].join(", ");
            format!("has the keys {keys}: keep one evaluator and no other key")
        }
    })
}

/// Returns the number of bytes in the calls that patterns may search.
pub fn searched_size(calls: &[ToolCall]) -> usize {
    let payload =
        |payload: &Option<Payload>| payload.as_ref().map_or(0, |payload| payload.text.len());
    calls
        .iter()
        .map(|call| call.name.len() + payload(&call.args) + payload(&call.result))
        .sum()
}

fn whole<'a>(
    said: &'a StatedValue,
    key: &str,
    max_size: usize,
) -> Result<&'a str, EvaluationError> {
    if said.cut {
        let message = format!(
            "was cut: the expectations of one span may take at most `expectations.max_size` \
             ({max_size} bytes)"
        );
        return Err(mistake("expectation_too_large", said, key, &message));
    }
    said.text.as_deref().ok_or_else(|| {
        mistake(
            "unreadable_expectation",
            said,
            key,
            "is not a string: send it as one",
        )
    })
}

fn unreadable(
    said: &StatedValue,
    key: &str,
    expected: &str,
    error: &serde_json::Error,
) -> EvaluationError {
    let mut message = format!("is not {expected}: {}", without_values(&error.to_string()));
    if error.is_eof() {
        message.push_str(" (an SDK cuts attributes at OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)");
    }
    mistake("unreadable_expectation", said, key, &message)
}

/// Removes a text value from a serde error, because the error may quote a private argument. Names
/// of fields and evaluators are not private.
fn without_values(message: &str) -> String {
    for start in ["invalid type: string \"", "invalid value: string \""] {
        if let Some(rest) = message.strip_prefix(start)
            && let Some((_, expected)) = rest.rsplit_once("\", expected")
        {
            return format!("invalid type: a string, expected{expected}");
        }
    }
    truncated(message, 4 * MAX_SHOWN).to_owned()
}

fn mistake(kind: &'static str, said: &StatedValue, key: &str, what: &str) -> EvaluationError {
    EvaluationError {
        kind,
        message: format!("`{key}` of {} {what}", place(said)),
    }
}

fn place(said: &StatedValue) -> String {
    said.span_id.map_or_else(
        || "the resource".to_owned(),
        |span_id| format!("span {span_id}"),
    )
}

fn shown(text: &str) -> String {
    abbreviated(text, MAX_SHOWN).into_owned()
}

// === Mistakes ===

#[derive(Default)]
struct Mistakes(Vec<EvaluationError>);

impl Mistakes {
    fn note<T>(&mut self, read: Result<T, EvaluationError>) -> Option<T> {
        read.map_err(|error| self.0.push(error)).ok()
    }

    /// Joins the messages into one error, whose kind is that of the first mistake.
    fn in_one(self) -> Option<EvaluationError> {
        let kind = self.0.first()?.kind;
        let mut messages: Vec<String> = self
            .0
            .iter()
            .take(MAX_MISTAKES)
            .map(|error| error.message.clone())
            .collect();
        if self.0.len() > MAX_MISTAKES {
            messages.push(format!("and {} more", self.0.len() - MAX_MISTAKES));
        }
        Some(EvaluationError {
            kind,
            message: messages.join("; "),
        })
    }
}

#[cfg(test)]
mod tests;
