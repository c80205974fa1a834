//! Tests alarms on prefixes of every capture, and on generated traces in any order, span by span.
//! An alarm implies that the final verdict is `fail`, no criterion raises two alarms about one
//! trace, and batches raise no other alarms than single spans. Also tests which criteria load with
//! `alarm`, what withdraws an alarm, and how expensive a hostile trace is.

use std::collections::BTreeSet;
use std::time::Duration;

use fastrand::Rng;
use judge::assemble::{CloseReason, Settings};
use judge::evaluate::{Criterion, Evaluation, Stage, Verdict};
use judge::pipeline::{Judged, Pipeline, Rules};
use otlp::scan;
use otlp::span::{Batch, Now, Span, SpanAdmission};
use serde_json::{Value, json};

use crate::support::captures as load;
use crate::support::now;
use crate::support::repetitions::number;
use crate::support::spans::{self, SpanCall, spans_of_run};
use crate::verdict_stability::criteria::some_about;
use crate::verdict_stability::{generated_traces, spans_of, whole};

fn rules(criteria: &[Value]) -> Rules {
    let with_alarm = criteria.iter().filter_map(|criterion| {
        let mut criterion = criterion.clone();
        criterion["alarm"] = json!(true);
        serde_json::from_value(criterion).ok()
    });
    Rules::new(with_alarm.collect())
}

fn subject(evaluation: &Evaluation) -> (String, String) {
    (
        evaluation.trajectory.trace_id.to_string(),
        evaluation.criterion.name().to_owned(),
    )
}

/// Feeds batches of spans to a pipeline, then judges all traces, as cut short if `is_cut`.
fn judged(rules: &Rules, batches: impl Iterator<Item = Vec<Span>>, is_cut: bool) -> Judged {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let mut judged = Judged::default();
    for (spans, second) in batches.zip(1..) {
        let batch = Batch {
            spans,
            ..Batch::default()
        };
        // Each batch arrives so late that no trace is waiting for its next alarm check.
        let now = Now {
            instant: now.instant + 2 * Duration::from_secs(second),
            ..now
        };
        pipeline.take_into(rules, batch, now, &mut judged);
        if let Some(due) = pipeline.next_deadline() {
            let now = Now {
                instant: due,
                ..now
            };
            pipeline.advance_into(rules, now, &mut judged);
        }
        assert!(judged.evaluations.is_empty(), "no trace is closed");
    }
    let last = if is_cut { pipeline.drain(rules, now) } else { pipeline.finish(rules, now) };
    judged.alarms.extend(last.alarms);
    judged.evaluations.extend(last.evaluations);
    judged
}

/// Checks that each alarm became a `fail`, and that no alarm is missing. Returns the subjects of
/// the alarms.
fn confirmed(judged: &Judged, whose: &str) -> BTreeSet<(String, String)> {
    let mut raised = BTreeSet::new();
    for alarm in &judged.alarms {
        assert_eq!(alarm.stage, Stage::Alarm, "{whose}: {alarm:?}");
        let about = subject(alarm);
        let verdict = judged
            .evaluations
            .iter()
            .find(|evaluation| subject(evaluation) == about);
        let verdict = verdict.unwrap_or_else(|| panic!("{whose}: no verdict after {alarm:?}"));
        assert_eq!(
            (verdict.verdict, verdict.revision, verdict.verdict_id()),
            (Verdict::Fail, 0, alarm.verdict_id()),
            "{whose}: {:?}\nalarm: {}\nverdict: {}",
            alarm.criterion,
            alarm.explanation(),
            verdict.explanation()
        );
        assert!(raised.insert(about), "{whose}: two alarms of {alarm:?}");
    }
    for fail in judged
        .evaluations
        .iter()
        .filter(|it| it.verdict == Verdict::Fail)
    {
        // A fail that was certain when the last span arrived must have raised an alarm. Values from
        // another trace arrive only when that trace closes, here together with this one.
        let is_missed = fail.trajectory.completeness == CloseReason::Shutdown
            && !fail.trajectory.completed_elsewhere
            && !raised.contains(&subject(fail));
        assert!(
            !is_missed,
            "{whose}: no alarm of {:?}: {}",
            fail.criterion,
            fail.explanation()
        );
    }
    raised
}

/// Checks that batches raise only alarms that are raised span by span. Returns the number of these
/// alarms.
fn raised(rules: &Rules, spans: &[Span], random: &mut Rng, whose: &str) -> usize {
    let is_cut = random.bool();
    let one_by_one = judged(rules, spans.iter().map(|span| vec![span.clone()]), is_cut);
    let raised = confirmed(&one_by_one, whose);
    let n_batch = random.usize(1..6);
    for n_batch in [n_batch, spans.len().max(1)] {
        let in_batches = judged(rules, spans.chunks(n_batch).map(<[Span]>::to_vec), !is_cut);
        let in_batches = confirmed(&in_batches, whose);
        assert!(
            in_batches.is_subset(&raised),
            "{whose}: {in_batches:?} of {raised:?}"
        );
    }
    raised.len()
}

fn captures_keep_the_promise(half: usize) {
    let mut n_raised = 0;
    for scenario in load::scenarios().iter().skip(half).step_by(2) {
        let none = Rules::new(Vec::new()).without_judgement();
        let on_whole = whole(&none, &spans_of(scenario, &none));
        let mut random = Rng::with_seed(on_whole.trajectories.len() as u64);
        let rules = rules(&some_about(&on_whole.trajectories, &mut random));
        let mut spans = spans_of(scenario, &rules);
        // The cost grows with the square of the number of spans, because every prefix is judged.
        spans.truncate(number("SPANSCORE_TEST_SPANS", 48) as usize);
        if random.bool() {
            random.shuffle(&mut spans);
        }
        n_raised += raised(&rules, &spans, &mut random, &scenario.name);
    }
    assert!(
        n_raised > 200,
        "only {n_raised} alarms: the test says little"
    );
}

#[test]
fn alarms_on_half_of_the_captures_become_fails() {
    captures_keep_the_promise(0);
}

#[test]
fn alarms_on_the_other_captures_become_fails() {
    captures_keep_the_promise(1);
}

#[test]
fn alarms_on_generated_traces_become_fails() {
    let mut n_raised = 0;
    for seed in 0..20 * number("SPANSCORE_TEST_ROUNDS", 1) {
        let mut random = Rng::with_seed(seed);
        let request = generated_traces::request(&mut random);
        let scanned = |rules: &Rules| scan::scan(&request, Some(rules)).unwrap().batch.spans;
        let none = Rules::new(Vec::new()).without_judgement();
        let on_whole = whole(&none, &scanned(&none));
        let rules = rules(&some_about(&on_whole.trajectories, &mut random));
        for round in 0..3 {
            let mut spans = scanned(&rules);
            if round > 0 {
                random.shuffle(&mut spans);
            }
            let whose = format!("seed {seed} round {round}");
            n_raised += raised(&rules, &spans, &mut random, &whose);
        }
    }
    assert!(
        n_raised > 50,
        "only {n_raised} alarms: the test says little"
    );
}

// === what raises an alarm, and what withdraws one ===

fn criterion(evaluate: &Value) -> Result<Criterion, String> {
    let written = json!({ "name": "c", "alarm": true, "evaluate": evaluate });
    serde_json::from_value(written).map_err(|error| error.to_string())
}

#[test]
fn a_criterion_that_no_moment_violates_for_good_is_refused() {
    for evaluate in [
        json!({ "tool_calls": { "disallowed": ["x"], "required": ["y"] } }),
        json!({ "constraints": { "rules": [
            { "total": { "a": "x", "of": "args.n", "max": 1 } },
        ] } }),
        json!({ "constraints": { "rules": [{ "response": { "a": "x", "b": "y" } },
                                           { "absence": { "a": "x" } }] } }),
        json!({ "tool_call_count": { "tool_calls_count": { "x": ["<=", 3] } } }),
        json!({ "efficiency": { "max_tokens": 9, "max_duration": "1s" } }),
    ] {
        criterion(&evaluate).unwrap();
    }
    for (evaluate, reason) in [
        (
            json!({ "tool_calls": { "required": ["x"] } }),
            "`required` and `sequence` cannot be",
        ),
        (
            json!({ "tool_calls": { "disallowed": [{ "name": "x", "command": "rm" }] } }),
            "an entry with `command` or `path` cannot be",
        ),
        (
            json!({ "constraints": { "rules": [{ "response": { "a": "x", "b": "y" } }] } }),
            "`response` cannot be: a later call may still satisfy it",
        ),
        (
            json!({ "constraints": { "rules": [
                { "absence": { "a": { "name": "x", "path": "/" } } },
            ] } }),
            "an entry with `command` or `path` cannot be",
        ),
        (
            json!({ "tool_call_count": { "tool_calls_count": { "x": [">=", 3] } } }),
            "a minimum cannot be",
        ),
        (
            json!({ "efficiency": { "max_repeats": 1 } }),
            "limits on retries, repeats",
        ),
        (
            json!({ "tool_call_order": { "tool_calls_order": ["x"] } }),
            "`tool_call_order` cannot be",
        ),
    ] {
        let error = criterion(&evaluate).unwrap_err();
        let asks = "`alarm` needs a criterion that can be permanently violated by one call; ";
        assert!(error.contains(&format!("{asks}{reason}")), "{error}");
    }
    let (response, absence) = (
        json!({ "response": { "a": "x", "b": "y" } }),
        json!({ "absence": { "a": "x" } }),
    );
    let both = json!({ "constraints": { "rules": [response, absence] } });
    let apart =
        json!({ "constraints": { "rules": [{ "not_coexistence": { "a": "x", "b": "y" } }] } });
    let counts = json!({ "x": ["<=", 3], "y": [">=", 1], "z": [">=", 1] });
    for (evaluate, threshold, may_reach) in [
        (&both, 0.5, Some("0.5")),
        (&both, 0.51, None),
        (&apart, 0.9, Some("1")),
        (&apart, 1.0, None),
        (
            &json!({ "tool_call_count": { "tool_calls_count": counts } }),
            0.66,
            Some("0.67"),
        ),
        (
            &json!({ "tool_call_count": { "tool_calls_count": counts, "strict": true } }),
            0.1,
            None,
        ),
        (
            &json!({ "efficiency": { "max_calls": 9, "max_repeats": 2 } }),
            0.5,
            Some("0.5"),
        ),
        (
            &json!({ "tool_calls": { "disallowed": ["x"] } }),
            0.0,
            Some("0"),
        ),
    ] {
        let written = json!({ "name": "c", "alarm": true, "threshold": threshold,
            "evaluate": evaluate });
        let error = serde_json::from_value::<Criterion>(written).err();
        let expected = may_reach.map(|score| {
            format!("the score may still reach {score}, and `threshold` is {threshold}; raise it")
        });
        let error = error.map(|error| error.to_string());
        assert!(
            match (&error, &expected) {
                (Some(error), Some(expected)) => error.contains(expected),
                (error, expected) => error.is_none() && expected.is_none(),
            },
            "{evaluate}: {error:?}, not {expected:?}"
        );
    }
    let of_agent = json!({ "name": "c", "alarm": true, "scope": "agent",
        "evaluate": { "tool_calls": { "disallowed": ["x"] } } });
    let error = serde_json::from_value::<Criterion>(of_agent).unwrap_err();
    assert!(
        error.to_string().contains("`alarm` needs `scope: trace`"),
        "{error}"
    );
    let unlike = json!({ "name": "c", "alarm": "yes", "evaluate": { "tool_calls": {} } });
    let error = serde_json::from_value::<Criterion>(unlike).unwrap_err();
    assert!(
        error.to_string().contains("`{ score_span: true }`"),
        "{error}"
    );
}

#[test]
fn a_criterion_without_alarm_keeps_its_revision() {
    let of = |alarm: Value| {
        let mut written =
            json!({ "name": "c", "evaluate": { "tool_calls": { "disallowed": ["x"] } } });
        if !alarm.is_null() {
            written["alarm"] = alarm;
        }
        let criterion: Criterion = serde_json::from_value(written).unwrap();
        let again: Criterion = serde_json::from_value(json!(criterion)).unwrap();
        assert_eq!(again, criterion);
        criterion.revision().to_owned()
    };
    assert_eq!(of(json!(false)), of(Value::Null));
    assert_eq!(of(json!({ "score_span": false })), of(json!(true)));
    assert_ne!(of(json!(true)), of(Value::Null));
    assert_ne!(of(json!({ "score_span": true })), of(json!(true)));
}

fn no_deletion() -> Rules {
    rules(&[json!({ "name": "no deletion",
        "evaluate": { "tool_calls": { "disallowed": ["^delete$"] } } })])
}

/// Returns the spans of a run whose root has not arrived.
fn open_run(rules: &Rules, trace: u64, tools: &[&str]) -> Vec<Span> {
    let call = |name: &&str| SpanCall {
        name: (*name).to_owned(),
        ..SpanCall::default()
    };
    let calls: Vec<SpanCall> = tools.iter().map(call).collect();
    let run = spans_of_run(trace, &[], &calls).split_off(1);
    scan::scan(&spans::request(run), Some(rules))
        .unwrap()
        .batch
        .spans
}

fn take(pipeline: &mut Pipeline, rules: &Rules, spans: Vec<Span>) -> Judged {
    let mut judged = Judged::default();
    let batch = Batch {
        spans,
        ..Batch::default()
    };
    pipeline.take_into(rules, batch, now(), &mut judged);
    judged
}

#[test]
fn an_alarm_names_the_call_while_the_run_is_open() {
    let rules = no_deletion();
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    let spans = open_run(&rules, 1, &["search", "delete"]);
    let calls = spans[1].span_id;
    let judged = take(&mut pipeline, &rules, spans);
    let [alarm] = &judged.alarms[..] else {
        panic!("{judged:?}")
    };
    let of_call = alarm.subject().unwrap();
    assert_eq!((of_call.span_id, &*of_call.name), (calls, "delete"));
    assert_eq!(alarm.trajectory.completeness.as_str(), "open");
    assert!(
        alarm.explanation().contains("`delete`"),
        "{}",
        alarm.explanation()
    );
    let more = open_run(&rules, 1, &["search", "delete", "delete"]);
    assert_eq!(
        take(&mut pipeline, &rules, more).alarms.len(),
        0,
        "one alarm for a trace"
    );
}

#[test]
fn a_corrected_span_ends_an_alarm_with_another_verdict() {
    let rules = no_deletion();
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    let raised = take(&mut pipeline, &rules, open_run(&rules, 1, &["delete"]));
    let call = SpanCall {
        name: "undelete".to_owned(),
        ..SpanCall::default()
    };
    let mut corrected = spans_of_run(1, &[], &[call]);
    corrected[1].end_time_unix_nano += 1;
    let corrected = scan::scan(&spans::request(corrected), Some(&rules)).unwrap();
    let corrected = corrected.batch.spans;
    assert_eq!(take(&mut pipeline, &rules, corrected).alarms.len(), 0);
    let last = pipeline.finish(&rules, now());
    let [verdict] = &last.evaluations[..] else {
        panic!("{last:?}")
    };
    assert_eq!((verdict.verdict, verdict.revision), (Verdict::Pass, 0));
    assert_eq!(verdict.verdict_id(), raised.alarms[0].verdict_id());
    assert!(last.alarms.is_empty());
}

#[test]
fn a_condition_on_arguments_does_not_wait_for_the_spans_above_the_call() {
    let entry = json!({ "name": "^transfer$", "where": { "args.amount": { "gt": 1000 } } });
    let large = json!({ "tool_calls": { "disallowed": [entry] } });
    let rules = rules(&[json!({ "name": "no large transfer", "evaluate": large })]);
    let call = |amount: &u64| SpanCall {
        name: "transfer".to_owned(),
        args: (*amount > 0).then(|| json!({ "amount": amount })),
        ..SpanCall::default()
    };
    // The amounts of the call and of a span above it (0: no amount). A span above with another
    // amount is another call.
    for (amounts, is_raised) in [
        ([5000, 5000], true),
        ([5000, 0], true),
        ([5000, 1000], true),
        ([1000, 1000], false),
    ] {
        let mut run = spans_of_run(1, &[], &amounts.each_ref().map(call));
        run[1].parent_span_id = run[2].span_id.clone();
        run[2].start_time_unix_nano = run[1].start_time_unix_nano - 1;
        run[2].end_time_unix_nano = run[1].end_time_unix_nano + 1;
        let last = vec![run.remove(0), run.pop().unwrap()];
        let mut pipeline = Pipeline::new(Settings::replay(), now());
        let [first, last] = [run, last].map(|spans| {
            let request = spans::request(spans);
            let spans = scan::scan(&request, Some(&rules)).unwrap().batch.spans;
            take(&mut pipeline, &rules, spans).alarms.len()
        });
        assert_eq!((first, last), (usize::from(is_raised), 0), "{amounts:?}");
        let verdicts = pipeline.finish(&rules, now()).evaluations;
        let expected = if is_raised { Verdict::Fail } else { Verdict::Pass };
        assert_eq!(verdicts[0].verdict, expected, "{amounts:?}");
    }
}

/// Returns a span below span `above` that reports a call of `transfer`. `start` is larger for spans
/// that are nested deeper.
fn report(
    number: u64,
    above: u64,
    start: u64,
    id: &str,
    args: &str,
) -> opentelemetry_proto::tonic::trace::v1::Span {
    let call = SpanCall {
        name: "transfer".to_owned(),
        ..SpanCall::default()
    };
    let mut span = spans_of_run(1, &[], &[call]).remove(1);
    span.span_id = number.to_be_bytes().to_vec();
    span.parent_span_id = above.to_be_bytes().to_vec();
    span.start_time_unix_nano += start;
    span.end_time_unix_nano -= start;
    for (key, text) in [
        ("gen_ai.tool.call.id", id),
        ("gen_ai.tool.call.arguments", args),
    ] {
        if !text.is_empty() {
            span.attributes.push(spans::attribute(key, text));
        }
    }
    span
}

#[test]
fn no_other_report_of_a_call_takes_back_an_alarm_about_its_arguments() {
    let large = r#"{"amount":5000}"#;
    let mut request = report(2, 1, 0, "", "");
    request.attributes = vec![
        spans::attribute("gen_ai.operation.name", "chat"),
        spans::attribute(
            "gen_ai.output.messages",
            r#"[{"role":"assistant","parts":[{"type":"tool_call","id":"a","name":"transfer",
                "arguments":{"amount":5000}}]}]"#,
        ),
    ];
    request.name = "chat".to_owned();
    request.start_time_unix_nano -= 1_000;
    request.end_time_unix_nano -= 1_000;
    let mut work = report(6, 1, 0, "", "");
    (work.name, work.attributes) = ("work".to_owned(), Vec::new());
    for (what, condition, first, last, is_raised) in [
        (
            "a span above changes what the model requested",
            json!({ "gt": 1000 }),
            vec![request, report(3, 4, 2, "a", "")],
            vec![report(4, 1, 1, "", r#"{"amount":1000}"#)],
            false,
        ),
        (
            "a span above writes the number in another way",
            json!({ "regex": "^5000$" }),
            vec![report(3, 4, 2, "", large)],
            vec![report(4, 1, 1, "", r#"{"amount":5000.0}"#)],
            false,
        ),
        (
            "a span above has a value that cannot be compared",
            json!({ "gt": 1000 }),
            vec![report(3, 4, 2, "", large)],
            vec![report(4, 1, 1, "", r#"{"amount":"NaN"}"#)],
            true,
        ),
        (
            "the span above repeats a call of another span",
            json!({ "gt": 1000 }),
            vec![report(3, 4, 3, "", large)],
            vec![report(4, 1, 2, "a", ""), report(5, 6, 1, "a", ""), work],
            true,
        ),
    ] {
        let entry = json!({ "name": "^transfer$", "where": { "args.amount": condition } });
        let rules = rules(&[json!({ "name": "amount",
            "evaluate": { "tool_calls": { "disallowed": [entry] } } })]);
        let root = spans_of_run(1, &[], &[]);
        let mut pipeline = Pipeline::new(Settings::replay(), now());
        let raised = [first, [last, root].concat()].map(|spans| {
            let scanned = scan::scan(&spans::request(spans), Some(&rules)).unwrap();
            take(&mut pipeline, &rules, scanned.batch.spans)
                .alarms
                .len()
        });
        let verdict = pipeline.finish(&rules, now()).evaluations[0].verdict;
        assert_eq!(raised, [usize::from(is_raised), 0], "{what}");
        let expected = if is_raised { Verdict::Fail } else { Verdict::Pass };
        assert_eq!(verdict, expected, "{what}");
    }
}

#[test]
fn a_reload_without_the_criterion_withdraws_its_alarm_once() {
    let rules = no_deletion();
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    let raised = take(&mut pipeline, &rules, open_run(&rules, 1, &["delete"]));
    let other = Rules::new(Vec::new());
    let judged = pipeline.finish(&other, now());
    let [withdrawn] = &judged.alarms[..] else {
        panic!("{judged:?}")
    };
    assert_eq!(
        (withdrawn.stage, withdrawn.verdict, withdrawn.verdict_id()),
        (
            Stage::WithdrawnAlarm,
            Verdict::NotEvaluated,
            raised.alarms[0].verdict_id()
        )
    );
    assert!(judged.evaluations.is_empty());
    take(
        &mut pipeline,
        &other,
        open_run(&rules, 1, &["delete", "search"]),
    );
    assert!(pipeline.finish(&other, now()).alarms.is_empty());
}

#[test]
fn an_alarm_of_a_trace_that_holds_no_call_any_more_is_withdrawn() {
    let rules = no_deletion();
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    let raised = take(&mut pipeline, &rules, open_run(&rules, 1, &["delete"]));
    let call = SpanCall {
        name: "delete".to_owned(),
        ..SpanCall::default()
    };
    let mut corrected = spans_of_run(1, &[], &[call]).split_off(1);
    corrected[0].end_time_unix_nano += 1;
    corrected[0].attributes.clear();
    corrected[0].name = "work".to_owned();
    let corrected = scan::scan(&spans::request(corrected), Some(&rules)).unwrap();
    take(&mut pipeline, &rules, corrected.batch.spans);
    let judged = pipeline.finish(&rules, now());
    assert_eq!((judged.n_no_trajectory, judged.evaluations.len()), (1, 0));
    let [withdrawn] = &judged.alarms[..] else {
        panic!("{judged:?}")
    };
    assert_eq!(
        (withdrawn.stage, withdrawn.verdict_id()),
        (Stage::WithdrawnAlarm, raised.alarms[0].verdict_id())
    );
}

#[test]
fn a_trace_of_many_calls_waits_and_is_judged_within_a_second() {
    let rules = rules(&[
        json!({ "name": "limit", "evaluate": { "efficiency": { "max_calls": 10_000 } } }),
        json!({ "name": "no deletion",
            "evaluate": { "tool_calls": { "disallowed": ["^delete$"] } } }),
    ]);
    let start = now();
    let mut pipeline = Pipeline::new(Settings::replay(), start);
    let mut names = vec!["search"; 4_000];
    names.push("delete");
    let mut n_postponed = 0;
    for span in open_run(&rules, 1, &names) {
        let judged = take(&mut pipeline, &rules, vec![span]);
        n_postponed += judged.n_postponed;
        assert_eq!(judged.alarms.len(), 0);
    }
    assert_eq!(n_postponed, 1, "it waits from then on");
    // Other traces are not delayed.
    let beside = take(&mut pipeline, &rules, open_run(&rules, 2, &["delete"]));
    assert_eq!(beside.alarms.len(), 1);
    let due = pipeline.next_deadline().unwrap();
    let latest = now().instant + Duration::from_secs(1);
    assert!(due <= latest, "{due:?}");
    let due = Now {
        instant: due,
        ..start
    };
    let judged = pipeline.advance(&rules, due);
    let raised: Vec<&str> = judged
        .alarms
        .iter()
        .map(|alarm| alarm.criterion.name())
        .collect();
    assert_eq!(raised, ["no deletion"]);
}

#[test]
fn a_reload_judges_open_runs_by_new_alarms() {
    let before = Rules::new(Vec::new());
    let start = now();
    let mut pipeline = Pipeline::new(Settings::replay(), start);
    let judged = take(&mut pipeline, &before, open_run(&before, 1, &["delete"]));
    assert_eq!(judged.alarms.len(), 0);
    let rules = no_deletion();
    assert_eq!(pipeline.advance(&rules, start).alarms.len(), 1);
    // These spans belong to a request that was scanned before the reload.
    let in_flight = Batch {
        spans: open_run(&before, 2, &["delete"]),
        watched_by: before.watched_by(),
        ..Batch::default()
    };
    let mut judged = Judged::default();
    pipeline.take_into(&rules, in_flight, start, &mut judged);
    assert_eq!(judged.alarms.len(), 1);
    // A criterion without `alarm` still judges, but the alarms that it raised before are withdrawn.
    let quiet = json!({ "name": "no deletion",
        "evaluate": { "tool_calls": { "disallowed": ["^delete$"] } } });
    let quiet = Rules::new(vec![serde_json::from_value(quiet).unwrap()]);
    let last = pipeline.finish(&quiet, start);
    assert_eq!((last.alarms.len(), last.evaluations.len()), (2, 2));
    assert_eq!(last.alarms[0].stage, Stage::WithdrawnAlarm);
}

#[test]
fn a_call_that_may_be_another_report_of_a_call_raises_no_alarm() {
    let exactly = json!({ "constraints": { "rules": [{ "exactly": { "a": "^c$" } }] } });
    let rules = rules(&[json!({ "name": "once", "evaluate": exactly })]);
    let call = |name: &str| SpanCall {
        name: name.to_owned(),
        ..SpanCall::default()
    };
    let mut run = spans_of_run(1, &[], &[call("c"), call("c"), call("c")]);
    // The last two spans come from a tool's server and lie below a span that has not arrived. One
    // of the two has no tool name.
    for span in &mut run[2..] {
        span.parent_span_id = vec![9; 8];
        span.flags = 0x300;
    }
    run[3]
        .attributes
        .retain(|attribute| attribute.key != "gen_ai.tool.name");
    run[3].name = "execute_tool".to_owned();
    let scanned = scan::scan(&spans::request(run), Some(&rules)).unwrap();
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    assert_eq!(
        take(&mut pipeline, &rules, scanned.batch.spans)
            .alarms
            .len(),
        0
    );
}
