//! Measures the time of `constraints` on runs: every template with a `b`, on runs of 256 and of
//! 4,096 calls of which few overlap; a hundred rules together, on 4,096 calls that overlap in
//! several ways; and rules that read values, on 1,000 calls. Prints the times, their growth from
//! the shorter to the longer run, and the peak memory. Run it with `cargo bench --bench rules`.
//! With `cargo bench --bench rules -- --check`, it fails if a goal is missed; the machine must
//! otherwise be idle.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use judge::evaluate::{Criterion, Explain, RULE_TEMPLATES, judge};
use judge::extract::{CallUncertainty, CapturedParts, Payload, ToolCall, Trajectory};
use otlp::span::TraceId;
use serde_json::{Value, json};

/// The limit for one rule on 256 calls.
const MOST_A_RULE: Duration = Duration::from_millis(1);
/// The limit for a hundred rules on 4,096 calls.
const MOST_OF_ALL: Duration = Duration::from_secs(1);
/// The limit for the memory that judging uses, excluding the calls themselves.
const MOST_MEGABYTES: u64 = 64;
const N_ROUNDS: usize = 5;

#[derive(Default)]
struct Goals {
    n_missed: usize,
}

impl Goals {
    fn verdict(&mut self, is_met: bool) -> &'static str {
        self.n_missed += usize::from(!is_met);
        if is_met { "ok" } else { "MISSED" }
    }
}

#[expect(clippy::print_stdout, reason = "a benchmark reports on stdout")]
fn main() -> ExitCode {
    let is_check = std::env::args().any(|argument| argument == "--check");
    let mut goals = Goals::default();
    let (short, long) = (run(256, usual), run(4_096, usual));
    let crowd = run(4_096, |at| (0, 1_000_000_000 + at * 1_000_000));
    let nested = run(4_096, |at| (at * 1_000_000, (8_192 - at) * 1_000_000));
    let peak_before = peak_kilobytes();
    let mut rules = Vec::new();
    let mut worst = Duration::ZERO;
    for (template, _) in RULE_TEMPLATES.iter().filter(|(_, has_b)| *has_b) {
        for fields in [
            json!({ "a": "^read$", "b": "^edit$" }),
            json!({ "a": ".", "b": "." }),
            json!({ "a": ".", "b": "^edit$", "same": ["args.path"] }),
            json!({ "a": "^read$", "b": ".", "within": "5s" }),
        ] {
            let rule = json!({ *template: fields });
            let (once, more) = (
                time(&[&rule], "interval", &short),
                time(&[&rule], "interval", &long),
            );
            let growth = more.as_secs_f64() / once.as_secs_f64();
            let verdict = goals.verdict(once <= MOST_A_RULE);
            worst = worst.max(once);
            println!(
                "256 calls {once:9.1?}, 4096 calls {more:9.1?}, ratio {growth:5.1} {verdict}  \
                 {rule}"
            );
            rules.push(rule);
        }
    }
    println!("the slowest rule on 256 calls: {worst:.1?} (goal {MOST_A_RULE:?})");
    let thousand = run(1_000, usual);
    let of_size = json!({ "name": ".", "where": { "args.size": { "gte": 990 } } });
    for rule in [
        json!({ "absence": { "a": ".", "max": 1_000 } }),
        json!({ "absence": { "a": of_size, "max": 1_000 } }),
        json!({ "total": { "a": ".", "of": "args.size", "max": 1_000_000 } }),
        json!({ "total": { "a": of_size, "of": "args.size", "max": 1_000_000 } }),
        json!({ "total": {
            "a": ".", "of": "args.size", "max": 1_000_000, "within": "1s", "same": ["args.path"],
        } }),
    ] {
        let took = time(&[&rule], "interval", &thousand);
        println!("1000 calls {took:9.1?}  {rule}");
    }
    let hundred: Vec<&Value> = rules.iter().cycle().take(100).collect();
    for (name, trajectory) in [
        ("usual", &long),
        ("all at once", &crowd),
        ("nested", &nested),
    ] {
        for concurrency in ["interval", "reply", "none"] {
            let took = time(&hundred, concurrency, trajectory);
            let verdict = goals.verdict(took < MOST_OF_ALL);
            println!(
                "4096 calls {name}, {concurrency}, 100 rules: {took:.1?} (goal {MOST_OF_ALL:?}) \
                 {verdict}"
            );
        }
    }
    if let (Some(before), Some(after)) = (peak_before, peak_kilobytes()) {
        let more = after.saturating_sub(before) / 1_000;
        let verdict = goals.verdict(more < MOST_MEGABYTES);
        println!("peak memory beside the calls: {more} MB (goal {MOST_MEGABYTES} MB) {verdict}");
    }
    match goals.n_missed {
        0 => println!("all goals met"),
        n_missed => println!("{n_missed} goals MISSED"),
    }
    if is_check && goals.n_missed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

fn peak_kilobytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn time(rules: &[&Value], concurrency: &str, trajectory: &Arc<Trajectory>) -> Duration {
    let fields = json!({ "rules": rules, "concurrency": concurrency });
    let criterion = json!({ "name": "rules", "evaluate": { "constraints": fields } });
    let criterion: Criterion = serde_json::from_value(criterion).expect("rules that load");
    let criteria = [Arc::new(criterion)];
    let rounds = (0..N_ROUNDS).map(|_| {
        let started = now();
        let evaluations = judge(&criteria, trajectory, &Explain::default());
        assert_eq!(evaluations.len(), 1);
        now().duration_since(started)
    });
    rounds.min().unwrap_or_default()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
fn now() -> Instant {
    Instant::now()
}

/// Returns the start and the end of a call that overlaps at most a few other calls.
fn usual(at: u64) -> (u64, u64) {
    let start = at * 10_000_000;
    (start, start + (at * 31 % 7) * 6_000_000)
}

fn run(n_calls: usize, times: impl Fn(u64) -> (u64, u64)) -> Arc<Trajectory> {
    const NAMES: [&str; 5] = ["read", "edit", "search", "run_tests", "report"];
    let tool_calls = (0..n_calls).map(|at| {
        let args = json!({ "path": format!("src/{}.rs", at * 7 % 50), "size": at * 37 % 1_000 });
        let (start, end) = times(at as u64);
        let first = 1_700_000_000_000_000_000;
        ToolCall {
            name: NAMES[at * 3 % 5].into(),
            call_id: None,
            args: Some(Payload::new(args.to_string(), args, false)),
            result: None,
            captured: CapturedParts::default(),
            error: false,
            agent: None,
            agent_run: None,
            step: 0,
            parallel_group: Some(at as u32 / 3),
            span_id: None,
            start_unix_nanos: first + start,
            end_unix_nanos: first + end,
            convention: "bench".into(),
            partial: false,
            untimed: false,
            uncertainty: CallUncertainty::default(),
        }
    });
    Arc::new(Trajectory {
        service: "bench".into(),
        root: "bench".into(),
        ..Trajectory::of_calls(
            TraceId::try_new(&[7; 16]).expect("not zero"),
            tool_calls.collect(),
        )
    })
}
