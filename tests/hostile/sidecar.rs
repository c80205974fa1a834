//! Starts the sidecar under attack, in a separate control group if one can be created.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rcgen::CertifiedKey;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use tokio::time::sleep;

use crate::downstream::{Downstream, Switch};
use crate::group::Group;
use crate::innocent::get;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) n_criteria: usize,
    /// True if a criterion searches results with a slow pattern.
    pub(crate) has_slow_patterns: bool,
    /// True if the OTLP ports use TLS.
    pub(crate) tls: bool,
    /// The limit on the open files of the process; `None` for the inherited limit.
    pub(crate) n_descriptors: Option<u32>,
    pub(crate) settings: &'static [&'static str],
    /// The export of a run of the innocent client that must outlast the attack; `None` without such
    /// a run.
    pub(crate) long_run: Option<LongRunExport>,
    /// True if a journal of 32 MiB stores undelivered requests.
    pub(crate) journal: bool,
    /// True if undelivered requests may still be queued at the end.
    pub(crate) may_queue: bool,
}

/// The times at which the innocent client sends the spans of its long run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum LongRunExport {
    /// The call is sent before the attack, the root after it.
    AsSpansEnd,
    /// Everything is sent after the attack.
    AtTheEnd,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            n_criteria: 2,
            has_slow_patterns: false,
            tls: false,
            n_descriptors: None,
            settings: &[],
            long_run: None,
            journal: false,
            may_queue: false,
        }
    }
}

impl Setup {
    fn criteria(&self) -> String {
        let mut text = "criteria:\n".to_owned();
        for number in 0..self.n_criteria {
            let evaluate = match number % 2 {
                0 => "tool_call_order: { tool_calls_order: [a, b] }",
                _ => "tool_calls: { disallowed: [rm] }",
            };
            text.push_str(&format!(
                "  - name: c{number}\n    evaluate: {{ {evaluate} }}\n"
            ));
        }
        if self.has_slow_patterns {
            text.push_str(
                "  - name: slow\n    evaluate:\n      tool_calls:\n        disallowed:\n          \
                 - { name: read, result: '(?i)ignore.{0,1000}instructions' }\n",
            );
        }
        text
    }
}

/// The sizes of the sidecar: the limit of its control group, and `memory.limit`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) group: u64,
    pub(crate) limit: &'static str,
    /// Factor for the number of attackers.
    pub(crate) scale: usize,
}

impl Size {
    pub(crate) const SMALL: Self = Self {
        group: 128 << 20,
        limit: "memory.limit=112MiB",
        scale: 1,
    };
    pub(crate) const LARGE: Self = Self {
        group: 512 << 20,
        limit: "memory.limit=448MiB",
        scale: 10,
    };
}

// === Sidecar ===

#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// The settings of a client that trusts the sidecar; `None` without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    pub(crate) downstream: Switch,
    pub(crate) scale: usize,
}

pub(crate) struct Sidecar {
    pub(crate) target: Target,
    child: Child,
    group: Option<Group>,
    size: Size,
    _config: tempfile::TempDir,
}

pub(crate) struct Memory {
    pub(crate) peak: u64,
    pub(crate) limit: u64,
    pub(crate) n_at_limit: u64,
}

impl Sidecar {
    pub(crate) fn start(setup: &Setup, size: Size, downstream: &Downstream) -> io::Result<Self> {
        let config = tempfile::tempdir()?;
        let file = config.path().join("hostile.yaml");
        fs::write(&file, setup.criteria())?;
        let group = Group::make("hostile", size.group);
        let program = env!("CARGO_BIN_EXE_spanscore");
        let mut command = match setup.n_descriptors {
            None => Command::new(program),
            Some(n) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "ulimit -n \"$0\"; exec \"$@\""]);
                shell.args([&n.to_string(), program]);
                shell
            }
        };
        command.env_clear().args(["run", "--config"]).arg(&file);
        let mut settings = vec![
            size.limit.to_owned(),
            "receivers.otlp.grpc.listen=127.0.0.1:0".to_owned(),
            "receivers.otlp.http.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            format!("forward.endpoint=http://{}", downstream.address),
            "forward.protocol=http/protobuf".to_owned(),
            "log.format=json".to_owned(),
        ];
        settings.extend(setup.settings.iter().map(|setting| (*setting).to_owned()));
        if setup.journal {
            let folder = config.path().join("journal");
            settings.push(format!("journal.directory={}", folder.display()));
            settings.push("journal.max_size=32MiB".to_owned());
            settings.push("receivers.otlp.max_request_size=16MiB".to_owned());
        }
        let mut tls = None;
        if setup.tls {
            let (client, more) = certificate(config.path())?;
            settings.extend(more);
            tls = Some(client);
        }
        for setting in settings {
            command.args(["--set", &setting]);
        }
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(group) = &group {
            group.add(child.id())?;
        }
        let stderr = child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut log = BufReader::new(stderr);
        let mut addresses = BTreeMap::new();
        while addresses.len() < 3 {
            let mut line = String::new();
            if log.read_line(&mut line)? == 0 {
                return Err(io::Error::other("it ended before it listened"));
            }
            let value: Value = serde_json::from_str(&line)?;
            if let (Some("listening"), Some(setting), Some(address)) = (
                value["message"].as_str(),
                value["setting"].as_str(),
                value["address"].as_str(),
            ) {
                let address = address.parse().map_err(io::Error::other)?;
                addresses.insert(setting.to_owned(), address);
            }
        }
        // Read the log to its end, so that the sidecar never waits for us.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(drop));
        Ok(Self {
            target: Target {
                http: addresses["receivers.otlp.http.listen"],
                grpc: addresses["receivers.otlp.grpc.listen"],
                admin: addresses["admin.listen"],
                tls,
                downstream: downstream.switch.clone(),
                scale: size.scale,
            },
            child,
            group,
            size,
            _config: config,
        })
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn peak_memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let resident = status
            .unwrap_or_default()
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .unwrap_or_default()
            << 10;
        Memory {
            peak: resident,
            limit: self.size.group,
            n_at_limit: self.group.as_ref().map_or(0, Group::n_at_limit),
        }
    }

    /// Waits until accepted = sent + queued + dropped, in spans. Unless `may_queue`, nothing may be
    /// queued.
    pub(crate) async fn books_balance(&self, may_queue: bool) -> Result<(), String> {
        let mut seen = String::new();
        for _ in 0..50 {
            let page = get(self.target.admin, "/metrics").await.unwrap_or_default();
            let sum = |names: &[&str]| -> i64 {
                let samples = page.lines().filter(|line| {
                    names.iter().any(|name| {
                        line.strip_prefix(name)
                            .is_some_and(|rest| rest.starts_with(['{', ' ']))
                    })
                });
                samples
                    .filter_map(|line| line.rsplit(' ').next()?.parse::<i64>().ok())
                    .sum()
            };
            let accepted = sum(&["spanscore_receiver_accepted_spans_total"]);
            let sent = sum(&["spanscore_exporter_sent_spans_total"]);
            let dropped = sum(&["spanscore_exporter_dropped_spans_total"]);
            let queued = sum(&["spanscore_exporter_queue_spans"]);
            let is_empty = queued == 0 || may_queue;
            if accepted > 0 && accepted == sent + queued + dropped && is_empty {
                return Ok(());
            }
            seen = format!("accepted {accepted}, sent {sent}, queued {queued}, dropped {dropped}");
            sleep(Duration::from_millis(100)).await;
        }
        Err(format!("the books do not balance: {seen}"))
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a line that says whether the limit is enforced, or only compared with the memory use.
pub(crate) fn group_notice(size: Size) -> String {
    let mib = size.group >> 20;
    match Group::make("hostile", size.group) {
        Some(_) => format!("each sidecar runs in a control group of {mib} MiB"),
        None => format!(
            "did not make a control group: resident memory is compared with {mib} MiB instead"
        ),
    }
}

/// Writes a certificate for `localhost`. Returns the configuration of a client that trusts the
/// certificate, and the settings with which the sidecar serves it.
fn certificate(folder: &std::path::Path) -> io::Result<(Arc<ClientConfig>, [String; 2])> {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .map_err(io::Error::other)?;
    let (cert_file, key_file) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&cert_file, cert.pem())?;
    fs::write(&key_file, signing_key.serialize_pem())?;
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).map_err(io::Error::other)?;
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let settings = [("cert_file", cert_file), ("key_file", key_file)]
        .map(|(key, file)| format!("receivers.otlp.tls.{key}={}", file.display()));
    Ok((Arc::new(client), settings))
}
