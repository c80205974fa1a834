//! Tests `spanscore learn` and `spanscore drift`: the learned rules load, the good runs satisfy
//! them, and each planted change violates the expected rules or is found as drift. Does not prove
//! that the rules are sensible.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::captures::{Scenario, scenarios};
use crate::support::program::run;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_700_000_000 * SECOND;

#[derive(Clone)]
pub(super) struct Call {
    pub(super) name: &'static str,
    order: String,
    failed: bool,
    seconds: u64,
}

pub(super) fn call(name: &'static str, order: usize) -> Call {
    Call {
        name,
        order: format!("order-{order}"),
        failed: false,
        seconds: 2,
    }
}

/// Returns a good run: a login, searches, an approval and a payment of one order, and a receipt.
pub(super) fn good(n: usize) -> Vec<Call> {
    let mut calls = vec![call("login", n)];
    calls.extend((0..1 + n % 5).map(|search| Call {
        order: format!("query-{n}-{search}"),
        ..call("search", n)
    }));
    calls.extend(["approve", "pay", "send_receipt"].map(|name| call(name, n)));
    calls
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Returns one OTLP JSON line per run. Each run has an agent span above its calls.
pub(super) fn recording(runs: &[Vec<Call>]) -> String {
    let mut text = String::new();
    for (run_idx, calls) in runs.iter().enumerate() {
        let trace_id = format!("{:032x}", 0xabcd_0000 + run_idx);
        let mut now = START + run_idx as u64 * 3600 * SECOND;
        let begin = now;
        let mut spans = Vec::new();
        for (call_idx, call) in calls.iter().enumerate() {
            let end = now + call.seconds * SECOND;
            spans.push(json!({
                "traceId": trace_id,
                "spanId": format!("{:016x}", call_idx + 2),
                "parentSpanId": "0000000000000001",
                "name": format!("execute_tool {}", call.name),
                "startTimeUnixNano": now.to_string(),
                "endTimeUnixNano": end.to_string(),
                "status": { "code": if call.failed { 2 } else { 1 } },
                "attributes": [
                    attribute("gen_ai.operation.name", "execute_tool"),
                    attribute("gen_ai.tool.name", call.name),
                    attribute(
                        "gen_ai.tool.call.arguments",
                        &json!({ "order": call.order }).to_string(),
                    ),
                ],
            }));
            now = end;
        }
        spans.push(json!({
            "traceId": trace_id,
            "spanId": "0000000000000001",
            "name": "invoke_agent shop",
            "startTimeUnixNano": begin.to_string(),
            "endTimeUnixNano": (now + SECOND).to_string(),
            "attributes": [
                attribute("gen_ai.operation.name", "invoke_agent"),
                attribute("gen_ai.agent.name", "shop"),
            ],
        }));
        let line = json!({ "resourceSpans": [{
            "resource": { "attributes": [attribute("service.name", "shop")] },
            "scopeSpans": [{ "spans": spans }],
        }]});
        let _ = writeln!(text, "{line}");
    }
    text
}

/// A folder with a recording and the files learned from it.
struct Learned {
    folder: TempDir,
}

impl Learned {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    fn write(&self, name: &str, runs: &[Vec<Call>]) -> String {
        std::fs::write(self.path(name), recording(runs)).unwrap();
        self.path(name).display().to_string()
    }

    fn from(runs: &[Vec<Call>]) -> Self {
        let learned = Self {
            folder: TempDir::new().unwrap(),
        };
        let file = learned.write("good.jsonl", runs);
        let (code, out, err) = learned.learn(&[&file]);
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
        learned
    }

    fn learn(&self, more: &[&str]) -> (i32, String, String) {
        let (criteria, baseline) = (self.path("learned.yaml"), self.path("baseline.json"));
        let paths = [
            "learn",
            "--output",
            criteria.to_str().unwrap(),
            "--baseline",
            baseline.to_str().unwrap(),
        ];
        run(&[&paths[..], more].concat())
    }

    /// Returns the label of each criterion for a run, and the rules and limits that failed.
    fn judge(&self, calls: Vec<Call>) -> (Vec<(String, String)>, Vec<String>) {
        let file = self.write("run.jsonl", &[calls]);
        let config = self.path("learned.yaml");
        let arguments = ["replay", "--exit-zero", "--format", "jsonl", "--config"];
        let (code, out, err) = run(&[&arguments[..], &[config.to_str().unwrap(), &file]].concat());
        assert_eq!(code, 0, "{err}");
        let lines: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let text = |line: &Value, key: &str| line[key].as_str().unwrap().to_owned();
        let labels = lines
            .iter()
            .map(|line| (text(line, "criterion"), text(line, "label")));
        let written: Value = serde_saphyr::from_str(&self.text("learned.yaml")).unwrap();
        let rules = &written["criteria"][0]["evaluate"]["constraints"]["rules"];
        let mut failed = Vec::new();
        for line in &lines {
            let found = line["details"]["rules"].as_array().into_iter().flatten();
            for (at, _) in (found.enumerate()).filter(|(_, rule)| rule["satisfied"] != json!(true))
            {
                let (template, fields) = rules[at].as_object().unwrap().iter().next().unwrap();
                let kinds = ["a", "b"].map(|key| fields[key].as_str().unwrap_or(""));
                failed.push(format!("{template} {}", kinds.join(" ").trim()));
            }
            let limits = line["details"]["limits"].as_object().into_iter().flatten();
            let broken = limits.filter(|(_, found)| found["kept"] != json!(true));
            failed.extend(broken.map(|(limit, _)| limit.clone()));
        }
        (labels.collect(), failed)
    }

    fn drift(&self, runs: &[Vec<Call>], more: &[&str]) -> (i32, String, String) {
        let file = self.write("window.jsonl", runs);
        let baseline = self.path("baseline.json");
        let arguments = ["drift", "--baseline", baseline.to_str().unwrap()];
        run(&[&arguments[..], more, &[&file]].concat())
    }
}

fn good_runs(n: usize) -> Vec<Vec<Call>> {
    (0..n).map(good).collect()
}

#[test]
fn the_rules_of_forty_runs_read_like_this() {
    let learned = Learned::from(&good_runs(40));
    insta::assert_snapshot!(learned.text("learned.yaml"));
    let path = learned.path("learned.yaml");
    let (code, _, err) = run(&["validate", path.to_str().unwrap()]);
    assert_eq!(code, 0, "{err}");
    assert!(
        !learned.text("learned.yaml").contains("order-1"),
        "no values"
    );
}

#[test]
fn good_runs_keep_the_rules_and_each_planted_change_breaks_the_right_one() {
    let learned = Learned::from(&good_runs(40));
    let pass = |name: &str| (name.to_owned(), "pass".to_owned());
    let fail = |name: &str| (name.to_owned(), "fail".to_owned());
    assert_eq!(
        learned.judge(good(50)).0,
        [pass("shop-rules"), pass("shop-effort")],
        "a later good run"
    );
    let changed = |change: fn(&mut Vec<Call>)| {
        let mut calls = good(51);
        change(&mut calls);
        learned.judge(calls)
    };

    // All rules about the approval fail, and no others.
    let (labels, failed) = changed(|calls| calls.retain(|call| call.name != "approve"));
    assert_eq!(labels, [fail("shop-rules"), pass("shop-effort")]);
    assert_eq!(
        failed,
        [
            "exactly ^approve$",
            "succession ^approve$ ^pay$",
            "succession ^search$ ^approve$",
        ]
    );

    let (labels, failed) = changed(|calls| {
        let approve = calls
            .iter()
            .position(|call| call.name == "approve")
            .unwrap();
        calls.swap(approve, approve + 1);
    });
    assert_eq!(labels, [fail("shop-rules"), pass("shop-effort")]);
    assert_eq!(failed, ["succession ^approve$ ^pay$"]);

    // The payment's order differs from that of the approval and of the receipt.
    let (labels, failed) = changed(|calls| {
        let pay = calls.iter().position(|call| call.name == "pay").unwrap();
        calls[pay].order = "order-7".to_owned();
    });
    assert_eq!(labels, [fail("shop-rules"), pass("shop-effort")]);
    assert_eq!(
        failed,
        [
            "succession ^approve$ ^pay$",
            "precedence ^pay$ ^send_receipt$",
        ]
    );

    let (labels, failed) = changed(|calls| {
        let search = calls[1].clone();
        calls.splice(1..1, std::iter::repeat_n(search, 3));
    });
    assert_eq!(labels, [pass("shop-rules"), fail("shop-effort")]);
    assert_eq!(failed, ["max_repeats"]);
}

/// Rules learned from runs without an agent must not apply to an agent's runs below the same root,
/// which satisfy other rules.
#[test]
fn runs_without_an_agent_are_not_mixed_with_those_of_one() {
    let learned = Learned {
        folder: TempDir::new().unwrap(),
    };
    let of_agent = recording(&good_runs(12)).replace("invoke_agent shop", "session");
    let reversed: Vec<Vec<Call>> = good_runs(12)
        .into_iter()
        .map(|calls| calls.into_iter().rev().collect())
        .collect();
    let of_none = recording(&reversed)
        .replace("abcd", "abce")
        .replace("invoke_agent shop", "session")
        .replace("\"invoke_agent\"", "\"task\"")
        .replace("gen_ai.agent.name", "team");
    let path = learned.path("good.jsonl");
    std::fs::write(&path, of_agent + &of_none).unwrap();
    let file = path.display().to_string();
    let (code, _, err) = learned.learn(&[&file]);
    assert_eq!(code, 0, "{err}");
    assert!(
        err.starts_with(
            "root `session`: 11 rules from 12 runs\n\
             agent `shop` under root `session`: 11 rules from 12 runs\n"
        ),
        "{err}"
    );
    let config = learned.path("learned.yaml").display().to_string();
    let (code, out, err) = run(&["replay", "--config", &config, &file]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        out.ends_with("48 evaluations of 24 traces: 48 passed\n"),
        "{out}"
    );
}

#[test]
fn the_order_of_files_changes_no_byte() {
    let runs = good_runs(24);
    let learned = Learned {
        folder: TempDir::new().unwrap(),
    };
    let files: Vec<String> = runs
        .chunks(5)
        .enumerate()
        .map(|(chunk_idx, chunk)| {
            // Trace ids are derived from the position in a file. The replacement makes them differ
            // between files.
            let text = recording(chunk).replace("abcd", &format!("abc{chunk_idx}"));
            let path = learned.path(&format!("{chunk_idx}.jsonl"));
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        })
        .collect();
    let texts = |files: Vec<&str>| {
        let (code, _, err) = learned.learn(&[&["--force"], &files[..]].concat());
        assert_eq!(code, 0, "{err}");
        (learned.text("learned.yaml"), learned.text("baseline.json"))
    };
    let forwards = texts(files.iter().map(String::as_str).collect());
    let backwards = texts(files.iter().rev().map(String::as_str).collect());
    assert_eq!(forwards, backwards);
}

#[test]
fn nothing_is_learned_from_too_few_or_failed_runs() {
    let learned = Learned {
        folder: TempDir::new().unwrap(),
    };
    let file = learned.write("few.jsonl", &good_runs(9));
    let (code, out, err) = learned.learn(&[&file]);
    assert_eq!((code, out.as_str()), (1, ""));
    insta::assert_snapshot!(err, @r"
    left out: 9 runs of agent `shop` (fewer than --min-runs 10)
    error: nothing to learn from: no agent has 10 good runs; record more, or lower --min-runs
    ");
    assert!(!learned.path("learned.yaml").exists() && !learned.path("baseline.json").exists());

    // Rules learned from runs without calls would forbid every call.
    let file = learned.write("idle.jsonl", &vec![Vec::new(); 12]);
    let (code, out, err) = learned.learn(&[&file]);
    assert_eq!((code, out.as_str()), (1, ""));
    insta::assert_snapshot!(err, @r"
    left out: 12 runs of agent `shop` (none called a tool)
    error: nothing to learn from: no agent has 10 good runs; record more, or lower --min-runs
    ");

    let mut runs = good_runs(12);
    for calls in &mut runs[..3] {
        calls.push(call("delete", 0));
    }
    let file = learned.write("some.jsonl", &runs);
    let config = learned.path("spanscore.yaml");
    let never = "criteria: [{ name: n, evaluate: { tool_calls: { disallowed: [delete] } } }]";
    std::fs::write(&config, never).unwrap();
    let (code, _, err) = learned.learn(&[&file, "--config", config.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(
        err.starts_with("left out: 3 runs failed by a criterion or in error\n"),
        "{err}"
    );
}

#[test]
fn existing_files_are_kept_unless_forced() {
    let learned = Learned::from(&good_runs(10));
    let file = learned.path("good.jsonl").display().to_string();
    std::fs::write(learned.path("learned.yaml"), "mine").unwrap();
    let (code, _, err) = learned.learn(&[&file]);
    assert_eq!(code, 2);
    assert!(
        err.contains("exists already; overwrite it with `--force`"),
        "{err}"
    );
    assert_eq!(learned.text("learned.yaml"), "mine");
    let baseline = learned.path("baseline.json").display().to_string();
    let (code, out, _) = run(&["learn", "-o", "-", "--baseline", &baseline, &file]);
    assert_eq!(
        (code, out.as_str()),
        (2, ""),
        "nothing is written if one file exists"
    );
    let (code, _, err) = learned.learn(&[&file, "--force"]);
    assert_eq!(code, 0, "{err}");
    assert!(learned.text("learned.yaml").contains("criteria:"));
    let both = ["learn", "-o", &baseline, "--baseline", &baseline];
    let (code, _, err) = run(&[&both[..], &["--force", &file]].concat());
    assert_eq!(code, 2);
    assert!(
        err.contains("cannot contain both the criteria and the baseline"),
        "{err}"
    );
    assert!(learned.text("baseline.json").contains("\"version\":1"));
}

#[test]
fn drift_finds_what_changed_and_exits_with_1() {
    let learned = Learned::from(&good_runs(60));
    let (code, out, err) = learned.drift(&good_runs(60), &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let mut runs = good_runs(60);
    for calls in runs.iter_mut().step_by(3) {
        calls.retain(|call| call.name != "approve");
        calls.push(call("complain", 0));
        calls.iter_mut().for_each(|call| call.failed = true);
    }
    let (code, out, _) = learned.drift(&runs, &[]);
    assert_eq!(code, 1);
    insta::assert_snapshot!(out);
    let (code, out, _) = learned.drift(&runs, &["--format", "jsonl", "--exit-zero"]);
    assert_eq!(code, 0);
    let lines: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let labels: Vec<(&str, &str)> = lines
        .iter()
        .map(|line| {
            (
                line["measure"].as_str().unwrap(),
                line["label"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        labels,
        [
            ("tool_use", "fail"),
            ("tool_mix", "fail"),
            ("variants", "fail"),
            ("errors", "fail"),
            ("calls", "pass"),
            ("duration", "pass"),
        ]
    );
    assert_eq!(lines[0]["tool"], json!("approve"));
    assert_eq!(lines[1]["new_tools"], json!(["complain"]));
}

#[test]
fn a_baseline_that_cannot_be_used_is_refused_with_its_place() {
    let learned = Learned::from(&good_runs(30));
    let baseline = learned.path("baseline.json");
    let later = learned
        .text("baseline.json")
        .replace("\"version\":1", "\"version\":9");
    std::fs::write(&baseline, later).unwrap();
    let (code, out, err) = learned.drift(&good_runs(30), &[]);
    assert_eq!((code, out.as_str()), (2, ""));
    let why = "has version 9, and this program reads version 1; write it anew with `spanscore \
               learn --baseline FILE`\n";
    assert_eq!(err, format!("error: {}: {why}", baseline.display()));
    std::fs::remove_file(&baseline).unwrap();
    let (code, _, err) = learned.drift(&good_runs(30), &[]);
    assert_eq!(code, 3);
    assert!(err.contains("cannot be read"), "{err}");

    let learned = Learned::from(&good_runs(10));
    let (code, out, err) = learned.drift(&good_runs(19), &[]);
    assert_eq!(code, 1, "{out}");
    assert!(err.contains("nothing was compared"), "{err}");
    assert!(out.contains("not compared: too few runs"), "{out}");
}

#[test]
fn recorded_sessions_keep_the_rules_that_are_learned_from_them() {
    let folder = TempDir::new().unwrap();
    let mut captures: BTreeMap<String, Vec<Scenario>> = BTreeMap::new();
    for scenario in scenarios() {
        let framework = scenario.name.split('/').next().unwrap().to_owned();
        captures.entry(framework).or_default().push(scenario);
    }
    let mut n_learned = 0;
    for (name, scenarios) in captures {
        let mut files = Vec::new();
        for scenario in &scenarios {
            let place = folder.path().join(&scenario.name);
            std::fs::create_dir_all(&place).unwrap();
            for (file, body) in &scenario.requests {
                std::fs::write(place.join(file), body).unwrap();
                files.push(place.join(file).display().to_string());
            }
        }
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let path = |file: &str| folder.path().join(&name).join(file).display().to_string();
        let (criteria, baseline) = (path("learned.yaml"), path("baseline.json"));
        let learn = [
            "learn",
            "--min-runs",
            "3",
            "--output",
            &criteria,
            "--baseline",
            &baseline,
        ];
        let (code, _, err) = run(&[&learn, &files[..]].concat());
        if code == 1 {
            assert!(err.contains("nothing to learn from"), "{name}: {err}");
            continue;
        }
        assert_eq!(code, 0, "{name}: {err}");
        n_learned += 1;
        let (code, _, err) = run(&["validate", &criteria]);
        assert_eq!(code, 0, "{name}: {err}");
        let (code, out, err) = run(&[&["replay", "--config", &criteria], &files[..]].concat());
        assert_eq!(code, 0, "{name}: {out}{err}");
    }
    assert!(
        n_learned >= 5,
        "only {n_learned} captures have three runs of one agent"
    );
}
