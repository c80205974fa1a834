//! The cost of a journal, beside the same sidecar without one: CPU, the wait for an answer,
//! resident memory and the start. Its folder is in the folder for temporary files, whose disk is
//! measured bare as well. Proves nothing about other disks, nor about what survives
//! (`tests/it/durability`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::clock::{monotonic_nanos, pause};
use crate::payload::Profile;
use crate::report::{Series, goal, heading, line, ratio, spread};
use crate::target::{Target, Variant};
use crate::throughput::{N_OPEN, ROOMY, Row, rounds};
use crate::{Plan, loader};

const MIB: f64 = 1_048_576.0;
const N_STARTS: usize = 9;
/// Requests of twelve lean spans, in bytes.
const SMALL: usize = 4_800;

pub(crate) fn journal(plan: &Plan) -> io::Result<()> {
    // A disk that is busy with others can hold all connections up for longer than the usual settle
    // time of the benchmarks, and traces would be judged in between.
    let without = Variant::on(&plan.program)
        .set(ROOMY)
        .set("assemble.settle=1s");
    let with = Variant {
        journal: true,
        ..without.clone()
    };
    let rows = |load: usize, n: u64| -> io::Result<[Row; 2]> {
        Ok([
            Row::new("without a journal", Target::sidecar(1, &without)?, load, n),
            Row::new("with a journal", Target::sidecar(2, &with)?, load, n),
        ])
    };
    for (profile, n, limit) in [(Profile::Lean, 600, 1.25), (Profile::Genai, 100, 1.6)] {
        let mut loads = [loader(profile, N_OPEN, 512, 9)?.0];
        let mut rows = rows(0, n)?;
        rounds(&mut rows, &mut loads, plan, &[n / 5])?;
        heading(&format!(
            "journal, {}: requests of 512 spans, 4 connections",
            profile.name()
        ));
        for row in &rows {
            line(row.name, spread(row.nanos_per_span()), "CPU ns/span");
        }
        let [without, with] = rows.map(|row| row.nanos_per_span());
        let name = format!("J8  {}: with a journal / without", profile.name());
        goal(&name, ratio(&with, &without), limit);
    }

    let mut loads = [loader(Profile::Lean, N_OPEN, 12, 9)?.0];
    let mut rows = rows(0, 3_000)?;
    for row in &mut rows {
        row.dose.spans_per_request = 12;
    }
    rounds(&mut rows, &mut loads, plan, &[500])?;
    heading("journal, requests of 12 lean spans, 4 connections");
    for row in &rows {
        line(row.name, spread(row.micros_per_request()), "CPU µs/request");
    }
    let more = |costs: [Series; 2]| -> Series {
        let [without, with] = costs;
        let pairs = with.iter().zip(without);
        pairs.map(|(with, without)| with - without).collect()
    };
    let costs = rows.map(|row| row.micros_per_request());
    goal("J9  µs more of a request", spread(more(costs)), 20.0);

    heading("journal, one request of 12 lean spans at a time, 100 a second");
    let n_requests = if plan.is_short { 20 } else { 1_000 };
    let mut medians = [Series::new(), Series::new()];
    let mut bare = Series::new();
    for _ in 0..plan.n_rounds {
        for (variant, medians) in [&without, &with].into_iter().zip(&mut medians) {
            let mut target = Target::sidecar(1, variant)?;
            let waits = target.pace(&mut loads[0], n_requests, 100)?;
            let waits = waits.into_iter().map(|(answered, _)| answered / 1e3);
            medians.push(spread(waits).median);
        }
        bare.push(bare_sync_micros()?);
    }
    for (name, medians) in ["without a journal", "with a journal"].iter().zip(&medians) {
        line(name, spread(medians.iter().copied()), "µs, median");
    }
    line(
        "write and fdatasync alone",
        spread(bare.iter().copied()),
        "µs, median",
    );
    let added = more(medians);
    goal(
        "J10 wait added, in bare fdatasyncs",
        ratio(&added, &bare),
        1.3,
    );

    heading("journal, at rest");
    let (mut resident, mut ready) = ([Series::new(), Series::new()], Series::new());
    for _ in 0..N_STARTS {
        for (variant, resident) in [&without, &with].into_iter().zip(&mut resident) {
            let target = Target::sidecar(1, variant)?;
            pause(Duration::from_millis(300));
            resident.push(target.process().memory()?.0 as f64 / MIB);
            if variant.journal {
                ready.push(target.ready_after.as_secs_f64() * 1e3);
            }
        }
    }
    goal("J12 start to ready, empty, ms", spread(ready), 200.0);
    goal("J14 resident memory more, MiB", spread(more(resident)), 2.0);
    Ok(())
}

/// The median time to write a small request to a file that has its blocks, and to sync it.
fn bare_sync_micros() -> io::Result<f64> {
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("file"))?;
    file.write_all_at(&vec![1; 4 << 20], 0)?;
    file.sync_all()?;
    let bytes = vec![2; SMALL];
    let mut times = Series::new();
    for n in 0..400 {
        let started = monotonic_nanos();
        file.write_all_at(&bytes, n * SMALL as u64)?;
        file.sync_data()?;
        times.push((monotonic_nanos() - started) as f64 / 1e3);
    }
    Ok(spread(times).median)
}
