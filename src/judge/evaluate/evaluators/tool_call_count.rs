//! The evaluator `tool_call_count`: was each tool called as often as expected?

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, json};
use text::code;

use super::{Evaluate, ToolName, WatchedCalls};
use crate::evaluate::comparison::alignment::{none_expected, times, was_called};
use crate::evaluate::comparison::lcs::UNEXPECTED;
use crate::evaluate::comparison::rows::{AlignmentRow, RowKind};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score, all_or_nothing};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::limits::whole_number;
use crate::evaluate::parameters::names::Names;
use crate::extract::Trajectory;

/// Was each tool called as often as expected?
///
/// # What it checks
/// Compares the number of calls of each listed tool with the expected number. The score is the
/// share of the entries that are satisfied. A tool that was not called counts as 0 calls. Other
/// tools may be called any number of times.
///
/// # Why
/// A runaway loop calls one tool forty times. A careless agent never makes a required check.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_call_count: { tool_calls_count: { search: ["<=", 3], verify: ["=", 1] } }
/// ```
/// Calls `search, search, search, search, verify` score 1/2: `search` was called 4 times, expected
/// at most 3.
///
/// # Parameters
/// - `tool_calls_count`: for each tool an operator (`=`, `==`, `!=`, `>`, `<`, `>=`, `<=`) and a
///   whole number, 0 or more. An empty map loads with a warning, and scores 1 if nothing was
///   called, else 0.
/// - `strict` (false): 1 if every entry is satisfied, else 0.
///
/// Details: `explained_tool_calls_count`, a text per tool, such as
/// `Actual: 4, Expected: 3, Score: 0.0`.
///
/// # When the trace was cut short
/// Counts can only grow. A lower bound that is reached, or `!=` with a number that is exceeded, is
/// certainly satisfied; an upper bound or an equality that is exceeded is certainly violated. All
/// other entries are open, and there is a verdict only if they cannot change it.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCallCount {
    /// The expected number of calls of each tool, such as `search: ["<=", 3]`.
    pub tool_calls_count: Counts,
    /// The score is 1 or 0.
    #[serde(default)]
    pub strict: bool,
}

read_with_hints!(ToolCallCount);

/// The number of calls of each listed tool.
pub(super) type CallCounts = Vec<usize>;

impl Evaluate for ToolCallCount {
    const NAME: &'static str = "tool_call_count";

    type Evidence = CallCounts;

    fn evaluate(&self, trajectory: &Trajectory, _: u64) -> (Score, CallCounts) {
        let counts = &self.tool_calls_count.counts;
        let mut n_calls = vec![0; counts.len()];
        for call in &trajectory.tool_calls {
            let id = self.tool_calls_count.names.id_of(&call.name);
            if id != UNEXPECTED {
                n_calls[id as usize] += 1;
            }
        }
        if counts.is_empty() {
            let value = all_or_nothing(trajectory.tool_calls.is_empty());
            let least = if trajectory.cut_short { 0.0 } else { value };
            return (Score::between(value, least, value), n_calls);
        }
        let n_where = |holds: fn(&Count, usize) -> bool| {
            counts
                .iter()
                .zip(&n_calls)
                .filter(|(count, n)| holds(count, **n))
                .count()
        };
        let share = |n_held| self.share(n_held);
        let value = share(n_where(Count::holds));
        let (least, most) = if trajectory.cut_short {
            (
                share(n_where(Count::holds_for_good)),
                share(n_where(Count::can_still_hold)),
            )
        } else {
            (value, value)
        };
        let mut score = Score::between(value, least, most);
        score.n_expected = counts.len();
        (score, n_calls)
    }

    fn watched(&self) -> Result<WatchedCalls, String> {
        let counts = &self.tool_calls_count;
        if counts.counts.is_empty() {
            return Ok(WatchedCalls {
                names: None,
                models: false,
                most: 0.0,
            });
        }
        let bounded = counts.counts.iter().zip(counts.names.as_slice());
        let bounded = bounded.filter(|(count, _)| count.most().is_some());
        let names: Vec<String> = bounded
            .map(|(_, name)| format!("^{}$", regex::escape(name)))
            .collect();
        if names.is_empty() {
            return Err("a minimum cannot be: later calls may still reach it".to_owned());
        }
        Ok(WatchedCalls {
            most: self.share(counts.counts.len() - names.len()),
            names: Some(names),
            models: false,
        })
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        let counts = self.tool_calls_count.iter();
        counts
            .map(|(name, count)| (ToolName::Exact(name), !count.holds(0)))
            .collect()
    }

    fn reads_order(&self) -> bool {
        false
    }

    fn report(&self, n_calls: &CallCounts, judgement: &Judgement<'_>) -> Rendered {
        const MAX_NAMED: usize = 8;
        let tool_calls = &judgement.trajectory.tool_calls;
        let (mut rows, mut held, mut broken) = (Vec::new(), Vec::new(), Vec::new());
        let (mut explained, mut offending) = (Map::new(), Vec::new());
        for ((name, count), &n) in self.tool_calls_count.iter().zip(n_calls) {
            let (holds, called) = (count.holds(n), was_called(n));
            let calls = tool_calls.iter().enumerate();
            let calls = calls.filter(|(_, call)| *call.name == **name);
            let calls = calls.map(|(call_idx, _)| call_idx);
            let kind = match count.most() {
                _ if holds => RowKind::Match,
                Some(0) => RowKind::Forbidden,
                Some(most) if n > most => RowKind::Extra,
                _ => RowKind::Missing,
            };
            let row = AlignmentRow::new(kind).expecting(name.as_str());
            let row = row.of(calls.clone()).at_fault(!holds);
            rows.push(row.noting(format!("expected {}, {called}", count.text())));
            if holds {
                held.push(format!("{} {called}", code(name)))
            } else {
                broken.push(format!(
                    "{} {called}, expected {}",
                    code(name),
                    count.text()
                ));
                // The calls beyond the highest allowed number are to blame. Missing calls cannot be
                // blamed.
                offending.extend(calls.skip(count.most().unwrap_or(usize::MAX)));
            }
            let (score, expected) = (if holds { "1.0" } else { "0.0" }, count.n);
            let line = format!("Actual: {n}, Expected: {expected}, Score: {score}");
            explained.insert(name.clone(), line.into());
        }
        let text = if n_calls.is_empty() {
            none_expected(tool_calls.len())
        } else if broken.is_empty() {
            held.truncate(MAX_NAMED);
            format!("{}, as expected", held.join(", "))
        } else {
            if broken.len() > MAX_NAMED {
                let n_more = broken.len() - MAX_NAMED;
                broken.truncate(MAX_NAMED);
                broken.push(format!("… {n_more} more"));
            }
            broken.join("; ")
        };
        Rendered {
            text,
            offending,
            rows,
            details: json!({ "explained_tool_calls_count": explained }),
        }
    }

    fn warnings(&self) -> Vec<String> {
        if self.tool_calls_count.counts.is_empty() {
            return vec![
                "`tool_calls_count` is empty: the score is 1 if nothing was called, else 0"
                    .to_owned(),
            ];
        }
        let never = self
            .tool_calls_count
            .iter()
            .filter(|(_, count)| count.operator == Operator::Less && count.n == 0);
        never
            .map(|(name, _)| {
                format!("`{name}: [\"<\", 0]` is never satisfied: no count is below 0")
            })
            .collect()
    }
}

impl ToolCallCount {
    fn share(&self, n_held: usize) -> f64 {
        let n_counts = self.tool_calls_count.counts.len();
        if self.strict {
            all_or_nothing(n_held == n_counts)
        } else {
            n_held as f64 / n_counts as f64
        }
    }
}

// === Counts ===

/// An operator and a number for each tool, in the order in which they were written.
#[derive(Debug, Clone, PartialEq, JsonSchema)]
#[schemars(inline, with = "BTreeMap<String, (Operator, u32)>", description = "")]
pub struct Counts {
    names: Names,
    counts: Vec<Count>,
}

impl Counts {
    fn iter(&self) -> impl Iterator<Item = (&String, &Count)> {
        self.names.as_slice().iter().zip(&self.counts)
    }
}

/// An operator and a number, such as `["<=", 3]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Count {
    operator: Operator,
    n: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(inline, with = "String", extend("enum" = OPERATORS.map(|(word, _)| word)))]
enum Operator {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
}

impl Count {
    fn holds(&self, n_calls: usize) -> bool {
        match self.operator {
            Operator::Equal => n_calls == self.n,
            Operator::NotEqual => n_calls != self.n,
            Operator::Greater => n_calls > self.n,
            Operator::Less => n_calls < self.n,
            Operator::GreaterOrEqual => n_calls >= self.n,
            Operator::LessOrEqual => n_calls <= self.n,
        }
    }

    /// Returns true if the count is satisfied and further calls cannot change that.
    fn holds_for_good(&self, n_calls: usize) -> bool {
        match self.operator {
            Operator::Greater | Operator::GreaterOrEqual => self.holds(n_calls),
            Operator::NotEqual => n_calls > self.n,
            Operator::Equal | Operator::Less | Operator::LessOrEqual => false,
        }
    }

    /// Returns true if the count is satisfied, or if further calls can still satisfy it.
    fn can_still_hold(&self, n_calls: usize) -> bool {
        self.most().is_none_or(|most| n_calls <= most)
            && !(self.operator == Operator::Less && self.n == 0)
    }

    /// Returns the highest number that satisfies the count; `None` if there is no upper bound. For
    /// `< 0`, which no number satisfies, returns 0.
    fn most(&self) -> Option<usize> {
        match self.operator {
            Operator::Equal | Operator::LessOrEqual => Some(self.n),
            Operator::Less => Some(self.n.saturating_sub(1)),
            Operator::NotEqual | Operator::Greater | Operator::GreaterOrEqual => None,
        }
    }

    fn text(&self) -> String {
        let n = if self.n == 0 { "0 times".to_owned() } else { times(self.n) };
        match self.operator {
            Operator::Equal => times(self.n),
            Operator::NotEqual => format!("any number but {}", self.n),
            Operator::Greater => format!("more than {n}"),
            Operator::Less => format!("less than {n}"),
            Operator::GreaterOrEqual => format!("at least {n}"),
            Operator::LessOrEqual if self.n == 0 => times(0),
            Operator::LessOrEqual => format!("at most {n}"),
        }
    }
}

// === as written ===

const OPERATORS: [(&str, Operator); 7] = [
    ("=", Operator::Equal),
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    (">", Operator::Greater),
    ("<", Operator::Less),
    (">=", Operator::GreaterOrEqual),
    ("<=", Operator::LessOrEqual),
];

impl<'de> Deserialize<'de> for Counts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountsVisitor;
        impl<'de> Visitor<'de> for CountsVisitor {
            type Value = Counts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map from tool names to counts such as `search: [\"<=\", 3]`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counts, A::Error> {
                let (mut names, mut counts) = (Vec::new(), Vec::new());
                while let Some((name, count)) = map.next_entry::<String, Count>()? {
                    if names.contains(&name) {
                        return Err(A::Error::custom(format_args!(
                            "`{name}` is counted twice: keep one of the two"
                        )));
                    }
                    names.push(name);
                    counts.push(count);
                }
                Ok(Counts {
                    names: Names::from(names),
                    counts,
                })
            }
        }
        deserializer.deserialize_map(CountsVisitor)
    }
}

impl Serialize for Counts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.counts.len()))?;
        for (name, count) in self.iter() {
            map.serialize_entry(name, count)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CountVisitor;
        impl<'de> Visitor<'de> for CountVisitor {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an operator and a number, such as `[\"<=\", 3]`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<Count, A::Error> {
                let operator = pair
                    .next_element::<Operator>()?
                    .ok_or_else(|| A::Error::invalid_length(0, &self))?;
                let n = pair
                    .next_element::<Number>()?
                    .ok_or_else(|| A::Error::invalid_length(1, &self))?
                    .0 as usize;
                match pair.next_element::<IgnoredAny>()? {
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                    None => Ok(Count { operator, n }),
                }
            }
        }
        deserializer.deserialize_tuple(2, CountVisitor)
    }
}

impl Serialize for Count {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // `=` and `==` are the same operator, and have one canonical form.
        let word = OPERATORS
            .iter()
            .find(|(_, operator)| *operator == self.operator)
            .map_or("", |(word, _)| word);
        (word, self.n).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Operator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let found = OPERATORS
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, operator)| *operator);
        found.ok_or_else(|| {
            D::Error::custom(format_args!(
                "`{word}` is not an operator: use one of = == != > < >= <="
            ))
        })
    }
}

/// A whole number, 0 or more.
struct Number(u32);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let refused =
            |range: &str, found: &str| format!("a count is a whole number{range}; found {found}");
        whole_number(deserializer, 0, refused).map(Self)
    }
}
