//! Tests the start of a sidecar (a faulty configuration, the printed address of the page) and its
//! exit code.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Stdio;

use rustix::fs::OFlags;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use crate::support::program::{RECORDING, Running, http};

#[test]
fn what_could_not_be_delivered_changes_the_exit_code_only_where_asked() {
    let body = std::fs::read(RECORDING[0]).unwrap();
    let exit = |set: &[&str]| {
        let unreachable = ["--set", "forward.endpoint=http://127.0.0.1:1"];
        let hasty = [
            "--set",
            "shutdown.deadline=1s",
            "--set",
            "shutdown.quiet=1ms",
        ];
        let mut sidecar = Running::start(&[&unreachable[..], &hasty, set].concat());
        let [http_address, _] = sidecar.addresses();
        let answer = http(&http_address, "POST /v1/traces", &body);
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        sidecar.signal(Signal::TERM);
        sidecar.ended().0
    };
    assert_eq!(exit(&[]), 0);
    assert_eq!(exit(&["--set", "shutdown.exit_undelivered=true"]), 5);
}

/// A configuration with a valid and a faulty criterion, and with an invalid section.
const WRONG: &str = "\
receivers: { otlp: { max_in_flight: many } }
criteria:
  - name: sound
    evaluate: { tool_calls: { disallowed: [delete] } }
  - name: wrong
    evaluate: { tool_calls: { disalowed: [delete] } }
";

#[test]
fn a_start_with_mistakes_forwards_and_judges_what_is_sound_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spanscore.yaml");
    std::fs::write(&path, WRONG).unwrap();
    let config = ["--config", path.to_str().unwrap()];
    let downstream = ["--set", "forward.endpoint=http://127.0.0.1:1"];
    let forward = ["--set", "reload.at_start=forward"];
    let refused = |set: &[&str]| {
        let (code, err) = Running::start(&[&config[..], set].concat()).failed();
        assert!(
            err.contains("`disalowed`") && err.contains("max_in_flight"),
            "{err}"
        );
        code
    };
    assert_eq!(refused(&downstream), 2, "the default refuses");
    assert_eq!(
        refused(&forward),
        2,
        "telemetry would be acknowledged and lost"
    );

    let mut sidecar = Running::start(&[&config[..], &downstream, &forward].concat());
    let [_, admin] = sidecar.addresses();
    let refusal = loop {
        let line = sidecar.line();
        if line["problems"].is_string() {
            break line;
        }
    };
    assert_eq!(refusal["level"], "ERROR");
    assert!(
        refusal["problems"]
            .as_str()
            .unwrap()
            .contains("`disalowed`")
    );
    let status = http(&admin, "GET /v1/status", b"");
    let body: Value = serde_json::from_str(status.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["reload"]["last"]["result"], "refused", "{body}");
    let criteria = http(&admin, "GET /v1/criteria", b"");
    assert!(
        criteria.contains("sound") && !criteria.contains("wrong"),
        "{criteria}"
    );
    let metrics = http(&admin, "GET /metrics", b"");
    assert!(
        metrics.contains("spanscore_config_reload_failed 1"),
        "{metrics}"
    );
    sidecar.signal(Signal::TERM);
    assert_eq!(sidecar.ended().0, 0);
}

/// Returns the two ends of a new terminal: the user's end and the program's end.
fn terminal() -> (OwnedFd, File) {
    let seen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&seen).unwrap();
    unlockpt(&seen).unwrap();
    let name = ptsname(&seen, Vec::new()).unwrap();
    let printed = File::options()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOCTTY.bits().cast_signed())
        .open(OsStr::from_bytes(name.as_bytes()))
        .unwrap();
    (seen, printed)
}

#[test]
fn the_address_of_the_page_is_printed_once_and_on_a_terminal_only() {
    const WORDS: &str = "look at the runs at ";
    let addresses = |stdout: Stdio, set: &[&str]| {
        let mut sidecar = Running::start_printing_to(stdout, set);
        // The page's address may be printed before or after the log lines about ports.
        let (mut log, mut admin, mut n_ports) = (String::new(), String::new(), 0);
        while n_ports < 3 {
            let begin = log.len();
            sidecar.log.read_line(&mut log).unwrap();
            let Ok(line) = serde_json::from_str::<Value>(&log[begin..]) else {
                continue;
            };
            n_ports += usize::from(line["message"] == "listening");
            if line["setting"] == "admin.listen" {
                admin = line["address"].as_str().unwrap().to_owned();
            }
        }
        let page = http(&admin, "GET /", b"");
        sidecar.signal(Signal::TERM);
        sidecar.log.read_to_string(&mut log).unwrap();
        let lines = log.lines().filter_map(|line| line.strip_prefix(WORDS));
        let port = admin.rsplit(':').next().unwrap().to_owned();
        (page, port, lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let (_seen, printed) = terminal();
    let copy = || Stdio::from(printed.try_clone().unwrap());
    let (page, port, found) = addresses(copy(), &[]);
    assert_eq!(found, [format!("http://localhost:{port}/")]);
    assert!(page.contains("<title>spanscore</title>"), "{page}");
    assert_eq!(addresses(Stdio::piped(), &[]).2, [""; 0]);
    let (page, _, found) = addresses(copy(), &["--set", "admin.page.enabled=false"]);
    assert_eq!(found, [""; 0]);
    assert!(page.starts_with("HTTP/1.1 404"), "{page}");
}
