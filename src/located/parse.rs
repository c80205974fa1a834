//! Parses YAML or JSON text into a tree of located nodes.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

use super::problem::{Problem, Problems};
use super::texts::{Place, Texts};
use super::tree::{Kind, Map, MapEntry, Node, NodeValue, Scalar};

/// Maximum nesting. Real files need less than half of it; twice as much would overflow a thread's
/// stack in a debug build.
const MAX_DEPTH: usize = 32;

/// Limits on the content of a text, applied during parsing. A value uses some 300 bytes.
#[derive(Debug, Clone, Copy)]
pub struct TextBounds {
    max_values: usize,
    /// Maximum number of values that all aliases together expand to.
    max_from_aliases: usize,
}

impl TextBounds {
    /// The limits for files, whose author may also raise the memory limit.
    const FILE: Self = Self {
        max_values: 250_000,
        max_from_aliases: 250_000,
    };
    /// The limits for texts from the network: at most 12 MiB.
    pub const NETWORK: Self = Self {
        max_values: 40_000,
        max_from_aliases: 10_000,
    };
}

/// Parses the text of a file; an empty text is a null. Repeated keys are reported, and the first
/// one is used. Returns `None` if the text is not YAML.
pub fn parse(texts: &Texts, source: usize, problems: &mut Problems) -> Option<Node> {
    parse_within(texts, source, TextBounds::FILE, problems)
}

pub fn parse_within(
    texts: &Texts,
    source: usize,
    bounds: TextBounds,
    problems: &mut Problems,
) -> Option<Node> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: bounds.max_values,
            max_events: 4 * bounds.max_values,
            max_recorded_anchor_events: bounds.max_from_aliases,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: bounds.max_from_aliases,
        },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        strict_booleans: true,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(texts.text(source), options) {
        Ok(raw) => Some(
            Builder {
                texts,
                source,
                problems,
            }
            .node(raw),
        ),
        Err(error) => {
            problems.push(not_yaml(texts, source, &error));
            None
        }
    }
}

/// Returns the kind of a scalar from a variable or a flag, as if the scalar were written without
/// quotes.
pub fn infer(text: &str) -> Kind {
    match text.trim() {
        "" | "~" | "null" => Kind::Null,
        "true" => Kind::Bool(true),
        "false" => Kind::Bool(false),
        text => {
            if let Ok(number) = text.parse() {
                Kind::Unsigned(number)
            } else if let Ok(number) = text.parse() {
                Kind::Signed(number)
            } else if text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'))
                && let Ok(number) = text.parse()
            {
                Kind::Float(number)
            } else {
                Kind::Text
            }
        }
    }
}

fn not_yaml(texts: &Texts, source: usize, error: &serde_saphyr::Error) -> Problem {
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or(&message);
    let place = error.location().map(|location| {
        texts.place_at(source, location.line() as usize, location.column() as usize)
    });
    let line = place.map_or("", |place| texts.line(place));
    let reported = SyntaxError {
        title: format!("not valid YAML: {message}"),
        remedy: "",
        place,
    };
    let SyntaxError {
        title,
        remedy,
        place,
    } = match message {
        _ if message.contains("\\u{0}") => SyntaxError {
            title: "a NUL byte, so this is not a text".to_owned(),
            remedy: "save the file as UTF-8",
            ..reported
        },
        _ if message.contains("tab") => match place.and_then(|place| tab_after(texts, place)) {
            Some(tab) => SyntaxError {
                title: "a tab in the indentation".to_owned(),
                remedy: "indent with spaces",
                place: Some(tab),
            },
            None => reported.with_remedy("write spaces instead of tabs"),
        },
        _ if line.contains("${") && line.contains('{') => {
            reported.with_remedy("inside `{ }` and `[ ]`, write `\"${env:NAME}\"` in quotes")
        }
        _ if message.contains("recursion limit") || message.contains("depth") => SyntaxError {
            title: format!("nested more than {MAX_DEPTH} deep"),
            remedy: "write it flatter",
            ..reported
        },
        _ if message.contains("budget breached")
            || message.contains("alias") && message.contains("limit") =>
        {
            SyntaxError {
                title: "too many values (each use of an alias counts in full)".to_owned(),
                remedy: "split it into several files or requests",
                ..reported
            }
        }
        _ if message.contains("mismatched bracket") => {
            reported.with_remedy("close each `[` with `]` and each `{` with `}`")
        }
        _ if message.contains("unknown anchor") => {
            reported.with_remedy("write `&` and this name before a value above")
        }
        _ if message.contains("multiple YAML documents") => SyntaxError {
            title: "a second document starts here".to_owned(),
            remedy: "a configuration is one document",
            ..reported
        },
        _ if message.contains("multiline quoted scalar") || message.contains("unclosed quote") => {
            SyntaxError {
                title: "a quote is not closed".to_owned(),
                remedy: "close it at the end of the value",
                place: place.map(|place| quote_before(texts, place).unwrap_or(place)),
            }
        }
        _ if message.contains("after single-quoted") => {
            reported.with_remedy("write `''` for a quote inside `'…'`, and quote the whole value")
        }
        _ if message.contains("after double-quoted") => reported
            .with_remedy("write `\\\"` for a quote inside `\"…\"`, and quote the whole value"),
        _ if message.contains("mapping values are not allowed") => {
            reported.with_remedy("check the indentation, and quote a value that contains `: `")
        }
        _ if message.contains("unexpected character") => reported.with_remedy("quote the value"),
        _ if message.contains("did not find expected key") => {
            reported.with_remedy("check the indentation")
        }
        _ if message.contains("illegal placement") => {
            reported.with_remedy("is a bracket above left open?")
        }
        _ if message.contains("did not find expected ','") => {
            reported.with_remedy("quote a value that contains `: ` or a comma")
        }
        _ => reported,
    };
    let mut spot = place.map(|place| texts.spot(place));
    if let (Some(spot), Some(place)) = (spot.as_mut(), place) {
        // Without a tree it is unknown which values are secret, so a line that may contain a secret
        // is hidden.
        let is_shown = !may_contain_a_secret(texts.line(place));
        spot.excerpt = spot.excerpt.take().filter(|_| is_shown);
    }
    let problem = Problem::new(title, spot);
    if remedy.is_empty() { problem } else { problem.label(remedy) }
}

struct SyntaxError {
    title: String,
    remedy: &'static str,
    place: Option<Place>,
}

impl SyntaxError {
    fn with_remedy(self, remedy: &'static str) -> Self {
        Self { remedy, ..self }
    }
}

/// Returns the first tab in an indentation, searching from the line of `place`.
fn tab_after(texts: &Texts, place: Place) -> Option<Place> {
    let text = texts.text(place.source);
    let mut start = text[..place.start].rfind('\n').map_or(0, |at| at + 1);
    for line in text[start..].split_inclusive('\n') {
        let indentation = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
        if let Some(at) = indentation.find('\t') {
            let start = start + at;
            return Some(Place {
                start,
                end: start + 1,
                ..place
            });
        }
        start += line.len();
    }
    None
}

/// Returns the last quote before `place` that can open a value.
fn quote_before(texts: &Texts, place: Place) -> Option<Place> {
    let text = texts.text(place.source).get(..place.end)?;
    let opens = |at: usize| {
        let before = text[..at].chars().next_back();
        before.is_none_or(|letter| letter.is_whitespace() || "[{,(".contains(letter))
    };
    let mut quotes = text.rmatch_indices(['"', '\'']);
    let (start, _) = quotes.find(|(at, _)| opens(*at))?;
    Some(Place {
        start,
        end: start + 1,
        ..place
    })
}

fn may_contain_a_secret(line: &str) -> bool {
    let line = line.to_ascii_lowercase();
    [
        "headers",
        "authorization",
        "bearer",
        "key:",
        "key\":",
        "token",
        "secret",
        "password",
    ]
    .iter()
    .any(|word| line.contains(word))
}

// === the parser's output ===

enum Raw {
    Scalar(Kind, String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<Raw>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Null, String::new()))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Bool(value), String::new()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Unsigned(value), String::new()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Signed(value), String::new()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Float(value), String::new()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Kind::Text, value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}

// === the tree ===

struct Builder<'a> {
    texts: &'a Texts,
    source: usize,
    problems: &'a mut Problems,
}

impl Builder<'_> {
    fn node(&mut self, raw: Spanned<Raw>) -> Node {
        let span = raw.defined.span();
        let start = span.byte_offset().map_or(0, |at| at as usize);
        let place = Place {
            source: self.source,
            start,
            end: start + span.byte_len().map_or(0, |len| len as usize),
        };
        let value = match raw.value {
            Raw::Scalar(kind, text) => {
                // Numbers and booleans retain their written form, because a text may be expected:
                // version `1.10` is not `1.1`.
                let text =
                    if kind == Kind::Text { text } else { self.texts.slice(place).to_owned() };
                NodeValue::Scalar(Scalar {
                    text,
                    kind,
                    substituted: false,
                })
            }
            Raw::List(items) => {
                NodeValue::List(items.into_iter().map(|item| self.node(item)).collect())
            }
            Raw::Map(entries) => NodeValue::Map(self.map(entries)),
        };
        Node { place, value }
    }

    fn map(&mut self, raw_entries: Vec<(Spanned<Raw>, Spanned<Raw>)>) -> Map {
        let mut map = Map::default();
        let mut seen = BTreeMap::new();
        for (raw_key, raw_value) in raw_entries {
            let Node { place, value } = self.node(raw_key);
            let NodeValue::Scalar(Scalar { text: key, .. }) = value else {
                let problem = Problem::new("a key must be a text", Some(self.texts.spot(place)));
                self.problems
                    .push(problem.label("write a text before the `:`"));
                continue;
            };
            let value = self.node(raw_value);
            if let Some(first) = seen.get(&key) {
                let problem = Problem::new(
                    format!("`{key}` is given twice"),
                    Some(self.texts.spot(place)),
                );
                self.problems
                    .push(problem.label(format!("first given at {}", self.texts.short(*first))));
                continue;
            }
            seen.insert(key.clone(), place);
            map.entries.push(MapEntry {
                key,
                key_place: place,
                value,
            });
        }
        map
    }
}
