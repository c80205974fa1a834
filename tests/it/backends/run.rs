//! Code shared by the tests of all backends: the captured run that is sent, a backend's process,
//! and queries that are repeated until they have a result.

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::eventually::blocking;
use crate::support::program::{self, RECORDING, Running, http};

/// The id of the recorded session's only trace. The three criteria of `examples/demo.yaml` judge
/// it, and one of them fails.
pub(crate) const TRACE_ID: &str = "827b1ba03b42deebf9171748d094dad8";
/// Maximum time for a backend to start or to show its data. It is long because backends are large
/// programs and test machines are busy.
const PATIENCE: Duration = Duration::from_secs(240);

/// A backend's process and its folder. Dropping this value kills the process.
pub(crate) struct Backend {
    child: Child,
    pub(crate) folder: TempDir,
}

impl Backend {
    /// Starts the process and waits until `address` accepts connections. The process's output goes
    /// to the file `log` in its folder.
    pub(crate) fn start(folder: TempDir, mut command: Command, address: &str) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let child = command
            .env("HOME", folder.path())
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut backend = Self { child, folder };
        until(|| {
            if let Some(status) = backend.child.try_wait().unwrap() {
                panic!("the backend has ended: {status}\n{}", backend.log());
            }
            TcpStream::connect(address).ok()
        });
        backend
    }

    pub(crate) fn log(&self) -> String {
        let mut text = String::new();
        File::open(self.folder.path().join("log"))
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        text
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        // The process may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeats a query until it has a result.
pub(crate) fn until<T>(ask: impl FnMut() -> Option<T>) -> T {
    blocking(PATIENCE, "an answer of the backend", ask)
}

/// Returns the JSON body of a successful GET; `None` otherwise.
pub(crate) fn get(address: &str, path: &str) -> Option<Value> {
    let answer = http(address, &format!("GET {path}"), b"");
    let (head, body) = answer.split_once("\r\n\r\n")?;
    if !head.lines().next()?.contains(" 200") {
        return None;
    }
    let chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    serde_json::from_str(&if chunked { unchunked(body) } else { body.to_owned() }).ok()
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            break;
        }
        out.push_str(&rest[..size]);
        body = &rest[size + 2..];
    }
    out
}

/// Starts a sidecar with this configuration and the criteria of the demo.
pub(crate) fn sidecar(folder: &Path, configuration: &str) -> Running {
    let criteria = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo.yaml");
    let path = folder.join("spanscore.yaml");
    let text = format!(
        "criteria_files: [\"{}\"]\nassemble: {{ settle: 1s }}\nshutdown: {{ deadline: 3m }}\
         \n{configuration}",
        criteria.display()
    );
    std::fs::write(&path, text).unwrap();
    let (code, _, mistakes) = program::run(&["validate", path.to_str().unwrap()]);
    assert_eq!(
        (code, mistakes.as_str()),
        (0, ""),
        "the configuration that the documentation shows"
    );
    Running::start(&["--config", path.to_str().unwrap()])
}

/// The criterion, label and value of a score.
pub(crate) type Told = (String, String, f64);

/// Returns the scores that `spanscore replay` prints for the recorded session, sorted by criterion.
pub(crate) fn expected() -> Vec<Told> {
    let (code, lines, _) = program::replay(&["--format", "jsonl", "--exit-zero"]);
    assert_eq!(code, 0);
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut told: Vec<Told> = lines
        .map(|line| told(&line["criterion"], &line["label"], &line["score"]))
        .collect();
    told.sort_by(|left, right| left.0.cmp(&right.0));
    assert_eq!(told.len(), 3);
    told
}

pub(crate) fn told(criterion: &Value, label: &Value, score: &Value) -> Told {
    (
        criterion.as_str().unwrap().to_owned(),
        label.as_str().unwrap().to_owned(),
        score.as_f64().unwrap(),
    )
}

pub(crate) fn send_recording(otlp: &str) {
    for file in RECORDING {
        let body = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
        let answer = http(otlp, "POST /v1/traces", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}

/// Sends the recorded session through a sidecar with this configuration, then stops the sidecar,
/// which must deliver everything.
pub(crate) fn score(folder: &Path, configuration: &str) {
    let mut sidecar = sidecar(folder, configuration);
    let [otlp, _] = sidecar.addresses();
    send_recording(&otlp);
    stop(sidecar);
}

/// Stops a sidecar. Its last log line must confirm that everything was delivered.
pub(crate) fn stop(mut sidecar: Running) {
    sidecar.signal(Signal::TERM);
    let mut log = Vec::new();
    loop {
        let line = sidecar.line();
        if line["message"]
            .as_str()
            .is_some_and(|message| message.starts_with("stopped"))
        {
            assert_eq!(
                line["message"], "stopped; everything was delivered",
                "{log:#?}"
            );
            break;
        }
        log.push(line);
    }
    assert_eq!(sidecar.ended().0, 0);
}
