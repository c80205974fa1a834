//! Describes how the calls differ from an expected order: a sentence, and both lists of names side
//! by side.

use std::fmt;
use std::fmt::Write as _;

use text::{Clean, code, counted};

/// Maximum number of alignment entries in a text. A person reads no more, and a runaway agent makes
/// thousands of calls.
const MAX_ENTRIES: usize = 16;
/// Maximum number of consecutive entries of one kind that are not folded.
const MAX_RUN: usize = 6;
/// Number of entries that stay visible in a folded run: the first unexpected calls, or the matches
/// next to a difference.
const N_SHOWN_OF_RUN: usize = 2;

pub(crate) struct Alignment<'a> {
    /// The names of the calls, in the order in which they were made.
    pub(crate) actual: &'a [&'a str],
    pub(crate) expected: &'a [&'a str],
    /// Positions (in `actual`, in `expected`) of matching names, ascending in both.
    pub(crate) pairs: &'a [(usize, usize)],
    /// The noun for an entry of `actual`: "call" or "visit".
    pub(crate) noun: &'static str,
}

impl Alignment<'_> {
    /// Returns the first difference, and the call that caused it, if a call did. With `is_exact`,
    /// any unexpected call is a difference.
    pub(crate) fn departure(&self, is_exact: bool) -> Option<(String, Option<usize>)> {
        if is_exact { self.first_difference() } else { self.first_gap() }
    }

    /// Describes two orders that are too long to align.
    pub(crate) fn unaligned(&self, is_exact: bool) -> String {
        match self.departure(true) {
            Some((sentence, _)) if is_exact => sentence,
            _ => counted(self.actual.len(), self.noun, &format!("{}s", self.noun)),
        }
    }

    /// Returns the reason why the first unmatched expected name did not match, such as
    /// "`create_order` was called before `check_inventory`", and the misplaced call, if there is
    /// one. `None` if every expected name is matched.
    fn first_gap(&self) -> Option<(String, Option<usize>)> {
        let gap = self
            .pairs
            .iter()
            .zip(0..)
            .position(|(pair, at)| pair.1 != at)
            .unwrap_or(self.pairs.len());
        let name = *self.expected.get(gap)?;
        let (before, after) = self.pairs.split_at(gap);
        // Blame the unmatched call of that name that is nearest to the expected position.
        let here = after.first().map_or(self.actual.len(), |pair| pair.0);
        let misplaced = (0..self.actual.len())
            .filter(|&call_idx| {
                self.actual[call_idx] == name
                    && self
                        .pairs
                        .binary_search_by_key(&call_idx, |pair| pair.0)
                        .is_err()
            })
            .min_by_key(|&call_idx| call_idx.abs_diff(here));
        let Some(misplaced) = misplaced else {
            let n_called = self.actual.iter().filter(|&&actual| actual == name).count();
            let n_expected = self.expected.iter().filter(|&&other| other == name).count();
            let sentence = match n_called {
                0 => self.never_called(),
                _ => format!(
                    "{} {}, expected {}",
                    code(name),
                    was_called(n_called),
                    times(n_expected)
                ),
            };
            return Some((sentence, None));
        };
        let other = |pair: &&(usize, usize)| self.actual[pair.0] != name;
        let sentence =
            if let Some(pair) = before.iter().filter(other).find(|pair| pair.0 > misplaced) {
                let (call, other) = (self.named(misplaced), self.named(pair.0));
                format!("{call} was called before {other}")
            } else if let Some(pair) = after.iter().filter(other).find(|pair| pair.0 < misplaced) {
                let (call, other) = (self.named(misplaced), self.named(pair.0));
                format!("{call} was called after {other}")
            } else {
                format!("{} was called out of order", self.named(misplaced))
            };
        Some((sentence, Some(misplaced)))
    }

    /// Lists expected names that were never called, at most [`MAX_ENTRIES`]: "`pay` and `ship` were
    /// not called".
    fn never_called(&self) -> String {
        match absent(self.expected, self.actual).as_slice() {
            [name] => format!("{} was not called", code(name)),
            [first @ .., last] if first.len() < MAX_ENTRIES => {
                format!("{} and {} were not called", quoted(first), code(last))
            }
            names => format!("{} were not called", quoted(names)),
        }
    }

    /// Returns a sentence about the first position at which the sequences differ, such as "call 3
    /// is `edit`, expected `search`", and the call at that position, if there is one.
    fn first_difference(&self) -> Option<(String, Option<usize>)> {
        let at = self
            .actual
            .iter()
            .zip(self.expected)
            .take_while(|(actual, expected)| actual == expected)
            .count();
        match (self.actual.get(at), self.expected.get(at)) {
            (Some(actual), Some(expected)) => Some((
                format!(
                    "{} {} is {}, expected {}",
                    self.noun,
                    at + 1,
                    code(actual),
                    code(expected)
                ),
                Some(at),
            )),
            (Some(actual), None) if self.expected.is_empty() => Some((
                format!("{} was called, nothing expected", code(actual)),
                Some(at),
            )),
            (Some(_), None) => Some((
                format!(
                    "{} was called after the last expected {}, {}",
                    self.named(at),
                    self.noun,
                    self.named(at - 1)
                ),
                Some(at),
            )),
            (None, Some(expected)) if at == 0 => {
                Some((format!("`{expected}` was not called"), None))
            }
            (None, Some(expected)) => Some((
                format!("`{expected}` was not called after {}", self.named(at - 1)),
                None,
            )),
            (None, None) => None,
        }
    }

    /// Returns the call's name. Adds the call's number if the name recurs, because a sentence about
    /// one call is often untrue for another call of that name.
    pub(crate) fn named(&self, call_idx: usize) -> String {
        let name = self.actual[call_idx];
        match self.actual.iter().filter(|&&other| other == name).count() {
            1 => code(name),
            _ => format!("{} ({} {})", code(name), self.noun, call_idx + 1),
        }
    }

    /// Lists both sequences as one: each name with "+" if it was called, but not expected here,
    /// with "-" if it was expected, but not called here, and without a mark if both.
    fn entries(&self) -> Vec<(&'static str, &str)> {
        let mut entries =
            Vec::with_capacity(self.actual.len() + self.expected.len() - self.pairs.len());
        let (mut i, mut j) = (0, 0);
        let end = (self.actual.len(), self.expected.len());
        for &(pair_i, pair_j) in self.pairs.iter().chain([&end]) {
            entries.extend(self.actual[i..pair_i].iter().map(|name| ("+", *name)));
            entries.extend(self.expected[j..pair_j].iter().map(|name| ("-", *name)));
            if (pair_i, pair_j) != end {
                entries.push(("", self.actual[pair_i]));
            }
            (i, j) = (pair_i + 1, pair_j + 1);
        }
        entries
    }

    /// Folds long runs of entries of one kind so that the differences stay visible:
    /// `… 35 more, search, +37 others, -authenticate`. Missing names are never folded.
    fn items(&self) -> Vec<Item> {
        let entries = self.entries();
        let mut items = Vec::new();
        let mut n_before = 0;
        for group in entries.chunk_by(|one, other| one.0 == other.0) {
            let (is_first, is_last) = (n_before == 0, n_before + group.len() == entries.len());
            n_before += group.len();
            let mark = group[0].0;
            let is_match = mark.is_empty();
            let (n_head, n_tail) = match mark {
                _ if group.len() <= MAX_RUN => (group.len(), 0),
                "-" => (group.len(), 0),
                "+" => (N_SHOWN_OF_RUN, 0),
                _ => (
                    if is_first { 0 } else { N_SHOWN_OF_RUN },
                    if is_last { 0 } else { N_SHOWN_OF_RUN },
                ),
            };
            let item = |(mark, name): &(&str, &str)| Item {
                text: format!("{mark}{}", Clean(name)),
                n_entries: 1,
                is_match,
            };
            let n_folded = group.len() - n_head - n_tail;
            items.extend(group[..n_head].iter().map(item));
            if n_folded > 0 {
                items.push(Item {
                    text: match mark {
                        "+" => format!("+{n_folded} others"),
                        _ => format!("… {n_folded} more"),
                    },
                    n_entries: n_folded,
                    is_match,
                });
            }
            items.extend(group[group.len() - n_tail..].iter().map(item));
        }
        items
    }
}

struct Item {
    text: String,
    n_entries: usize,
    is_match: bool,
}

/// Formats both sequences as one: `validate_user, +create_order, check_inventory, -create_order`.
/// Shows only the part of a long sequence around the first difference.
impl fmt::Display for Alignment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let items = self.items();
        let first = items.iter().position(|item| !item.is_match).unwrap_or(0);
        let start = if items.len() <= MAX_ENTRIES {
            0
        } else {
            first.saturating_sub(3).min(items.len() - MAX_ENTRIES)
        };
        let end = items.len().min(start + MAX_ENTRIES);
        let n_entries = |items: &[Item]| items.iter().map(|item| item.n_entries).sum::<usize>();
        let (before, after) = (n_entries(&items[..start]), n_entries(&items[end..]));
        f.write_str("Alignment (+ called, - expected): ")?;
        if before > 0 {
            write!(f, "… {before} more, ")?;
        }
        for (at, item) in items[start..end].iter().enumerate() {
            write!(f, "{}{}", if at == 0 { "" } else { ", " }, item.text)?;
        }
        match after {
            0 => Ok(()),
            rest => write!(f, ", … {rest} more"),
        }
    }
}

/// Returns the expected names that do not occur, each once.
pub(crate) fn absent<'a>(expected: &[&'a str], actual: &[&str]) -> Vec<&'a str> {
    let mut absent = Vec::new();
    for name in expected {
        if !actual.contains(name) && !absent.contains(name) {
            absent.push(*name);
        }
    }
    absent
}

pub(crate) fn was_called(n: usize) -> String {
    if n == 0 {
        "was never called".to_owned()
    } else {
        format!("was called {}", times(n))
    }
}

pub(crate) fn times(n: usize) -> String {
    match n {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{n} times"),
    }
}

/// Returns the text about a run in which no call was expected.
pub(crate) fn none_expected(n_calls: usize) -> String {
    match n_calls {
        0 => "no tool was called, as expected".to_owned(),
        n => format!("{} made, none expected", counted(n, "call", "calls")),
    }
}

/// Returns text such as "2 expected calls made in order, 1 other besides".
pub(crate) fn made_in_order(n_expected: usize, n_others: usize) -> String {
    let made = counted(n_expected, "expected call", "expected calls");
    let others = match n_others {
        0 => "no other".to_owned(),
        n => format!("{} besides", counted(n, "other", "others")),
    };
    format!("{made} made in order, {others}")
}

pub(crate) fn quoted(names: &[&str]) -> String {
    let shown = names.iter().take(MAX_ENTRIES).copied().map(code);
    let mut text = shown.collect::<Vec<_>>().join(", ");
    if names.len() > MAX_ENTRIES {
        let _ = write!(text, ", … {} more", names.len() - MAX_ENTRIES);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(actual: &[&str], expected: &[&str], pairs: &[(usize, usize)]) -> (String, String) {
        let alignment = Alignment {
            actual,
            expected,
            pairs,
            noun: "call",
        };
        let (gap, _) = alignment.first_gap().unwrap();
        let text = alignment.to_string();
        let (_, text) = text.split_once("): ").unwrap();
        (gap, text.to_owned())
    }

    #[test]
    fn long_runs_fold_around_the_place_where_the_sequences_part() {
        let mut actual = vec!["login"];
        actual.extend(["search"; 39]);
        actual.push("transfer");
        let expected = ["login", "authenticate", "transfer"];
        assert_eq!(
            shown(&actual, &expected, &[(0, 0), (40, 2)]),
            (
                "`authenticate` was not called".to_owned(),
                "login, +search, +search, +37 others, -authenticate, transfer".to_owned()
            )
        );
        let both = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
        let pairs: Vec<(usize, usize)> = (0..9).map(|at| (at, at)).collect();
        let expected = [&both[..], &["z"], &both[..]].concat();
        let actual = [&both[..], &both[..]].concat();
        let pairs: Vec<(usize, usize)> = pairs
            .iter()
            .copied()
            .chain((9..18).map(|at| (at, at + 1)))
            .collect();
        assert_eq!(
            shown(&actual, &expected, &pairs).1,
            "… 7 more, h, i, -z, a, b, … 7 more"
        );
    }

    #[test]
    fn every_missing_name_is_named() {
        let expected = ["a", "b", "c", "b"];
        assert_eq!(
            shown(&["c"], &expected, &[(0, 2)]),
            (
                "`a` and `b` were not called".to_owned(),
                "-a, -b, c, -b".to_owned()
            )
        );
        assert_eq!(
            shown(&[], &["a", "b", "c"], &[]).0,
            "`a`, `b` and `c` were not called"
        );
    }
}
