//! Maps a trace id to one of N partitions, each judged by its own pipeline.

use otlp::span::TraceId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partition {
    index: usize,
    n_partitions: usize,
}

impl Partition {
    /// The only partition, with all traces.
    pub const WHOLE: Self = Self {
        index: 0,
        n_partitions: 1,
    };

    /// Returns `n_partitions` partitions in order, but at least one.
    pub fn all(n_partitions: usize) -> impl Iterator<Item = Self> {
        let n_partitions = n_partitions.max(1);
        (0..n_partitions).map(move |index| Self {
            index,
            n_partitions,
        })
    }

    /// Returns the index of a trace's partition.
    ///
    /// The hash has no key. A sender that chooses its ids so that all traces fall to one partition
    /// gains nothing: all its traces share that partition's pipeline and its part of the memory.
    pub fn index_of(trace_id: TraceId, n_partitions: usize) -> usize {
        if n_partitions <= 1 {
            return 0;
        }
        // Steps like those of splitmix64, which also distribute consecutive ids evenly.
        let (high, low) = trace_id.halves();
        let mut hash = high.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(low);
        hash = (hash ^ (hash >> 32)).wrapping_mul(0x94D0_49BB_1331_11EB);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        hash ^= hash >> 31;
        // Multiply the hash, as a fraction of 2^64, by the number of partitions.
        ((u128::from(hash) * n_partitions as u128) >> 64) as usize
    }

    pub fn holds(self, trace_id: TraceId) -> bool {
        Self::index_of(trace_id, self.n_partitions) == self.index
    }

    pub fn index(self) -> usize {
        self.index
    }

    pub fn n_partitions(self) -> usize {
        self.n_partitions
    }

    pub fn is_whole(self) -> bool {
        self.n_partitions == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u128) -> TraceId {
        TraceId::try_new(&n.to_be_bytes()).unwrap()
    }

    #[test]
    fn every_trace_belongs_to_one_part_and_the_parts_are_even() {
        let counted = (1..=8_000).map(id);
        let in_the_first_half = (1..=8_000).map(|n| id(n << 64));
        let repeated = (1..=8_000).map(|n: u128| id(n << 64 | n));
        let hashed = (1..=8_000).map(|n: u128| id(n.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C061)));
        for ids in [
            counted.collect::<Vec<_>>(),
            in_the_first_half.collect(),
            repeated.collect(),
            hashed.collect(),
        ] {
            for n_partitions in [1, 2, 3, 8] {
                let mut n_held = vec![0_usize; n_partitions];
                for &id in &ids {
                    let holders = Partition::all(n_partitions).filter(|part| part.holds(id));
                    let holders: Vec<usize> = holders.map(Partition::index).collect();
                    assert_eq!(holders, [Partition::index_of(id, n_partitions)]);
                    n_held[holders[0]] += 1;
                }
                let even = ids.len() / n_partitions;
                assert!(
                    n_held.iter().all(|n| n.abs_diff(even) < even / 5),
                    "{n_partitions}: {n_held:?}"
                );
            }
        }
    }

    #[test]
    fn a_division_has_at_least_one_part() {
        assert_eq!(Partition::all(0).collect::<Vec<_>>(), [Partition::WHOLE]);
    }
}
