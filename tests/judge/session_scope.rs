//! Tests `scope: session` on every captured session and on generated sessions, in any order of
//! arrival. The oracle is one trace that contains all calls of the session: it must get the same
//! labels. A verdict on some of the turns is open, or equals the verdict on all turns. Also tests
//! which sessions count as complete, what is reported early, and what revises or withdraws a
//! verdict. Does not test turns that overlap in time.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use judge::assemble::{CloseReason, SessionSettings, Settings, Sizes};
use judge::evaluate::{Criterion, Evaluation, Stage, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::scan;
use otlp::span::{Batch, Now, Span, SpanId, SpanRow, TraceId};
use serde_json::{Value, json};

use crate::support::captures as load;
use crate::support::now;
use crate::support::repetitions::number;
use crate::support::spans::{SpanCall, attribute, request, spans_of_run};
use crate::verdict_stability::criteria::some_about;
use crate::verdict_stability::{spans_of, whole};

const SECOND: u64 = 1_000_000_000;

fn settings(is_whole: bool) -> Settings {
    Settings {
        session: SessionSettings {
            is_whole,
            ..Settings::replay().session
        },
        ..Settings::replay()
    }
}

/// Returns the criteria that load with this scope. Omits criteria that have a scope already, and
/// criteria on the duration or on steps: a session has no duration, and each turn counts its own
/// steps.
fn rules_at(scope: &str, criteria: &[Value]) -> Rules {
    let loaded = criteria.iter().filter_map(|criterion| {
        let mut criterion = criterion.clone();
        let text = criterion.to_string();
        let is_of_turns = ["max_duration", "_step"].iter().any(|of| text.contains(of));
        if is_of_turns || criterion.get("scope").is_some() {
            return None;
        }
        criterion["scope"] = scope.into();
        serde_json::from_value(criterion).ok()
    });
    Rules::new(loaded.collect())
}

fn labels(evaluations: &[Evaluation]) -> BTreeMap<String, Verdict> {
    let labels = evaluations.iter();
    labels
        .map(|it| (it.criterion.name().to_owned(), it.verdict))
        .collect()
}

fn judged(rules: &Rules, turns: &[Vec<Span>], is_whole: bool) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(settings(is_whole), now);
    for spans in turns {
        let spans = spans.clone();
        pipeline.take(
            Batch {
                spans,
                ..Batch::default()
            },
            now,
        );
    }
    pipeline.finish(rules, now)
}

/// Sets the same trace id in the spans of all turns, and makes the span ids of different turns
/// differ.
fn joined(turns: &[Vec<Span>]) -> Vec<Span> {
    let trace_id = turns[0][0].trace_id;
    let mut spans = Vec::new();
    for (turn, number) in turns.iter().zip(1_u8..) {
        let moved = |id: SpanId| {
            let mut bytes = id.to_bytes();
            bytes[0] ^= number;
            SpanId::try_new(&bytes).unwrap()
        };
        spans.extend(turn.iter().cloned().map(|span| Span {
            trace_id,
            row: SpanRow {
                span_id: moved(span.span_id),
                parent_id: span.parent_id.map(moved),
                ..span.row
            },
            ..span
        }));
    }
    spans
}

/// Returns the sessions in a recording that have several turns. Each turn is a trace.
fn sessions(spans: Vec<Span>, none: &Rules) -> Vec<Vec<Vec<Span>>> {
    let on_whole = whole(none, &spans);
    let mut traces: BTreeMap<TraceId, Vec<Span>> = BTreeMap::new();
    for span in spans {
        traces.entry(span.trace_id).or_default().push(span);
    }
    let mut sessions: BTreeMap<_, Vec<(u64, TraceId)>> = BTreeMap::new();
    for trajectory in &on_whole.trajectories {
        if let Some(session) = &trajectory.session {
            let key = (trajectory.service.clone(), session.clone());
            let turn = (trajectory.start_unix_nanos(), trajectory.trace_id);
            sessions.entry(key).or_default().push(turn);
        }
    }
    let several = sessions.into_values().filter(|turns| turns.len() > 1);
    let sessions = several.map(|mut turns| {
        turns.sort_unstable();
        turns
            .iter()
            .map(|(_, trace_id)| traces[trace_id].clone())
            .collect()
    });
    sessions.collect()
}

/// Compares a session with a single trace of all its calls, and with some of its turns. Returns the
/// number of compared labels.
fn check(turns: &[Vec<Span>], random: &mut Rng, whose: &str) -> usize {
    let none = Rules::new(Vec::new()).without_judgement();
    let in_one = whole(&none, &joined(turns));
    let criteria = some_about(&in_one.trajectories, random);
    let (of_trace, of_session) = (rules_at("trace", &criteria), rules_at("session", &criteria));
    let expected = whole(&of_trace, &joined(turns)).evaluations;
    let all = judged(&of_session, turns, true).evaluations;
    let told = |evaluations: &[Evaluation]| -> BTreeMap<String, String> {
        let lines = evaluations.iter().map(|it| {
            let line = format!("{:?}: {}\n{:?}", it.verdict, it.explanation(), it.criterion);
            (it.criterion.name().to_owned(), line)
        });
        lines.collect()
    };
    let (on_one, on_all) = (told(&expected), told(&all));
    for (name, verdict) in labels(&expected) {
        assert_eq!(
            Some(&verdict),
            labels(&all).get(&name),
            "{whose}:\none trace: {}\nsession: {:?}",
            on_one[&name],
            on_all.get(&name)
        );
    }
    let mut shuffled = turns.to_vec();
    random.shuffle(&mut shuffled);
    let again = judged(&of_session, &shuffled, true).evaluations;
    assert_eq!(
        told(&again),
        told(&all),
        "{whose}: another order of arrival"
    );
    let some: Vec<Vec<Span>> = turns.iter().filter(|_| random.bool()).cloned().collect();
    for some in [&some[..], turns] {
        let on_some = judged(&of_session, some, false);
        for (name, verdict) in labels(&on_some.evaluations) {
            assert!(
                verdict == Verdict::NotEvaluated || Some(&verdict) == labels(&all).get(&name),
                "{whose}: {:?}\non all: {:?}",
                told(&on_some.evaluations)[&name],
                told(&all).get(&name)
            );
            assert_ne!(verdict, Verdict::Pass, "{whose}: {name}");
        }
        for alarm in &on_some.alarms {
            assert_eq!(alarm.verdict, Verdict::Fail);
            assert_eq!(
                labels(&all)[alarm.criterion.name()],
                Verdict::Fail,
                "{whose}"
            );
        }
    }
    all.len()
}

#[test]
fn a_captured_session_is_judged_like_one_trace_of_all_its_calls() {
    let (mut n_sessions, mut n_labels) = (0, 0);
    for scenario in &load::scenarios() {
        let none = Rules::new(Vec::new()).without_judgement();
        for turns in sessions(spans_of(scenario, &none), &none) {
            let mut random = Rng::with_seed(n_sessions);
            n_labels += check(&turns, &mut random, &scenario.name);
            n_sessions += 1;
        }
    }
    assert!(n_sessions > 5, "only {n_sessions} sessions");
    assert!(n_labels > 100, "only {n_labels} labels");
}

/// Returns a turn of the session `s` that begins at this second.
fn turn(number: u64, second: u64, calls: &[SpanCall]) -> Vec<Span> {
    let mut spans = spans_of_run(number, &[("session.id", "s")], calls);
    for span in &mut spans {
        span.start_time_unix_nano += second * SECOND;
        if span.end_time_unix_nano > 0 {
            span.end_time_unix_nano += second * SECOND;
        }
    }
    let rules = Rules::new(Vec::new()).without_judgement();
    scan::scan(&request(spans), Some(&rules))
        .unwrap()
        .batch
        .spans
}

fn calls(names: &[&str]) -> Vec<SpanCall> {
    let call = |name: &&str| SpanCall {
        name: (*name).to_owned(),
        step: Some(0),
        ..SpanCall::default()
    };
    names.iter().map(call).collect()
}

#[test]
fn a_generated_session_is_judged_like_one_trace_of_all_its_calls() {
    let mut n_labels = 0;
    for seed in 0..30 * number("SPANSCORE_TEST_ROUNDS", 1) {
        let mut random = Rng::with_seed(seed);
        // Either all turns of a session capture arguments, or no turn does. Likewise for results.
        let (has_args, has_results) = (random.bool(), random.bool());
        let turns: Vec<Vec<Span>> = (1..=random.u64(2..5))
            .map(|number| {
                let n_calls = random.usize(0..5);
                let names = ["login", "search", "refund", "search"];
                let mut calls: Vec<SpanCall> = (0..n_calls)
                    .map(|_| SpanCall {
                        name: names[random.usize(..4)].to_owned(),
                        args: has_args.then(|| json!({ "n": random.u8(..3) })),
                        result: has_results.then(|| json!(random.u8(..3))),
                        ..SpanCall::default()
                    })
                    .collect();
                if let Some(call) = calls.last_mut() {
                    call.completed = Some(random.u8(..8) > 0);
                }
                turn(number, number * 60, &calls)
            })
            .collect();
        n_labels += check(&turns, &mut random, &format!("seed {seed}"));
    }
    assert!(n_labels > 300, "only {n_labels} labels");
}

// === which sessions are complete, and what is reported when ===

const PAUSE: u64 = 30 * 60;

struct Process {
    rules: Rules,
    start: Now,
    pipeline: Pipeline,
}

fn rules(criteria: &[Value]) -> Rules {
    let criteria = criteria.iter().map(|criterion| {
        let criterion: Criterion = serde_json::from_value(criterion.clone()).unwrap();
        criterion
    });
    Rules::new(criteria.collect())
}

fn authenticate_first() -> Value {
    json!({ "name": "authenticate-first", "scope": "session", "evaluate": { "constraints": {
        "rules": [{ "precedence": { "a": "^authenticate$", "b": "^transfer$" } }] } } })
}

fn no_deletion() -> Value {
    json!({ "name": "no-deletion", "scope": "session",
        "evaluate": { "tool_calls": { "disallowed": ["^delete$"] } } })
}

impl Process {
    fn new(session: SessionSettings, criteria: &[Value]) -> Self {
        let start = Now {
            unix_nanos: 1_700_000_000 * SECOND,
            ..now()
        };
        let settings = Settings {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            restart_guard: Some(Duration::from_secs(120)),
            session,
            ..Settings::replay()
        };
        Self {
            rules: rules(criteria),
            start,
            pipeline: Pipeline::new(settings, start),
        }
    }

    fn whole(criteria: &[Value]) -> Self {
        Self::new(
            SessionSettings {
                inactive: Duration::from_secs(PAUSE),
                is_whole: true,
                max_size: 1 << 20,
            },
            criteria,
        )
    }

    fn at(&self, second: u64) -> Now {
        Now {
            instant: self.start.instant + Duration::from_secs(second),
            unix_nanos: self.start.unix_nanos + second * SECOND,
        }
    }

    fn advance(&mut self, second: u64) -> Judged {
        let now = self.at(second);
        self.pipeline.advance(&self.rules, now)
    }

    fn turn(&mut self, number: u64, second: u64, names: &[&str]) -> Judged {
        let spans = turn(number, second, &calls(names));
        self.spans(spans, second)
    }

    fn spans(&mut self, spans: Vec<Span>, second: u64) -> Judged {
        let batch = Batch {
            spans,
            ..Batch::default()
        };
        let now = self.at(second);
        self.pipeline.take(batch, now);
        self.advance(second + 10)
    }
}

/// Returns the label, completeness and revision of the only evaluation.
fn only(judged: &Judged) -> (&'static str, &'static str, u32) {
    let [evaluation] = &judged.evaluations[..] else {
        panic!("{judged:?}")
    };
    let completeness = evaluation.trajectory.completeness.as_str();
    (
        evaluation.verdict.as_str(),
        completeness,
        evaluation.revision,
    )
}

#[test]
fn a_call_of_an_earlier_turn_counts_when_the_session_has_ended() {
    let mut process = Process::whole(&[authenticate_first()]);
    let first = PAUSE + 60;
    assert!(
        process
            .turn(1, first, &["authenticate"])
            .evaluations
            .is_empty()
    );
    assert!(
        process
            .turn(2, first + 600, &["transfer"])
            .evaluations
            .is_empty()
    );
    assert!(process.advance(first + 600 + PAUSE).evaluations.is_empty());
    let due = process.pipeline.next_deadline().unwrap();
    assert_eq!(due, process.at(first + 610 + PAUSE).instant);
    let judged = process.advance(first + 610 + PAUSE);
    assert_eq!(only(&judged), ("pass", "silent", 0));
    let evaluation = &judged.evaluations[0];
    assert!(evaluation.verdict_id().is_some());
    let turns = evaluation.trajectory.turns.as_ref().unwrap();
    assert_eq!(turns.traces.len(), 2);
    assert_eq!(evaluation.trajectory.trace_id, turns.traces[1]);
    assert!(process.advance(first + 9 * PAUSE).evaluations.is_empty());
}

#[test]
fn a_turn_of_too_many_calls_is_judged_by_its_first() {
    let settings = SessionSettings {
        inactive: Duration::from_secs(PAUSE),
        is_whole: true,
        max_size: 1 << 24,
    };
    let mut process = Process::new(settings, &[no_deletion()]);
    let mut names = vec!["search"; 4_097];
    names[0] = "delete";
    assert_eq!(process.turn(1, PAUSE + 60, &names).alarms.len(), 1);
    let judged = process.advance(3 * PAUSE);
    assert_eq!(only(&judged), ("fail", "incomplete", 0));
}

#[test]
fn turns_before_the_first_criterion_are_unseen() {
    let settings = SessionSettings {
        inactive: Duration::from_secs(PAUSE),
        is_whole: true,
        max_size: 0,
    };
    let mut process = Process::new(settings, &[]);
    let first = 2 * PAUSE;
    process.turn(1, first, &["authenticate"]);
    process.rules = rules(&[authenticate_first()]);
    let sizes = Sizes {
        trace: 1 << 20,
        open: 1 << 24,
        recent: 1 << 24,
        sessions: 1 << 20,
    };
    process.pipeline.resize(sizes, process.at(first + 60));
    process.turn(2, first + 90, &["transfer"]);
    let judged = process.advance(first + 2 * PAUSE);
    assert_eq!(only(&judged), ("not_evaluated", "start_unseen", 0));
}

#[test]
fn an_explanation_speaks_of_the_session() {
    let mut process = Process::whole(&[authenticate_first()]);
    process.turn(1, PAUSE + 60, &["search"]);
    process.turn(2, PAUSE + 90, &["transfer"]);
    let judged = process.advance(3 * PAUSE);
    assert_eq!(
        judged.evaluations[0].explanation(),
        "`transfer` (call 2): no `^authenticate$` before it in this session"
    );
}

#[test]
fn each_condition_of_a_whole_session_is_named_where_it_fails() {
    let late = PAUSE + 60;
    let ends = |process: &mut Process, second: u64| {
        let (label, completeness, _) = only(&process.advance(second + PAUSE + 60));
        assert_eq!(label, "not_evaluated");
        completeness
    };
    let mut process = Process::whole(&[authenticate_first()]);
    process.turn(1, 60, &["authenticate", "transfer"]);
    assert_eq!(ends(&mut process, 60), "start_unseen");

    let mut process = Process::whole(&[authenticate_first()]);
    let mut spans = spans_of_run(1, &[("session.id", "s")], &calls(&["authenticate"]));
    for span in &mut spans {
        span.start_time_unix_nano += late * SECOND;
        span.end_time_unix_nano += late * SECOND;
    }
    let said = |role: &str| json!({ "role": role, "parts": [{ "type": "text" }] });
    let messages = json!([said("user"), said("assistant"), said("user")]).to_string();
    let model = spans.iter_mut().find(|span| span.name == "chat").unwrap();
    model
        .attributes
        .push(attribute("gen_ai.input.messages", &messages));
    let spans = scan::scan(&request(spans), Some(&process.rules)).unwrap();
    process.spans(spans.batch.spans, late);
    assert_eq!(ends(&mut process, late), "start_unseen");

    let mut process = Process::whole(&[authenticate_first()]);
    process.turn(1, late, &["authenticate"]);
    let trace_id = turn(2, late, &[])[0].trace_id;
    let at = process.at(late + 60);
    process.pipeline.mark_unscored(&[trace_id], at);
    process.turn(3, late + 90, &["transfer"]);
    assert_eq!(ends(&mut process, late + 90), "incomplete");

    let mut session = Settings::replay().session;
    session.inactive = Duration::from_secs(PAUSE);
    session.is_whole = false;
    let mut process = Process::new(session, &[authenticate_first()]);
    process.turn(1, late, &["authenticate"]);
    let judged = process.advance(late + PAUSE + 60);
    assert_eq!(only(&judged), ("not_evaluated", "not_whole", 0));
    let told = judged.evaluations[0].explanation();
    assert!(told.contains("`assemble.session.whole`"), "{told}");

    let mut process = Process::whole(&[authenticate_first()]);
    process.turn(1, late, &["authenticate"]);
    let at = process.at(late + 60);
    let judged = process.pipeline.drain(&process.rules, at);
    assert_eq!(only(&judged), ("not_evaluated", "shutdown", 0));
}

#[test]
fn a_session_without_memory_is_evicted_and_then_begins_unseen() {
    let mut process = Process::whole(&[no_deletion()]);
    let late = PAUSE + 60;
    process.turn(1, late, &["search", "delete"]);
    let mut sizes = judge::assemble::Sizes {
        trace: 1 << 20,
        open: 1 << 20,
        recent: 1 << 20,
        sessions: 0,
    };
    let at = process.at(late + 20);
    process.pipeline.resize(sizes, at);
    let other = spans_of_run(2, &[("session.id", "t")], &[]);
    let other = scan::scan(&request(other), Some(&process.rules)).unwrap();
    let judged = process.spans(other.batch.spans, late + 20);
    let evicted = judged.evaluations.iter().map(|it| {
        let trajectory = &it.trajectory;
        (
            trajectory.session.as_deref().unwrap(),
            it.verdict,
            trajectory.completeness.as_str(),
        )
    });
    let evicted = evicted.collect::<Vec<_>>();
    assert_eq!(
        evicted,
        [
            ("s", Verdict::Fail, "evicted"),
            ("t", Verdict::NotEvaluated, "evicted")
        ]
    );
    assert_eq!(judged.sessions, [CloseReason::Evicted; 2]);
    sizes.sessions = 1 << 20;
    process.pipeline.resize(sizes, at);
    let again = late + 9 * PAUSE;
    process.turn(3, again, &["search"]);
    let judged = process.advance(again + PAUSE + 60);
    assert_eq!(only(&judged), ("not_evaluated", "start_unseen", 0));
}

#[test]
fn a_violation_is_reported_once_when_its_turn_closes_and_confirmed_at_the_end() {
    let mut process = Process::whole(&[authenticate_first(), no_deletion()]);
    let late = PAUSE + 60;
    assert!(process.turn(1, late, &["search"]).alarms.is_empty());
    let judged = process.turn(2, late + 60, &["search", "delete"]);
    let [alarm] = &judged.alarms[..] else {
        panic!("{judged:?}")
    };
    assert_eq!((alarm.stage, alarm.verdict), (Stage::Alarm, Verdict::Fail));
    assert_eq!(alarm.trajectory.completeness.as_str(), "open");
    // The alarm is about the call, so the alarm's trace is the trace of the call's turn.
    let subject = alarm.subject().unwrap();
    assert_eq!(&*subject.name, "delete");
    assert_eq!(alarm.trajectory.trace_id, turn(2, 0, &[])[0].trace_id);
    let judged = process.turn(3, late + 120, &["delete"]);
    assert!(
        judged.alarms.is_empty() && judged.evaluations.is_empty(),
        "{judged:?}"
    );
    let judged = process.advance(late + 120 + PAUSE + 60);
    let labels = labels(&judged.evaluations);
    assert_eq!(labels["no-deletion"], Verdict::Fail);
    assert_eq!(labels["authenticate-first"], Verdict::Pass);
    let is_deletion = |it: &&Evaluation| it.criterion.name() == "no-deletion";
    let verdict = judged.evaluations.iter().find(is_deletion).unwrap();
    assert_eq!(
        (verdict.verdict_id(), verdict.revision),
        (alarm.verdict_id(), 0)
    );
}

#[test]
fn a_late_turn_revises_under_the_same_id() {
    let mut process = Process::whole(&[no_deletion()]);
    let late = PAUSE + 60;
    process.turn(1, late, &["search"]);
    let judged = process.advance(late + PAUSE + 60);
    assert_eq!(only(&judged), ("pass", "silent", 0));
    let id = judged.evaluations[0].verdict_id();
    let judged = process.turn(2, late + 2 * PAUSE, &["search", "delete"]);
    assert!(
        judged.alarms.len() == 1 || judged.evaluations.is_empty(),
        "{judged:?}"
    );
    let judged = process.advance(late + 3 * PAUSE + 60);
    assert_eq!(only(&judged), ("fail", "silent", 1));
    assert_eq!(judged.evaluations[0].verdict_id(), id);
}

#[test]
fn a_turn_that_is_corrected_changes_its_session() {
    let mut process = Process::whole(&[no_deletion()]);
    let late = PAUSE + 60;
    process.turn(1, late, &["delete"]);
    let mut spans = turn(1, late, &calls(&["undelete"]));
    spans[2].end_unix_nanos += 1;
    process.spans(spans, late + 30);
    let judged = process.advance(late + PAUSE + 90);
    assert_eq!(only(&judged), ("pass", "silent", 0));
}

#[test]
fn criteria_that_are_removed_withdraw_their_alarms() {
    for others in [vec![authenticate_first()], Vec::new()] {
        let mut process = Process::whole(&[no_deletion()]);
        let late = PAUSE + 60;
        let raised = process.turn(1, late, &["delete"]);
        assert_eq!(raised.alarms.len(), 1);
        process.rules = rules(&others);
        let judged = process.advance(late + PAUSE + 60);
        let [withdrawn] = &judged.alarms[..] else {
            panic!("{judged:?}")
        };
        assert_eq!(withdrawn.stage, Stage::WithdrawnAlarm);
        assert_eq!(withdrawn.verdict_id(), raised.alarms[0].verdict_id());
        assert_eq!(judged.evaluations.len(), others.len());
    }
}

#[test]
fn a_session_criterion_judges_no_single_trace() {
    let mut process = Process::whole(&[no_deletion()]);
    let mut spans = turn(1, 60, &calls(&["delete"]));
    // The root contains the session's id, so without the root the turn belongs to no session.
    spans.remove(0);
    let batch = Batch {
        spans,
        ..Batch::default()
    };
    let at = process.at(60);
    process.pipeline.take(batch, at);
    let judged = process.pipeline.finish(&process.rules, at);
    assert!(
        judged.alarms.is_empty() && judged.evaluations.is_empty(),
        "{judged:?}"
    );
}
