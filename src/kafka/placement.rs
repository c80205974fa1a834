//! Chooses the partition of a trace as the OpenTelemetry Collector and Kafka's own clients do, so
//! that all writers of a topic agree.

use otlp::span::TraceId;

use crate::config::KafkaPartitioner;

/// Returns the partition of a trace among `n_partitions`, which is at least 1.
pub fn partition_of(trace_id: TraceId, partitioner: KafkaPartitioner, n_partitions: i32) -> i32 {
    let key = trace_id.to_string();
    match partitioner {
        // Sarama takes the remainder of the signed number and drops its sign.
        KafkaPartitioner::SaramaCompat => {
            (fnv1a(key.as_bytes()).cast_signed() % n_partitions).abs()
        }
        KafkaPartitioner::Murmur2 => {
            (murmur2(key.as_bytes()) & 0x7fff_ffff).cast_signed() % n_partitions
        }
    }
}

/// Returns the 32-bit FNV-1a hash with the parameters of draft-eastlake-fnv.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// Returns the Murmur2 hash with the seed of `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut hash = SEED ^ bytes.len() as u32;
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (idx, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * idx);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of Kafka's `UtilsTest.testMurmur2`.
    #[test]
    fn murmur2_is_that_of_kafka() {
        for (text, expected) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            (
                "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8",
                -58_897_971,
            ),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()).cast_signed(), expected, "{text}");
        }
    }

    /// The expected values are test vectors of draft-eastlake-fnv.
    #[test]
    fn fnv1a_is_that_of_its_draft() {
        for (text, expected) in [
            ("", 0x811c_9dc5_u32),
            ("a", 0xe40c_292c),
            ("foobar", 0xbf9c_f968),
        ] {
            assert_eq!(fnv1a(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn every_partition_is_valid_and_most_are_used() {
        for partitioner in [KafkaPartitioner::SaramaCompat, KafkaPartitioner::Murmur2] {
            let mut n_traces = [0; 7];
            for seed in 0..7_000_u32 {
                let id = u128::from(seed.wrapping_mul(0x9e37_79b9) | 1).to_be_bytes();
                let id = TraceId::try_new(&id).expect("it is not zero");
                let partition = partition_of(id, partitioner, 7);
                n_traces[usize::try_from(partition).expect("no sign")] += 1;
            }
            assert!(
                n_traces.iter().all(|n| (800..1_200).contains(n)),
                "{partitioner:?}: {n_traces:?}"
            );
        }
    }
}
