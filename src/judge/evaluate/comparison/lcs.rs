//! Computes the longest common subsequence of two sequences of interned names, bit-parallel,
//! with one prescribed reconstruction. Knows neither names nor scores.
//!
//! The reference evaluators fill a table over (actual i, expected j) and walk back from its end. A
//! row of that table rises by 0 or 1 from column to column, so a row is kept as one bit per column
//! and computed a machine word at a time (Hyyrö, "Bit-parallel LCS-length computation revisited",
//! 2004). The walk back needs no numbers either: where the names differ, `dp[i-1][j] > dp[i][j-1]`
//! holds exactly where row i rises at column j, which is that one bit.

use std::ops::Range;

/// Most bytes of bit rows kept at once: the 4 096 × 4 096 bits up to which the result is the
/// prescribed one (docs/design.md#criteria-and-evaluators).
const MAX_ROWS_SIZE: usize = 4_096 * 4_096 / 8;

/// Most words of masks up to which every name has a mask of its own: 256 KiB.
const ALL_OWN_WORDS: usize = 32_768;

type Word = u64;
const BITS: usize = Word::BITS as usize;

/// The id of a name that is not expected; it matches nothing.
pub const UNEXPECTED: u32 = u32::MAX;

/// Positions (in `actual`, in `expected`) of one longest common subsequence, rising in both.
///
/// `expected` holds small integers (the largest determines how much memory is taken); in `actual`,
/// any other integer matches nothing. Where there are several longest ones, the result is
/// prescribed up to 4 096 × 4 096: the one that walking the table back from its end finds, taking
/// equal names, else dropping an actual if `dp[i-1][j] > dp[i][j-1]`, otherwise an expected. Beyond
/// that size it is any of them, in memory linear in the lengths (Hirschberg's division, on bit
/// rows).
pub fn common_subsequence(actual: &[u32], expected: &[u32]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::with_capacity(actual.len().min(expected.len()) + 1);
    if !take_whole(actual, expected, &mut pairs) {
        pairs.clear();
        divide(
            actual,
            0..actual.len(),
            expected,
            0..expected.len(),
            &mut pairs,
        );
    }
    pairs
}

/// Matches the last name with its last call, and so on to the first name. If that matches all
/// names, it is the prescribed result, which prefers to drop a call that costs nothing to dropping
/// a name. Most agents do what is expected of them, so this fast path saves most of the work.
fn take_whole(actual: &[u32], expected: &[u32], pairs: &mut Vec<(usize, usize)>) -> bool {
    let mut n_left = expected.len();
    for call_idx in (0..actual.len()).rev() {
        if n_left > 0 && actual[call_idx] == expected[n_left - 1] {
            n_left -= 1;
            pairs.push((call_idx, n_left));
        }
    }
    pairs.reverse();
    n_left == 0
}

fn divide(
    actual: &[u32],
    calls: Range<usize>,
    expected: &[u32],
    names: Range<usize>,
    pairs: &mut Vec<(usize, usize)>,
) {
    if calls.is_empty() || names.is_empty() {
        return;
    }
    if calls
        .len()
        .saturating_mul(n_words(names.len()) * size_of::<Word>())
        <= MAX_ROWS_SIZE
    {
        walk_back(
            &actual[calls.clone()],
            &expected[names.clone()],
            calls.start,
            names.start,
            pairs,
        );
        return;
    }
    let middle = calls.start + calls.len() / 2;
    let column = best_column(
        &actual[calls.start..middle],
        &actual[middle..calls.end],
        &expected[names.clone()],
    );
    divide(
        actual,
        calls.start..middle,
        expected,
        names.start..names.start + column,
        pairs,
    );
    divide(
        actual,
        middle..calls.end,
        expected,
        names.start + column..names.end,
        pairs,
    );
}

/// The column at which some longest common subsequence passes from the first half of the calls to
/// the second.
fn best_column(first: &[u32], second: &[u32], expected: &[u32]) -> usize {
    let forth = last_row(first.iter().copied(), expected);
    let reversed: Vec<u32> = expected.iter().rev().copied().collect();
    let back = last_row(second.iter().rev().copied(), &reversed);
    let rises = |row: &[Word], column: usize| usize::from(rises_at(row, column));
    let mut length: usize = (0..expected.len()).map(|column| rises(&back, column)).sum();
    let (mut best, mut best_length) = (0, length);
    for column in 0..expected.len() {
        length += rises(&forth, column);
        length -= rises(&back, expected.len() - 1 - column);
        if length > best_length {
            (best, best_length) = (column + 1, length);
        }
    }
    best
}

fn last_row(actual: impl Iterator<Item = u32>, expected: &[u32]) -> Vec<Word> {
    let mut columns = Columns::new(expected);
    let mut row = vec![Word::MAX; n_words(expected.len())];
    let mut next = row.clone();
    for name in actual {
        if columns.has(name) {
            columns.advance(name, &row, &mut next);
            std::mem::swap(&mut row, &mut next);
        }
    }
    row
}

/// Keeps every row, then walks back by the prescribed rule: each row is left at the next column
/// that has the call's name (the call is taken), or at which the row rises (the call is dropped).
/// The columns skipped are expected names dropped.
fn walk_back(
    actual: &[u32],
    expected: &[u32],
    first_call: usize,
    first_name: usize,
    pairs: &mut Vec<(usize, usize)>,
) {
    let leave = match n_words(expected.len()) {
        1 => short::<1>,
        2 => short::<2>,
        3 => short::<3>,
        4 => short::<4>,
        5 => short::<5>,
        6 => short::<6>,
        7 => short::<7>,
        8 => short::<8>,
        _ => long,
    };
    // Every row is left exactly once, taken or dropped. Which of the two is as good as random, so
    // the pair is always written and only counted where the call was taken: a branch would be
    // mispredicted every other row.
    let from = pairs.len();
    pairs.resize(from + actual.len().min(expected.len()) + 1, (0, 0));
    let mut n_pairs = 0;
    leave(actual, expected, &mut |call_idx, Stop { column, equal }| {
        pairs[from + n_pairs] = (first_call + call_idx, first_name + column);
        n_pairs += usize::from(equal);
    });
    pairs.truncate(from + n_pairs);
    pairs[from..].reverse();
}

/// Where the walk back leaves a row.
struct Stop {
    column: usize,
    equal: bool,
}

impl Stop {
    /// The column before which the row above is entered.
    fn end(&self) -> usize {
        self.column + usize::from(!self.equal)
    }

    /// The last column of `word`, before column `end`, at which the row is left.
    fn within(word: usize, equal: Word, row: Word, end: usize) -> Option<Self> {
        let below = match end - word * BITS {
            n if n < BITS => !(Word::MAX << n),
            _ => Word::MAX,
        };
        let stops = (equal | !row) & below;
        if stops == 0 {
            return None;
        }
        let bit = (Word::BITS - 1 - stops.leading_zeros()) as usize;
        Some(Self {
            column: word * BITS + bit,
            equal: equal >> bit & 1 == 1,
        })
    }
}

/// Up to 512 expected names, in N words: every name has a mask, and a row stays in registers from
/// one call to the next.
fn short<const N: usize>(actual: &[u32], expected: &[u32], left: &mut impl FnMut(usize, Stop)) {
    let n_names = expected.iter().max().map_or(0, |&name| name as usize + 1);
    if n_names > N * BITS {
        return long(actual, expected, left);
    }
    // The last mask is that of all unexpected names.
    let mut masks = vec![[0; N]; n_names + 1];
    for (column, &name) in expected.iter().enumerate() {
        masks[name as usize][column / BITS] |= 1 << (column % BITS);
    }
    let mask_of = |call_idx: usize| &masks[(actual[call_idx] as usize).min(n_names)];
    let mut row = [Word::MAX; N];
    let rows: Vec<[Word; N]> = (0..actual.len())
        .map(|call_idx| {
            let mask = mask_of(call_idx);
            let mut carry = false;
            for word in 0..N {
                (row[word], carry) = step_word(row[word], mask[word], carry);
            }
            row
        })
        .collect();
    let mut end = expected.len();
    for call_idx in (0..actual.len()).rev() {
        let (row, mask) = (&rows[call_idx], mask_of(call_idx));
        let words = (0..end.div_ceil(BITS).min(N)).rev();
        let Some(stop) = words
            .into_iter()
            .find_map(|word| Stop::within(word, mask[word], row[word], end))
        else {
            break;
        };
        end = stop.end();
        left(call_idx, stop);
    }
}

/// Any number of expected names.
fn long(actual: &[u32], expected: &[u32], left: &mut impl FnMut(usize, Stop)) {
    let mut columns = Columns::new(expected);
    let n_words = n_words(expected.len());
    // Row 0, before any call, rises nowhere. An unexpected call leaves the row unchanged, so it
    // shares the row before it.
    let n_rows = 1 + actual.iter().filter(|&&name| columns.has(name)).count();
    let mut rows = vec![Word::MAX; n_words * n_rows];
    let mut row_of = Vec::with_capacity(actual.len());
    let mut start = 0;
    for &name in actual {
        if columns.has(name) {
            let (before, next) = rows.split_at_mut(start + n_words);
            columns.advance(name, &before[start..], &mut next[..n_words]);
            start += n_words;
        }
        row_of.push(start);
    }
    let mut end = expected.len();
    for call_idx in (0..actual.len()).rev() {
        let row = &rows[row_of[call_idx]..row_of[call_idx] + n_words];
        let Some(stop) = columns.stop(actual[call_idx], row, end) else {
            break;
        };
        end = stop.end();
        left(call_idx, stop);
    }
}

/// A row rises at a column where its bit is 0.
fn rises_at(row: &[Word], column: usize) -> bool {
    row[column / BITS] >> (column % BITS) & 1 == 0
}

fn n_words(n_columns: usize) -> usize {
    n_columns.div_ceil(BITS)
}

// === Columns ===

/// The columns of each expected name, as masks.
///
/// A name with less than one column per word is written into a scratch mask when it is needed; the
/// others have a mask of their own. So both the memory and the time per row stay linear. If there
/// are few masks, all are kept, which avoids rewriting them for each row.
struct Columns {
    n_words: usize,
    /// Positions by name: those of name n are `positions[starts[n]..starts[n + 1]]`.
    starts: Vec<u32>,
    positions: Vec<u32>,
    /// Where in `masks` a frequent name's own mask begins.
    own: Vec<Option<u32>>,
    masks: Vec<Word>,
    scratch: Vec<Word>,
}

impl Columns {
    fn new(expected: &[u32]) -> Self {
        let n_words = n_words(expected.len());
        let n_names = expected.iter().max().map_or(0, |&name| name as usize + 1);
        let mut starts = vec![0_u32; n_names + 1];
        for &name in expected {
            starts[name as usize + 1] += 1;
        }
        let all_own = n_names.saturating_mul(n_words) <= ALL_OWN_WORDS;
        let mut own = vec![None; n_names];
        let mut n_masks = 0;
        for name in 0..n_names {
            if starts[name + 1] as usize >= n_words || all_own {
                own[name] = Some((n_masks * n_words) as u32);
                n_masks += 1;
            }
            starts[name + 1] += starts[name];
        }
        let mut masks = vec![0; n_masks * n_words];
        let mut free = starts.clone();
        let mut positions = vec![0; expected.len()];
        for (column, &name) in expected.iter().enumerate() {
            let free = &mut free[name as usize];
            positions[*free as usize] = column as u32;
            *free += 1;
            if let Some(start) = own[name as usize] {
                masks[start as usize + column / BITS] |= 1 << (column % BITS);
            }
        }
        Self {
            n_words,
            starts,
            positions,
            own,
            masks,
            scratch: vec![0; n_words],
        }
    }

    /// Could a name of this id be expected?
    fn has(&self, name: u32) -> bool {
        (name as usize) < self.own.len()
    }

    fn own_mask(&self, name: u32) -> Option<&[Word]> {
        let start = self.own.get(name as usize).copied().flatten()? as usize;
        self.masks.get(start..start + self.n_words)
    }

    /// Computes the row after a call of an expected name from the row before.
    fn advance(&mut self, name: u32, row: &[Word], next: &mut [Word]) {
        if let Some(start) = self.own[name as usize] {
            step(
                row,
                &self.masks[start as usize..start as usize + self.n_words],
                next,
            );
            return;
        }
        let positions = &self.positions
            [self.starts[name as usize] as usize..self.starts[name as usize + 1] as usize];
        for &column in positions {
            self.scratch[column as usize / BITS] |= 1 << (column as usize % BITS);
        }
        step(row, &self.scratch, next);
        for &column in positions {
            self.scratch[column as usize / BITS] = 0;
        }
    }

    /// Where the walk back, entering before column `end`, leaves the row of a call of this name;
    /// `None` if that is before the first column.
    fn stop(&self, name: u32, row: &[Word], end: usize) -> Option<Stop> {
        let mask = self.own_mask(name);
        // The columns of a name without a mask of its own, those still ahead.
        let mut ahead = match (mask, self.has(name)) {
            (None, true) => {
                let positions = &self.positions
                    [self.starts[name as usize] as usize..self.starts[name as usize + 1] as usize];
                &positions[..positions.partition_point(|&column| (column as usize) < end)]
            }
            _ => &[],
        };
        (0..end.div_ceil(BITS)).rev().find_map(|word| {
            let mut equal = mask.map_or(0, |mask| mask[word]);
            while let Some((&column, rest)) = ahead
                .split_last()
                .filter(|(column, _)| **column as usize / BITS == word)
            {
                equal |= 1 << (column as usize % BITS);
                ahead = rest;
            }
            Stop::within(word, equal, row[word], end)
        })
    }
}

/// `next = (row + (row & mask)) | (row & !mask)`, over all words with carry.
fn step(row: &[Word], mask: &[Word], next: &mut [Word]) {
    let mut carry = false;
    for ((next, &row), &mask) in next.iter_mut().zip(row).zip(mask) {
        (*next, carry) = step_word(row, mask, carry);
    }
}

fn step_word(row: Word, mask: Word, carry: bool) -> (Word, bool) {
    let (sum, overflow) = row.overflowing_add(row & mask);
    let (sum, overflow_by_carry) = sum.overflowing_add(Word::from(carry));
    (sum | (row & !mask), overflow | overflow_by_carry)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The classic table, as the reference evaluators fill it and walk it back.
    fn by_table(actual: &[u32], expected: &[u32]) -> Vec<(usize, usize)> {
        let mut dp = vec![vec![0_u32; expected.len() + 1]; actual.len() + 1];
        for i in 1..=actual.len() {
            for j in 1..=expected.len() {
                dp[i][j] = if actual[i - 1] == expected[j - 1] {
                    dp[i - 1][j - 1] + 1
                } else {
                    dp[i - 1][j].max(dp[i][j - 1])
                };
            }
        }
        let (mut i, mut j) = (actual.len(), expected.len());
        let mut pairs = Vec::new();
        while i > 0 && j > 0 {
            if actual[i - 1] == expected[j - 1] {
                (i, j) = (i - 1, j - 1);
                pairs.push((i, j));
            } else if dp[i - 1][j] > dp[i][j - 1] {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        pairs.reverse();
        pairs
    }

    fn names(n_names: u32, max_len: usize) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::vec(0..n_names, 0..max_len)
    }

    fn two_sequences() -> impl Strategy<Value = (Vec<u32>, Vec<u32>)> {
        (1_u32..40, 1_usize..300).prop_flat_map(|(n_names, max_len)| {
            (names(n_names + 2, max_len), names(n_names, max_len))
        })
    }

    proptest! {
        #[test]
        fn bit_rows_give_the_very_sequence_of_the_table((actual, expected) in two_sequences()) {
            prop_assert_eq!(common_subsequence(&actual, &expected), by_table(&actual, &expected));
        }

        #[test]
        fn so_does_what_takes_all_names((actual, expected) in (names(4, 12), names(3, 4))) {
            prop_assert_eq!(common_subsequence(&actual, &expected), by_table(&actual, &expected));
        }

        #[test]
        fn halving_finds_a_longest_one((actual, expected) in two_sequences()) {
            let column = best_column(
                &actual[..actual.len() / 2],
                &actual[actual.len() / 2..],
                &expected,
            );
            let first = by_table(&actual[..actual.len() / 2], &expected[..column]).len();
            let second = by_table(&actual[actual.len() / 2..], &expected[column..]).len();
            prop_assert_eq!(first + second, by_table(&actual, &expected).len());
        }
    }

    /// A fixed pseudo-random sequence (a linear congruential generator), so that large cases are
    /// the same on every run.
    fn sequence(len: usize, n_names: u64, seed: u64) -> Vec<u32> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % n_names) as u32
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn the_very_sequence_up_to_the_limit() {
        for n_names in [2, 60, 5_000] {
            let (actual, expected) = (sequence(1_500, n_names, 1), sequence(1_400, n_names, 2));
            assert_eq!(
                common_subsequence(&actual, &expected),
                by_table(&actual, &expected),
                "{n_names} names"
            );
        }
    }

    #[test]
    fn beyond_the_limit_a_longest_one_that_is_one() {
        let (actual, expected) = (sequence(6_000, 8, 3), sequence(5_000, 8, 4));
        let pairs = common_subsequence(&actual, &expected);
        assert_eq!(pairs.len(), by_table(&actual, &expected).len());
        assert!(pairs.iter().all(|&(i, j)| actual[i] == expected[j]));
        assert!(
            pairs
                .windows(2)
                .all(|two| two[0].0 < two[1].0 && two[0].1 < two[1].1)
        );
    }

    #[test]
    fn what_is_not_expected_matches_nothing() {
        assert_eq!(
            common_subsequence(&[UNEXPECTED, 0, UNEXPECTED], &[0]),
            [(1, 0)]
        );
    }
}
