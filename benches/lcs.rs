//! Times the bit-parallel search for a longest common subsequence against the classic table. Both
//! also reconstruct one subsequence. Prints ratios. Run it with `cargo bench --bench lcs`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use judge::evaluate::lcs::common_subsequence;

/// The goals: the length of both sequences, and the highest allowed ratio.
const GOALS: [(usize, f64); 2] = [(256, 0.05), (2_000, 0.025)];
const N_ROUNDS: usize = 15;

#[expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]
fn main() {
    for n_names in [4, 20, 200] {
        for (n, goal) in GOALS {
            let (actual, expected) = (sequence(n, n_names, 1), sequence(n, n_names, 2));
            assert_eq!(
                common_subsequence(&actual, &expected),
                Some(by_table(&actual, &expected))
            );
            let (mut bits, mut table) = (Vec::new(), Vec::new());
            for _ in 0..N_ROUNDS {
                bits.push(time(|| common_subsequence(&actual, &expected)));
                table.push(time(|| by_table(&actual, &expected)));
            }
            let (bits, table) = (median(bits), median(table));
            let ratio = bits.as_secs_f64() / table.as_secs_f64();
            let verdict = if ratio <= goal { "ok" } else { "MISSED" };
            println!(
                "n = {n:5}, {n_names:5} names: {bits:.1?} against {table:.1?}, \
                 ratio {ratio:.4} (goal {goal}) {verdict}"
            );
        }
    }
}

/// Returns the mean time of a few calls, because the clock cannot resolve a single short call.
fn time<T>(run: impl Fn() -> T) -> Duration {
    const N_CALLS: u32 = 5;
    let started = now();
    for _ in 0..N_CALLS {
        black_box(run());
    }
    now().duration_since(started) / N_CALLS
}

#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark reads the clock; nothing else here does"
)]
fn now() -> Instant {
    Instant::now()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Computes the classic table in one allocation, as a careful programmer would write it.
fn by_table(actual: &[u32], expected: &[u32]) -> Vec<(usize, usize)> {
    let width = expected.len() + 1;
    let mut dp = vec![0_u32; (actual.len() + 1) * width];
    for (i, actual) in actual.iter().enumerate() {
        let (above, row) = dp[i * width..(i + 2) * width].split_at_mut(width);
        for (j, expected) in expected.iter().enumerate() {
            row[j + 1] = if actual == expected { above[j] + 1 } else { above[j + 1].max(row[j]) };
        }
    }
    let (mut i, mut j) = (actual.len(), expected.len());
    let mut pairs = Vec::new();
    while i > 0 && j > 0 {
        if actual[i - 1] == expected[j - 1] {
            (i, j) = (i - 1, j - 1);
            pairs.push((i, j));
        } else if dp[(i - 1) * width + j] > dp[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    pairs.reverse();
    pairs
}

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
