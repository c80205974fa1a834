//! Times the scan, including its full validation, against decoding with prost and dropping the
//! result. Prints ratios and enforces nothing. Run it with `cargo bench --bench scan`; without
//! mimalloc: `cargo bench --no-default-features --bench scan`.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may panic"
)]

#[path = "support/payload.rs"]
mod payload;
#[path = "support/rounds.rs"]
mod rounds;

use std::hint::black_box;

use judge::extract::{self, Tools};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use otlp::scan::scan;
use otlp::span::SpanAdmission;
use payload::{Profile, Recipe, Ring};
use prost::Message;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Minimum number of requests. Eight requests of lean spans are about as large as the second-level
/// cache.
const MIN_REQUESTS: usize = 8;
const N_SPANS: usize = 512;
const N_ROUNDS: usize = 41;

fn main() {
    let keys = extract::stored_keys(&Tools::default(), ["deployment.environment.name"], None);
    println!(
        "allocator: {}",
        if cfg!(feature = "mimalloc") { "mimalloc" } else { "system" }
    );
    println!(
        "{MIN_REQUESTS} or more requests of {N_SPANS} spans in turn, {N_ROUNDS} rounds, \
         thread CPU time per span"
    );
    println!(
        "{:<28} {:>9} {:>9} {:>7}   {:<13}",
        "", "scan ns", "prost ns", "ratio", "min … max"
    );
    for (profile, goal) in [(Profile::Lean, 0.42), (Profile::Genai, 0.40)] {
        let ring = Ring::new(Recipe {
            profile,
            n_open: 64,
            spans_per_request: N_SPANS,
            min_requests: MIN_REQUESTS,
            seed: 7,
        });
        let requests: Vec<Vec<u8>> = (0..ring.len() as u64)
            .map(|position| ring.fill(0, position).body)
            .collect();
        let n_items = requests.len() * N_SPANS;
        let n_bytes: usize = requests.iter().map(Vec::len).sum();
        let admission: &dyn SpanAdmission = &keys;
        for (what, admission) in [("scan", Some(admission)), ("validate and count", None)] {
            let scan_all = || {
                for request in &requests {
                    let scanned = scan(black_box(request), admission).unwrap();
                    assert_eq!(scanned.n_spans, N_SPANS);
                    drop(black_box(scanned));
                }
            };
            let decode_all = || {
                for request in &requests {
                    drop(black_box(
                        ExportTraceServiceRequest::decode(black_box(request.as_slice())).unwrap(),
                    ));
                }
            };
            let ratio = rounds::compare(N_ROUNDS, n_items, scan_all, decode_all);
            let name = format!("{} ({} B), {what}", profile.name(), n_bytes / n_items);
            print!(
                "{name:<28} {:>9.0} {:>9.0} {:>7.3}",
                ratio.measured_nanos, ratio.base_nanos, ratio.median
            );
            println!("   {:.3} … {:.3}   goal {goal}", ratio.min, ratio.max);
        }
    }
}
