//! Pure. Describes where the calls depart from an expected order: one sentence, and both lists of
//! names side by side. Knows no scores.

use std::fmt;
use std::fmt::Write as _;

/// Most entries of an alignment that a text shows: a person reads no more, and a runaway agent
/// makes thousands of calls.
const MAX_ENTRIES: usize = 16;

/// Two sequences of names, side by side.
pub(crate) struct Alignment<'a> {
    /// The names of the calls, as they were made.
    pub(crate) actual: &'a [&'a str],
    /// The names expected.
    pub(crate) expected: &'a [String],
    /// Positions (in `actual`, in `expected`) of matching names, rising in both.
    pub(crate) pairs: &'a [(usize, usize)],
}

/// One line of an alignment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// Expected and called.
    Both(usize),
    /// Called, not expected here.
    Called(usize),
    /// Expected, not called here.
    Expected(usize),
}

impl Alignment<'_> {
    /// Why the first unmatched expected name is unmatched: "`create_order` was called before
    /// `check_inventory`"; and the misplaced call, if there is one. `None` if every expected name
    /// is matched.
    pub(crate) fn first_gap(&self) -> Option<(String, Option<usize>)> {
        let gap = self
            .pairs
            .iter()
            .zip(0..)
            .position(|(pair, at)| pair.1 != at)
            .unwrap_or(self.pairs.len());
        let name = self.expected.get(gap)?;
        let (before, after) = self.pairs.split_at(gap);
        // The call to blame is an unmatched one of that name, the nearest to the place where it was
        // expected.
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
            let n_called = self.actual.iter().filter(|&actual| actual == name).count();
            let n_expected = self
                .expected
                .iter()
                .filter(|&expected| expected == name)
                .count();
            let sentence = match n_called {
                0 => format!("`{name}` was not called"),
                _ => format!(
                    "`{name}` {}, expected {}",
                    was_called(n_called),
                    times(n_expected)
                ),
            };
            return Some((sentence, None));
        };
        let other = |pair: &&(usize, usize)| self.actual[pair.0] != name;
        let sentence =
            if let Some(pair) = before.iter().filter(other).find(|pair| pair.0 > misplaced) {
                format!("`{name}` was called before `{}`", self.actual[pair.0])
            } else if let Some(pair) = after.iter().filter(other).find(|pair| pair.0 < misplaced) {
                format!("`{name}` was called after `{}`", self.actual[pair.0])
            } else {
                format!("`{name}` was called out of order")
            };
        Some((sentence, Some(misplaced)))
    }

    /// The first position at which two sequences that should be equal differ: "call 3 is `edit`,
    /// expected `search`"; and the call there, if there is one.
    pub(crate) fn first_difference(&self) -> Option<(String, Option<usize>)> {
        let at = self
            .actual
            .iter()
            .zip(self.expected)
            .take_while(|(actual, expected)| *actual == expected)
            .count();
        match (self.actual.get(at), self.expected.get(at)) {
            (Some(actual), Some(expected)) => Some((
                format!("call {} is `{actual}`, expected `{expected}`", at + 1),
                Some(at),
            )),
            (Some(actual), None) if self.expected.is_empty() => {
                Some((format!("`{actual}` was called, nothing expected"), Some(at)))
            }
            (Some(actual), None) => Some((
                format!(
                    "`{actual}` was called after the last expected call, `{}`",
                    self.expected[at - 1]
                ),
                Some(at),
            )),
            (None, Some(expected)) if at == 0 => {
                Some((format!("`{expected}` was not called"), None))
            }
            (None, Some(expected)) => Some((
                format!(
                    "`{expected}` was not called after `{}`",
                    self.expected[at - 1]
                ),
                None,
            )),
            (None, None) => None,
        }
    }

    fn entries(&self) -> Vec<Entry> {
        let mut entries =
            Vec::with_capacity(self.actual.len() + self.expected.len() - self.pairs.len());
        let (mut i, mut j) = (0, 0);
        let end = (self.actual.len(), self.expected.len());
        for &(pair_i, pair_j) in self.pairs.iter().chain([&end]) {
            entries.extend((i..pair_i).map(Entry::Called));
            entries.extend((j..pair_j).map(Entry::Expected));
            if (pair_i, pair_j) != end {
                entries.push(Entry::Both(pair_i));
            }
            (i, j) = (pair_i + 1, pair_j + 1);
        }
        entries
    }
}

/// Both sequences in one: `validate_user, +create_order, check_inventory, -create_order`. Of long
/// ones, the part around the first difference.
impl fmt::Display for Alignment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.entries();
        let first = entries
            .iter()
            .position(|entry| !matches!(entry, Entry::Both(_)))
            .unwrap_or(0);
        let start = if entries.len() <= MAX_ENTRIES {
            0
        } else {
            first.saturating_sub(3).min(entries.len() - MAX_ENTRIES)
        };
        let shown = &entries[start..entries.len().min(start + MAX_ENTRIES)];
        f.write_str("Alignment (+ called, - expected): ")?;
        if start > 0 {
            write!(f, "… {start} more, ")?;
        }
        for (at, entry) in shown.iter().enumerate() {
            let (mark, name) = match *entry {
                Entry::Both(call_idx) => ("", self.actual[call_idx]),
                Entry::Called(call_idx) => ("+", self.actual[call_idx]),
                Entry::Expected(at) => ("-", self.expected[at].as_str()),
            };
            write!(f, "{}{mark}{name}", if at == 0 { "" } else { ", " })?;
        }
        match entries.len() - start - shown.len() {
            0 => Ok(()),
            rest => write!(f, ", … {rest} more"),
        }
    }
}

/// "was never called", "was called once", "was called 3 times".
pub(crate) fn was_called(n: usize) -> String {
    if n == 0 {
        "was never called".to_owned()
    } else {
        format!("was called {}", times(n))
    }
}

/// "never", "once", "twice", "3 times".
pub(crate) fn times(n: usize) -> String {
    match n {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        _ => format!("{n} times"),
    }
}

/// The first sixteen names, quoted.
pub(crate) fn quoted<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let rest = names.len().saturating_sub(MAX_ENTRIES);
    let mut text = names
        .take(MAX_ENTRIES)
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if rest > 0 {
        let _ = write!(text, ", … {rest} more");
    }
    text
}
