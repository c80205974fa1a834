//! Finds a maximum matching in a bipartite graph, given as a table of booleans.

use std::collections::VecDeque;

/// A table of booleans, one bit each: a row per expectation, a column per call.
pub(crate) struct Bipartite {
    n_columns: usize,
    rows: Vec<Vec<u64>>,
}

impl Bipartite {
    pub(crate) fn new(
        n_rows: usize,
        n_columns: usize,
        mut fits: impl FnMut(usize, usize) -> bool,
    ) -> Self {
        let mut bits_of = |row: usize| {
            let mut bits = vec![0_u64; n_columns.div_ceil(64)];
            for column in 0..n_columns {
                if fits(row, column) {
                    bits[column / 64] |= 1 << (column % 64);
                }
            }
            bits
        };
        Self {
            n_columns,
            rows: (0..n_rows).map(&mut bits_of).collect(),
        }
    }

    /// Returns the column of each row in a maximum matching. Rows are matched in order, each by the
    /// shortest augmenting path, lower columns first, so the result is deterministic.
    pub(crate) fn matching(&self) -> Vec<Option<usize>> {
        let mut owner: Vec<Option<usize>> = vec![None; self.n_columns];
        let mut column_of: Vec<Option<usize>> = vec![None; self.rows.len()];
        for row in 0..self.rows.len() {
            let Some((last, reached_from)) = self.augmenting_path(row, &owner) else {
                continue;
            };
            let mut column = last;
            loop {
                let row = reached_from[column];
                owner[column] = Some(row);
                match column_of[row].replace(column) {
                    Some(before) => column = before,
                    None => break,
                }
            }
        }
        column_of
    }

    /// Returns a free column that the row can reach, and for each column the row from which the
    /// search reached it. `None` if no free column is reachable.
    fn augmenting_path(&self, row: usize, owner: &[Option<usize>]) -> Option<(usize, Vec<usize>)> {
        let mut unseen = vec![u64::MAX; self.n_columns.div_ceil(64)];
        let mut reached_from = vec![0; self.n_columns];
        let mut queue = VecDeque::from([row]);
        while let Some(row) = queue.pop_front() {
            for (word, unseen) in unseen.iter_mut().enumerate() {
                let mut fresh = self.rows[row][word] & *unseen;
                *unseen &= !fresh;
                while fresh != 0 {
                    let column = word * 64 + fresh.trailing_zeros() as usize;
                    fresh &= fresh - 1;
                    reached_from[column] = row;
                    match owner[column] {
                        None => return Some((column, reached_from)),
                        Some(owner) => queue.push_back(owner),
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the size of a maximum matching, found by trying every assignment.
    fn most(rows: &[Vec<bool>], used: &mut Vec<bool>) -> usize {
        let Some((row, rest)) = rows.split_first() else {
            return 0;
        };
        let mut best = most(rest, used);
        for column in 0..row.len() {
            if row[column] && !used[column] {
                used[column] = true;
                best = best.max(1 + most(rest, used));
                used[column] = false;
            }
        }
        best
    }

    proptest! {
        #[test]
        fn no_assignment_pairs_more(
            table in (1_usize..5, 1_usize..6).prop_flat_map(|(n_rows, n_columns)| {
                prop::collection::vec(prop::collection::vec(any::<bool>(), n_columns), n_rows)
            }),
        ) {
            let (n_rows, n_columns) = (table.len(), table[0].len());
            let fits = Bipartite::new(n_rows, n_columns, |row, column| table[row][column]);
            let matching = fits.matching();
            let columns: Vec<usize> = matching.iter().flatten().copied().collect();
            let mut distinct = columns.clone();
            distinct.sort_unstable();
            distinct.dedup();
            prop_assert_eq!(distinct.len(), columns.len());
            for (row, column) in matching.iter().enumerate() {
                prop_assert!(column.is_none_or(|column| table[row][column]));
            }
            prop_assert_eq!(columns.len(), most(&table, &mut vec![false; table[0].len()]));
        }
    }

    #[test]
    fn a_greedy_choice_is_taken_back() {
        // The first expectation fits both calls, the second fits only the first call.
        let fits = Bipartite::new(2, 2, |row, column| row == 0 || column == 0);
        assert_eq!(fits.matching(), [Some(1), Some(0)]);
    }
}
