//! Compares recorded payloads of real frameworks with what their agents did. Scans, assembles and
//! extracts every scenario of `tests/captures` as `replay` does, compares it call by call, and
//! prints a table (`cargo test -p spanscore-judge captures -- --nocapture`). `exceptions.json`
//! lists each difference that the payload itself causes, with its reason. Any other difference
//! fails the test, and so does an exception that no longer occurs. The table in
//! `tests/captures/README.md` and the list in `docs/frameworks.md` are generated from the
//! comparison. Does not test timers, transports or evaluators.

mod copies;
mod coverage;
mod half_arrived;
mod selected_agents;
mod spellings;
mod told_errors;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::support::now;
use judge::assemble::Settings;
use judge::evaluate::Verdict;
use judge::extract::{Payload, ToolCall, Trajectory};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::span::{Batch, Span};
use otlp::{json, scan, scan_logs};
use serde_json::{Value, json};

use crate::support::captures::{self as load, Scenario};
use coverage::Coverage;

const EXCEPTIONS: &str = include_str!("../../captures/exceptions.json");

const COLUMNS: &[&str] = &[
    "found", "false", "order", "args", "results", "errors", "agents", "session", "call_ids",
    "groups", "steps",
];

#[test]
fn every_framework_shows_the_calls_that_were_made() {
    let mut exceptions = exceptions();
    let mut wrong = Vec::new();
    let mut coverage = Coverage::default();
    println!("{:<46} {:>7} {}", "scenario", "calls", COLUMNS.map_join());
    for scenario in load::scenarios() {
        let rules = Rules::new(Vec::new());
        let trajectories = trajectories(items(&scenario, &rules), &rules);
        let found = compare(&scenario, &trajectories);
        let n_expected = expected_calls(&scenario).len();
        let n_missing = |column: &str| found.get(column).map(Vec::len).unwrap_or_default();
        let n_with_calls = trajectories
            .iter()
            .filter(|trajectory| !trajectory.tool_calls.is_empty())
            .count();
        coverage.add(&scenario.name, &scenario.expected, n_missing, n_with_calls);
        let cell = |column: &&str| match found.get(*column).map(Vec::len).unwrap_or_default() {
            0 => format!("{:>8}", "ok"),
            n => format!("{:>8}", format!("-{n}")),
        };
        println!(
            "{:<46} {:>7} {}",
            scenario.name,
            n_expected,
            COLUMNS.iter().map(cell).collect::<String>()
        );
        for column in COLUMNS {
            let differences = found.get(column).map(Vec::as_slice).unwrap_or_default();
            let excused = exceptions.remove(&(scenario.name.clone(), (*column).to_owned()));
            if excused.unwrap_or_default() != differences.len() {
                wrong.push(format!(
                    "{} {column}: {} excused, {} found: {}",
                    scenario.name,
                    excused.unwrap_or_default(),
                    differences.len(),
                    differences.join("; ")
                ));
            }
        }
    }
    wrong.extend(exceptions.keys().map(|(scenario, column)| {
        format!("{scenario} {column}: excused, but there is no such scenario or column")
    }));
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    let exceptions = serde_json::from_str(EXCEPTIONS).expect("exceptions.json is JSON");
    coverage.assert_pages_current(&exceptions);
}

#[test]
fn a_run_that_calls_nothing_is_judged() {
    let rule = json!({ "tool_call_count": { "tool_calls_count": { "pay": ["=", 0] } } });
    let criterion = serde_json::from_value(json!({ "name": "idle", "evaluate": rule })).unwrap();
    let rules = Rules::new(vec![criterion]);
    let calls_nothing = |scenario: &Scenario| expected_calls(scenario).is_empty();
    let idle: Vec<Scenario> = load::scenarios()
        .into_iter()
        .filter(calls_nothing)
        .collect();
    let frameworks = idle.iter().map(|scenario| scenario.name.as_str());
    assert_eq!(
        frameworks.collect::<Vec<_>>(),
        ["dspy/no_tools", "js-voltagent/no_tools"]
    );
    for scenario in idle {
        let evaluations = judged(items(&scenario, &rules), &rules).evaluations;
        let verdicts = evaluations.iter().map(|evaluation| evaluation.verdict);
        assert_eq!(
            verdicts.collect::<Vec<_>>(),
            [Verdict::Pass],
            "{}",
            scenario.name
        );
    }
}

#[test]
fn a_first_turn_does_not_continue_a_session() {
    let rules = Rules::new(Vec::new());
    let mut n_known = 0;
    for scenario in load::scenarios() {
        let trajectories = trajectories(items(&scenario, &rules), &rules);
        let start = |trajectory: &&Arc<Trajectory>| {
            let subject = trajectory.subject.as_ref();
            subject.map(|subject| subject.start_unix_nanos)
        };
        let first = trajectories.iter().min_by_key(start);
        let continues = first.and_then(|first| first.continues_session);
        assert_ne!(continues, Some(true), "{}", scenario.name);
        n_known += usize::from(continues.is_some());
    }
    assert!(n_known > 80, "{n_known}");
}

#[test]
fn the_order_of_arrival_changes_nothing() {
    let rules = Rules::new(Vec::new());
    for scenario in load::scenarios() {
        let items = items(&scenario, &rules);
        let expected = printed(&trajectories(items.clone(), &rules));
        let mut reversed = items.clone();
        reversed.reverse();
        assert_eq!(
            printed(&trajectories(reversed, &rules)),
            expected,
            "{} reversed",
            scenario.name
        );
        let mut roots_first = items.clone();
        let is_root = |item: &Span| !item.is_record && item.parent_id.is_none();
        roots_first.sort_by_key(|item| !is_root(item));
        assert_eq!(
            printed(&trajectories(roots_first, &rules)),
            expected,
            "{} with roots first",
            scenario.name
        );
        let mut random = fastrand::Rng::with_seed(items.len() as u64);
        for round in 0..3 {
            let mut shuffled = items.clone();
            shuffled.extend(items.iter().filter(|_| random.bool()).cloned());
            random.shuffle(&mut shuffled);
            assert_eq!(
                printed(&trajectories(shuffled, &rules)),
                expected,
                "{} shuffled, round {round}",
                scenario.name
            );
        }
    }
}

// === from bytes to trajectories ===

/// Returns the spans and the log records of a scenario.
fn items(scenario: &Scenario, rules: &Rules) -> Vec<Span> {
    let mut items = Vec::new();
    for (file, body) in scenario
        .requests
        .iter()
        .filter(|(file, _)| !file.contains(".metrics."))
    {
        let of_logs = file.contains(".logs.");
        let transcode = if of_logs { json::logs } else { json::traces };
        let body = if file.ends_with(".json") {
            transcode(body).expect("a captured body is OTLP/JSON")
        } else {
            body.clone()
        };
        if of_logs {
            let scanned = scan_logs::scan(&body, Some(rules)).expect("a captured body is OTLP");
            items.extend(scanned.batch.spans);
        } else {
            let scanned = scan::scan(&body, Some(rules)).expect("a captured body is OTLP");
            items.extend(scanned.batch.spans);
        }
    }
    items
}

fn judged(items: Vec<Span>, rules: &Rules) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for item in items {
        let batch = Batch {
            spans: vec![item],
            ..Batch::default()
        };
        pipeline.take(batch, now);
    }
    pipeline.finish(rules, now)
}

fn trajectories(items: Vec<Span>, rules: &Rules) -> Vec<Arc<Trajectory>> {
    let mut trajectories = judged(items, rules).trajectories;
    trajectories.sort_by_key(|trajectory| {
        (
            trajectory
                .tool_calls
                .first()
                .map(|call| call.start_unix_nanos),
            trajectory.trace_id,
        )
    });
    trajectories
}

fn printed(trajectories: &[Arc<Trajectory>]) -> String {
    let print = |trajectory: &Arc<Trajectory>| {
        let mut trajectory = Trajectory::clone(trajectory);
        trajectory.arrival = 0;
        format!("{trajectory:#?}\n")
    };
    trajectories.iter().map(print).collect()
}

// === comparison ===

fn expected_calls(scenario: &Scenario) -> Vec<&Value> {
    scenario.expected["tool_calls"]
        .as_array()
        .into_iter()
        .flatten()
        .collect()
}

fn compare(
    scenario: &Scenario,
    trajectories: &[Arc<Trajectory>],
) -> BTreeMap<&'static str, Vec<String>> {
    let mut found: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    let mut differ =
        |column: &'static str, what: String| found.entry(column).or_default().push(what);
    let expected = expected_calls(scenario);
    let actual: Vec<(usize, &ToolCall)> = trajectories
        .iter()
        .enumerate()
        .flat_map(|(of, trajectory)| trajectory.tool_calls.iter().map(move |call| (of, call)))
        .collect();
    let pairs = pair(&expected, &actual);
    for (expected, actual) in expected.iter().zip(&pairs) {
        if actual.is_none() {
            differ(
                "found",
                format!("{} {}", expected["name"], expected["args"]),
            );
        }
    }
    let paired: BTreeSet<usize> = pairs.iter().flatten().copied().collect();
    for (at, (_, call)) in actual
        .iter()
        .enumerate()
        .filter(|(at, _)| !paired.contains(at))
    {
        differ(
            "false",
            format!("{} {} at {at}", call.name, call.convention),
        );
    }
    // All members of a parallel group have the position of the first member.
    let place = |at: usize| {
        expected
            .iter()
            .position(|other| same_group(other, expected[at]))
            .unwrap_or(at)
            .min(at)
    };
    let mut order: Vec<(usize, usize)> = pairs
        .iter()
        .enumerate()
        .filter_map(|(at, pair)| Some(((*pair)?, place(at))))
        .collect();
    order.sort_unstable();
    for pair in order.windows(2).filter(|pair| pair[0].1 > pair[1].1) {
        differ(
            "order",
            format!(
                "{} after {}",
                expected[pair[1].1]["name"], expected[pair[0].1]["name"]
            ),
        );
    }
    for (expected, at) in expected.iter().zip(&pairs) {
        let Some(call) = at.map(|at| actual[at].1) else {
            continue;
        };
        let say = |actual: &dyn std::fmt::Debug, expected: &Value| {
            format!("{} {actual:?} instead of {expected}", call.name)
        };
        if !is(call.args.as_ref(), &expected["args"]) {
            differ(
                "args",
                say(
                    &call.args.as_ref().map(|args| &args.text),
                    &expected["args"],
                ),
            );
        }
        let failed = expected["error"] == Value::Bool(true);
        if !failed && !is(call.result.as_ref(), &expected["result"]) {
            differ(
                "results",
                say(
                    &call.result.as_ref().map(|result| &result.text),
                    &expected["result"],
                ),
            );
        }
        if call.error != failed {
            differ("errors", say(&call.error, &expected["error"]));
        }
        if call.agent.as_deref() != expected["agent"].as_str() {
            differ("agents", say(&call.agent, &expected["agent"]));
        }
        if expected["call_id"].is_string()
            && call.call_id.as_deref() != expected["call_id"].as_str()
        {
            differ("call_ids", say(&call.call_id, &expected["call_id"]));
        }
    }
    for (at, call) in pairs.iter().enumerate() {
        let Some((of, call)) = call.map(|call| actual[call]) else {
            continue;
        };
        for (other_at, other) in pairs.iter().enumerate().skip(at + 1) {
            let Some((other_of, other)) = other.map(|other| actual[other]) else {
                continue;
            };
            let grouped = of == other_of
                && call.parallel_group.is_some()
                && call.parallel_group == other.parallel_group;
            if grouped != same_group(expected[at], expected[other_at]) {
                differ(
                    "groups",
                    format!(
                        "{} and {} {}",
                        call.name,
                        other.name,
                        if grouped { "share one" } else { "share none" }
                    ),
                );
            }
        }
    }
    for (at, call) in pairs.iter().enumerate() {
        let Some((_, call)) = call.map(|call| actual[call]) else {
            continue;
        };
        let Some(step) = step_of_agent(&expected, at) else {
            continue;
        };
        if call.step as usize != step {
            differ(
                "steps",
                format!("{} {} instead of {step}", call.name, call.step),
            );
        }
    }
    let session = scenario.expected["session_id"].as_str();
    for trajectory in trajectories
        .iter()
        .filter(|trajectory| session.is_some() && !trajectory.tool_calls.is_empty())
    {
        if trajectory.session.as_deref() != session {
            differ(
                "session",
                format!("{:?} instead of {session:?}", trajectory.session),
            );
        }
    }
    found
}

/// Returns the expected step of a call, counted as spanscore counts it: in turns of one agent, from
/// 0. The recorded steps count the model replies of all agents since the user's message. A reply
/// without calls ends an agent's run, so an agent's turns are its replies with calls.
fn step_of_agent(expected: &[&Value], at: usize) -> Option<usize> {
    let own = expected[at]["step"].as_u64()?;
    let of_run = expected.iter().filter(|other| {
        other["agent"] == expected[at]["agent"] && other["turn"] == expected[at]["turn"]
    });
    let before: BTreeSet<u64> = of_run
        .filter_map(|other| other["step"].as_u64())
        .filter(|step| *step < own)
        .collect();
    Some(before.len())
}

fn same_group(one: &Value, other: &Value) -> bool {
    !one["parallel_group"].is_null()
        && one["parallel_group"] == other["parallel_group"]
        && one["turn"] == other["turn"]
}

type Fits<'a> = &'a dyn Fn(&ToolCall, &Value) -> bool;

/// Pairs each expected call with an actual call of the same name: one with the same id, or else
/// with the same arguments and outcome, or else the next one.
fn pair(expected: &[&Value], actual: &[(usize, &ToolCall)]) -> Vec<Option<usize>> {
    let mut pairs = vec![None; expected.len()];
    let mut taken = BTreeSet::new();
    let has_id = |call: &ToolCall, expected: &Value| {
        expected["call_id"].is_string() && call.call_id.as_deref() == expected["call_id"].as_str()
    };
    let has_args = |call: &ToolCall, expected: &Value| {
        is(call.args.as_ref(), &expected["args"]) && call.error == (expected["error"] == true)
    };
    let rounds: [Fits<'_>; 3] = [&has_id, &has_args, &|_, _| true];
    for fits in rounds {
        for (expected, pair) in expected
            .iter()
            .zip(&mut pairs)
            .filter(|(_, pair)| pair.is_none())
        {
            *pair = (0..actual.len()).find(|&at| {
                !taken.contains(&at)
                    && expected["name"].as_str() == Some(&actual[at].1.name)
                    && fits(actual[at].1, expected)
            });
            taken.extend(*pair);
        }
    }
    pairs
}

/// Returns true if the payload, as JSON or as text, equals the value. Null means no payload.
fn is(payload: Option<&Payload>, expected: &Value) -> bool {
    match payload {
        None => expected.is_null(),
        Some(payload) => same(payload.json(), expected) || expected.as_str() == Some(&payload.text),
    }
}

/// Returns true if the values are equal as JSON; 1 and 1.0 are equal.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one
                    .iter()
                    .all(|(key, value)| other.get(key).is_some_and(|other| same(value, other)))
        }
        _ => one == other,
    }
}

/// Returns the number of differences that the payload causes, by scenario and column.
fn exceptions() -> BTreeMap<(String, String), usize> {
    let entries: Vec<Value> = serde_json::from_str(EXCEPTIONS).expect("exceptions.json is a list");
    let entry = |entry: Value| {
        assert!(
            entry["reason"]
                .as_str()
                .is_some_and(|reason| reason.len() > 20),
            "an exception without a reason: {entry}"
        );
        (
            (
                entry["scenario"].as_str().unwrap_or_default().to_owned(),
                entry["column"].as_str().unwrap_or_default().to_owned(),
            ),
            entry["differences"].as_u64().unwrap_or_default() as usize,
        )
    };
    entries.into_iter().map(entry).collect()
}

trait MapJoin {
    fn map_join(&self) -> String;
}

impl MapJoin for [&str] {
    fn map_join(&self) -> String {
        self.iter()
            .map(|column| format!("{column:>8}"))
            .collect::<Vec<_>>()
            .join("")
            .replace("  call_ids", " call_ids")
    }
}
