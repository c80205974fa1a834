//! Tests every command of the README. `.ci/run` runs the commands that build, and this test
//! compares `.ci/run` with the README. All other commands run here, in order, each in a shell, in a
//! folder with the repository's folders `examples` and `deploy`. Blocks marked `text` need the
//! reader's agent or backend; only their settings are validated.

use std::path::Path;
use std::process::Command;

use opentelemetry_proto::tonic::trace::v1::Status;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::spans::{SpanCall, request, spans_of_run};

const README: &str = include_str!("../../README.md");
const CI: &str = include_str!("../../.ci/run");

/// Returns the commands in blocks marked `sh`, in order.
fn commands() -> Vec<&'static str> {
    let mut commands = Vec::new();
    let mut in_block = false;
    for line in README.lines() {
        match line {
            "```sh" => in_block = true,
            "```" => in_block = false,
            _ if in_block => commands.push(line),
            _ => {}
        }
    }
    assert!(commands.len() > 8, "the README has commands: {commands:?}");
    commands
}

fn is_run_by_ci(command: &str) -> bool {
    command.starts_with("cargo ") || command.starts_with("target/install/")
}

#[test]
fn ci_runs_the_commands_that_build() {
    for command in commands()
        .into_iter()
        .filter(|command| is_run_by_ci(command))
    {
        assert!(
            CI.lines()
                .any(|line| line.trim() == format!("step {command}")),
            "`.ci/run` has no line `step {command}`"
        );
    }
}

#[test]
fn every_other_command_works_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for shared in ["examples", "deploy"] {
        std::os::unix::fs::symlink(root.join(shared), folder.path().join(shared)).unwrap();
    }
    let programs = Path::new(env!("CARGO_BIN_EXE_spanscore")).parent().unwrap();
    let path = format!("{}:{}", programs.display(), "/usr/local/bin:/usr/bin:/bin");
    for command in commands()
        .into_iter()
        .filter(|command| !is_run_by_ci(command))
    {
        let output = Command::new("bash")
            .args(["-euc", command])
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", &path)
            .output()
            .unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(
            output.status.success(),
            "`{command}` ended with {}\n{out}{err}",
            output.status
        );
        assert!(
            !out.is_empty() || !err.is_empty(),
            "`{command}` says something"
        );
    }
}

/// Returns a folder with the configuration that the README shows.
fn shown_configuration() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let yaml = README
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the README shows criteria");
    std::fs::write(folder.path().join("spanscore.yaml"), yaml).unwrap();
    folder
}

/// The README begins with two questions: was `authenticate` called before `transfer`, and was
/// `delete` never called?
#[test]
fn the_criteria_it_shows_answer_the_questions_it_asks() {
    let folder = shown_configuration();
    for (calls, failed) in [
        (&["authenticate", "transfer", "transfer"][..], &[][..]),
        (&["transfer", "authenticate"], &["authenticate-first"]),
        (
            &["transfer", "authenticate", "transfer"],
            &["authenticate-first"],
        ),
        (
            &["authenticate failed", "transfer"],
            &["authenticate-first"],
        ),
        (&["delete"], &["never-delete"]),
        (&["search"], &[]),
    ] {
        let named = calls.iter().map(|call| SpanCall {
            name: call.trim_end_matches(" failed").to_owned(),
            ..SpanCall::default()
        });
        let mut spans = spans_of_run(1, &[], &named.collect::<Vec<_>>());
        for (span, call) in spans.iter_mut().skip(1).zip(calls) {
            let code = if call.ends_with(" failed") { 2 } else { 0 };
            span.status = Some(Status {
                code,
                ..Status::default()
            });
        }
        std::fs::write(folder.path().join("run.traces.pb"), request(spans)).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_spanscore"))
            .args([
                "replay",
                "--exit-zero",
                "--format",
                "jsonl",
                "run.traces.pb",
            ])
            .current_dir(folder.path())
            .env_clear()
            .output()
            .unwrap();
        let lines = String::from_utf8(output.stdout).unwrap();
        let scores = lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let found = scores.filter(|score| score["label"] == "fail");
        let found: Vec<_> = found.map(|score| score["criterion"].clone()).collect();
        assert_eq!(found, failed, "{calls:?}: {lines}");
        assert!(lines.lines().count() > 0, "{calls:?} is judged");
    }
}

#[test]
fn the_criteria_and_the_flags_it_shows_are_valid() {
    let folder = shown_configuration();
    let shown = [
        "forward.endpoint=http://my-collector:4317",
        "scores.event.enabled=false",
        "receivers.otlp.grpc.listen=0.0.0.0:4317",
    ];
    let flags = shown.iter().flat_map(|flag| ["--set", *flag]);
    let output = Command::new(env!("CARGO_BIN_EXE_spanscore"))
        .arg("validate")
        .args(flags)
        .current_dir(folder.path())
        .env_clear()
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "spanscore.yaml: ok, 2 criteria\n"
    );
}
