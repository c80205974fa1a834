//! Measures a sidecar under load: the latency of requests, the memory under overload, and the
//! growth of memory over time.

use std::io;
use std::time::Duration;

use crate::Plan;
use crate::clock::{monotonic_nanos, pause};
use crate::load::Wire;
use crate::loader;
use crate::payload::Profile;
use crate::process::Process;
use crate::report::{goal, heading, line, ratio, spread};
use crate::target::{Target, Variant, numbers};

const MIB: f64 = 1_048_576.0;

/// Measures the median latency at a fixed rate, until the sender gets its answer and until the
/// request reaches the backend, compared with sending to the backend directly.
pub(crate) fn latency(plan: &Plan) -> io::Result<()> {
    for (profile, spans_per_second, n_requests, limit) in [
        (Profile::Lean, 40_960, 320, 1.8),
        (Profile::Genai, 10_240, 80, 2.2),
    ] {
        let rate = spans_per_second / 512;
        let mut load = loader(profile, 64, 512, 9)?.0;
        let mut direct = Target::null(1, "check")?;
        let mut through = Target::sidecar(2, &Variant::on(&plan.program).set("memory.limit=3GiB"))?;
        let [mut direct_ms, mut answered_ms, mut arrived_ms] = [Vec::new(), Vec::new(), Vec::new()];
        for target in [&mut direct, &mut through] {
            target.pace(&mut load, n_requests / 4, rate)?;
        }
        for _ in 0..plan.n_rounds {
            let waits = direct.pace(&mut load, n_requests, rate)?;
            direct_ms.push(spread(waits.iter().map(|(_, arrived)| arrived / 1e6)).median);
            let waits = through.pace(&mut load, n_requests, rate)?;
            answered_ms.push(spread(waits.iter().map(|(answered, _)| answered / 1e6)).median);
            arrived_ms.push(spread(waits.iter().map(|(_, arrived)| arrived / 1e6)).median);
        }
        heading(&format!(
            "latency: {}, {spans_per_second} spans/s in {rate} requests/s, \
             medians from when a request was due",
            profile.name()
        ));
        line(
            "direct: at the backend",
            spread(direct_ms.iter().copied()),
            "ms",
        );
        line(
            "through spanscore: at the backend",
            spread(arrived_ms.iter().copied()),
            "ms",
        );
        line(
            "through spanscore: acknowledged to the sender",
            spread(answered_ms.iter().copied()),
            "ms",
        );
        goal(
            "   through spanscore / direct, at the backend",
            ratio(&arrived_ms, &direct_ms),
            limit,
        );
    }
    Ok(())
}

/// For some seconds, sends far more than the backend accepts. Then everything that was acknowledged
/// must arrive.
pub(crate) fn overload(plan: &Plan) -> io::Result<()> {
    const LIMIT_MIB: f64 = 128.0;
    heading(
        "overload: a backend that takes 8 requests a second, senders on 16 connections that never \
         wait, memory.limit 128 MiB",
    );
    for (profile, n_requests) in [(Profile::Lean, 1_500), (Profile::Genai, 250)] {
        let mut load = loader(profile, 64, 512, 9)?.0;
        let mut target =
            Target::sidecar(1, &Variant::on(&plan.program).set("memory.limit=128MiB"))?;
        target.sink.ask("delay 1000")?;
        let answer = load.ask(&format!(
            "send {} 1 {n_requests} {} 16",
            target.port,
            Wire::Grpc.word()
        ))?;
        let [n_taken, _, digest, n_refused, nanos] = numbers(&answer)?;
        target.sink.ask("delay 0")?;
        wait_for(&mut target, n_taken * 512, digest)?;
        let offered = (n_taken + n_refused) as f64 / (nanos as f64 / 1e9);
        println!(
            "  {}: {offered:.0} requests/s offered ({:.0} times what the backend takes), \
             {n_taken} taken, {n_refused} refused, all taken arrived once",
            profile.name(),
            offered / 8.0
        );
        let peak = target.process().memory()?.1 as f64 / MIB;
        goal(
            &format!(
                "   {}: peak resident memory, MiB (limit + 25 %)",
                profile.name()
            ),
            spread([peak]),
            LIMIT_MIB * 1.25,
        );
    }
    Ok(())
}

pub(crate) fn wait_for(target: &mut Target, n_spans: u64, digest: u64) -> io::Result<()> {
    let deadline = monotonic_nanos() + 120_000_000_000;
    loop {
        let report = target.sink.ask("report")?;
        let numbers: Vec<u64> = report
            .split(' ')
            .filter_map(|word| word.parse().ok())
            .collect();
        if numbers.get(1..3) == Some(&[n_spans, digest][..]) {
            return Ok(());
        }
        if monotonic_nanos() > deadline {
            return Err(io::Error::other(format!(
                "{n_spans} spans were acknowledged, and arrived are {report}"
            )));
        }
        pause(Duration::from_millis(100));
    }
}

/// Measures the growth of resident memory over a long time, at a modest rate, with score spans,
/// events and metrics on, at the default memory limit.
pub(crate) fn soak(plan: &Plan, minutes: usize) -> io::Result<()> {
    heading(&format!(
        "soak: {minutes} minutes, in turn 10 s of 10 lean and 5 s of 2 genai requests a second, \
         score spans and events on"
    ));
    let variant = Variant {
        score_spans: true,
        ..Variant::on(&plan.program)
    }
    .set("scores.event.enabled=true")
    .set("scores.metrics.interval=5s");
    // A batch of ten requests takes three positions on each of four connections and skips two of
    // them, so some traces never complete. Close them soon.
    let variant = variant.set("assemble.inactive=30s");
    let mut target = Target::sidecar(1, &variant)?;
    let mut loads = [
        loader(Profile::Lean, 64, 512, 9)?.0,
        loader(Profile::Genai, 64, 512, 9)?.0,
    ];
    let mut samples: Vec<(f64, f64)> = Vec::new();
    let begin = monotonic_nanos();
    let minute = || (monotonic_nanos() - begin) as f64 / 60e9;
    while minute() < minutes as f64 {
        let [lean, genai] = &mut loads;
        pace(lean, &target, 1, 100, 10)?;
        pace(genai, &target, 2, 10, 2)?;
        samples.push((minute(), target.process().memory()?.0 as f64 / MIB));
        if samples.len().is_multiple_of(12) {
            let (at, resident) = samples[samples.len() - 1];
            println!(
                "  minute {at:>5.1}: {resident:.1} MiB resident, {:.1} s CPU",
                target.process().cpu()?.as_secs_f64()
            );
        }
    }
    // Caches and the memory of closed traces fill up first.
    let settled = &samples[samples.len() / 3..];
    line(
        "resident memory, last two thirds, MiB",
        spread(settled.iter().map(|(_, resident)| *resident)),
        "MiB",
    );
    line(
        "slope of the last two thirds",
        spread([slope(settled) * 60.0]),
        "MiB/hour",
    );
    let metrics = target.metrics()?;
    for name in [
        "spanscore_receiver_accepted_spans_total",
        "spanscore_evaluations_total",
        "spanscore_scores_dropped_total",
        "spanscore_unscored_spans_total",
    ] {
        println!("  {name} {}", metrics.sum(name));
    }
    drop(target.sink.ask("report")?);
    Ok(())
}

fn pace(
    load: &mut Process,
    target: &Target,
    stream: u64,
    n_requests: u64,
    rate: u64,
) -> io::Result<()> {
    load.ask_for_list(&format!(
        "pace {} {stream} {n_requests} {rate}",
        target.port
    ))
    .map(drop)
}

fn slope(samples: &[(f64, f64)]) -> f64 {
    let n = samples.len() as f64;
    let (sum_x, sum_y) = samples
        .iter()
        .fold((0.0, 0.0), |(x, y), sample| (x + sample.0, y + sample.1));
    let (mean_x, mean_y) = (sum_x / n, sum_y / n);
    let (above, below) = samples.iter().fold((0.0, 0.0), |(above, below), (x, y)| {
        (
            above + (x - mean_x) * (y - mean_y),
            below + (x - mean_x) * (x - mean_x),
        )
    });
    above / below
}
