//! Measures the cost of a journal, with a backend that is up, down, slow or overloaded, compared
//! with the same sidecar without a journal: the goals that it prints as J5 and J8 to J14. The
//! journal is in the folder for temporary files; the same run also measures the bare disk. The
//! figures say nothing about other disks. `tests/it/durability` tests durability.

mod costs;
mod outage;
mod starts;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::time::{ClockId, clock_gettime};

use crate::Plan;
use crate::clock::monotonic_nanos;
use crate::payload::{Profile, Recipe, Ring};
use crate::report::{Series, spread};
use crate::target::Variant;
use crate::throughput::{N_OPEN, ROOMY};

const MIB: f64 = 1_048_576.0;

type Part = fn(&Plan) -> io::Result<()>;

/// The parts of the benchmark `journal`; each can also run alone.
pub(crate) const PARTS: [(&str, Part); 7] = [
    ("journal-costs", costs::costs),
    ("journal-small", costs::small),
    ("journal-waits", costs::waits),
    ("journal-bytes", costs::bytes),
    ("journal-starts", starts::starts),
    ("journal-outage", outage::outage),
    ("journal-slow", outage::slow),
];

pub(crate) fn journal(plan: &Plan) -> io::Result<()> {
    PARTS.iter().try_for_each(|(_, part)| part(plan))
}

fn variants(plan: &Plan) -> [Variant; 2] {
    // A disk that other programs use can delay all connections for longer than the benchmarks'
    // usual settle time; traces would then be judged too early.
    let without = Variant::on(&plan.program)
        .set(ROOMY)
        .set("assemble.settle=1s");
    let with = Variant {
        journal: true,
        ..without.clone()
    };
    [without, with]
}

/// Returns for each pair the excess of the second value over the first.
fn more([without, with]: [Series; 2]) -> Series {
    let pairs = with.iter().zip(without);
    pairs.map(|(with, without)| with - without).collect()
}

/// Returns the mean size of a request in bytes.
fn body_size(profile: Profile, spans_per_request: usize) -> f64 {
    let ring = Ring::new(Recipe {
        profile,
        n_open: N_OPEN,
        spans_per_request,
        min_requests: 9,
        seed: 7,
    });
    let n_requests = ring.len().min(500) as u64;
    let bodies = (0..n_requests).map(|position| ring.fill(0, position).body.len());
    bodies.sum::<usize>() as f64 / n_requests as f64
}

/// The cost of a write and an `fdatasync` in a program that does nothing else.
struct BareSync {
    wall_micros: f64,
    cpu_micros: f64,
}

/// Returns the medians for writes of `n_bytes` to a file whose blocks are allocated.
fn bare_sync(n_bytes: usize) -> io::Result<BareSync> {
    const FILE: u64 = 16 << 20;
    let folder = tempfile::tempdir()?;
    let file = File::create(folder.path().join("file"))?;
    for at in 0..FILE >> 20 {
        file.write_all_at(&vec![1; 1 << 20], at << 20)?;
    }
    file.sync_all()?;
    let bytes = vec![2; n_bytes];
    let cpu = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    };
    let (mut wall, mut cpus) = (Series::new(), Series::new());
    let mut at = 0;
    for _ in 0..300 {
        let (started, cpu_before) = (monotonic_nanos(), cpu());
        file.write_all_at(&bytes, at)?;
        file.sync_data()?;
        cpus.push((cpu() - cpu_before) as f64 / 1e3);
        wall.push((monotonic_nanos() - started) as f64 / 1e3);
        at = (at + n_bytes as u64) % (FILE - n_bytes as u64);
    }
    Ok(BareSync {
        wall_micros: spread(wall).median,
        cpu_micros: spread(cpus).median,
    })
}

/// Returns the bytes that all programs have written to the disk of the folder for temporary files.
/// The counters of a single process count whole page-cache folios, of which the file system writes
/// only parts.
fn device_bytes() -> io::Result<f64> {
    let device = fs::metadata(std::env::temp_dir())?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
    let sectors = stat.split_whitespace().nth(6);
    let sectors = sectors.and_then(|sectors| sectors.parse::<f64>().ok());
    let sectors = sectors.ok_or_else(|| io::Error::other("a disk without counters"))?;
    Ok(sectors * 512.0)
}
