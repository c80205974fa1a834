//! Runs each case of a hostile client beside an innocent one, against a separate sidecar in a
//! control group of 128 MiB with `memory.limit: 112MiB`. The option `large` sets 512 MiB and ten
//! times as many attackers. In all cases but one, the attacker and the innocent client send from
//! different loopback addresses. The sidecar must stay alive and below the group's limit, and
//! `/livez` must answer 200. At least 95 % of the innocent client's requests must succeed at the
//! first attempt, every accepted span must be accounted for, and service must be back within 5 s.
//! If no control group can be created, the first output line says so, and only the peak of resident
//! memory is compared with the limit. The cases prove nothing about attacks from many addresses.
//!
//! `cargo bench --bench hostile` runs all cases, `cargo bench --bench hostile -- slow` some of them
//! by name, and `cargo bench --bench hostile -- large` attacks the large sidecar. `cargo test
//! --bench hostile` runs the same cases with a debug build, which is slower.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

mod attacks;
mod downstream;
#[path = "../../benches/support/group.rs"]
mod group;
mod innocent;
mod payloads;
mod sidecar;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::time::{Instant, sleep, timeout};

use attacks::{Case, cases};
use downstream::Downstream;
use innocent::{Innocent, LongRun};
use sidecar::{Sidecar, Size};

const ATTACK: Duration = Duration::from_secs(4);

/// Time after an attack within which the innocent client's requests must succeed again.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// Minimum share of the innocent client's requests that must succeed at the first attempt.
const LEAST_SHARE: f64 = 0.95;

fn main() -> ExitCode {
    let mut wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let size = match wanted.iter().position(|word| word == "large") {
        Some(at) => {
            wanted.remove(at);
            Size::LARGE
        }
        None => Size::SMALL,
    };
    // The innocent client must not wait for the attackers' tasks.
    let (attackers, innocents) = (runtime(2), runtime(1));
    let mut n_failed = 0;
    println!("{}", sidecar::group_notice(size));
    for case in cases() {
        let is_wanted = |wanted: &String| case.name.contains(wanted.as_str());
        if !wanted.is_empty() && !wanted.iter().any(is_wanted) {
            continue;
        }
        let problems = attackers.block_on(run(&case, size, innocents.handle()));
        n_failed += usize::from(!problems.is_empty());
        for problem in problems {
            println!("    FAILED: {problem}");
        }
    }
    println!("{n_failed} cases failed");
    match n_failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn runtime(n_threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(n_threads)
        .enable_all()
        .build()
        .expect("a runtime")
}

async fn run(case: &Case, size: Size, innocents: &Handle) -> Vec<String> {
    let Case {
        name,
        attack,
        setup,
    } = case;
    let downstream = Downstream::start().await;
    let mut sidecar = match Sidecar::start(setup, size, &downstream) {
        Ok(sidecar) => sidecar,
        Err(error) => return vec![format!("the sidecar did not start: {error}")],
    };
    let target = sidecar.target.clone();
    let innocent = Innocent::start(&target, innocents);
    let long_run = match setup.long_run {
        Some(export) => LongRun::begin(target.http, export).await.ok(),
        None => None,
    };
    sleep(Duration::from_millis(300)).await;
    let attacking = tokio::spawn(attack(target));
    sleep(ATTACK).await;
    attacking.abort();
    let ended = Instant::now();
    let back = timeout(BACK_WITHIN, innocent.served_again()).await.is_ok();
    let back_after = ended.elapsed();
    let report = innocent.stop().await;

    let mut problems = Vec::new();
    if !sidecar.is_alive() {
        problems.push("it died".to_owned());
        println!("{name:<31} dead");
        return problems;
    }
    let memory = sidecar.peak_memory();
    println!(
        "{name:<31} {:>4} of {:>4} requests, livez {:>2} of {:>2}, peak {:>5.1} of {:.0} MiB, \
         back after {:.1} s",
        report.n_served,
        report.n_sent,
        report.n_live,
        report.n_probes,
        memory.peak as f64 / f64::from(1 << 20),
        memory.limit as f64 / f64::from(1 << 20),
        back_after.as_secs_f64(),
    );
    if memory.peak >= memory.limit || memory.n_at_limit > 0 {
        problems.push(format!("it reached its limit {} times", memory.n_at_limit));
    }
    if (report.n_served as f64) < LEAST_SHARE * report.n_sent as f64 {
        problems.push(format!(
            "the innocent client was refused: {:?}",
            report.failures
        ));
    }
    if report.n_live < report.n_probes {
        problems.push("/livez was not green".to_owned());
    }
    if !back {
        problems.push("service was not back within 5 s".to_owned());
    }
    problems.extend(sidecar.books_balance(setup.may_queue).await.err());
    if setup.long_run.is_some() {
        let ended = match long_run {
            Some(run) => run.end(sidecar.target.admin).await,
            None => Err("the long run could not begin".to_owned()),
        };
        problems.extend(ended.err());
    }
    problems
}
