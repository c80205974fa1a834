//! Measures the cost of the whole sidecar with separate processes: load generator → spanscore →
//! backend, compared with receivers that drop everything they receive. CPU time comes from the
//! operating system. Variants run in turn within each round. A turn counts only if every span
//! arrived once and every criterion judged every trace once. Prints the table of goals. The figures
//! say nothing about networks, because everything runs on one machine's loopback.
//!
//! Run it with `cargo bench --bench sidecar`, or with some of its parts: `cargo bench --bench
//! sidecar -- lean genai small gzip http latency memory pages overload saturation scaling judging
//! journal`. Other parts run only on request: `soak`, `peers` (see `benches/peers.sh`), `kafka`
//! (see `tests/kafka/run`) and each part of `journal` (`journal-costs`, `-small`, `-waits`,
//! `-bytes`, `-starts`, `-outage`, `-slow`).
//!
//! - `--rounds N` (odd) changes the number of rounds from seven.
//! - `--minutes N` sets the length of the soak.
//! - `--program PATH` measures a spanscore other than the one built with the benchmark (whose tokio
//!   has the features of the tests).
//! - `--against PATH` adds a second spanscore to the same rounds of `lean`, `genai` and `small`.
//!
//! Without `--bench` (as in `cargo test --benches`), one short round of `lean` runs.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

#[path = "../support/payload.rs"]
mod payload;

mod clock;
#[path = "../support/group.rs"]
mod group;
mod journal;
mod judging;
mod kafka;
mod load;
mod loaded;
mod metrics;
mod pages;
mod process;
mod report;
mod resources;
mod saturation;
mod sink;
mod target;
mod throughput;

use std::io;
use std::path::PathBuf;

use payload::{Profile, Recipe};
use process::ROLE;

/// The default parts, which need no other program.
const DEFAULT_PARTS: [&str; 13] = [
    "lean",
    "genai",
    "small",
    "gzip",
    "http",
    "latency",
    "memory",
    "pages",
    "overload",
    "saturation",
    "scaling",
    "judging",
    "journal",
];

#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) n_rounds: usize,
    pub(crate) program: PathBuf,
    /// A second spanscore, measured in the same rounds.
    pub(crate) against: Option<PathBuf>,
    /// True for a smoke test, whose figures mean nothing.
    pub(crate) is_short: bool,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        [ROLE, "sink", kind] => return sink::run(kind),
        [ROLE, "load", recipe @ ..] => return load::run(recipe_of(recipe)?),
        _ => {}
    }
    let number = |name: &str| {
        let at = words.iter().position(|word| *word == name)?;
        words.get(at + 1)?.parse::<usize>().ok()
    };
    let is_short = !words.contains(&"--bench");
    let path = |name: &str| {
        words
            .iter()
            .position(|word| *word == name)
            .and_then(|at| words.get(at + 1))
            .map(PathBuf::from)
    };
    let plan = &Plan {
        n_rounds: number("--rounds").unwrap_or(if is_short { 1 } else { 7 }),
        program: path("--program").unwrap_or_else(|| env!("CARGO_BIN_EXE_spanscore").into()),
        against: path("--against"),
        is_short,
    };
    // An option is followed by its value, except for cargo's own `--bench`.
    let is_value =
        |at: usize| at > 0 && words[at - 1].starts_with("--") && words[at - 1] != "--bench";
    let mut parts: Vec<&str> = (0..words.len())
        .filter(|at| !words[*at].starts_with("--") && !is_value(*at))
        .map(|at| words[at])
        .collect();
    if parts.is_empty() {
        parts = if is_short { vec!["lean"] } else { DEFAULT_PARTS.to_vec() };
    }
    println!(
        "spanscore {}, {} cores, {} rounds",
        env!("CARGO_PKG_VERSION"),
        std::thread::available_parallelism()?,
        plan.n_rounds
    );
    for part in parts {
        match part {
            "lean" => throughput::table(Profile::Lean, plan)?,
            "genai" => throughput::table(Profile::Genai, plan)?,
            "small" => throughput::small(plan)?,
            "gzip" => throughput::gzip(plan)?,
            "http" => throughput::http(plan)?,
            "scaling" => throughput::scaling(plan)?,
            "judging" => judging::judging(plan)?,
            "journal" => journal::journal(plan)?,
            "kafka" => kafka::kafka(plan)?,
            "pages" => pages::pages(plan)?,
            "peers" => throughput::peers(plan)?,
            "latency" => loaded::latency(plan)?,
            "overload" => loaded::overload(plan)?,
            "soak" => loaded::soak(plan, number("--minutes").unwrap_or(30))?,
            "memory" => resources::memory(plan)?,
            "saturation" => saturation::saturation(plan)?,
            other
                if let Some((_, part)) = journal::PARTS.iter().find(|(name, _)| *name == other) =>
            {
                part(plan)?;
            }
            other => {
                return Err(io::Error::other(format!(
                    "there is no part `{other}`; parts are {DEFAULT_PARTS:?}, kafka, soak, peers"
                )));
            }
        }
    }
    Ok(())
}

fn recipe_of(words: &[&str]) -> io::Result<Recipe> {
    let number = |at: usize| {
        words
            .get(at)
            .and_then(|word| word.parse().ok())
            .ok_or(io::ErrorKind::InvalidInput)
    };
    let profile = if words.first() == Some(&Profile::Lean.name()) {
        Profile::Lean
    } else {
        Profile::Genai
    };
    Ok(Recipe {
        profile,
        n_open: number(1)?,
        spans_per_request: number(2)?,
        min_requests: number(3)?,
        seed: 7,
    })
}

/// Starts a load generator for a ring; returns it with the number of requests in the ring.
pub(crate) fn loader(
    profile: Profile,
    n_open: usize,
    spans_per_request: usize,
    min_requests: usize,
) -> io::Result<(process::Process, u64)> {
    let [n_open, spans_per_request, min_requests] =
        [n_open, spans_per_request, min_requests].map(|number| number.to_string());
    process::Process::role(&[
        "load",
        profile.name(),
        &n_open,
        &spans_per_request,
        &min_requests,
    ])
}
