//! One of several replicas that share the traces: a real process with a file of peers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::eventually::blocking;
use crate::support::program::{Running, http};
use crate::support::spans::request;

const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Replica {
    running: Running,
    otlp: String,
    admin: String,
    /// The thread that reads the replica's output, so that the replica is never blocked by a full
    /// pipe.
    printed: JoinHandle<Vec<Told>>,
}

/// A judgement that a replica printed, or that a simulated replica made.
#[derive(Debug, Clone)]
pub(super) struct Told {
    pub(super) trace_id: String,
    pub(super) criterion: String,
    pub(super) label: String,
    pub(super) completeness: String,
}

impl Replica {
    pub(super) fn start(peers: &Path, settings: &[&str]) -> Self {
        let peers = format!("assemble.peers={}", peers.display());
        let mut arguments = vec!["--set", &peers];
        for setting in settings {
            arguments.extend(["--set", setting]);
        }
        let mut running = Running::start(&arguments);
        let [otlp, admin] = running.addresses();
        let out = BufReader::new(running.child.stdout.take().unwrap());
        let printed =
            std::thread::spawn(move || out.lines().map(|line| told(&line.unwrap())).collect());
        Self {
            running,
            otlp,
            admin,
            printed,
        }
    }

    pub(super) fn take_spans(&self, spans: Vec<Span>) {
        self.take("traces", &request(spans));
    }

    pub(super) fn take(&self, signal: &str, body: &[u8]) {
        let answer = http(&self.otlp, &format!("POST /v1/{signal}"), body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    pub(super) fn metric(&self, series: &str) -> Option<u64> {
        let page = http(&self.admin, "GET /metrics", &[]);
        let prefix = format!("{series} ");
        let line = page.lines().find_map(|line| line.strip_prefix(&prefix))?;
        Some(line.parse().unwrap())
    }

    /// Waits until a metric has this value.
    pub(super) fn until(&self, series: &str, value: u64) {
        blocking(PATIENCE, &format!("{series} is {value}"), || {
            (self.metric(series) == Some(value)).then_some(())
        });
    }

    /// Stops the replica gracefully. Returns everything that it printed.
    pub(super) fn ended(self) -> Vec<Told> {
        let Self {
            running, printed, ..
        } = self;
        running.signal(Signal::TERM);
        let told = printed.join().unwrap();
        let mut child = running;
        assert_eq!(child.child.wait().unwrap().code(), Some(0));
        told
    }
}

fn told(line: &str) -> Told {
    let line: Value = serde_json::from_str(line).unwrap();
    let text = |key: &str| line[key].as_str().unwrap().to_owned();
    Told {
        trace_id: text("trace_id"),
        criterion: text("criterion"),
        label: text("label"),
        completeness: text("completeness"),
    }
}

/// Replaces the list of peers atomically, like a mounted ConfigMap.
pub(super) fn peers(file: &Path, names: &[&str]) {
    let fresh = file.with_extension("fresh");
    std::fs::write(&fresh, names.join("\n")).unwrap();
    std::fs::rename(fresh, file).unwrap();
}
