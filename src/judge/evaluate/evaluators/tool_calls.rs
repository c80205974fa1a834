//! The evaluator `tool_calls`: were the required calls made, in the right sequence, and no
//! disallowed calls?

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{Evaluate, FollowedPath, SHORTCUTS_RAISE_NO_ALARM, ToolName, WatchedCalls};
use crate::evaluate::comparison::alignment::times;
use crate::evaluate::comparison::captured::{MAX_SEARCH, Tri};
use crate::evaluate::comparison::order::earliest;
use crate::evaluate::comparison::rows::{AlignmentRow, RowKind};
use crate::evaluate::comparison::score::{Judgement, Rendered, Score, all_or_nothing};
use crate::evaluate::parameters::call_pattern::{
    CallPattern, CallReader, disallowed, disallowed_schema, list_patterns_mut, list_warnings,
    required, required_schema, sequence, sequence_schema,
};
use crate::evaluate::parameters::field_aliases::read_with_hints;
use crate::evaluate::parameters::pattern::{FieldError, PlacedPattern};
use crate::evaluate::parameters::shown_values::ShownValues;
use crate::extract::Trajectory;

/// Were the required calls made, in the right sequence, and no disallowed calls?
///
/// # What it checks
/// Matches calls against patterns. The score is 1 if every `required` entry is satisfied, no
/// `disallowed` entry is violated, and the `sequence` entries match calls in this order, with any
/// calls in between; else 0. A pattern is an unanchored regular expression over the tool's name, or
/// a map with further conditions.
///
/// # Why
/// Rules such as "run the tests before you report" or "never `rm -rf`" are about the content of a
/// call, not only about its name.
///
/// # Example
/// ```yaml
/// evaluate:
///   tool_calls:
///     required:
///       - { name: "^bash$", command: "npm test", result: "passed" }
///       - { name: "^report$", final: true }
///     disallowed:
///       - { name: "^bash$", command: "rm -rf" }
///     sequence: ["^edit$", { name: "^bash$", command: "git commit" }]
/// ```
///
/// # Parameters
/// - `required`, `disallowed`, `sequence`: lists of entries, each a pattern of the name or a map;
///   at least one list has an entry.
/// - `name`: pattern of the name; mandatory.
/// - `error`: `true` matches only failed calls, `false` only calls that did not fail; checked with
///   the name, before the arguments.
/// - `command`, `path`: patterns of the argument of that name. A call whose name matches but which
///   has no such string argument makes the evaluation an `error`.
/// - `args`: patterns of further string arguments; a call that lacks one of them does not match. A
///   pattern never matches a number, a boolean, a list or a map: the explanation and
///   [`/v1/status`](criteria-api.md) name the path and the call of the first such value. Compare
///   such values with `where`.
/// - `result`: pattern of the result's text; not allowed in `sequence`.
/// - `where`: conditions on arguments and results by path, such as `args.amount: { gt: 1000 }`
///   ([Values](#values)); in `sequence` only on arguments.
/// - `min_count` (1), only in `required`: at least this many calls match.
/// - `final`, only in `required`: the match is the last call of the trajectory.
/// - `at_step`, only in `required`: the match is in exactly this
///   [step](reading-scores.md#the-trace-and-its-parts), counted from 0.
/// - `before_step`, only in `required`: the step of the match is below this number. With
///   `min_count`, every counted call must satisfy `final`, `at_step` and `before_step`.
///
/// Patterns use the syntax of the `regex` crate. Every search takes linear time, so look-around and
/// back-references are rejected. Arguments or a result longer than `tools.max_value_size` (16 KiB)
/// are cut. Then only `where` reads what precedes the cut; a verdict that depends on `command`,
/// `path`, `args` or `result` is `not_evaluated`. If you raise that setting, search time grows at
/// most in proportion to the pattern's size times the value's. The largest pattern that loads (1
/// MiB compiled) can take about a second for 16 KiB; an ordinary one takes 20 ms for 10 MB. `\d`,
/// `\w`, `\b` are ASCII, `\s` is Unicode white space. A call whose span has not ended satisfies no
/// `required` entry. It can match `sequence`, and it violates `disallowed` unless the entry reads a
/// result.
///
/// Details: `passed`, `required_satisfied`, `disallowed_violated`, `sequence_satisfied`; `null` if
/// open. If a call violates a `disallowed` entry that has `where`, `values` describes the
/// violation: `call` (counted from 1), `path`, `operator`, `expected` and, with `explain.values:
/// true`, `actual`. If no call satisfies a `required` entry that has `where`, `nearest` describes,
/// in the same form, the first call whose name matches.
///
/// # When the trace was cut short
/// If an entry has `command` or `path`, only an `error` is certain, because a further call could
/// lack that argument: to detect a disallowed call in such a trace, write the argument under
/// `args`. Without such an entry, the criterion fails if a disallowed call was seen. A required
/// call that was seen, and a completed sequence, stay satisfied, unless an entry has `final`,
/// `at_step` or `before_step`: another call could become the last, and a late model turn changes
/// the step of every call after it. Further calls may arrive, so nothing else is certain, and
/// nothing passes if there is a `disallowed` entry.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolCalls {
    /// Calls that must be made.
    #[serde(
        default,
        deserialize_with = "required",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "required_schema")]
    pub required: Vec<CallPattern>,
    /// Calls that must not be made.
    #[serde(
        default,
        deserialize_with = "disallowed",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "disallowed_schema")]
    pub disallowed: Vec<CallPattern>,
    /// Calls that must be made in this order.
    #[serde(
        default,
        deserialize_with = "sequence",
        skip_serializing_if = "Vec::is_empty"
    )]
    #[schemars(schema_with = "sequence_schema")]
    pub sequence: Vec<CallPattern>,
}

read_with_hints!(ToolCalls);

/// Maximum work for finding the calls of the rows again. If the work exceeds this limit, rows lack
/// their calls. Rows are read only when somebody inspects one run.
const MAX_SEARCH_FOR_ROWS: u64 = MAX_SEARCH / 8;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct EntriesFound {
    /// The result of each `required` entry. For an unsatisfied entry, `n_calls` is the number of
    /// calls that certainly match. If `n_calls` is 0, `call_idx` is the first call that matches by
    /// name, but not by `where`.
    required: Vec<EntryFound>,
    /// The result of each `disallowed` entry. For a violated entry, `n_calls` is the number of
    /// calls that certainly violate it, and `call_idx` is the first of them.
    disallowed: Vec<EntryFound>,
    /// The result of the sequence. If it is not satisfied, `n_calls` is the number of its first
    /// entries that certainly match, and `call_idx` is the call of the last of them.
    sequence: Option<EntryFound>,
    /// The calls that certainly violate an entry, by index.
    offending: Vec<usize>,
}

/// The facts about one entry that the text shows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct EntryFound {
    holds: Tri,
    n_calls: usize,
    call_idx: Option<usize>,
    /// For a required entry that no call certainly matches, the number of calls with its name;
    /// `None` if counting would exceed the budget, and for all other entries.
    n_named: Option<usize>,
}

impl EntryFound {
    fn new(holds: Tri, n_calls: usize, call_idx: Option<usize>, is_shown: bool) -> Self {
        Self {
            holds,
            n_calls: if is_shown { n_calls } else { 0 },
            call_idx: call_idx.filter(|_| is_shown),
            n_named: None,
        }
    }
}

impl Evaluate for ToolCalls {
    const NAME: &'static str = "tool_calls";

    type Evidence = EntriesFound;

    fn evaluate(&self, trajectory: &Trajectory, max_search: u64) -> (Score, EntriesFound) {
        let mut look = Look::new(trajectory, max_search);
        let mut offending = Vec::new();
        let required: Vec<EntryFound> = self
            .required
            .iter()
            .map(|entry| look.required(entry))
            .collect();
        let disallowed: Vec<EntryFound> = self
            .disallowed
            .iter()
            .map(|entry| {
                let (calls, violated) = look.disallowed(entry);
                let first = calls.first().copied();
                let found = EntryFound::new(violated, calls.len(), first, violated == Tri::Yes);
                offending.extend(calls);
                found
            })
            .collect();
        offending.sort_unstable();
        offending.dedup();
        offending.shrink_to_fit();
        let sequence = (!self.sequence.is_empty()).then(|| look.sequence(&self.sequence));
        let satisfied = required.iter().map(|found| found.holds);
        let not_violated = disallowed.iter().map(|found| !found.holds);
        let in_order = sequence.iter().map(|found| found.holds);
        let passed = satisfied
            .chain(not_violated)
            .chain(in_order)
            .min()
            .unwrap_or(Tri::Yes);
        let least = all_or_nothing(passed == Tri::Yes);
        let most = all_or_nothing(passed >= Tri::Maybe);
        let found = EntriesFound {
            required,
            disallowed,
            sequence,
            offending,
        };
        let mut score = Score::between(least, least, most);
        score.read_by(look.reader, &self.paths());
        score.may_fault =
            trajectory.cut_short && self.patterns().any(|pattern| pattern.reads_shortcut());
        score.n_expected = self
            .required
            .iter()
            .map(|entry| entry.min_count as usize)
            .sum::<usize>()
            + self.sequence.len();
        (score, found)
    }

    fn named_tools(&self) -> Vec<(ToolName<'_>, bool)> {
        let expected = self.required.iter().chain(&self.sequence);
        let expected = expected.map(|pattern| (ToolName::Of(pattern), true));
        let disallowed = self.disallowed.iter();
        let disallowed = disallowed.map(|pattern| (ToolName::Of(pattern), false));
        expected.chain(disallowed).collect()
    }

    fn paths(&self) -> Vec<FollowedPath<'_>> {
        FollowedPath::of_conditions(self.patterns()).collect()
    }

    fn reads_order(&self) -> bool {
        !self.sequence.is_empty()
    }

    fn report(&self, found: &EntriesFound, judgement: &Judgement<'_>) -> Rendered {
        let mut sentences = Vec::new();
        let (mut values, mut nearest) = (ShownValues::default(), ShownValues::default());
        for (entry, found) in self.disallowed.iter().zip(&found.disallowed) {
            if let Some(first) = found.call_idx {
                let are = match found.n_calls {
                    1 => " is".to_owned(),
                    n => format!(" and {} more are", n - 1),
                };
                let mut of_call = ShownValues::default();
                entry.show_values(first, judgement, &mut of_call);
                sentences.push(format!(
                    "{}{are} disallowed by {entry}{}",
                    judgement.trajectory.called(first),
                    of_call.text(" (", ")")
                ));
                values.details.extend(of_call.details);
            }
        }
        let required = self.required.iter().zip(&found.required);
        for (entry, found) in required.filter(|(_, found)| found.holds != Tri::Yes) {
            let mut of_call = ShownValues::default();
            if let Some(call) = found.call_idx {
                entry.show_values(call, judgement, &mut of_call);
            }
            sentences.push(unsatisfied(entry, found, &of_call));
            nearest.details.extend(of_call.details);
        }
        if let Some(found) = &found.sequence
            && found.holds != Tri::Yes
            && let Some(next) = self.sequence.get(found.n_calls)
        {
            let after = found
                .call_idx
                .map(|call| format!(" after {}", judgement.trajectory.called(call)));
            sentences.push(format!(
                "the sequence stops at entry {}: no call of {}{}",
                found.n_calls + 1,
                next,
                after.unwrap_or_default()
            ));
        }
        if sentences.is_empty() {
            sentences.push(self.success_text());
        }
        let known = |entries: &[EntryFound]| -> Vec<Option<bool>> {
            entries.iter().map(|found| found.holds.known()).collect()
        };
        let mut details = json!({
                "passed": judgement.verdict.success(),
                "required_satisfied": known(&found.required),
                "disallowed_violated": known(&found.disallowed),
                "sequence_satisfied": found.sequence.as_ref().and_then(|found| found.holds.known()),
        });
        values.add_to(&mut details, "values");
        nearest.add_to(&mut details, "nearest");
        Rendered {
            text: sentences.join("; "),
            offending: found.offending.clone(),
            rows: judgement.rows(|| self.rows(found, judgement.trajectory)),
            details,
        }
    }

    fn patterns_mut(&mut self) -> Vec<PlacedPattern<'_>> {
        [
            list_patterns_mut(&["tool_calls", "required"], &mut self.required),
            list_patterns_mut(&["tool_calls", "disallowed"], &mut self.disallowed),
            list_patterns_mut(&["tool_calls", "sequence"], &mut self.sequence),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn watched(&self) -> Result<WatchedCalls, String> {
        if self.disallowed.is_empty() {
            Err("`required` and `sequence` cannot be: a later call may satisfy them".to_owned())
        } else if self.patterns().any(CallPattern::reads_shortcut) {
            Err(SHORTCUTS_RAISE_NO_ALARM.to_owned())
        } else {
            let disallowed = self.disallowed.iter();
            Ok(WatchedCalls::of(disallowed, 0.0))
        }
    }

    fn check(&self) -> Result<(), FieldError> {
        if self.required.is_empty() && self.disallowed.is_empty() && self.sequence.is_empty() {
            return Err(FieldError::of_key(
                &[],
                "nothing is required: write at least one entry under `required`, `disallowed` or \
                 `sequence`",
            ));
        }
        let contradictions = self.required.iter().zip(0_usize..);
        let mut contradictions =
            contradictions.filter_map(|(entry, at)| Some((entry.contradiction()?, at)));
        match contradictions.next() {
            Some(((field, message), at)) => Err(FieldError::of_key(
                &["required", &at.to_string(), field],
                message,
            )),
            None => self.check_sequence(),
        }
    }

    fn warnings(&self) -> Vec<String> {
        [
            list_warnings("required", &self.required),
            list_warnings("disallowed", &self.disallowed),
            list_warnings("sequence", &self.sequence),
        ]
        .concat()
    }
}

impl ToolCalls {
    fn check_sequence(&self) -> Result<(), FieldError> {
        for (entry, at) in self.sequence.iter().zip(0_usize..) {
            let mut paths = entry.conditions.keys();
            if let Some(path) = paths.find(|path| path.of_result) {
                let message = format!(
                    "`{}` is no path for `sequence`: only entries of `required` and `disallowed`, \
                     and rules of `constraints`, read results",
                    path.as_str()
                );
                let keys = ["sequence", &at.to_string(), "where", path.as_str()];
                return Err(FieldError::of_key(&keys, message));
            }
        }
        Ok(())
    }

    fn patterns(&self) -> impl Iterator<Item = &CallPattern> {
        let judged = self.required.iter().chain(&self.disallowed);
        judged.chain(&self.sequence)
    }

    /// Renders the rows. Searches the calls of each entry again.
    fn rows(&self, found: &EntriesFound, trajectory: &Trajectory) -> Vec<AlignmentRow> {
        let mut look = Look::new(trajectory, MAX_SEARCH_FOR_ROWS);
        let mut rows = Vec::new();
        for (entry, found) in self.required.iter().zip(&found.required) {
            let kind = match found.holds {
                Tri::Yes => RowKind::Match,
                Tri::Maybe => RowKind::Open,
                Tri::No => RowKind::Missing,
            };
            let row = AlignmentRow::new(kind).expecting(entry.to_string());
            let row = row.of(look.fitting(entry));
            rows.push(match found.holds {
                Tri::No => row.noting(unsatisfied(entry, found, &ShownValues::default())),
                Tri::Maybe | Tri::Yes => row,
            });
        }
        for (entry, found) in self.disallowed.iter().zip(&found.disallowed) {
            let kind = match found.holds {
                Tri::Yes => RowKind::Forbidden,
                Tri::Maybe => RowKind::Open,
                Tri::No => RowKind::Match,
            };
            let row = AlignmentRow::new(kind).expecting(format!("never {entry}"));
            rows.push(row.of(look.disallowed(entry).0));
        }
        let in_order = match found.sequence {
            Some(_) => look.in_order(&self.sequence),
            None => Vec::new(),
        };
        let is_broken = (found.sequence.as_ref()).is_some_and(|found| found.holds == Tri::No);
        for (at, entry) in self.sequence.iter().enumerate() {
            let call = in_order.get(at).copied();
            let kind = match (call, is_broken) {
                (Some(_), _) => RowKind::Match,
                (None, true) => RowKind::Missing,
                (None, false) => RowKind::Open,
            };
            let row = AlignmentRow::new(kind).expecting(entry.to_string());
            rows.push(
                row.of(call)
                    .noting(format!("entry {} of the sequence", at + 1)),
            );
        }
        rows
    }

    fn success_text(&self) -> String {
        let lists = [
            (&self.required, "every required call was made"),
            (&self.disallowed, "nothing disallowed was called"),
            (&self.sequence, "the sequence was followed"),
        ];
        let lists = lists.iter().filter(|(entries, _)| !entries.is_empty());
        lists.map(|(_, text)| *text).collect::<Vec<_>>().join(", ")
    }
}

/// Describes an unsatisfied entry. `values` contains the values of the nearest call.
fn unsatisfied(pattern: &CallPattern, found: &EntryFound, values: &ShownValues) -> String {
    let place = match (pattern.is_final, pattern.at_step, pattern.before_step) {
        (true, _, _) => " as the last call".to_owned(),
        (_, Some(step), _) => format!(" at step {step}"),
        (_, _, Some(step)) => format!(" before step {step}"),
        _ => String::new(),
    };
    match (found.n_calls, found.n_named) {
        (0, Some(0)) => format!("required {pattern} was not called"),
        (0, None) => format!("required {pattern} was not called{place}"),
        (0, Some(n_named)) => {
            let nearest = found
                .call_idx
                .map(|call| format!(", call {}{}", call + 1, values.text(": ", "")));
            format!(
                "required {pattern} was not called{place} ({} by name{})",
                times(n_named),
                nearest.unwrap_or_default()
            )
        }
        (n_calls, _) => format!(
            "required {pattern} was called {}{place}, at least {} needed",
            times(n_calls),
            pattern.min_count
        ),
    }
}

// === Look ===

struct Look<'a> {
    trajectory: &'a Trajectory,
    reader: CallReader<'a>,
}

impl<'a> Look<'a> {
    fn new(trajectory: &'a Trajectory, max_search: u64) -> Self {
        Self {
            trajectory,
            reader: CallReader::new(trajectory, max_search),
        }
    }

    fn required(&mut self, entry: &CallPattern) -> EntryFound {
        let (mut n_calls, mut n_maybe) = (0, 0);
        for call_idx in 0..self.trajectory.tool_calls.len() {
            match self
                .reader
                .fit(entry, self.position(entry, call_idx), call_idx)
            {
                Tri::Yes => n_calls += 1,
                Tri::Maybe => n_maybe += 1,
                Tri::No => {}
            }
        }
        let min_count = entry.min_count as usize;
        let satisfied = if n_calls >= min_count {
            Tri::Yes
        } else if self.trajectory.cut_short || n_calls + n_maybe >= min_count {
            Tri::Maybe
        } else {
            Tri::No
        };
        let mut found = EntryFound::new(satisfied, n_calls, None, satisfied != Tri::Yes);
        if satisfied != Tri::Yes && n_calls == 0 {
            found.n_named = self.n_named(entry);
            let calls = 0..self.trajectory.tool_calls.len();
            found.call_idx = self.reader.nearest(entry, calls);
        }
        found
    }

    /// Returns the number of calls whose name matches the entry; `None` if the budget is used up.
    fn n_named(&mut self, entry: &CallPattern) -> Option<usize> {
        let mut n_named = 0;
        for call in &self.trajectory.tool_calls {
            match self.reader.fits_name(entry, &call.name) {
                Tri::Yes => n_named += 1,
                Tri::Maybe => return None,
                Tri::No => {}
            }
        }
        Some(n_named)
    }

    fn fitting(&mut self, entry: &CallPattern) -> Vec<usize> {
        (0..self.trajectory.tool_calls.len())
            .filter(|&call_idx| {
                let position = self.position(entry, call_idx);
                self.reader.fit(entry, position, call_idx) == Tri::Yes
            })
            .collect()
    }

    /// Returns the earliest calls that certainly match the first entries of the sequence, in order.
    fn in_order(&mut self, entries: &[CallPattern]) -> Vec<usize> {
        let n_calls = self.trajectory.tool_calls.len();
        let pairs = earliest(entries.len(), n_calls, |at, call_idx| {
            self.reader.fit(&entries[at], Tri::Yes, call_idx) == Tri::Yes
        });
        pairs.into_iter().map(|(_, call_idx)| call_idx).collect()
    }

    /// Returns the calls that certainly violate the entry, and whether the entry is violated.
    fn disallowed(&mut self, entry: &CallPattern) -> (Vec<usize>, Tri) {
        let mut calls = Vec::new();
        let mut violated = if self.trajectory.cut_short { Tri::Maybe } else { Tri::No };
        for call_idx in 0..self.trajectory.tool_calls.len() {
            let fit = self.reader.fit(entry, Tri::Yes, call_idx);
            violated = violated.max(fit);
            if fit == Tri::Yes {
                calls.push(call_idx);
            }
        }
        (calls, violated)
    }

    fn sequence(&mut self, entries: &[CallPattern]) -> EntryFound {
        let n_calls = self.trajectory.tool_calls.len();
        let fits: Vec<Vec<Tri>> = entries
            .iter()
            .map(|entry| {
                (0..n_calls)
                    .map(|call_idx| self.reader.fit(entry, Tri::Yes, call_idx))
                    .collect()
            })
            .collect();
        let earliest = |at_least: Tri| {
            earliest(entries.len(), n_calls, |at, call_idx| {
                fits[at][call_idx] >= at_least
            })
        };
        let calls = earliest(Tri::Yes);
        let satisfied = if calls.len() == entries.len() {
            Tri::Yes
        } else if self.trajectory.cut_short || earliest(Tri::Maybe).len() == entries.len() {
            Tri::Maybe
        } else {
            Tri::No
        };
        let last = calls.last().map(|(_, call_idx)| *call_idx);
        EntryFound::new(satisfied, calls.len(), last, satisfied != Tri::Yes)
    }

    /// Returns whether the call has ended and has the position that the entry requires.
    fn position(&self, entry: &CallPattern, call_idx: usize) -> Tri {
        let call = &self.trajectory.tool_calls[call_idx];
        let cut_short = self.trajectory.cut_short;
        let is_last = call_idx + 1 == self.trajectory.tool_calls.len();
        let mut position = if call.partial {
            if cut_short { Tri::Maybe } else { Tri::No }
        } else {
            Tri::Yes
        };
        if entry.is_final {
            // A call that precedes another call can never become the last one.
            position =
                position.min(if is_last && cut_short { Tri::Maybe } else { Tri::from(is_last) });
        }
        if entry.at_step.is_some() || entry.before_step.is_some() {
            let placed = entry.at_step.is_none_or(|step| call.step == step)
                && entry.before_step.is_none_or(|step| call.step < step);
            position = position.min(if cut_short { Tri::Maybe } else { Tri::from(placed) });
        }
        position
    }
}
