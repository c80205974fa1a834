//! Measures the goals J12 and J14: the time of a start with an empty journal and with a backlog,
//! and the memory at rest.

use std::io;
use std::time::Duration;

use super::{MIB, body_size, more, variants};
use crate::clock::pause;
use crate::load::{N_CONNECTIONS, Wire};
use crate::payload::Profile;
use crate::report::{Series, goal, heading, line, spread};
use crate::target::{Target, Variant, numbers};
use crate::throughput::N_OPEN;
use crate::{Plan, loader};

const N_STARTS: usize = 9;

/// Bytes that wait in the journal at each start after a kill.
const BACKLOG: f64 = 4.0 * 1024.0 * MIB;

pub(super) fn starts(plan: &Plan) -> io::Result<()> {
    let variants = variants(plan);
    heading("journal, at rest");
    let (mut resident, mut ready) = ([Series::new(), Series::new()], Series::new());
    for _ in 0..N_STARTS {
        for (variant, resident) in variants.iter().zip(&mut resident) {
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

    let folder = tempfile::tempdir()?;
    let [_, with] = variants;
    let with = Variant {
        folder: Some(folder.path().join("journal")),
        ..with
    }
    .set("journal.max_size=6GiB");
    let backlog = if plan.is_short { BACKLOG / 64.0 } else { BACKLOG };
    let size = body_size(Profile::Genai, 512);
    let n_requests = (backlog / size / N_CONNECTIONS as f64).ceil() as u64;
    let mut load = loader(Profile::Genai, N_OPEN, 512, 9)?.0;
    let mut target = Target::sidecar(1, &with)?;
    target.sink.ask("down")?;
    let wire = Wire::Grpc.word();
    let command = format!("send {} 1 {n_requests} {wire} {N_CONNECTIONS}", target.port);
    let [n_taken, _, _, n_refused, nanos] = numbers(&load.ask(&command)?)?;
    if n_refused > 0 {
        return Err(io::Error::other(format!("{n_refused} were refused")));
    }
    target.kill()?;
    heading(&format!(
        "journal, a start after a kill, while {:.1} GiB wait",
        n_taken as f64 * size / MIB / 1024.0
    ));
    let rate = n_taken as f64 * size / MIB / (nanos as f64 / 1e9);
    line("genai requests of 512 spans taken", spread([rate]), "MiB/s");
    let mut ready = Series::new();
    for _ in 0..3 {
        let target = Target::sidecar(1, &with)?;
        ready.push(target.ready_after.as_secs_f64() * 1e3);
        target.kill()?;
    }
    goal("J12 start to ready, ms", spread(ready), 1_000.0);
    Ok(())
}
