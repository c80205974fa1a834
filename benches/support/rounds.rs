//! Measures variants against each other on a noisy machine. It uses thread CPU time, runs the
//! variants in turn within each round, and reports the median, minimum and maximum of the rounds'
//! ratios. On a shared core, absolute times vary by a fifth, but ratios only by a tenth.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// CPU time per item, and the ratio of two variants.
pub(crate) struct Ratio {
    /// Nanoseconds per item, median over the rounds.
    pub(crate) measured_nanos: f64,
    /// Nanoseconds per item of the other variant.
    pub(crate) base_nanos: f64,
    /// Median of the rounds' ratios.
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

/// Runs both variants in turn, `n_rounds` times (an odd number). Each handles `n_items` items a
/// round.
pub(crate) fn compare(
    n_rounds: usize,
    n_items: usize,
    mut measured: impl FnMut(),
    mut base: impl FnMut(),
) -> Ratio {
    let time = |variant: &mut dyn FnMut()| {
        let before = cpu_time();
        variant();
        (cpu_time() - before).as_nanos() as f64 / n_items as f64
    };
    // Run both once without measuring, to fill caches and the allocator.
    time(&mut measured);
    time(&mut base);
    let rounds: Vec<(f64, f64)> = (0..n_rounds)
        .map(|round| {
            // Alternate the order, so that neither variant always runs second.
            if round % 2 == 0 {
                let measured = time(&mut measured);
                (measured, time(&mut base))
            } else {
                let base = time(&mut base);
                (time(&mut measured), base)
            }
        })
        .collect();
    let sorted = |of: fn(&(f64, f64)) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let ratios = sorted(|(measured, base)| measured / base);
    Ratio {
        measured_nanos: sorted(|round| round.0)[n_rounds / 2],
        base_nanos: sorted(|round| round.1)[n_rounds / 2],
        median: ratios[n_rounds / 2],
        min: ratios[0],
        max: ratios[n_rounds - 1],
    }
}
