//! Tests the bytes counted for an open trace, with the requests that the benchmarks send. These
//! bytes decide how many traces fit into a sidecar's memory. Does not test how much memory the
//! allocator uses for them.

#[expect(dead_code, reason = "benchmarks read more of a request than its bytes")]
#[path = "../../benches/support/payload.rs"]
mod payload;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::support::now;
    use judge::assemble::{Settings, Stats};
    use judge::pipeline::{Pipeline, Rules};
    use otlp::scan;

    use super::payload::{Profile, Recipe, Ring};

    /// Returns the statistics while `n_open` traces of 12 spans are open. On average, half of each
    /// trace's spans have arrived.
    fn open(profile: Profile, n_open: usize) -> Stats {
        let ring = Ring::new(Recipe {
            profile,
            n_open,
            spans_per_request: 512,
            min_requests: 1,
            seed: 7,
        });
        let rules = Rules::new(Vec::new());
        let settings = Settings {
            settle: Duration::ZERO,
            ..Settings::replay()
        };
        let now = now();
        let mut pipeline = Pipeline::new(settings, now);
        for position in 0..ring.len() as u64 {
            let body = ring.fill(0, position).body;
            let scanned = scan::scan(&body, Some(&rules)).unwrap();
            pipeline.take(scanned.batch, now);
            pipeline.advance(&rules, now);
        }
        pipeline.stats()
    }

    #[test]
    fn an_open_trace_is_counted_with_at_most_so_many_bytes() {
        for (profile, most) in [(Profile::Lean, 2_000), (Profile::Genai, 9_200)] {
            let Stats {
                n_open, open_size, ..
            } = open(profile, 1_024);
            assert!(n_open > 900, "{n_open}");
            let size = open_size / n_open;
            assert!(size <= most, "{profile:?}: {size} bytes");
        }
    }
}
