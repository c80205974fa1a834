//! Measures the goals J8 to J11: CPU time, the time until an answer, and the bytes written to the
//! disk.

use std::io;
use std::time::Duration;

use super::{bare_sync, body_size, device_bytes, more, variants};
use crate::clock::pause;
use crate::load::Wire;
use crate::payload::Profile;
use crate::report::{Series, goal, heading, line, ratio, spread};
use crate::target::{Dose, Target};
use crate::throughput::{N_OPEN, Row, rounds};
use crate::{Plan, loader};

/// The size in bytes of a request with twelve lean spans.
const SMALL: usize = 4_800;

const N_SENDERS: u64 = 8;

/// Requests per second of the paced load, a rate that a sidecar with a journal can sustain.
const RATE: u64 = 1_000;

fn rows(plan: &Plan, load: usize, n: u64) -> io::Result<[Row; 2]> {
    let [without, with] = variants(plan);
    Ok([
        Row::new("without a journal", Target::sidecar(1, &without)?, load, n),
        Row::new("with a journal", Target::sidecar(2, &with)?, load, n),
    ])
}

/// Measures J8, the CPU time with large requests.
pub(super) fn costs(plan: &Plan) -> io::Result<()> {
    for (profile, n, limit) in [(Profile::Lean, 600, 1.25), (Profile::Genai, 100, 1.6)] {
        let mut loads = [loader(profile, N_OPEN, 512, 9)?.0];
        let mut rows = rows(plan, 0, n)?;
        rounds(&mut rows, &mut loads, plan, &[n / 5])?;
        let name = profile.name();
        heading(&format!(
            "journal, {name}: requests of 512 spans, 4 connections"
        ));
        for row in &rows {
            line(row.name, spread(row.nanos_per_span()), "CPU ns/span");
        }
        let [without, with] = rows.map(|row| row.nanos_per_span());
        let name = format!("J8  {name}: with a journal / without");
        goal(&name, ratio(&with, &without), limit);
    }
    Ok(())
}

/// Measures J9, the CPU time with small requests, and figures that explain it.
pub(super) fn small(plan: &Plan) -> io::Result<()> {
    const WARM_UP: u64 = 500;
    let mut loads = [loader(Profile::Lean, N_OPEN, 12, 9)?.0];
    let mut rows = rows(plan, 0, 3_000)?;
    for row in &mut rows {
        row.dose.spans_per_request = 12;
        row.dose.n_connections = N_SENDERS;
    }
    rounds(&mut rows, &mut loads, plan, &[WARM_UP])?;
    let mut bare = Series::new();
    let [_, with] = &rows;
    let n_requests = |row: &Row| row.n_requests() + (WARM_UP * N_SENDERS) as f64;
    let syncs = with.target.metrics()?;
    let per_sync = n_requests(with) / syncs.one("spanscore_journal_sync_seconds_count");
    for _ in 0..plan.n_rounds {
        bare.push(bare_sync((SMALL as f64 * per_sync) as usize)?.cpu_micros);
    }
    heading(&format!(
        "journal, requests of 12 lean spans, {N_SENDERS} connections"
    ));
    for row in &rows {
        line(row.name, spread(row.micros_per_request()), "CPU µs/request");
        let [user, system] = row.target.process().ticks()?;
        let share = 100.0 * system / (user + system);
        line("   of it in the kernel", spread([share]), "%");
        let sleeps = row.target.process().n_sleeps()? as f64 / n_requests(row);
        line("   sleeps of a thread", spread([sleeps]), "a request");
    }
    line("requests that share a sync", spread([per_sync]), "");
    line(
        "write and sync alone",
        spread(bare.iter().copied()),
        "CPU µs",
    );
    // A sidecar that is never idle handles several requests at each wake-up, which makes each
    // request cheaper. Therefore also measure at a fixed rate.
    let mut paced = [Series::new(), Series::new()];
    for _ in 0..plan.n_rounds {
        for (row, costs) in rows.iter_mut().zip(&mut paced) {
            let n_requests = if plan.is_short { 50 } else { 3 * RATE };
            let cpu = row.target.process().cpu()?;
            row.target.pace(&mut loads[0], n_requests, RATE)?;
            let cpu = row.target.process().cpu()? - cpu;
            costs.push(cpu.as_secs_f64() * 1e6 / n_requests as f64);
        }
    }
    for (row, costs) in rows.iter().zip(&paced) {
        let name = format!("{}, {RATE} requests a second", row.name);
        line(&name, spread(costs.iter().copied()), "CPU µs/request");
    }
    line("   more of a request", spread(more(paced)), "µs");
    let costs = more(rows.map(|row| row.micros_per_request()));
    let beside = costs.iter().zip(&bare);
    let beside: Series = beside.map(|(more, bare)| more - bare / per_sync).collect();
    goal("J9  µs more of a request", spread(costs), 20.0);
    line("   beside its share of a bare sync", spread(beside), "µs");
    Ok(())
}

/// Measures J10, the time until an answer.
pub(super) fn waits(plan: &Plan) -> io::Result<()> {
    for (n_senders, n_requests, limit) in [(1, 1_000, 1.3), (8, 400, 2.0), (64, 100, 4.0)] {
        let n_requests = if plan.is_short { 5 } else { n_requests };
        let mut load = loader(Profile::Lean, N_OPEN, 12, 9)?.0;
        let mut targets = Vec::new();
        for (id, variant) in (1..).zip(&variants(plan)) {
            let mut target = Target::sidecar(id, variant)?;
            target.waits(&mut load, n_requests / 5, n_senders)?;
            targets.push(target);
        }
        let mut medians = [Series::new(), Series::new()];
        let mut bare = Series::new();
        for _ in 0..plan.n_rounds {
            for (target, medians) in targets.iter_mut().zip(&mut medians) {
                let waits = target.waits(&mut load, n_requests, n_senders)?;
                medians.push(spread(waits.into_iter().map(|nanos| nanos / 1e3)).median);
            }
            bare.push(bare_sync(SMALL)?.wall_micros);
        }
        heading(&format!(
            "journal, {n_senders} at a time send requests of 12 lean spans"
        ));
        for (name, medians) in ["without a journal", "with a journal"].iter().zip(&medians) {
            line(name, spread(medians.iter().copied()), "µs, median");
        }
        line(
            "write and fdatasync alone",
            spread(bare.iter().copied()),
            "µs, median",
        );
        let name = format!("J10 wait added, {n_senders} senders, in bare fdatasyncs");
        goal(&name, ratio(&more(medians), &bare), limit);
    }
    Ok(())
}

/// Measures J11, the bytes written to the disk. No other program may use the disk meanwhile.
pub(super) fn bytes(plan: &Plan) -> io::Result<()> {
    heading("journal, bytes at the disk for each byte of a request");
    let [_, with] = &variants(plan);
    for (spans, n_connections, n, limit) in [(512, 4, 400, 1.05), (12, N_SENDERS, 1_500, 1.4)] {
        let mut load = loader(Profile::Lean, N_OPEN, spans, 9)?.0;
        let mut target = Target::sidecar(1, with)?;
        let size = body_size(Profile::Lean, spans);
        let dose = |per_connection| Dose {
            per_connection,
            spans_per_request: spans as u64,
            wire: Wire::Grpc,
            n_connections,
        };
        target.turn(&mut load, dose(n / 5))?;
        let (mut ratios, mut others) = (Series::new(), Series::new());
        for _ in 0..plan.n_rounds {
            // First measure how many bytes other programs write in a second.
            let before = device_bytes()?;
            pause(Duration::from_secs(1));
            others.push((device_bytes()? - before) / super::MIB);
            let before = device_bytes()?;
            let turn = target.turn(&mut load, dose(if plan.is_short { 20 } else { n }))?;
            ratios.push((device_bytes()? - before) / (turn.n_requests * size));
        }
        let name = format!("J11 requests of {size:.0} bytes, {n_connections} senders");
        goal(&name, spread(ratios), limit);
        line("   others' writes", spread(others), "MiB/s");
    }
    Ok(())
}
