//! Runs the program under test, and communicates with a running one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
#[cfg(feature = "kafka")]
use {super::eventually::within, std::time::Duration};

pub(crate) const RECORDING: [&str; 6] = [
    "examples/recording/001.traces.pb",
    "examples/recording/002.traces.pb",
    "examples/recording/003.traces.pb",
    "examples/recording/004.traces.pb",
    "examples/recording/005.traces.pb",
    "examples/recording/006.traces.pb",
];

pub(crate) fn spanscore(arguments: &[&str]) -> Command {
    in_working_folder(Command::new(env!("CARGO_BIN_EXE_spanscore")), arguments)
}

fn in_working_folder(mut command: Command, arguments: &[&str]) -> Command {
    command
        .args(arguments)
        .current_dir(working_folder())
        .env_clear();
    command
}

/// Returns a folder with links to some folders of the repository, without a configuration. A
/// developer may have a `spanscore.yaml` in the repository, which the program would read there.
pub(crate) fn working_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("working-folder");
        fs::create_dir_all(&folder).unwrap();
        // Other test processes may create the links at the same time.
        for shared in ["examples", "tests"] {
            let _ = symlink(root.join(shared), folder.join(shared));
        }
        folder
    })
}

pub(crate) fn run(arguments: &[&str]) -> (i32, String, String) {
    told(spanscore(arguments).output().unwrap())
}

pub(crate) fn told(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code().unwrap(),
        text(output.stdout),
        text(output.stderr),
    )
}

pub(crate) fn replay(more: &[&str]) -> (i32, String, String) {
    run(&[
        &["replay", "--config", "examples/demo.yaml"],
        more,
        &RECORDING,
    ]
    .concat())
}

pub(crate) const FREE_PORTS: [&str; 6] = [
    "--set",
    "receivers.otlp.grpc.listen=127.0.0.1:0",
    "--set",
    "receivers.otlp.http.listen=127.0.0.1:0",
    "--set",
    "admin.listen=127.0.0.1:0",
];

/// A running sidecar and its log. Dropping this value kills the sidecar.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) log: BufReader<std::process::ChildStderr>,
}

impl Running {
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::start_printing_to(Stdio::piped(), more)
    }

    pub(crate) fn start_printing_to(stdout: Stdio, more: &[&str]) -> Self {
        let command = spanscore(&[&["run"], &FREE_PORTS[..], more].concat());
        Self::spawn(command, stdout)
    }

    /// Starts the program. With `tampering` (`CALLS:HOW`), starts it under a `strace` that tampers
    /// with these system calls. The program is our child process in both cases.
    pub(crate) fn start_tampered(tampering: Option<&str>, more: &[&str]) -> Self {
        let Some(tampering) = tampering else {
            return Self::start(more);
        };
        let calls = tampering.split_once(':').map_or("", |(calls, _)| calls);
        let mut command = Command::new("strace");
        command.args(["--daemonize", "--follow-forks", "--output=/dev/null"]);
        command.arg(format!("--trace={calls}"));
        command.arg(format!("--inject={tampering}"));
        command.arg(env!("CARGO_BIN_EXE_spanscore"));
        let arguments = [&["run"], &FREE_PORTS[..], more].concat();
        Self::spawn(in_working_folder(command, &arguments), Stdio::piped())
    }

    fn spawn(mut command: Command, stdout: Stdio) -> Self {
        let mut child = command
            .stdout(stdout)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        Self { child, log }
    }

    pub(crate) fn line(&mut self) -> Value {
        let mut line = String::new();
        self.log.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Waits until all three ports listen. Returns the addresses of OTLP/HTTP and of the admin
    /// port. The log lines may be in any order.
    pub(crate) fn addresses(&mut self) -> [String; 2] {
        let addresses = self.addresses_unless_ended();
        addresses.expect("it listens")
    }

    /// Like [`Self::addresses`], but `None` if the program ends before it has logged the addresses.
    pub(crate) fn addresses_unless_ended(&mut self) -> Option<[String; 2]> {
        let mut addresses = BTreeMap::new();
        while addresses.len() < 3 {
            let mut line = String::new();
            self.log.read_line(&mut line).unwrap();
            // A truncated line also means that the program has ended.
            if !line.ends_with('\n') {
                return None;
            }
            let line: Value =
                serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            if line["message"] == "listening" {
                addresses.insert(
                    line["setting"].as_str().unwrap().to_owned(),
                    line["address"].as_str().unwrap().to_owned(),
                );
            }
        }
        let settings = ["receivers.otlp.http.listen", "admin.listen"];
        Some(settings.map(|setting| addresses[setting].clone()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for a start that fails. Returns the exit code and all messages.
    pub(crate) fn failed(mut self) -> (i32, String) {
        let mut messages = String::new();
        self.log.read_to_string(&mut messages).unwrap();
        (self.child.wait().unwrap().code().unwrap(), messages)
    }

    /// Waits until the program has ended. Returns its exit code and standard output.
    pub(crate) fn ended(mut self) -> (i32, String) {
        let mut out = String::new();
        self.child
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut out)
            .unwrap();
        (self.child.wait().unwrap().code().unwrap(), out)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts `tap`, and waits until it prints that it listens.
pub(crate) fn listening(arguments: &[&str]) -> (Child, BufReader<ChildStderr>) {
    let mut child = spanscore(&[&["tap"], arguments].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let what = if arguments.contains(&"--alarms") { "alarms" } else { "scores" };
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(
        line.starts_with(&format!("streaming {what} from http://")),
        "{line}"
    );
    (child, err)
}

pub(crate) fn http(address: &str, request: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "{request} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\
         \ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Sends a request. Returns true if it was acknowledged, and false also if a killed sidecar does
/// not respond.
pub(crate) fn is_acknowledged(address: &str, body: &[u8]) -> bool {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        write!(
            stream,
            "POST /v1/traces HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\
             \ncontent-type: application/x-protobuf\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )?;
        stream.write_all(body)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    exchange().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Returns the value of a metric; 0 if it is missing.
pub(crate) fn metric(admin: &str, name: &str) -> f64 {
    let page = http(admin, "GET /metrics", &[]);
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.map_or(0.0, |value| value.parse().unwrap())
}

/// Waits until a metric has the expected value. Panics after five minutes.
#[cfg(feature = "kafka")]
pub(crate) async fn wait_for_metric(admin: &str, name: &str, is_right: impl Fn(f64) -> bool) {
    within(Duration::from_secs(300), name, || {
        is_right(metric(admin, name)).then_some(())
    })
    .await;
}
