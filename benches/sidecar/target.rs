//! The subject of a measurement: a receiver alone, a sidecar with a backend, or another program in
//! place of the sidecar. Each turn sends requests, waits until all of them have reached the
//! backend, checks them, and returns the cost.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::clock::{monotonic_nanos, pause};
use crate::group::Group;
use crate::load::Wire;
use crate::metrics::{Metrics, metrics_of};
use crate::process::Process;

/// One `tool_call_order` and two cheap criteria, as the goals state.
pub(crate) const CRITERIA: &str = r#"
criteria:
  - name: checkout-order
    evaluate:
      tool_call_order:
        tool_calls_order: [validate_user, check_inventory, create_order, send_receipt, update_crm]
  - name: one-order
    evaluate: { tool_call_count: { tool_calls_count: { create_order: ["=", 1] } } }
  - name: no-refund
    evaluate: { tool_calls: { disallowed: [refund_card] } }
"#;
pub(crate) const N_CRITERIA: u64 = 3;

const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The part of a sidecar's configuration that differs between targets.
#[derive(Clone, Default)]
pub(crate) struct Variant {
    pub(crate) scoring: bool,
    pub(crate) score_spans: bool,
    pub(crate) http: bool,
    /// Settings as `key=value`, as on the command line.
    pub(crate) set: Vec<String>,
    pub(crate) program: PathBuf,
    /// Number of threads that answer requests, instead of one for each core.
    pub(crate) workers: Option<usize>,
    /// True if the sidecar has a journal, in the folder for temporary files.
    pub(crate) journal: bool,
    /// The journal's folder, if the folder outlives the sidecar.
    pub(crate) folder: Option<PathBuf>,
    /// The limit in bytes of the sidecar's control group, if it has one.
    pub(crate) container: Option<u64>,
}

impl Variant {
    pub(crate) fn off(program: &Path) -> Self {
        Self {
            program: program.to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn on(program: &Path) -> Self {
        Self {
            scoring: true,
            ..Self::off(program)
        }
    }

    pub(crate) fn set(mut self, setting: &str) -> Self {
        self.set.push(setting.to_owned());
        self
    }
}

pub(crate) enum Measured {
    /// The sink alone, to which the load generator sends directly.
    Sink,
    Sidecar {
        process: Process,
        admin: String,
        expects_scores: bool,
        expects_score_spans: bool,
        group: Option<Group>,
        _config: TempDir,
    },
    Peer {
        process: Process,
        _config: TempDir,
    },
}

pub(crate) struct Target {
    pub(crate) measured: Measured,
    pub(crate) sink: Process,
    pub(crate) port: u64,
    http_port: Option<u64>,
    /// Distinguishes this target's streams from those of other targets.
    id: u64,
    /// The time from the start of the process until it reports that it listens.
    pub(crate) ready_after: Duration,
    n_roots: u64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) cpu_nanos: f64,
    pub(crate) n_page_faults: f64,
    pub(crate) n_requests: f64,
    pub(crate) n_roots: f64,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Dose {
    pub(crate) per_connection: u64,
    pub(crate) spans_per_request: u64,
    pub(crate) wire: Wire,
    pub(crate) n_connections: u64,
}

impl Target {
    /// Starts a receiver alone. `kind` is `raw` or `prost`, which drop everything, or `check`,
    /// which reads every span.
    pub(crate) fn null(id: u64, kind: &str) -> io::Result<Self> {
        let (sink, port) = Process::role(&["sink", kind])?;
        let target = Self {
            measured: Measured::Sink,
            sink,
            port,
            http_port: None,
            id,
            ready_after: Duration::ZERO,
            n_roots: 0,
        };
        target.check_port()?;
        Ok(target)
    }

    /// Starts a spanscore with a backend that reads every span.
    pub(crate) fn sidecar(id: u64, variant: &Variant) -> io::Result<Self> {
        let (sink, sink_port) = Process::role(&["sink", "check"])?;
        let config = tempfile::tempdir()?;
        let file = config.path().join("bench.yaml");
        std::fs::write(&file, if variant.scoring { CRITERIA } else { "" })?;
        let mut command = Command::new(&variant.program);
        command.env_clear().args(["run", "--config"]).arg(&file);
        let settings = [
            "receivers.otlp.grpc.listen=127.0.0.1:0".to_owned(),
            format!("receivers.otlp.http.enabled={}", variant.http),
            "receivers.otlp.http.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            format!("forward.endpoint=http://127.0.0.1:{sink_port}"),
            format!("scoring.enabled={}", variant.scoring),
            format!("scores.span.enabled={}", variant.score_spans),
            "scores.event.enabled=false".to_owned(),
            "assemble.settle=100ms".to_owned(),
            // Traces that are open at the end of a turn continue in the next turn, however long the
            // turns of other targets take.
            "assemble.inactive=1h".to_owned(),
            // Nothing more is sent once the process is asked to stop, so it need not wait for
            // requests.
            "shutdown.quiet=0s".to_owned(),
            "log.format=json".to_owned(),
        ];
        let journal = config.path().join("journal");
        let journal = variant.folder.as_ref().unwrap_or(&journal);
        let journal = format!("journal.directory={}", journal.display());
        let journal = variant.journal.then_some(&journal);
        for setting in settings.iter().chain(journal).chain(&variant.set) {
            command.args(["--set", setting]);
        }
        if let Some(workers) = variant.workers {
            command.env("TOKIO_WORKER_THREADS", workers.to_string());
        }
        let started = monotonic_nanos();
        let mut process = Process::other(
            command
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?,
        );
        let group = variant
            .container
            .and_then(|limit| Group::make("bench", limit));
        if let Some(group) = &group {
            group.add(process.child_mut().id())?;
        }
        let stderr = process
            .child_mut()
            .stderr
            .take()
            .ok_or(io::ErrorKind::BrokenPipe)?;
        let mut log = BufReader::new(stderr);
        let mut addresses = BTreeMap::new();
        while addresses.len() < 2 + usize::from(variant.http) {
            let mut line = String::new();
            if log.read_line(&mut line)? == 0 {
                return Err(io::Error::other("spanscore ended before it listened"));
            }
            let Ok(value) = serde_json::from_str::<Value>(&line) else {
                return Err(io::Error::other(line));
            };
            if let (Some("listening"), Some(setting), Some(address)) = (
                value["message"].as_str(),
                value["setting"].as_str(),
                value["address"].as_str(),
            ) {
                addresses.insert(setting.to_owned(), address.to_owned());
            }
        }
        let ready_after = Duration::from_nanos(monotonic_nanos() - started);
        // Print what else the sidecar logs above the level INFO, because a warning matters in a
        // benchmark. The thread ends with the process.
        std::thread::spawn(move || {
            log.lines()
                .map_while(Result::ok)
                .for_each(|line| eprint_line(&line))
        });
        let port = |setting: &str| addresses.get(setting)?.rsplit(':').next()?.parse().ok();
        let http_port = port("receivers.otlp.http.listen");
        let port =
            port("receivers.otlp.grpc.listen").ok_or_else(|| io::Error::other("no gRPC port"))?;
        let admin = addresses.remove("admin.listen").unwrap_or_default();
        let measured = Measured::Sidecar {
            process,
            admin,
            expects_scores: variant.scoring,
            expects_score_spans: variant.score_spans,
            group,
            _config: config,
        };
        let target = Self {
            measured,
            sink,
            port,
            http_port,
            id,
            ready_after,
            n_roots: 0,
        };
        target.check_port()?;
        Ok(target)
    }

    /// Starts another program. `configuration`, with ports in place of `{IN}`, `{OUT}` and
    /// `{OTHER}`, is written to a file; the arguments are `--config` and that file.
    pub(crate) fn peer(id: u64, program: &Path, configuration: &str) -> io::Result<Self> {
        let (sink, sink_port) = Process::role(&["sink", "check"])?;
        let [port, other] = [free_port()?, free_port()?];
        let config = tempfile::tempdir()?;
        let file = config.path().join("peer.yaml");
        let text = configuration
            .replace("{IN}", &port.to_string())
            .replace("{OUT}", &sink_port.to_string());
        std::fs::write(&file, text.replace("{OTHER}", &other.to_string()))?;
        let mut command = Command::new(program);
        command
            .env_clear()
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let started = monotonic_nanos();
        let process = Process::other(command.spawn()?);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if monotonic_nanos() - started > 20_000_000_000 {
                return Err(io::Error::other(format!(
                    "{} does not listen",
                    program.display()
                )));
            }
            pause(Duration::from_millis(20));
        }
        let ready_after = Duration::from_nanos(monotonic_nanos() - started);
        let measured = Measured::Peer {
            process,
            _config: config,
        };
        let target = Self {
            measured,
            sink,
            port: u64::from(port),
            http_port: None,
            id,
            ready_after,
            n_roots: 0,
        };
        target.check_port()?;
        Ok(target)
    }

    pub(crate) fn process(&self) -> &Process {
        match &self.measured {
            Measured::Sink => &self.sink,
            Measured::Sidecar { process, .. } | Measured::Peer { process, .. } => process,
        }
    }

    /// Returns how often an allocation reached the limit of the control group; `None` without a
    /// group.
    pub(crate) fn n_at_limit(&self) -> Option<u64> {
        match &self.measured {
            Measured::Sidecar { group, .. } => group.as_ref().map(Group::n_at_limit),
            Measured::Sink | Measured::Peer { .. } => None,
        }
    }

    pub(crate) fn turn(&mut self, load: &mut Process, dose: Dose) -> io::Result<Turn> {
        let Dose {
            per_connection,
            spans_per_request,
            wire,
            n_connections,
        } = dose;
        let port = if wire == Wire::Http {
            self.http_port
                .ok_or_else(|| io::Error::other("it takes no OTLP/HTTP"))?
        } else {
            self.port
        };
        let before = self.arrived()?;
        let (cpu, faults) = (self.process().cpu()?, self.process().n_page_faults()?);
        let answer = load.ask(&format!(
            "send {port} {} {per_connection} {} {n_connections}",
            self.id,
            wire.word()
        ))?;
        let [n_requests, n_roots, digest, n_refused] = numbers(&answer)?;
        if n_refused > 0 {
            return Err(io::Error::other(format!(
                "{n_refused} requests were refused"
            )));
        }
        self.n_roots += n_roots;
        let expected = match &self.measured {
            Measured::Sink => Arrived {
                n_requests: before.n_requests + n_requests,
                ..before
            },
            Measured::Sidecar { .. } | Measured::Peer { .. } => {
                let n_spans = before.n_spans + n_requests * spans_per_request;
                Arrived {
                    n_requests: 0,
                    n_spans,
                    digest: before.digest.wrapping_add(digest),
                }
            }
        };
        self.drain(expected)?;
        let cpu_nanos = (self.process().cpu()? - cpu).as_nanos() as f64;
        Ok(Turn {
            cpu_nanos,
            n_page_faults: self.process().n_page_faults()? - faults,
            n_requests: n_requests as f64,
            n_roots: n_roots as f64,
        })
    }

    /// Sends requests at a fixed rate. Returns the nanoseconds from the time at which a request was
    /// due until its acknowledgement, and until its complete arrival at the backend.
    pub(crate) fn pace(
        &mut self,
        load: &mut Process,
        n_requests: u64,
        rate: u64,
    ) -> io::Result<Vec<(f64, f64)>> {
        self.sink.ask_for_list("arrivals")?;
        let sent = load.ask_for_list(&format!(
            "pace {} {} {n_requests} {rate}",
            self.port, self.id
        ))?;
        pause(Duration::from_millis(200));
        let mut arrivals = BTreeMap::new();
        for line in self.sink.ask_for_list("arrivals")? {
            let [digest, nanos] = numbers(&line)?;
            arrivals.insert(digest, nanos);
        }
        let mut waits = Vec::new();
        for line in sent {
            let [digest, due, answered] = numbers(&line)?;
            let arrived = arrivals
                .get(&digest)
                .ok_or_else(|| io::Error::other("a request has not arrived as it was sent"))?;
            waits.push((
                answered.saturating_sub(due) as f64,
                arrived.saturating_sub(due) as f64,
            ));
        }
        Ok(waits)
    }

    /// Sends `n_requests` from each of `n_senders`, each after the previous answer. Returns the
    /// nanoseconds until each answer.
    pub(crate) fn waits(
        &mut self,
        load: &mut Process,
        n_requests: u64,
        n_senders: u64,
    ) -> io::Result<Vec<f64>> {
        let command = format!(
            "waits {} {} {n_requests} {} {n_senders}",
            self.port,
            self.id,
            Wire::Grpc.word()
        );
        let waits = load.ask_for_list(&command)?;
        if waits.len() as u64 != n_requests * n_senders {
            return Err(io::Error::other("requests were refused"));
        }
        let nanos = |wait: String| wait.parse().map_err(io::Error::other);
        waits.into_iter().map(nanos).collect()
    }

    /// Kills a sidecar, as the out-of-memory killer would.
    pub(crate) fn kill(mut self) -> io::Result<()> {
        if let Measured::Sidecar { process, .. } = &mut self.measured {
            process.child_mut().kill()?;
            process.child_mut().wait()?;
        }
        Ok(())
    }

    /// Waits until the backend has received everything and every criterion has judged every trace
    /// whose root has ended.
    fn drain(&mut self, expected: Arrived) -> io::Result<()> {
        let deadline = monotonic_nanos() + DRAIN_TIMEOUT.as_nanos() as u64;
        loop {
            let Arrived {
                n_requests,
                n_spans,
                digest,
            } = self.arrived()?;
            let found = match &self.measured {
                Measured::Sink => Arrived {
                    n_requests,
                    ..expected
                },
                Measured::Sidecar { .. } | Measured::Peer { .. } => Arrived {
                    n_requests: expected.n_requests,
                    n_spans,
                    digest,
                },
            };
            let unfinished = if found == expected {
                self.unfinished()?
            } else {
                Some(format!("arrived {found:?} of {expected:?}"))
            };
            let Some(unfinished) = unfinished else {
                return Ok(());
            };
            if monotonic_nanos() > deadline {
                return Err(io::Error::other(format!(
                    "not everything came out: {unfinished}"
                )));
            }
            pause(Duration::from_millis(50));
        }
    }

    /// Describes the work that the sidecar has not finished. Returns an error if the sidecar did
    /// anything twice or lost anything.
    fn unfinished(&self) -> io::Result<Option<String>> {
        let Measured::Sidecar {
            expects_scores,
            expects_score_spans,
            ..
        } = &self.measured
        else {
            return Ok(None);
        };
        let metrics = self.metrics()?;
        let queued = metrics.sum("spanscore_exporter_queue_spans");
        if queued > 0.0 {
            return Ok(Some(format!("{queued} spans queued")));
        }
        for never in [
            "spanscore_exporter_dropped_spans_total",
            "spanscore_unscored_spans_total",
            "spanscore_late_spans_total",
            "spanscore_scores_dropped_total",
            "spanscore_spans_without_ids_total",
        ] {
            if metrics.sum(never) > 0.0 {
                return Err(io::Error::other(format!(
                    "{never} is {}",
                    metrics.sum(never)
                )));
            }
        }
        let closed = |reason: &str| {
            metrics.one(&format!(
                "spanscore_traces_closed_total{{reason=\"{reason}\"}}"
            ))
        };
        // If not all closed traces are remembered, one in 5,000 new traces may count as incomplete:
        // see docs/design.md#late-spans-and-revisions.
        let n_incomplete = closed("incomplete");
        let closed_otherwise =
            metrics.sum("spanscore_traces_closed_total") - closed("root_ended") - n_incomplete;
        if closed_otherwise > 0.0 || n_incomplete > self.n_roots as f64 / 5_000.0 {
            return Err(io::Error::other(format!(
                "{closed_otherwise} traces were closed for other reasons than their root's end, \
                 {n_incomplete} of {} as incomplete",
                self.n_roots
            )));
        }
        let n_expected = if *expects_scores { (self.n_roots * N_CRITERIA) as f64 } else { 0.0 };
        let n_judged = metrics.sum("spanscore_evaluations_total");
        if n_judged > n_expected {
            return Err(io::Error::other(format!(
                "{n_judged} evaluations, expected {n_expected}"
            )));
        }
        if n_judged < n_expected {
            return Ok(Some(format!("{n_judged} of {n_expected} evaluations")));
        }
        let n_sent = metrics.one("spanscore_scores_sent_total{shape=\"score_spans\"}");
        if *expects_score_spans && n_sent < n_expected {
            return Ok(Some(format!("{n_sent} of {n_expected} score spans")));
        }
        Ok(None)
    }

    /// Returns the address of the admin port; empty for a program that is not a sidecar.
    pub(crate) fn admin(&self) -> &str {
        match &self.measured {
            Measured::Sidecar { admin, .. } => admin,
            Measured::Sink | Measured::Peer { .. } => "",
        }
    }

    pub(crate) fn metrics(&self) -> io::Result<Metrics> {
        let Measured::Sidecar { admin, .. } = &self.measured else {
            return Ok(Metrics::default());
        };
        metrics_of(admin)
    }

    fn arrived(&mut self) -> io::Result<Arrived> {
        let [n_requests, n_spans, digest, _] = numbers(&self.sink.ask("report")?)?;
        Ok(Arrived {
            n_requests,
            n_spans,
            digest,
        })
    }

    fn check_port(&self) -> io::Result<()> {
        for port in std::iter::once(self.port).chain(self.http_port) {
            if !self.process().listens_on(port as u16)? {
                return Err(io::Error::other(format!(
                    "port {port} belongs to another process"
                )));
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Arrived {
    n_requests: u64,
    n_spans: u64,
    digest: u64,
}

/// Returns the first `N` numbers of a line.
pub(crate) fn numbers<const N: usize>(line: &str) -> io::Result<[u64; N]> {
    let numbers: Vec<u64> = line
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    numbers
        .get(..N)
        .and_then(|numbers| numbers.try_into().ok())
        .ok_or_else(|| io::Error::other(format!("not {N} numbers: {line:?}")))
}

/// Returns a free port. Another process may take the port before it is used; `check_port` detects
/// that.
fn free_port() -> io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

#[expect(
    clippy::print_stderr,
    reason = "what a measured process warns of belongs beside the figures"
)]
fn eprint_line(line: &str) {
    if !line.contains("\"INFO\"") {
        eprintln!("  spanscore says: {line}");
    }
}
