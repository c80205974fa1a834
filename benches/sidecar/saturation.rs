//! Measures memory under saturation: senders that never wait, on 1 to 64 connections, at small and
//! large limits, with a backend that keeps up and one that does not. If the benchmark may create
//! control groups, each sidecar has one of the size that the documentation recommends for its
//! `memory.limit`, and is killed if it needs more.

use std::io;

use crate::Plan;
use crate::load::Wire;
use crate::loader;
use crate::payload::Profile;
use crate::process::Process;
use crate::report::heading;
use crate::target::{Target, Variant};

const MIB: u64 = 1 << 20;
const LIMITS: [u64; 4] = [32, 64, 128, 512];
const CONNECTIONS: [u64; 4] = [1, 4, 16, 64];

/// Number of requests, of 512 spans each.
const N_LEAN: u64 = 3_200;
const N_GENAI: u64 = 960;

#[derive(Debug, Clone, Copy)]
enum Backend {
    KeepsUp,
    /// Accepts eight requests a second.
    Slow,
}

/// Measures the peak of resident memory for each limit, number of connections, payload and backend.
pub(crate) fn saturation(plan: &Plan) -> io::Result<()> {
    heading(
        "saturation: requests of 512 spans from senders that never wait; peak resident memory in \
         MiB on 1, 4, 16 and 64 connections",
    );
    println!("  memory.limit  container  payload  backend    1      4      16     64");
    for limit in LIMITS {
        for (profile, n_requests) in [(Profile::Lean, N_LEAN), (Profile::Genai, N_GENAI)] {
            let mut load = loader(profile, 64, 512, 9)?.0;
            for backend in [Backend::KeepsUp, Backend::Slow] {
                let mut peaks = Vec::new();
                for n_connections in CONNECTIONS {
                    let per_connection = n_requests / n_connections;
                    let cell = (limit, backend, n_connections, per_connection);
                    peaks.push(peak(plan, &mut load, cell)?);
                }
                let container = container_of(limit) / MIB;
                let is_within = peaks.iter().all(|&peak| peak < container as f64);
                let peaks: Vec<String> = peaks.iter().map(|peak| format!("{peak:>5.1}")).collect();
                println!(
                    "  {limit:>8} MiB  {container:>5} MiB  {:<7}  {:<8}  {}  {}",
                    profile.name(),
                    match backend {
                        Backend::KeepsUp => "keeps up",
                        Backend::Slow => "slow",
                    },
                    peaks.join("  "),
                    if is_within { "met" } else { "MISSED" },
                );
            }
        }
    }
    Ok(())
}

/// Returns the size of the container that the documentation recommends for a limit: a quarter more,
/// and at least 16 MiB more.
fn container_of(limit_mib: u64) -> u64 {
    (limit_mib + (limit_mib / 4).max(16)) * MIB
}

/// Returns the peak of one sidecar in MiB; infinite if it was killed or reached the limit of its
/// group.
fn peak(
    plan: &Plan,
    load: &mut Process,
    (limit, backend, n_connections, per_connection): (u64, Backend, u64, u64),
) -> io::Result<f64> {
    let variant = Variant {
        container: Some(container_of(limit)),
        ..Variant::on(&plan.program)
    };
    let mut target = Target::sidecar(1, &variant.set(&format!("memory.limit={limit}MiB")))?;
    if matches!(backend, Backend::Slow) {
        target.sink.ask("delay 1000")?;
    }
    let wire = Wire::Grpc.word();
    let port = target.port;
    load.ask(&format!(
        "send {port} 1 {per_connection} {wire} {n_connections}"
    ))?;
    target.sink.ask("delay 0")?;
    let peak = target.process().memory().map(|(_, peak)| peak);
    let is_free = target.n_at_limit().is_none_or(|times| times == 0);
    // A process that was killed reports no memory.
    Ok(match peak {
        Ok(peak) if peak > 0 && is_free => peak as f64 / MIB as f64,
        _ => f64::INFINITY,
    })
}
