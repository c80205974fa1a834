//! Finds the longest common subsequence of two sequences of interned names. If there are several,
//! finds the one that the evaluators of other tools, which we reproduce, find.
//!
//! Those evaluators fill a table over (actual i, expected j) and walk back from its end. A row of
//! the table rises by 0 or 1 from column to column, so we store one bit per column and compute a
//! row a machine word at a time (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004). The
//! walk back needs only these bits: if the names differ, `dp[i-1][j] > dp[i][j-1]` is true if and
//! only if row i rises at column j.

/// Maximum cells of the table: docs/design.md#criteria-and-evaluators.
const MAX_CELLS: usize = 4_096 * 4_096;

const BITS: usize = u64::BITS as usize;

/// The id of an unexpected name. It matches nothing.
pub const UNEXPECTED: u32 = u32::MAX;

/// Pairs of positions (in `actual`, in `expected`).
pub type Subsequence = Vec<(usize, usize)>;

/// Returns the positions of one longest common subsequence, ascending in both sequences; `None` if
/// the table would exceed its limit, unless all expected names match.
///
/// `expected` contains small integers; the largest decides the memory used. An integer in `actual`
/// that is not in `expected` matches nothing. If there are several longest subsequences, the result
/// is the one found by walking the table back from its end: match equal names, else drop an actual
/// name if `dp[i-1][j] > dp[i][j-1]`, else drop an expected name.
pub fn common_subsequence(actual: &[u32], expected: &[u32]) -> Option<Subsequence> {
    let is_small = actual.len().saturating_mul(expected.len()) <= MAX_CELLS;
    whole(actual, expected).or_else(|| is_small.then(|| by_rows(actual, expected)))
}

/// Matches all expected names, each with the last call that can be its match; `None` if that is
/// impossible. If all names match, the walk back finds the same result: dropping a name would lose
/// a match, so it drops only calls. Most agents behave as expected, so this shortcut saves most of
/// the work.
fn whole(actual: &[u32], expected: &[u32]) -> Option<Subsequence> {
    let mut n_left = expected.len();
    let mut pairs = Vec::with_capacity(n_left);
    for call_idx in (0..actual.len()).rev() {
        if n_left > 0 && actual[call_idx] == expected[n_left - 1] {
            n_left -= 1;
            pairs.push((call_idx, n_left));
        }
    }
    pairs.reverse();
    (n_left == 0).then_some(pairs)
}

fn by_rows(actual: &[u32], expected: &[u32]) -> Subsequence {
    let n_words = expected.len().div_ceil(BITS);
    let n_names = expected.iter().max().map_or(0, |&name| name as usize + 1);
    let mut columns_of: Vec<Vec<usize>> = vec![Vec::new(); n_names];
    for (column, &name) in expected.iter().enumerate() {
        columns_of[name as usize].push(column);
    }
    // Row 0, before any call, has no rises.
    let mut rows = vec![u64::MAX; n_words * (actual.len() + 1)];
    let mut mask = vec![0_u64; n_words];
    for (call_idx, &name) in actual.iter().enumerate() {
        let (before, after) = rows.split_at_mut((call_idx + 1) * n_words);
        let (row, next) = (&before[call_idx * n_words..], &mut after[..n_words]);
        let columns = columns_of.get(name as usize).map_or(&[][..], Vec::as_slice);
        for column in columns {
            mask[column / BITS] |= 1 << (column % BITS);
        }
        let mut carry = false;
        for word in 0..n_words {
            let (sum, overflow) = row[word].overflowing_add(row[word] & mask[word]);
            let (sum, overflow_by_carry) = sum.overflowing_add(u64::from(carry));
            next[word] = sum | (row[word] & !mask[word]);
            carry = overflow | overflow_by_carry;
        }
        for column in columns {
            mask[column / BITS] = 0;
        }
    }
    // In each row, the walk stops at the last remaining column that has the call's name (the call
    // is matched) or at which the row rises (the call is dropped). The names of skipped columns are
    // dropped.
    let mut pairs = Vec::new();
    let mut end = expected.len();
    for call_idx in (0..actual.len()).rev() {
        let row = &rows[(call_idx + 1) * n_words..];
        let rises = |column: usize| row[column / BITS] >> (column % BITS) & 1 == 0;
        let is_equal = |column: usize| expected[column] == actual[call_idx];
        while end > 0 && !is_equal(end - 1) && !rises(end - 1) {
            end -= 1;
        }
        if end > 0 && is_equal(end - 1) {
            end -= 1;
            pairs.push((call_idx, end));
        }
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the subsequence found in a full table, as the evaluators that we reproduce find it.
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
            let pairs = common_subsequence(&actual, &expected);
            prop_assert_eq!(pairs, Some(by_table(&actual, &expected)));
        }

        #[test]
        fn so_does_what_takes_all_names((actual, expected) in (names(4, 12), names(3, 4))) {
            let pairs = common_subsequence(&actual, &expected);
            prop_assert_eq!(pairs, Some(by_table(&actual, &expected)));
        }
    }

    /// Returns a fixed pseudo-random sequence (a linear congruential generator).
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
                Some(by_table(&actual, &expected)),
                "{n_names} names"
            );
        }
    }

    #[test]
    fn beyond_the_limit_only_what_takes_all_names() {
        let (actual, expected) = (sequence(6_000, 8, 3), sequence(5_000, 8, 4));
        assert_eq!(common_subsequence(&actual, &expected), None);
        let pairs = common_subsequence(&actual, &actual).unwrap();
        assert_eq!(pairs.len(), actual.len());
    }

    #[test]
    fn what_is_not_expected_matches_nothing() {
        assert_eq!(
            common_subsequence(&[UNEXPECTED, 0, UNEXPECTED], &[0]),
            Some(vec![(1, 0)])
        );
    }
}
