//! Lists the expected and the actual calls side by side, and describes the list in a text.

use std::fmt::Write as _;

use text::Clean;

use super::rows::RowKind;
use crate::extract::ToolCall;

/// Maximum number of entries that are stored.
const MAX_KEPT: usize = 10_000;
/// Maximum number of entries that a text shows.
const MAX_SHOWN: usize = 16;

/// One entry of an alignment: `Match`, `Missing`, `Extra`, `Moved` or `Replaced`, and an expected
/// call, a call (an index in the trajectory), or both.
pub(crate) type AlignedEntry = (RowKind, Option<usize>, Option<usize>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct Matched {
    pub(crate) n_expected: usize,
    pub(crate) n_calls: usize,
    /// `None` if the score counts changes instead of matches.
    pub(crate) n_matched: Option<usize>,
    /// True if there were too many orders to search for the best one.
    pub(crate) fell_back: bool,
    pub(crate) entries: Vec<AlignedEntry>,
}

impl Matched {
    /// Returns the length of the longer list (expected calls or calls made), minus the changes.
    pub(crate) fn n_unchanged(&self) -> usize {
        let n_changes = self
            .entries
            .iter()
            .filter(|(kind, ..)| *kind != RowKind::Match)
            .count();
        self.n_expected.max(self.n_calls).saturating_sub(n_changes)
    }
}

/// Lists every expected call and every call once, in the order of the expected calls, up to
/// [`MAX_KEPT`] entries. With `finds_moved`, matching calls that are still unpaired are paired out
/// of order.
pub(crate) fn alignment(
    (n_expected, calls): (usize, &[usize]),
    pairs: &[(usize, usize)],
    substituted: &[(usize, usize)],
    finds_moved: bool,
    fits: impl Fn(usize, usize) -> bool,
) -> Vec<AlignedEntry> {
    let mut partner: Vec<Option<(RowKind, usize)>> = vec![None; n_expected];
    let mut is_paired = vec![false; calls.len()];
    let matches = pairs.iter().map(|pair| (*pair, RowKind::Match));
    let others = substituted.iter().map(|pair| (*pair, RowKind::Replaced));
    for ((expected, call), kind) in matches.chain(others) {
        partner[expected] = Some((kind, call));
        is_paired[call] = true;
    }
    // Each unpaired expected call is compared with all calls, so the number of these expected calls
    // is limited. Whether a call is marked as moved does not change the score.
    const MAX_MOVED: usize = 256;
    let unpaired = (0..n_expected).filter(|expected| partner[*expected].is_none());
    let unpaired: Vec<usize> = unpaired
        .take(if finds_moved { MAX_MOVED } else { 0 })
        .collect();
    for expected in unpaired {
        let free = (0..calls.len()).find(|&call| !is_paired[call] && fits(expected, call));
        if let Some(call) = free {
            partner[expected] = Some((RowKind::Moved, call));
            is_paired[call] = true;
        }
    }
    let mut entries = Vec::with_capacity(n_expected + calls.len());
    let mut extras = (0..calls.len()).filter(|call| !is_paired[*call]).peekable();
    let extra = |call: usize| (RowKind::Extra, None, Some(calls[call]));
    for (expected, partner) in partner.iter().enumerate() {
        match *partner {
            None => entries.push((RowKind::Missing, Some(expected), None)),
            Some((kind, call)) => {
                while let Some(before) = extras.next_if(|extra| *extra < call) {
                    entries.push(extra(before));
                }
                entries.push((kind, Some(expected), Some(calls[call])));
            }
        }
    }
    entries.extend(extras.map(extra));
    entries.truncate(MAX_KEPT);
    entries
}

/// Returns text such as "f1 0.75: 3 of 4 expected calls among 4 made. Alignment …", and the calls
/// to blame.
pub(crate) fn words(
    (score, value): (&str, f64),
    found: &Matched,
    expected: &[&str],
    calls: &[ToolCall],
) -> (String, Vec<usize>) {
    let rounded = (value * 1e4).round() / 1e4;
    let matches = found
        .entries
        .iter()
        .filter(|(kind, ..)| *kind == RowKind::Match);
    let n_matched = found.n_matched.unwrap_or_else(|| matches.count());
    let mut text = format!(
        "{score} {rounded}: {n_matched} of {} expected {} among {} made",
        found.n_expected,
        if found.n_expected == 1 { "call" } else { "calls" },
        found.n_calls
    );
    if found.fell_back {
        text.push_str(" (too many calls at one time: compared in the order of their starts)");
    }
    let is_whole = |entry: &AlignedEntry| entry.0 == RowKind::Match;
    let Some(first) = found.entries.iter().position(|entry| !is_whole(entry)) else {
        return (text, Vec::new());
    };
    let start = if found.entries.len() <= MAX_SHOWN {
        0
    } else {
        first.saturating_sub(3).min(found.entries.len() - MAX_SHOWN)
    };
    let shown = &found.entries[start..found.entries.len().min(start + MAX_SHOWN)];
    text.push_str(". Alignment (+ called, - expected, ~ out of order): ");
    if start > 0 {
        let _ = write!(text, "… {start} more, ");
    }
    let name = |at: &Option<usize>| {
        let call = at.and_then(|at| calls.get(at));
        Clean(call.map_or("", |call| &*call.name)).to_string()
    };
    let asked = |at: &Option<usize>| {
        Clean(at.and_then(|at| expected.get(at)).copied().unwrap_or("")).to_string()
    };
    let entries = shown.iter().map(|(kind, at, call)| match kind {
        RowKind::Match => name(call),
        RowKind::Missing => format!("-{}", asked(at)),
        RowKind::Extra => format!("+{}", name(call)),
        RowKind::Moved => format!("~{}", name(call)),
        _ => format!("-{} +{}", asked(at), name(call)),
    });
    text.push_str(&entries.collect::<Vec<_>>().join(", "));
    let n_more = found.entries.len() - start - shown.len();
    if n_more > 0 {
        let _ = write!(text, ", … {n_more} more");
    }
    let at_fault = found.entries.iter().filter(|entry| !is_whole(entry));
    (text, at_fault.filter_map(|(_, _, call)| *call).collect())
}
