//! Pure. What a run says about its own judgement and the registered criteria in; what is added to
//! its judgement, or why that cannot be, out. The judged agent must not weaken its own judge:
//! whatever it says, nothing is taken away, and what cannot be read is an `error`. Nothing of it
//! outlives the judgement, so that runs cannot fill our memory with patterns.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Evaluator;
use super::criterion::Criterion;
use super::pattern;
use super::score::EvaluationError;
use super::unusable::Unusable;
use crate::extract::{Bringing, Brought, CRITERIA, EXPECT, Payload, Said, ToolCall};
use crate::text::{abbreviated, truncated};

/// The criterion that judges a run by what it says itself.
pub const EXPECTED: &str = "expect";

/// Most bytes of an expectation times the calls that it is held to, and most of its patterns times
/// the bytes of names, arguments and results that they look at: together less than ten seconds of
/// one core at the very worst, after which a probe would find us stuck.
const MAX_COST: usize = 64 << 20;
const MAX_SEARCH: usize = 4 << 20;
/// Most patterns that a run may bring: together as much as one of a file.
const MAX_PATTERNS: usize = 32;
/// Longest piece of a text from a span that a message repeats, in characters.
const MAX_SHOWN: usize = 64;
/// Most mistakes that a message tells.
const MAX_MISTAKES: usize = 5;

/// How much runs may say about their own judgement (`expectations.from_spans`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FromSpans {
    /// Nothing.
    Off,
    /// Which registered criteria apply, whatever their selectors (`spanscore.criteria`).
    #[default]
    NamesOnly,
    /// That, and an expectation of their own (`spanscore.expect`).
    Full,
}

impl FromSpans {
    /// The word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::NamesOnly => "names-only",
            Self::Full => "full",
        }
    }

    /// What is to be kept of spans for it.
    pub fn bringing(self, max_size: usize) -> Bringing {
        Bringing {
            criteria: self != Self::Off,
            expect: self == Self::Full,
            max_size,
        }
    }
}

/// What a run adds to its judgement.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Added {
    /// Registered criteria that apply whatever their selectors.
    pub names: BTreeSet<String>,
    /// Criterion [`EXPECTED`]: what the run expects of itself, or that something it says cannot be
    /// used.
    pub own: Option<Criterion>,
}

impl Added {
    /// Reads what a run with these calls says. `max_size` is for messages: what is longer was cut
    /// when it came.
    pub fn of(
        brought: &Brought,
        calls: &[ToolCall],
        is_registered: impl Fn(&str) -> bool,
        max_size: usize,
    ) -> Self {
        let mut mistakes = Mistakes::default();
        let mut names = BTreeSet::new();
        for said in &brought.criteria {
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
                        &format!("names `{name}`, and no such criterion is registered"),
                    ));
                }
            }
        }
        let expected = match brought.expect.as_slice() {
            [] => None,
            [said] => mistakes.note(read_evaluator(said, calls, max_size)),
            [said, others @ ..] => {
                let others: Vec<String> = others.iter().map(place).collect();
                let message = format!("is not that of {}: keep one", others.join(" and "));
                mistakes
                    .0
                    .push(mistake("conflicting_expectations", said, EXPECT, &message));
                None
            }
        };
        let own = match mistakes.in_one() {
            Some(error) => {
                let said = brought.criteria.iter().chain(&brought.expect);
                let text = said
                    .map(|said| said.text.as_deref().unwrap_or_default())
                    .collect::<Vec<_>>()
                    .join("\n");
                let evaluator = expected.map_or("unknown", |evaluator| evaluator.name());
                Some(Evaluator::Unusable(Unusable {
                    evaluator,
                    text,
                    error,
                }))
            }
            None => expected,
        };
        Self {
            names,
            own: own.map(|evaluator| Criterion::of_all(EXPECTED, evaluator, Some(1.0))),
        }
    }
}

/// What is left of a criterion that came with a run, or was made for it, when it is taken back: its
/// name and that of its evaluator.
pub fn no_longer_expected(name: &str, evaluator: &'static str) -> Criterion {
    let error = EvaluationError {
        kind: "no_longer_expected",
        message: "the run expects nothing any more".to_owned(),
    };
    Criterion::of_all(
        name,
        Evaluator::Unusable(Unusable {
            evaluator,
            text: String::new(),
            error,
        }),
        Some(1.0),
    )
}

/// A list of names: separated by commas, or an array (also as its JSON, which is how names with
/// commas in them can be written).
fn read_names(said: &Said, max_size: usize) -> Result<Vec<String>, EvaluationError> {
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

fn read_evaluator(
    said: &Said,
    calls: &[ToolCall],
    max_size: usize,
) -> Result<Evaluator, EvaluationError> {
    let text = whole(said, EXPECT, max_size)?;
    let (read, n_patterns) = pattern::frugally(MAX_PATTERNS, || serde_json::from_str(text));
    if text.len().saturating_mul(calls.len()) > MAX_COST
        || n_patterns.saturating_mul(searched_size(calls)) > MAX_SEARCH
    {
        let message = format!(
            "is too much to hold {} calls to: expect less of so long a run, or register a criterion",
            calls.len()
        );
        return Err(mistake("expectation_too_large", said, EXPECT, &message));
    }
    read.map_err(|error| unreadable(said, EXPECT, "an `evaluate` block in JSON", &error))
}

/// The bytes of these calls that a pattern may look at.
pub fn searched_size(calls: &[ToolCall]) -> usize {
    let payload =
        |payload: &Option<Payload>| payload.as_ref().map_or(0, |payload| payload.text.len());
    calls
        .iter()
        .map(|call| call.name.len() + payload(&call.args) + payload(&call.result))
        .sum()
}

fn whole<'a>(said: &'a Said, key: &str, max_size: usize) -> Result<&'a str, EvaluationError> {
    if said.cut {
        let message = format!(
            "was cut: all that one span brings may take `expectations.max_size` ({max_size} bytes)"
        );
        return Err(mistake("expectation_too_large", said, key, &message));
    }
    said.text.as_deref().ok_or_else(|| {
        mistake(
            "unreadable_expectation",
            said,
            key,
            "is no text: send a string",
        )
    })
}

fn unreadable(
    said: &Said,
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

/// What serde complains about may be an argument that is expected: values are private. Names of
/// fields and evaluators are none.
fn without_values(message: &str) -> String {
    for (start, word) in [
        ("invalid type: string \"", "a string"),
        ("invalid value: string \"", "a string"),
    ] {
        if let Some(rest) = message.strip_prefix(start)
            && let Some((_, expected)) = rest.rsplit_once("\", expected")
        {
            return format!("invalid type: {word}, expected{expected}");
        }
    }
    truncated(message, 4 * MAX_SHOWN).to_owned()
}

fn mistake(kind: &'static str, said: &Said, key: &str, what: &str) -> EvaluationError {
    EvaluationError {
        kind,
        message: format!("`{key}` of {} {what}", place(said)),
    }
}

fn place(said: &Said) -> String {
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

    /// The first one's kind, and what there is to say of each.
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
mod tests {
    use std::sync::Arc;

    use crate::span::SpanId;

    use super::*;

    fn said(text: &str) -> Said {
        Said {
            span_id: SpanId::try_new(&[1; 8]),
            text: Some(Arc::from(text)),
            cut: false,
        }
    }

    fn added(criteria: &[&str], expect: &[&str]) -> Added {
        added_to(&[], criteria, expect)
    }

    fn added_to(calls: &[ToolCall], criteria: &[&str], expect: &[&str]) -> Added {
        let said = |texts: &[&str]| texts.iter().map(|text| said(text)).collect();
        let brought = Brought {
            case_id: None,
            criteria: said(criteria),
            expect: said(expect),
        };
        Added::of(
            &brought,
            calls,
            |name| ["a", "b", "c, d"].contains(&name),
            16_384,
        )
    }

    fn error(added: &Added) -> (&'static str, &str) {
        match added.own.as_ref().map(|own| &own.evaluate) {
            Some(Evaluator::Unusable(unusable)) => (unusable.error.kind, &unusable.error.message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_come_as_a_comma_list_or_as_an_array() {
        for (text, expected) in [
            ("a", vec!["a"]),
            (" b , a,,a ", vec!["a", "b"]),
            ("[\"a\",\"c, d\"]", vec!["a", "c, d"]),
            ("", vec![]),
            ("[]", vec![]),
        ] {
            let added = added(&[text], &[]);
            assert_eq!(
                (
                    added.names.iter().map(String::as_str).collect::<Vec<_>>(),
                    added.own
                ),
                (expected, None),
                "{text}"
            );
        }
    }

    #[test]
    fn what_cannot_be_used_is_an_error_that_names_its_place_and_leaves_the_rest() {
        let order = r#"{"tool_call_order": {"tool_calls_order": ["a"]}}"#;
        for (criteria, expect, names, kind, parts) in [
            (
                vec!["a, x"],
                vec![],
                1,
                "unknown_criterion",
                [
                    "`spanscore.criteria` of span 0101010101010101 names `x`",
                    "registered",
                ],
            ),
            (
                vec!["a", "[1]"],
                vec![],
                1,
                "unreadable_expectation",
                [
                    "is not a list of names: invalid type: integer",
                    "line 1 column 2",
                ],
            ),
            (
                vec![],
                vec![""],
                0,
                "unreadable_expectation",
                ["EOF", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"],
            ),
            (
                vec![],
                vec![&order[..20]],
                0,
                "unreadable_expectation",
                ["`spanscore.expect` of span", "line 1 column 20"],
            ),
            (
                vec![],
                vec!["{\"tool_call_ordr\": {}}"],
                0,
                "unreadable_expectation",
                ["unknown variant `tool_call_ordr`", "`tool_order`"],
            ),
            (
                vec![],
                vec!["{\"unusable\": {}}"],
                0,
                "unreadable_expectation",
                ["unknown variant", "line 1 column"],
            ),
            (
                vec![],
                vec!["{\"tool_call_order\": \"4111 1111\"}"],
                0,
                "unreadable_expectation",
                ["invalid type: a string, expected", "line 1"],
            ),
            (
                vec![],
                vec![order, "{}"],
                0,
                "conflicting_expectations",
                ["is not that of span 0101010101010101", "keep one"],
            ),
            (
                vec!["x"],
                vec![order],
                0,
                "unknown_criterion",
                ["names `x`", ""],
            ),
        ] {
            let added = added(&criteria, &expect);
            let (found, message) = error(&added);
            assert_eq!((added.names.len(), found), (names, kind), "{message}");
            parts
                .iter()
                .for_each(|part| assert!(message.contains(part), "{message}"));
            assert!(!message.contains("4111"), "{message}");
        }
    }

    #[test]
    fn it_carries_a_revision_of_what_was_expected() {
        let own = |text: &str| added(&[], &[text]).own.unwrap();
        let revision = |text: &str| own(text).revision().to_owned();
        let order = revision(r#"{"tool_call_order": {"tool_calls_order": ["a"]}}"#);
        assert_eq!(
            order,
            revision(r#"{ "tool_call_order": { "strict": false, "tool_calls_order": ["a"] } }"#)
        );
        assert_ne!(
            order,
            revision(r#"{"tool_call_order": {"tool_calls_order": ["b"]}}"#)
        );
        assert_ne!(revision("{"), revision("{{"));
        assert_eq!(
            own(r#"{"execution_order": {"expected_output": ["a"]}}"#).threshold,
            1.0,
            "whatever its evaluator's default"
        );
    }

    #[test]
    fn patterns_of_runs_are_few_and_small() {
        let calls = |patterns: Vec<String>| {
            serde_json::json!({"tool_calls": {"disallowed": patterns}}).to_string()
        };
        assert!(matches!(
            added(&[], &[&calls(vec!["rm|mv".to_owned(); 32])])
                .own
                .unwrap()
                .evaluate,
            Evaluator::ToolCalls(_)
        ));
        let many = added(&[], &[&calls(vec!["a".to_owned(); 33])]);
        assert!(
            error(&many).1.contains("more than 32 patterns"),
            "{}",
            error(&many).1
        );
        let large = added(&[], &[&calls(vec!["(.{20}){20}".to_owned()])]);
        assert!(
            error(&large)
                .1
                .contains("is larger than 32 KiB when compiled"),
            "{}",
            error(&large).1
        );
        // What is registered may be larger.
        assert!(pattern::Pattern::try_new("(.{20}){20}").is_ok());
    }

    #[test]
    fn an_expectation_that_would_take_long_is_an_error() {
        let call = |result: &str| ToolCall {
            name: "a".into(),
            call_id: None,
            args: None,
            result: Some(Payload::new(result, serde_json::Value::Null, false)),
            error: false,
            agent: None,
            agent_run: None,
            step: 0,
            parallel_group: None,
            span_id: None,
            start_unix_nanos: 0,
            end_unix_nanos: 0,
            convention: "gen_ai".into(),
            partial: false,
            doubt: crate::extract::Doubt::default(),
        };
        let order = serde_json::json!({"tool_call_order": {"tool_calls_order": vec!["a"; 4_000]}})
            .to_string();
        let patterns = serde_json::json!({"tool_calls": {"disallowed": vec!["rm"; 8]}}).to_string();
        let (many, large) = (vec![call(""); 5_000], vec![call(&"x".repeat(16_384)); 33]);
        for (calls, expect, is_too_much) in [
            (&many, &order, true),
            (&large, &order, false),
            (&many, &patterns, false),
            (&large, &patterns, true),
        ] {
            let own = added_to(calls, &[], &[expect]).own.unwrap().evaluate;
            assert_eq!(
                matches!(own, Evaluator::Unusable(_)),
                is_too_much,
                "{} calls",
                calls.len()
            );
        }
        let too_much = added_to(&many, &[], &[&order]);
        assert!(error(&too_much).1.ends_with("is too much to hold 5000 calls to: expect less of so long a run, or register a criterion"));
    }

    #[test]
    fn a_long_list_of_wrong_names_stays_short_in_the_message() {
        let names: Vec<String> = (0..1_000)
            .map(|n| format!("{n}{}", "x".repeat(500)))
            .collect();
        let added = added(&[&names.join(",")], &[]);
        let (_, message) = error(&added);
        assert!(
            message.len() < 1_024 && message.ends_with("; and 995 more"),
            "{message}"
        );
    }
}
