//! The sidecar under attack, in a control group of its own where one can be made, and the
//! downstream behind it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Limit of the control group, in bytes.
const GROUP_LIMIT: u64 = 128 << 20;

/// Where the memory controller of version 1 is mounted; version 2 has its files in the root.
const GROUPS: [(&str, &str, &str); 2] = [
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.max_usage_in_bytes",
    ),
    ("/sys/fs/cgroup", "memory.max", "memory.peak"),
];

const CRITERIA: &str = "
criteria:
  - name: order
    evaluate: { tool_call_order: { tool_calls_order: [a, b] } }
  - name: none
    evaluate: { tool_calls: { disallowed: [rm] } }
";

// === Downstream ===

/// Takes everything.
pub(crate) struct Downstream {
    address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Downstream {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(async |request: Request<Incoming>| {
                    let mut body = request.into_body();
                    while let Some(Ok(_)) = body.frame().await {}
                    Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
                });
                // A sidecar that dies closes its connections; that shows elsewhere.
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        Self { address, serving }
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

// === Sidecar ===

/// Where to attack.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
}

pub(crate) struct Sidecar {
    pub(crate) target: Target,
    child: Child,
    group: Option<Group>,
    _config: tempfile::TempDir,
}

/// What it took at most, and how often it was at its limit.
pub(crate) struct Memory {
    pub(crate) peak: u64,
    pub(crate) limit: u64,
    pub(crate) n_at_limit: u64,
}

impl Sidecar {
    pub(crate) fn start(downstream: &Downstream) -> io::Result<Self> {
        let config = tempfile::tempdir()?;
        let file = config.path().join("hostile.yaml");
        fs::write(&file, CRITERIA)?;
        let group = Group::make();
        let mut command = Command::new(env!("CARGO_BIN_EXE_spanscore"));
        command.env_clear().args(["run", "--config"]).arg(&file);
        for setting in [
            "memory.limit=112MiB".to_owned(),
            "receivers.otlp.grpc.listen=127.0.0.1:0".to_owned(),
            "receivers.otlp.http.listen=127.0.0.1:0".to_owned(),
            "admin.listen=127.0.0.1:0".to_owned(),
            format!("forward.endpoint=http://{}", downstream.address),
            "forward.protocol=http/protobuf".to_owned(),
            "log.format=json".to_owned(),
        ] {
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
        // Read to the end, so that it never waits for us.
        std::thread::spawn(move || log.lines().map_while(Result::ok).for_each(drop));
        Ok(Self {
            target: Target {
                http: addresses["receivers.otlp.http.listen"],
                grpc: addresses["receivers.otlp.grpc.listen"],
                admin: addresses["admin.listen"],
            },
            child,
            group,
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
            limit: GROUP_LIMIT,
            n_at_limit: self.group.as_ref().map_or(0, Group::n_at_limit),
        }
    }

    /// Whether accepted = sent + queued + dropped, in spans, once the queues are empty.
    pub(crate) async fn books_balance(&self) -> Result<(), String> {
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
            if accepted > 0 && accepted == sent + dropped {
                return Ok(());
            }
            seen = format!("accepted {accepted}, sent {sent}, dropped {dropped}");
            sleep(Duration::from_millis(100)).await;
        }
        Err(format!("the books do not balance: {seen}"))
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        // It may have died already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body of a page.
async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

// === Group ===

/// A control group, removed when dropped.
struct Group {
    path: PathBuf,
    failures: PathBuf,
}

impl Group {
    fn make() -> Option<Self> {
        for (number, (root, limit, peak)) in GROUPS.into_iter().enumerate() {
            let path =
                PathBuf::from(root).join(format!("spanscore-hostile-{}", std::process::id()));
            let made = fs::create_dir(&path).and_then(|()| {
                fs::write(path.join(limit), GROUP_LIMIT.to_string())?;
                fs::metadata(path.join(peak))
            });
            if made.is_ok() {
                let file = ["memory.failcnt", "memory.events"][number];
                return Some(Self {
                    failures: path.join(file),
                    path,
                });
            }
            // It may not exist.
            let _ = fs::remove_dir(&path);
        }
        None
    }

    fn add(&self, process: u32) -> io::Result<()> {
        fs::write(self.path.join("cgroup.procs"), process.to_string())
    }

    /// Allocations that met the limit: a number (version 1), or the line `max` (version 2).
    fn n_at_limit(&self) -> u64 {
        let text = fs::read_to_string(&self.failures).unwrap_or_default();
        let number = text
            .lines()
            .find_map(|line| line.strip_prefix("max "))
            .unwrap_or(text.trim());
        number.parse().unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A group can be removed once its processes are gone, as they are when the sidecar's fields
        // are dropped.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Says whether the limit is enforced or only compared.
pub(crate) fn group_notice() -> &'static str {
    match Group::make() {
        Some(_) => "each sidecar runs in a control group of 128 MiB",
        None => "did not make a control group: resident memory is compared with 128 MiB instead",
    }
}
