//! Measures the goals J5 and J13, with a backend that is down, slow or overloaded.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use super::{MIB, body_size, variants};
use crate::clock::{monotonic_nanos, pause};
use crate::load::Wire;
use crate::loaded::wait_for;
use crate::payload::Profile;
use crate::report::{goal, goal_at_least, heading, line, spread};
use crate::target::{Target, Variant, numbers};
use crate::throughput::N_OPEN;
use crate::{Plan, loader};

/// Maximum number of concurrent requests (`forward.max_concurrency`).
const N_IN_FLIGHT: f64 = 8.0;

/// Measures J5: the backend refuses every request for a minute, while requests continue to arrive.
pub(super) fn outage(plan: &Plan) -> io::Result<()> {
    const RATE: u64 = 40;
    let (before, away, after) = if plan.is_short { (1, 2, 3) } else { (15, 60, 45) };
    let mut load = loader(Profile::Lean, N_OPEN, 512, 9)?.0;
    let [_, with] = variants(plan);
    let with = with.set("memory.limit=128MiB");
    let mut target = Target::sidecar(1, &with)?;
    let n_requests = RATE * (before + away + after);
    // Fill the memory of closed traces before the measurement.
    target.pace(&mut load, RATE * before, RATE)?;
    target.sink.ask_for_list("arrivals")?;
    let command = format!("pace {} 2 {n_requests} {RATE}", target.port);
    let (mut sent, mut up_at, mut peaks) = (Vec::new(), 0, [0.0; 2]);
    std::thread::scope(|scope| -> io::Result<()> {
        let sender = scope.spawn(|| load.ask_for_list(&command));
        let peak = |target: &Target| Ok::<_, io::Error>(target.process().memory()?.1 as f64 / MIB);
        target.process().forget_peak()?;
        pause(Duration::from_secs(before));
        peaks[0] = peak(&target)?;
        target.process().forget_peak()?;
        target.sink.ask("down")?;
        pause(Duration::from_secs(away));
        up_at = monotonic_nanos();
        target.sink.ask("up")?;
        let lines = sender.join().map_err(|_| io::ErrorKind::Other)??;
        for line in lines {
            let [digest, due, _] = numbers(&line)?;
            sent.push((digest, due));
        }
        pause(Duration::from_millis(500));
        peaks[1] = peak(&target)?;
        Ok(())
    })?;
    let dues: BTreeMap<u64, u64> = sent.iter().copied().collect();
    let mut arrivals = Vec::new();
    for line in target.sink.ask_for_list("arrivals")? {
        let [digest, at] = numbers(&line)?;
        let due = dues.get(&digest).copied();
        arrivals.push((
            at,
            due.ok_or_else(|| io::Error::other("not as it was sent"))?,
        ));
    }
    arrivals.sort_unstable();
    let is_once = arrivals.len() == sent.len();
    let is_each = arrivals
        .iter()
        .map(|(_, due)| due)
        .collect::<std::collections::BTreeSet<_>>();
    if !is_once || is_each.len() != sent.len() {
        let (n_arrived, n_sent) = (arrivals.len(), sent.len());
        return Err(io::Error::other(format!("{n_arrived} of {n_sent} arrived")));
    }
    let (mut latest, mut overtaken) = (0, 0);
    for (_, due) in &arrivals {
        latest = latest.max(*due);
        overtaken = overtaken.max(latest - due);
    }
    // Draining begins with the first arrival after the outage. It ends when every request that was
    // due during the outage has arrived.
    let drained: Vec<u64> = arrivals
        .iter()
        .filter(|(at, _)| *at > up_at)
        .map(|(at, _)| *at)
        .collect();
    let waited = arrivals
        .iter()
        .filter(|(at, due)| *at > up_at && *due < up_at);
    let caught_up = waited.map(|(at, _)| *at).max().unwrap_or_default();
    let n_drained = drained.iter().filter(|at| **at <= caught_up).count() as f64;
    let took = (caught_up - drained.first().copied().unwrap_or_default()) as f64 / 1e9;
    let size = body_size(Profile::Lean, 512) / MIB;
    heading(&format!(
        "journal, an outage of {away} s at {:.1} MiB/s, memory.limit 128 MiB",
        RATE as f64 * size
    ));
    println!("  {} requests, each arrived once", sent.len());
    goal(
        "J5  resident memory more, MiB",
        spread([peaks[1] - peaks[0]]),
        24.0,
    );
    goal_at_least(
        "J5  drained / taken",
        spread([n_drained / took / RATE as f64]),
        5.0,
    );
    line("   drained", spread([n_drained / took * size]), "MiB/s");
    // The goal is not 0: concurrent requests arrive in any order, and the sidecar may probe a
    // backend that was down with any of the queued requests.
    goal(
        "J5  overtaken, s (none, rounded)",
        spread([overtaken as f64 / 1e9]),
        0.5,
    );
    Ok(())
}

/// Measures J13, with backends that accept less than senders would send.
pub(super) fn slow(plan: &Plan) -> io::Result<()> {
    heading("journal, slow: a backend that takes 100 ms for a request, 64 senders");
    for (name, variant) in NAMES.iter().zip(variants(plan)) {
        let n_requests = if plan.is_short { 2 } else { 20 };
        let mut load = loader(Profile::Lean, N_OPEN, 512, 9)?.0;
        let mut target = Target::sidecar(1, &variant)?;
        target.sink.ask("delay 100")?;
        let command = format!(
            "send {} 1 {n_requests} {} 64",
            target.port,
            Wire::Grpc.word()
        );
        let started = monotonic_nanos();
        let [n_taken, _, digest, _, _] = numbers(&load.ask(&command)?)?;
        wait_for(&mut target, n_taken * 512, digest)?;
        let seconds = (monotonic_nanos() - started) as f64 / 1e9;
        let rate = spread([n_taken as f64 * 512.0 / seconds]);
        if variant.journal {
            goal_at_least("J13 slow: spans a second", rate, 9_213.0)
        } else {
            line(name, rate, "spans a second")
        }
    }

    heading(
        "journal, overload: a backend that takes 8 requests a second, 16 senders that never wait, \
         memory.limit 128 MiB, journal.max_size 256 MiB",
    );
    for (name, variant) in NAMES.iter().zip(variants(plan)) {
        let variant: Variant = variant
            .set("memory.limit=128MiB")
            .set("journal.max_size=256MiB");
        let n_requests = if plan.is_short { 50 } else { 1_500 };
        let mut load = loader(Profile::Lean, N_OPEN, 512, 9)?.0;
        let mut target = Target::sidecar(1, &variant)?;
        target.sink.ask("delay 1000")?;
        let command = format!(
            "send {} 1 {n_requests} {} 16",
            target.port,
            Wire::Grpc.word()
        );
        let [n_taken, _, digest, n_refused, nanos] = numbers(&load.ask(&command)?)?;
        let seconds = nanos as f64 / 1e9;
        let [n_arrived] = numbers(&target.sink.ask("report")?)?;
        let goodput = spread([n_arrived as f64 / (N_IN_FLIGHT * seconds)]);
        let peak = spread([target.process().memory()?.1 as f64 / MIB]);
        println!("  {name}: {n_taken} taken, {n_refused} refused in {seconds:.1} s");
        if variant.journal {
            goal_at_least(
                "J13 overload: arrived / what the backend takes",
                goodput,
                0.9,
            );
            goal("J13 overload: peak resident memory, MiB", peak, 128.0);
        } else {
            line("   arrived / what the backend takes", goodput, "");
            line("   peak resident memory", peak, "MiB");
        }
        target.sink.ask("delay 0")?;
        wait_for(&mut target, n_taken * 512, digest)?;
    }
    Ok(())
}

const NAMES: [&str; 2] = ["without a journal", "with a journal"];
