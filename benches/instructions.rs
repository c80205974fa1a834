//! Performs a fixed amount of work for an instruction counter: scan, assembly and judgement of N
//! requests of 512 spans, without anything that depends on the clock. Some of the cases:
//!
//! - `warm`: `pipeline` after thousands of runs
//! - `page`: `warm` with a page that nobody has open, at 5,120 spans a second
//! - `remember`: `pipeline` with a page that stores every run
//! - `alarm`: `pipeline` with one criterion of three that raises alarms
//! - `many`: `pipeline` with 66 criteria
//! - `alarms`: `many` with 64 of its criteria raising alarms
//!
//! `benches/instructions.sh` runs each case under callgrind with no requests and with all of them;
//! the difference is the cost of the requests. Run a case by hand with `cargo bench --bench
//! instructions -- CASE N`; without a case it lists the cases. The counts say nothing about caches
//! and system calls.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and may panic"
)]

#[path = "support/payload.rs"]
mod payload;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use judge::assemble::{Memo, Settings, TraceBuffer};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::scan::scan;
use otlp::span::{Batch, Now, PeerId, SpanAdmission};
use payload::{Profile, Recipe, Ring};
use serde_json::json;
use spanscore::config::Config;
use spanscore::page::{Page, PageSetup, ReceiverPorts};
use spanscore::register::{self, RegisterSetup};

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CASES: [&str; 16] = [
    "scan lean",
    "scan genai",
    "validate lean",
    "validate genai",
    "assemble lean",
    "pipeline lean",
    "pipeline genai",
    "warm lean",
    "warm genai",
    "page lean",
    "page genai",
    "remember lean",
    "remember genai",
    "alarm lean",
    "many lean",
    "alarms lean",
];
const N_OPEN: usize = 64;

#[derive(Default)]
struct Nothing;

impl Memo for Nothing {
    fn size(&self) -> usize {
        0
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let [what, profile_name, n_requests] = arguments.as_slice() else {
        CASES.iter().for_each(|case| println!("{case}"));
        return;
    };
    let profile = if profile_name == Profile::Lean.name() {
        Profile::Lean
    } else {
        Profile::Genai
    };
    let ring = Ring::new(Recipe {
        profile,
        n_open: N_OPEN,
        spans_per_request: 512,
        min_requests: 9,
        seed: 7,
    });
    let rules = rules(what);
    let requests: Vec<Vec<u8>> = (0..ring.len() as u64)
        .map(|position| ring.fill(0, position).body)
        .collect();
    let n_requests: usize = n_requests.parse().unwrap();
    // Scan all requests, even those that are not processed, so that two runs differ only in the
    // processing.
    let batches: Vec<Batch> = requests
        .iter()
        .map(|request| read(request, &rules))
        .collect();
    let now = begin();
    let settings = Settings {
        settle: Duration::ZERO,
        inactive: Duration::from_secs(180),
        max_recent_size: 48 << 20,
        ..Settings::replay()
    };
    match what.as_str() {
        "scan" | "validate" => {
            let rules: Option<&dyn SpanAdmission> =
                if what == "scan" { Some(&rules) } else { None };
            requests
                .iter()
                .take(n_requests)
                .for_each(|request| drop(black_box(scan(black_box(request), rules).unwrap())));
        }
        "assemble" => {
            let mut buffer = TraceBuffer::<Nothing>::new(settings, now);
            for batch in batches.into_iter().take(n_requests) {
                for span in batch.spans {
                    buffer.insert(span, PeerId::default(), now);
                }
                for closed in buffer.close_due(now, usize::MAX) {
                    buffer.remember(closed, now);
                }
            }
        }
        "warm" | "page" | "remember" => {
            let page = (what != "warm").then(|| page(&rules));
            let mut clock = now.unix_nanos;
            let mut judge = |batches: Vec<Batch>| {
                let mut pipeline = Pipeline::new(settings.clone(), now);
                for batch in batches {
                    clock += 100_000_000;
                    pipeline.take(batch, now);
                    let judged = pipeline.advance(&rules, now);
                    if let Some(page) = &page {
                        page.note(&judged, &rules, clock);
                    }
                    drop(black_box(judged));
                }
            };
            // In a burst, a page stores a thousand runs without a failure and a thousand with one,
            // and after that only a few each second. Judge so many runs that the burst is over.
            if what != "remember" {
                for _ in 0..16 {
                    judge(
                        requests
                            .iter()
                            .map(|request| read(request, &rules))
                            .collect(),
                    );
                }
            }
            judge(batches.into_iter().take(n_requests).collect());
        }
        _ => {
            let mut pipeline = Pipeline::new(settings, now);
            for (number, batch) in (0..).zip(batches).take(n_requests) {
                let now = Now {
                    instant: now.instant + Duration::from_millis(number),
                    ..now
                };
                let mut judged = Judged::default();
                pipeline.take_into(&rules, batch, now, &mut judged);
                pipeline.advance_into(&rules, now, &mut judged);
                black_box(judged);
            }
        }
    }
    println!(
        "{what} {profile_name}: {} spans",
        n_requests.min(requests.len()) * 512
    );
    // Exit without dropping the remaining values: that work is not part of the measurement.
    std::process::exit(0);
}

fn read(request: &[u8], rules: &Rules) -> Batch {
    scan(request, Some(rules)).unwrap().batch
}

fn page(rules: &Rules) -> Page {
    let setup = RegisterSetup::alone(Config::default(), rules.clone(), begin);
    let (register, _) = register::open(setup, &Arc::default()).unwrap();
    Page::new(PageSetup {
        capacity: (8_usize << 20).into(),
        links: Vec::new(),
        receivers: ReceiverPorts::default(),
        register,
        clock: begin,
    })
}

/// Returns the criteria of `benches/sidecar`, and more criteria for `many` and `alarms`.
fn rules(what: &str) -> Rules {
    let order = [
        "validate_user",
        "check_inventory",
        "create_order",
        "send_receipt",
        "update_crm",
    ];
    let raises_alarms = matches!(what, "alarm" | "alarms");
    let n_more = if matches!(what, "many" | "alarms") { 63 } else { 0 };
    let more = (0..n_more).map(|number| {
        json!({
            "name": format!("no-tool-{number}"),
            "alarm": raises_alarms,
            "evaluate": { "tool_calls": { "disallowed": [format!("^tool_{number}$")] } },
        })
    });
    let mut criteria = json!([
        {
            "name": "checkout-order",
            "evaluate": { "tool_call_order": { "tool_calls_order": order } },
        },
        {
            "name": "one-order",
            "evaluate": { "tool_call_count": { "tool_calls_count": { "create_order": ["=", 1] } } },
        },
        {
            "name": "no-refund",
            "alarm": raises_alarms,
            "evaluate": { "tool_calls": { "disallowed": ["refund_card"] } },
        },
    ]);
    criteria.as_array_mut().unwrap().extend(more);
    Rules::new(serde_json::from_value(criteria).unwrap())
}

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can be had in no other way; nothing here measures with it"
)]
fn begin() -> Now {
    Now {
        instant: Instant::now(),
        unix_nanos: 1_800_000_000_000_000_000,
    }
}
