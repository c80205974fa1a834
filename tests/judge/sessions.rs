//! Tests conversations whose turns are separate traces. If a rule would fail only because an
//! earlier call is missing, and an earlier turn may have made that call, there is no verdict.
//! Covers live judging, `replay`, a restart from a journal's records, a reload, and recorded chats
//! of three frameworks. Does not test other frameworks' sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::assemble::Settings;
use judge::evaluate::{Coverage, Evaluation};
use judge::pipeline::{
    Judged, LogBatch, LogJudge, LogLimits, LogStart, Pipeline, Rebuilding, Rules, TraceMark,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::scan::scan;
use otlp::span::{Batch, Now, TraceId};
use serde_json::{Value, json};

use crate::support::captures::{self, Scenario};
use crate::support::now;
use crate::support::records::rules_of;
use crate::support::spans::{SpanCall, attribute, request, spans_of_run};

const SECOND: u64 = 1_000_000_000;
const HALF_AN_HOUR: u64 = 30 * 60;

/// The messages in the first model request of a turn.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Request {
    /// No messages were captured.
    Unknown,
    /// Only the user's message.
    Fresh,
    /// Also an answer of an earlier turn.
    Continued,
}

use Request::{Continued, Fresh, Unknown};

/// A turn of a session: its start in seconds, its first model request, and its calls.
#[derive(Debug, Clone)]
struct Turn {
    at: u64,
    request: Request,
    calls: &'static [&'static str],
    session: &'static str,
}

fn turn(at: u64, request: Request, calls: &'static [&'static str]) -> Turn {
    Turn {
        at,
        request,
        calls,
        session: "s",
    }
}

impl Turn {
    fn spans(&self, start: u64) -> Vec<Span> {
        let calls = self.calls.iter().map(|name| SpanCall {
            name: (*name).to_owned(),
            step: Some(0),
            ..SpanCall::default()
        });
        let session = [("session.id", self.session)];
        let session = &session[usize::from(self.session.is_empty())..];
        let mut spans = spans_of_run(self.at + 1, session, &calls.collect::<Vec<_>>());
        let offset = start + self.at * SECOND - spans[0].start_time_unix_nano;
        for span in &mut spans {
            span.start_time_unix_nano += offset;
            span.end_time_unix_nano += offset;
        }
        let said = |role: &str| json!({ "role": role, "parts": [{ "type": "text" }] });
        let messages = match self.request {
            Unknown => return spans,
            Fresh => json!([said("system"), said("user")]),
            Continued => json!([said("user"), said("assistant"), said("user")]),
        };
        let model = spans.iter_mut().find(|span| span.name == "chat").unwrap();
        let messages = attribute("gen_ai.input.messages", &messages.to_string());
        model.attributes.push(messages);
        spans
    }
}

/// A process whose history begins at `start`.
struct Process {
    rules: Rules,
    start: Now,
    pipeline: Pipeline,
}

fn settings() -> Settings {
    Settings {
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        restart_guard: Some(Duration::from_secs(120)),
        ..Settings::replay()
    }
}

fn criteria() -> Value {
    let rule = json!({ "precedence": { "a": "^authenticate$", "b": "^transfer$" } });
    json!([{ "name": "rule", "evaluate": { "constraints": { "rules": [rule] } } }])
}

impl Process {
    fn new(settings: Settings) -> Self {
        let start = now();
        Self {
            rules: rules_of(criteria()),
            start,
            pipeline: Pipeline::new(settings, start),
        }
    }

    fn at(&self, second: u64) -> Now {
        Now {
            instant: self.start.instant + Duration::from_secs(second),
            unix_nanos: self.start.unix_nanos + second * SECOND,
        }
    }

    fn batch(&self, spans: Vec<Span>) -> Batch {
        scan(&request(spans), Some(&self.rules)).unwrap().batch
    }

    fn take(&mut self, turn: &Turn) {
        let batch = self.batch(turn.spans(self.start.unix_nanos));
        self.pipeline.take(batch, self.at(turn.at));
    }

    /// Feeds a turn, and judges it as soon as it has settled.
    fn judge(&mut self, turn: &Turn) -> Vec<Evaluation> {
        self.take(turn);
        self.advance(turn.at + 10)
    }

    fn advance(&mut self, second: u64) -> Vec<Evaluation> {
        self.pipeline
            .advance(&self.rules, self.at(second))
            .evaluations
    }
}

fn told(evaluation: &Evaluation) -> String {
    format!(
        "{}: {}",
        evaluation.verdict.as_str(),
        evaluation.explanation()
    )
}

/// Judges all turns live. Returns the judgement of the last turn.
fn live(turns: &[Turn]) -> String {
    let mut process = Process::new(settings());
    let last = turns.iter().map(|turn| process.judge(turn)).last();
    told(&last.unwrap()[0])
}

/// Like [`live`], but all turns are in one recording.
fn replayed(turns: &[Turn]) -> String {
    let mut process = Process::new(Settings::replay());
    turns.iter().for_each(|turn| process.take(turn));
    let end = process.at(0);
    let judged = process.pipeline.finish(&process.rules, end);
    told(judged.evaluations.last().unwrap())
}

const WANTS: &str = "fail: `transfer` (call 1): no `^authenticate$` before it in this trace";
const CALLED: &str = "not_evaluated: not evaluated: an earlier turn of this session called \
                      `authenticate`";
const NOT_SEEN: &str = "not_evaluated: not evaluated: earlier turns of this session were not seen";
const IF_ANY: &str = "not_evaluated: not evaluated: earlier turns of this session, if there were \
                      any, were not seen";

#[test]
fn every_line_of_the_table_is_kept_live_and_in_replay() {
    let late = HALF_AN_HOUR + 60;
    let transfers = |at: u64, request: Request| turn(at, request, &["transfer"]);
    let mut alone = transfers(60, Continued);
    alone.session = "";
    let mut other = turn(0, Fresh, &["authenticate"]);
    other.session = "t";
    let nor = |n: &str| format!("{WANTS} (nor in the {n} of this session)");
    let cases: Vec<(Vec<Turn>, &str, &str)> = vec![
        (vec![alone], WANTS, WANTS),
        (vec![transfers(60, Fresh)], WANTS, WANTS),
        (vec![transfers(late, Unknown)], WANTS, WANTS),
        // A recording has no earlier turns than those that it contains.
        (vec![transfers(60, Unknown)], IF_ANY, WANTS),
        (vec![transfers(late, Continued)], NOT_SEEN, NOT_SEEN),
        (vec![other, transfers(60, Fresh)], WANTS, WANTS),
        (
            vec![turn(0, Fresh, &["authenticate"]), transfers(60, Continued)],
            CALLED,
            CALLED,
        ),
        (
            vec![turn(0, Unknown, &["authenticate"]), transfers(60, Unknown)],
            CALLED,
            CALLED,
        ),
        (
            vec![turn(0, Continued, &["authenticate"]), transfers(60, Fresh)],
            CALLED,
            CALLED,
        ),
        (
            vec![turn(60, Continued, &["search"]), transfers(120, Continued)],
            NOT_SEEN,
            NOT_SEEN,
        ),
    ];
    for (turns, live_answer, replay_answer) in cases {
        let answers = (live(&turns), replayed(&turns));
        let begins = |answer: &str, expected: &str| match expected {
            WANTS => answer == WANTS,
            _ => answer.starts_with(expected),
        };
        let is_right = begins(&answers.0, live_answer) && begins(&answers.1, replay_answer);
        assert!(is_right, "{turns:?}: {answers:?}");
    }
    let seen = [turn(60, Fresh, &["search"]), transfers(120, Continued)];
    assert_eq!(live(&seen), nor("1 earlier turn"));
    let [first, last] = seen;
    let seen = [first, turn(90, Continued, &["search", "find"]), last];
    assert_eq!(
        (live(&seen), replayed(&seen)),
        (nor("2 earlier turns"), nor("2 earlier turns"))
    );
}

#[test]
fn only_rules_that_an_earlier_call_would_keep_ask_the_session() {
    let label = |rule: Value, calls: &'static [&'static str]| {
        let mut process = Process::new(settings());
        let rule = json!({ "name": "r", "evaluate": { "constraints": { "rules": [rule] } } });
        process.rules = rules_of(json!([rule]));
        process.judge(&turn(10, Fresh, &["a"]));
        let judged = process.judge(&turn(60, Continued, calls));
        judged[0].verdict.as_str()
    };
    let pair = |template: &str| json!({ template: { "a": "^a$", "b": "^b$" } });
    for template in ["precedence", "alternate_precedence", "chain_precedence"] {
        assert_eq!(label(pair(template), &["b"]), "not_evaluated", "{template}");
    }
    for template in ["succession", "alternate_succession"] {
        assert_eq!(label(pair(template), &["b"]), "not_evaluated", "{template}");
        assert_eq!(label(pair(template), &["b", "a"]), "fail", "{template}");
    }
    assert_eq!(
        label(json!({ "init": { "a": "^a$" } }), &["b"]),
        "not_evaluated"
    );
    assert_eq!(
        label(json!({ "existence": { "a": "^a$" } }), &["b"]),
        "fail"
    );
    for template in ["coexistence", "chain_succession"] {
        assert_eq!(label(pair(template), &["b"]), "fail", "{template}");
    }
    // An earlier call would not change these results.
    assert_eq!(label(pair("alternate_precedence"), &["b", "b"]), "fail");
    assert_eq!(label(pair("chain_precedence"), &["c", "b"]), "fail");
    let other_tool = json!({ "precedence": { "a": "^x$", "b": "^b$" } });
    assert_eq!(label(other_tool, &["b"]), "fail");
}

#[test]
fn earlier_turns_are_named_only_where_they_did_not_make_the_call() {
    let nor = "(nor in the 1 earlier turn of this session)";
    let told_of = |rule: Value, first: &'static [&'static str], calls: &'static [&'static str]| {
        let mut process = Process::new(settings());
        let rule = json!({ "name": "r", "evaluate": { "constraints": { "rules": [rule] } } });
        process.rules = rules_of(json!([rule]));
        process.judge(&turn(10, Fresh, first));
        told(&process.judge(&turn(60, Continued, calls))[0])
    };
    let pair = |template: &str| json!({ template: { "a": "^a$", "b": "^b$" } });
    let init = json!({ "init": { "a": "^a$" } });
    for (rule, first, calls, is_named) in [
        (pair("precedence"), &["c"][..], &["b"][..], true),
        (pair("alternate_precedence"), &["c"], &["b", "b"], true),
        (init.clone(), &["c"], &["b"], true),
        // The second `b` needs a separate `a`.
        (pair("alternate_precedence"), &["a"], &["b", "b"], false),
        (pair("chain_precedence"), &["c"], &["c", "b"], false),
        (pair("chain_succession"), &["a"], &["b"], false),
    ] {
        let told = told_of(rule.clone(), first, calls);
        assert!(told.starts_with("fail: "), "{rule}: {told}");
        assert_eq!(told.contains(nor), is_named, "{rule}: {told}");
    }
    // An `a` was called first, but has not ended.
    let mut process = Process::new(settings());
    process.rules = rules_of(json!([
        { "name": "r", "evaluate": { "constraints": { "rules": [init] } } }
    ]));
    process.judge(&turn(10, Fresh, &["c"]));
    let mut spans = turn(60, Continued, &["a"]).spans(process.start.unix_nanos);
    let last = spans.len() - 1;
    spans[last].end_time_unix_nano = 0;
    let batch = process.batch(spans);
    process.pipeline.take(batch, process.at(60));
    let judged = process.advance(70);
    assert!(!told(&judged[0]).contains(nor), "{judged:?}");
}

#[test]
fn a_call_of_the_turn_that_is_too_long_ago_is_nearer_than_any_before() {
    let mut process = Process::new(settings());
    let mut criteria = criteria();
    criteria[0]["evaluate"]["constraints"]["rules"][0]["precedence"]["within"] = "1s".into();
    process.rules = rules_of(criteria);
    process.judge(&turn(0, Fresh, &["authenticate"]));
    let calls = turn(60, Continued, &["authenticate", "transfer"]);
    let mut spans = calls.spans(process.start.unix_nanos);
    let last = spans.len() - 1;
    for span in [0, last] {
        spans[span].end_time_unix_nano += 2 * SECOND;
    }
    spans[last].start_time_unix_nano += 2 * SECOND;
    let batch = process.batch(spans);
    process.pipeline.take(batch, process.at(60));
    let judged = process.advance(70);
    assert_eq!(judged[0].verdict.as_str(), "fail", "{judged:?}");
}

#[test]
fn an_earlier_turn_that_closes_later_revises() {
    let mut process = Process::new(settings());
    let first = turn(60, Fresh, &["authenticate"]);
    let mut spans = first.spans(process.start.unix_nanos);
    let root = spans.remove(0);
    let batch = process.batch(spans);
    process.pipeline.take(batch, process.at(60));
    let judged = process.judge(&turn(70, Unknown, &["transfer"]));
    assert!(told(&judged[0]).starts_with(IF_ANY), "{judged:?}");
    let batch = process.batch(vec![root]);
    process.pipeline.take(batch, process.at(100));
    process.advance(110);
    let judged = process.advance(120);
    assert!(told(&judged[0]).starts_with(CALLED), "{judged:?}");
    assert_eq!(judged[0].revision, 1);
}

#[test]
fn a_turn_that_may_have_been_missed_is_not_taken_for_none() {
    let mut process = Process::new(settings());
    process.judge(&turn(60, Fresh, &["search"]));
    let missed =
        process.batch(turn(90, Continued, &["authenticate"]).spans(process.start.unix_nanos));
    let missed = [missed.spans[0].trace_id];
    process.pipeline.mark_unscored(&missed, process.at(90));
    let judged = process.judge(&turn(120, Continued, &["transfer"]));
    assert!(told(&judged[0]).starts_with(NOT_SEEN), "{judged:?}");
}

#[test]
fn rules_that_are_reloaded_find_the_tools_of_earlier_turns() {
    let mut process = Process::new(settings());
    process.judge(&turn(0, Fresh, &["sign_in"]));
    let text = criteria()
        .to_string()
        .replace("^authenticate$", "^(log|sign)_in$");
    process.rules = rules_of(serde_json::from_str(&text).unwrap());
    let judged = process.judge(&turn(60, Continued, &["transfer"]));
    assert!(told(&judged[0]).contains("called `sign_in`"), "{judged:?}");
}

#[test]
fn a_restart_keeps_the_turns_that_the_journal_has() {
    let first = turn(0, Fresh, &["authenticate"]);
    let mut before = Process::new(settings());
    before.pipeline.mark_judged();
    let spans = first.spans(before.start.unix_nanos);
    let (batch, at) = (before.batch(spans.clone()), before.at(0));
    let mut judged = Judged::default();
    let rules = &before.rules;
    before
        .pipeline
        .take_record(rules, batch, 0, at, &mut judged);
    let marks = before.pipeline.advance(rules, before.at(10)).marks;
    let (marks, _) = marks.encode().unwrap();
    for keeps_record in [true, false] {
        let mut after = Process::new(settings());
        after.start = before.start;
        let now = after.at(30);
        after.pipeline = Pipeline::new(settings(), now);
        let marks = TraceMark::decode_all(&marks, &after.rules);
        let batch = after.batch(spans.clone());
        let (pipeline, rules) = (&mut after.pipeline, &after.rules);
        let mut rebuilding = Rebuilding::new(pipeline, rules, marks, now);
        if keeps_record {
            rebuilding.take(batch, 0);
        }
        rebuilding.finish();
        let judged = after.judge(&turn(60, Continued, &["transfer"]));
        let expected = if keeps_record { CALLED } else { NOT_SEEN };
        assert!(told(&judged[0]).starts_with(expected), "{judged:?}");
        // The journal may have deleted earlier turns of this session, so it is unknown whether they
        // made the call.
        let mut late = turn(120, Continued, &["transfer"]);
        late.session = "other";
        assert!(told(&after.judge(&late)[0]).starts_with(NOT_SEEN));
    }
}

#[test]
fn where_turns_may_go_to_other_processes_a_trace_is_judged_alone() {
    let turns = [
        turn(0, Fresh, &["authenticate"]),
        turn(60, Continued, &["transfer"]),
    ];
    let mut process = Process::new(Settings {
        has_peers: true,
        ..settings()
    });
    let judged = turns.each_ref().map(|turn| process.judge(turn));
    assert_eq!(told(&judged[1][0]), WANTS);

    let limits = LogLimits {
        overlap: Duration::ZERO,
        max_replay: Duration::MAX,
    };
    let start = LogStart {
        offset: 0,
        is_beginning: true,
        inherited: None,
    };
    let (process, mut judged) = (Process::new(settings()), Judged::default());
    let mut log = LogJudge::new(settings(), limits, start, process.start.instant);
    for (offset, turn) in (0..).zip(&turns) {
        let record = LogBatch {
            offset,
            unix_nanos: process.at(turn.at).unix_nanos,
            batch: process.batch(turn.spans(process.start.unix_nanos)),
            torn: Vec::new(),
        };
        log.take(record, &process.rules, &mut judged);
    }
    log.advance(process.at(120).unix_nanos, &process.rules, &mut judged);
    assert_eq!(told(judged.evaluations.last().unwrap()), WANTS);
}

#[test]
fn verdicts_that_wait_for_the_session_are_counted_by_criterion() {
    let mut process = Process::new(settings());
    let mut coverage = Coverage::default();
    coverage.follow(&process.rules.criteria, None);
    for turn in [
        turn(0, Fresh, &["authenticate"]),
        turn(60, Continued, &["transfer"]),
        turn(120, Continued, &["authenticate", "transfer"]),
    ] {
        process.take(&turn);
        let now = process.at(turn.at + 10);
        let judged = process.pipeline.advance(&process.rules, now);
        coverage.note(&judged.trajectories, &judged.evaluations);
    }
    let counted: Vec<_> = coverage
        .criteria()
        .map(|it| (it.n_matched, it.n_earlier_turns))
        .collect();
    assert_eq!(counted, [(3, 1)]);
}

#[test]
fn a_run_of_one_agent_says_so() {
    let mut process = Process::new(settings());
    let mut criteria = criteria();
    criteria[0]["scope"] = "agent".into();
    process.rules = rules_of(criteria);
    let judged = process.judge(&turn(60, Fresh, &["transfer"]));
    assert_eq!(
        told(&judged[0]),
        WANTS.replace("in this trace", "in this run")
    );
}

/// Captured chats of three turns: the first turn calls `authenticate`, the last one `transfer`.
const CHATS: [&str; 3] = [
    "langgraph-openinference/chat",
    "openai-agents-openinference/chat",
    "pydantic-ai/chat",
];

/// Returns the traces of a chat, ordered by start.
fn recorded(chat: &Scenario, rules: &Rules) -> Vec<Batch> {
    let bodies = chat.requests.iter().map(|(_, body)| body);
    let scanned = bodies.map(|body| scan(body, Some(&*rules)).unwrap());
    let mut traces: BTreeMap<TraceId, Batch> = BTreeMap::new();
    for span in scanned.flat_map(|scanned| scanned.batch.spans) {
        let trace = traces.entry(span.trace_id).or_default();
        trace.spans.push(span);
    }
    let mut traces: Vec<Batch> = traces.into_values().collect();
    traces.sort_by_key(|trace| trace.spans.iter().map(|span| span.start_unix_nanos).min());
    traces
}

#[test]
fn the_criterion_of_the_readme_gives_no_false_alarm_on_a_recorded_chat() {
    let readme = std::fs::read_to_string(format!("{}/README.md", crate::ROOT)).unwrap();
    let mut blocks = readme.split("```");
    let block = blocks.find(|block| block.contains("name: authenticate-first"));
    let config = block.unwrap().trim_start_matches("yaml");
    let config: Value = serde_saphyr::from_str(config).unwrap();
    let mut chats = captures::scenarios();
    chats.retain(|scenario| CHATS.contains(&&*scenario.name));
    assert_eq!(chats.len(), CHATS.len());
    for chat in &chats {
        let mut process = Process::new(Settings::replay());
        process.rules = rules_of(json!([config["criteria"][0]]));
        let turns = recorded(chat, &process.rules);
        assert_eq!(turns.len(), 3, "{}", chat.name);
        let starts = turns[0].spans.iter().map(|span| span.start_unix_nanos);
        let start = starts.min().unwrap() - SECOND;
        let all = [CALLED, NOT_SEEN].map(|expected| (expected, Settings::replay()));
        let all = all.into_iter().chain([(CALLED, settings())]);
        for (expected, settings) in all {
            process.start.unix_nanos = start;
            process.pipeline = Pipeline::new(settings, process.at(0));
            let mut told = Vec::new();
            let n_lost = if expected == NOT_SEEN { 2 } else { 0 };
            let turns = recorded(chat, &process.rules);
            for (turn, second) in turns.into_iter().zip([0, 20, 40]).skip(n_lost) {
                process.pipeline.take(turn, process.at(second));
                told.extend(process.advance(second + 10));
            }
            let (rules, end) = (&process.rules, process.at(60));
            told.extend(process.pipeline.finish(rules, end).evaluations);
            let told: Vec<String> = told.iter().map(self::told).collect();
            assert!(
                told.len() == 1 && told[0].starts_with(expected),
                "{}: {told:?}",
                chat.name
            );
        }
    }
}
