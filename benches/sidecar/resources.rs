//! Measures the memory, start-up time and binary size of an idle sidecar, and its memory for each
//! open trace.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

use judge::extract::{Recogniser, Tools};
use otlp::scan::scan;
use otlp::span::TraceId;

use crate::clock::pause;
use crate::load::{N_CONNECTIONS, Wire};
use crate::payload::{Profile, Recipe, Ring};
use crate::report::{goal, heading, line, spread};
use crate::target::{Dose, Target, Variant};
use crate::{Plan, loader};

const MIB: f64 = 1_048_576.0;
const N_STARTS: usize = 9;
const N_SAMPLES: usize = 5;

/// Measures goals 6 (by resident memory) and 8.
pub(crate) fn memory(plan: &Plan) -> io::Result<()> {
    heading("memory, start and size");
    let (mut idle, mut ready) = (Vec::new(), Vec::new());
    for _ in 0..N_STARTS {
        let target = Target::sidecar(1, &Variant::on(&plan.program))?;
        ready.push(target.ready_after.as_secs_f64() * 1e3);
        pause(Duration::from_millis(300));
        idle.push(target.process().memory()?.0 as f64 / MIB);
    }
    goal("8  idle resident memory, MiB", spread(idle), 15.0);
    goal("8  start to ready, ms", spread(ready), 200.0);
    let size = fs::metadata(&plan.program)?.len() as f64 / 1e6;
    goal("8  binary, MB", spread([size]), 15.0);
    for (profile, n_open, limit) in [(Profile::Lean, 10_240, 1.2), (Profile::Genai, 4_096, 1.5)] {
        open_traces(plan, profile, n_open, limit)?;
    }
    Ok(())
}

/// Compares similar requests with few and with many open traces. Closed traces are forgotten
/// immediately.
fn open_traces(plan: &Plan, profile: Profile, n_open: usize, limit: f64) -> io::Result<()> {
    let variant = Variant::on(&plan.program)
        .set("memory.limit=3GiB")
        .set("assemble.recent.max_traces=0");
    let (mut few, _) = loader(profile, 64, 512, 9)?;
    let (mut many, cycle) = loader(profile, n_open, 512, 1)?;
    let dose = Dose {
        per_connection: cycle,
        spans_per_request: 512,
        wire: Wire::Grpc,
        n_connections: N_CONNECTIONS,
    };
    let held = |load: &mut crate::process::Process| -> io::Result<[f64; 3]> {
        let mut target = Target::sidecar(1, &variant)?;
        target.turn(load, dose)?;
        let metrics = target.metrics()?;
        let gauges =
            ["spanscore_traces_open", "spanscore_traces_open_bytes"].map(|name| metrics.sum(name));
        Ok([gauges[0], gauges[1], target.process().memory()?.0 as f64])
    };
    let name = profile.name();
    let kept = kept_bytes(profile)?;
    let (mut resident, mut counted) = (Vec::new(), Vec::new());
    // The memory that the allocator retains differs between processes by megabytes.
    for _ in 0..N_SAMPLES {
        let [few_open, _, few_resident] = held(&mut few)?;
        let [many_open, open_bytes, many_resident] = held(&mut many)?;
        resident.push((many_resident - few_resident) / (many_open - few_open));
        counted.push(open_bytes / many_open);
    }
    let of = |values: &[f64], apply: &dyn Fn(f64) -> f64| {
        spread(values.iter().map(|&value| apply(value)))
    };
    line(
        &format!("   {name}: bytes of an open trace, resident"),
        of(&resident, &|bytes| bytes),
        "B",
    );
    line(
        &format!("   {name}: bytes of an open trace, as counted for the budget"),
        of(&counted, &|bytes| bytes),
        "B",
    );
    line(
        &format!("   {name}: MiB for 1 000 open traces"),
        of(&resident, &|bytes| bytes * 1e3 / MIB),
        "MiB",
    );
    line(
        &format!("   {name}: KiB of an open trace beyond kept values, as counted"),
        of(&counted, &|bytes| (bytes - kept) / 1024.0),
        "KiB",
    );
    goal(
        &format!("6  {name}: KiB of an open trace beyond kept values, resident"),
        of(&resident, &|bytes| (bytes - kept) / 1024.0),
        limit,
    );
    Ok(())
}

/// Returns the average bytes of names, attributes, arguments and messages in an open trace.
fn kept_bytes(profile: Profile) -> io::Result<f64> {
    let tools = Tools::default();
    let recogniser = Recogniser::new(&tools, [], None);
    let ring = Ring::new(Recipe {
        profile,
        n_open: 64,
        spans_per_request: 512,
        min_requests: 18,
        seed: 7,
    });
    let mut open: BTreeMap<TraceId, usize> = BTreeMap::new();
    for position in 0..ring.len() as u64 {
        let scanned =
            scan(&ring.fill(0, position).body, Some(&recogniser)).map_err(io::Error::other)?;
        for span in scanned.batch.spans {
            match span.parent_id {
                None => drop(open.remove(&span.trace_id)),
                Some(_) => *open.entry(span.trace_id).or_default() += span.kept.size(),
            }
        }
    }
    Ok(open.values().sum::<usize>() as f64 / open.len() as f64)
}
