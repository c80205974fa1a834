//! Tests `spanscore tap` and `GET /v1/scores`: a sidecar scores the recorded session of the demo
//! while clients listen.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::program::{RECORDING, Running, http, listening, replay, run, told};

const QUICK: [&str; 6] = [
    "--config",
    "examples/demo.yaml",
    "--set",
    "assemble.settle=100ms",
    "--set",
    "shutdown.quiet=0s",
];

fn feed(otlp: &str) {
    for path in RECORDING {
        let body = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        assert!(http(otlp, "POST /v1/traces", &body).starts_with("HTTP/1.1 200 OK"));
    }
}

fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line
}

#[test]
fn the_lines_of_a_tap_are_those_of_replay() {
    let mut sidecar = Running::start(&QUICK);
    let [otlp, admin] = sidecar.addresses();
    let (live, mut err) = listening(&["--address", &admin, "--format", "jsonl", "--count", "3"]);
    feed(&otlp);
    let (code, out, _) = told(live.wait_with_output().unwrap());
    assert_eq!((code, line(&mut err).as_str()), (0, ""));
    assert_eq!(out, replay(&["--format", "jsonl"]).1);

    // A client that connects later can still get the last scores, also in the human-readable
    // format.
    let (code, out, _) = run(&[
        "tap",
        "--address",
        &format!("http://{admin}"),
        "--last",
        "9",
        "--label",
        "fail",
        "--count",
        "1",
    ]);
    assert_eq!(code, 0);
    assert!(
        out.starts_with("FAIL  charge-exactly-once  0.00 (threshold 1.00)\n")
            && out.lines().last().unwrap().contains("root_ended"),
        "{out}"
    );

    // Any HTTP client can listen to scores.
    let mut stream = TcpStream::connect(&admin).unwrap();
    write!(
        stream,
        "GET /v1/scores?last=2&criterion=*e HTTP/1.0\r\nhost: localhost\r\
        \naccept: text/event-stream\r\n\r\n"
    )
    .unwrap();
    sidecar.signal(Signal::TERM);
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("content-type: text/event-stream\r\n"),
        "{answer}"
    );
    let events: Vec<&str> = answer
        .split_once("\r\n\r\n")
        .unwrap()
        .1
        .split("\n\n")
        .filter(|event| !event.is_empty())
        .collect();
    let criterion = |event: &str| {
        serde_json::from_str::<Value>(event.strip_prefix("data: ").unwrap()).unwrap()["criterion"]
            .clone()
    };
    assert_eq!(
        events.into_iter().map(criterion).collect::<Vec<_>>(),
        ["look-up-before-charge", "charge-exactly-once"]
    );
}

#[test]
fn a_tap_waits_for_a_sidecar_that_comes_again_and_ends_with_ctrl_c() {
    let mut first = Running::start(&QUICK);
    let [_, admin] = first.addresses();
    let (mut live, mut err) = listening(&["--address", &admin, "--format", "jsonl"]);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().0, 0);
    assert_eq!(
        line(&mut err),
        format!("http://{admin}: the sidecar has stopped; retrying until it responds\n")
    );
    let mut second =
        Running::start(&[&QUICK[..], &["--set", &format!("admin.listen={admin}")]].concat());
    let [otlp, _] = second.addresses();
    assert_eq!(
        line(&mut err),
        "reconnected; scores from the interruption are not shown\n"
    );
    feed(&otlp);
    let mut out = BufReader::new(live.stdout.take().unwrap());
    assert!(line(&mut out).contains("\"look-up-before-charge\""));
    kill_process(Pid::from_child(&live), Signal::INT).unwrap();
    assert_eq!(live.wait().unwrap().code(), Some(130));
}

#[test]
fn a_reader_may_close_the_pipe_early() {
    let mut sidecar = Running::start(&QUICK);
    let [otlp, admin] = sidecar.addresses();
    let (mut live, _err) = listening(&["--address", &admin]);
    drop(live.stdout.take());
    feed(&otlp);
    assert_eq!(live.wait().unwrap().code(), Some(0));
}

#[test]
fn who_may_not_listen_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let token = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (right, wrong) = (token("right", "s3cr3t\n"), token("wrong", "guess"));
    let mut sidecar =
        Running::start(&[&QUICK[..], &["--set", &format!("admin.token_file={right}")]].concat());
    let [otlp, admin] = sidecar.addresses();
    feed(&otlp);
    for (arguments, code, part) in [
        (
            vec!["--address", &admin],
            4,
            "answers 401: this API requires the token in `admin.token_file`",
        ),
        (
            vec!["--address", &admin, "--token-file", &wrong],
            4,
            "answers 401: the token is not the one",
        ),
        (
            vec!["--address", &admin, "--token-file", "none"],
            2,
            "cannot read the token in `none`",
        ),
        (
            vec!["--address", "http://a/b"],
            2,
            "`http://a/b` is not an address: write HOST:PORT",
        ),
        (
            vec!["--address", "127.0.0.1:1"],
            4,
            "no response from http://127.0.0.1:1: ",
        ),
    ] {
        let (found, out, err) = run(&[&["tap"], &arguments[..]].concat());
        assert_eq!((found, out.as_str()), (code, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(part), "{err}");
    }
    let (code, out, _) = run(&[
        "tap",
        "--address",
        &admin,
        "--token-file",
        &right,
        "--last",
        "3",
        "--count",
        "3",
    ]);
    assert_eq!(
        (
            code,
            out.lines()
                .filter(|line| line.starts_with("      trace "))
                .count()
        ),
        (0, 3),
        "{out}"
    );
}
