//! Feeds the pipeline every captured session of every framework in random order, in random batches,
//! with repetitions and with pauses of all lengths. Each judgement is reported once, revisions
//! count up from 0, and the last revision equals the judgement of the same spans sent together. The
//! order is random but seeded. Does not test limits and budgets, or whether a judgement is right.

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use crate::support::now;
    use judge::assemble::Settings;
    use judge::evaluate::{Evaluation, Explain};
    use judge::extract::Tools;
    use judge::pipeline::{Judged, Pipeline, Rules};
    use otlp::span::{Batch, Now, Span};
    use otlp::{json as transcode, scan};
    use serde_json::{Value, json};

    use crate::support::captures as load;
    use crate::support::repetitions::number;

    /// Number of random orders of arrival for each session; `.ci/extended properties` tests more of
    /// them.
    const N_ARRIVALS: u64 = 1;

    fn rules() -> Rules {
        let criteria = [
            json!({
                "name": "order",
                "evaluate": { "tool_call_order": { "tool_calls_order": [
                    "search",
                    "get_weather",
                ] } },
            }),
            json!({
                "name": "agents",
                "scope": "agent",
                "evaluate": { "tool_call_count": { "tool_calls_count": { "get_weather": [
                    ">",
                    0,
                ] } } },
            }),
            json!({
                "name": "arguments",
                "evaluate": { "tool_calls": { "disallowed": [{
                    "name": ".",
                    "args": { "city": "." },
                }] } },
            }),
            json!({
                "name": "selected",
                "select": { "calls": "*e*" },
                "evaluate": { "execution_order": { "expected_output": ["search"] } },
            }),
            json!({
                "name": "rules",
                "evaluate": { "constraints": { "rules": [
                    { "precedence": { "a": "search", "b": ".", "within": "1h" } },
                    { "alternate_response": {
                        "a": "weather",
                        "b": { "name": ".", "error": false },
                    } },
                    { "not_coexistence": { "a": ".", "b": ".", "same": ["args.city"] } },
                    { "chain_succession": { "a": "weather", "b": "search", "overlap": "pass" } },
                    { "end": { "a": "e" } },
                ] } },
            }),
            json!({
                "name": "rules by reply",
                "evaluate": { "constraints": {
                    "concurrency": "reply",
                    "rules": [
                        { "not_succession": { "a": ".", "b": "." } },
                        { "init": { "a": "e" } },
                    ],
                } },
            }),
            json!({
                "name": "reference",
                "evaluate": { "trajectory_match": {
                    "expected": ["search", "get_weather", "get_weather"],
                    "score": "f1",
                    "ordered": true,
                } },
            }),
            json!({
                "name": "effort",
                "evaluate": { "efficiency": {
                    "max_calls": 2,
                    "max_errors": 0,
                    "max_retries": 0,
                    "max_repeats": 0,
                    "max_duplicates": 0,
                    "max_duration": "1s",
                } },
            }),
        ];
        let criteria = criteria
            .map(|criterion| serde_json::from_value(criterion).unwrap())
            .into();
        // The attributes that scores copy by default.
        let copied = ["gen_ai.agent.name", "gen_ai.conversation.id", "session.id"];
        let copied = copied.map(str::to_owned);
        Rules::following(
            None,
            criteria,
            &Tools::default(),
            Explain::default(),
            &copied,
        )
    }

    /// Returns the defaults of docs/design.md#configuration, but with unlimited memory and history.
    fn settings() -> Settings {
        Settings {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            settle_remote: Duration::from_secs(15),
            inactive: Duration::from_secs(180),
            expired: Duration::from_secs(3_600),
            ..Settings::replay()
        }
    }

    fn spans(scenario: &load::Scenario, rules: &Rules) -> Vec<Span> {
        let traces = scenario
            .requests
            .iter()
            .filter(|(file, _)| file.contains(".traces."));
        let batches = traces.map(|(file, body)| {
            let body = if file.ends_with(".json") {
                transcode::traces(body).unwrap()
            } else {
                body.clone()
            };
            scan::scan(&body, Some(&*rules)).unwrap().batch
        });
        batches.flat_map(|batch| batch.spans).collect()
    }

    /// The subject of a verdict: the trace, the agent run if each run is judged, and the criterion.
    type Subject = (String, Option<String>, String);

    /// The revisions of each subject's evaluation, in order.
    #[derive(Default)]
    struct Reports(BTreeMap<Subject, Vec<Value>>);

    impl Reports {
        fn add(&mut self, judged: &Judged) {
            for evaluation in &judged.evaluations {
                let Evaluation {
                    criterion,
                    trajectory,
                    revision,
                    previous,
                    ..
                } = evaluation;
                let run = (criterion.name() == "agents")
                    .then(|| trajectory.subject.as_ref().unwrap().span_id.to_string());
                let reports = self
                    .0
                    .entry((
                        trajectory.trace_id.to_string(),
                        run,
                        criterion.name().to_owned(),
                    ))
                    .or_default();
                assert_eq!(*revision as usize, reports.len(), "{evaluation:#?}");
                assert_eq!(
                    previous.map(|previous| previous.revision + 1),
                    (*revision > 0).then_some(*revision)
                );
                let what = what(evaluation);
                assert_ne!(
                    reports.last(),
                    Some(&what),
                    "what has not changed is not reported again"
                );
                reports.push(what);
            }
        }

        fn last(&self, subject: &Subject) -> Option<&Value> {
            self.0
                .get(subject)?
                .last()
                .filter(|what| !is_withdrawn(what))
        }
    }

    /// Returns the fields to compare; omits the revision's number.
    fn what(evaluation: &Evaluation) -> Value {
        let Evaluation {
            trajectory,
            value,
            verdict,
            error,
            ..
        } = evaluation;
        let calls: Vec<_> = trajectory
            .tool_calls
            .iter()
            .map(|call| (&*call.name, call.error))
            .collect();
        json!({
            "value": value,
            "verdict": verdict.as_str(),
            "explanation": evaluation.explanation(),
            "details": evaluation.details(),
            "error": error.as_ref().map(|error| &error.message),
            "completeness": trajectory.completeness.as_str(),
            "subject": trajectory.subject.as_ref().map(|subject| subject.span_id.to_string()),
            "calls": calls,
        })
    }

    fn is_withdrawn(what: &Value) -> bool {
        what["explanation"]
            .as_str()
            .unwrap()
            .starts_with("withdrawn: ")
    }

    /// Feeds batches, each followed by a pause, then waits until all traces are judged.
    fn fed(rules: &Rules, batches: impl IntoIterator<Item = (Vec<Span>, u64)>) -> Reports {
        let mut now = now();
        let mut pipeline = Pipeline::new(settings(), now);
        let mut reports = Reports::default();
        for (spans, wait) in batches {
            pipeline.take(
                Batch {
                    spans,
                    ..Batch::default()
                },
                now,
            );
            reports.add(&pipeline.advance(rules, now));
            now = after(now, wait);
            reports.add(&pipeline.advance(rules, now));
        }
        while let Some(deadline) = pipeline.next_deadline() {
            now = after(now, (deadline - now.instant).as_secs() + 1);
            reports.add(&pipeline.advance(rules, now));
        }
        assert_eq!(pipeline.stats().n_open, 0);
        reports
    }

    fn after(now: Now, secs: u64) -> Now {
        Now {
            instant: now.instant + Duration::from_secs(secs),
            unix_nanos: now.unix_nanos + secs * 1_000_000_000,
        }
    }

    #[test]
    fn any_order_and_batching_ends_in_one_revision_reported_once() {
        let rules = rules();
        let mut random = fastrand::Rng::with_seed(3);
        let (mut n_judged_of_calls, mut n_judged, mut n_revised, mut n_withdrawn) = (0, 0, 0, 0);
        for scenario in load::scenarios() {
            let spans = spans(&scenario, &rules);
            let at_once = fed(&rules, [(spans.clone(), 0)]);
            let made_calls = scenario.expected["tool_calls"]
                .as_array()
                .is_some_and(|calls| !calls.is_empty());
            n_judged_of_calls += usize::from(made_calls && !at_once.0.is_empty());
            for arrival in 0..N_ARRIVALS * number("SPANSCORE_TEST_ROUNDS", 1) {
                let mut shuffled: Vec<Span> = spans
                    .iter()
                    .chain(spans.iter().take(spans.len() / 3))
                    .cloned()
                    .collect();
                random.shuffle(&mut shuffled);
                let mut batches = Vec::new();
                while !shuffled.is_empty() {
                    let n_left = shuffled.len().saturating_sub(random.usize(1..=4));
                    let wait = [0, 0, 1, 4, 6, 20, 200, 4_000][random.usize(..8)];
                    batches.push((shuffled.split_off(n_left), wait));
                }
                let reports = fed(&rules, batches);
                let subjects: BTreeSet<_> = reports.0.keys().chain(at_once.0.keys()).collect();
                for subject in subjects {
                    let [shuffled, at_once] =
                        [&reports, &at_once].map(|reports| reports.last(subject));
                    assert_eq!(
                        shuffled, at_once,
                        "{}, arrival {arrival}: {subject:?}",
                        scenario.name
                    );
                }
                n_judged += reports.0.len();
                n_revised += reports
                    .0
                    .values()
                    .filter(|revisions| revisions.len() > 1)
                    .count();
                n_withdrawn += reports
                    .0
                    .values()
                    .flatten()
                    .filter(|what| is_withdrawn(what))
                    .count();
            }
        }
        let enough =
            n_judged_of_calls > 50 && n_judged > 100 && n_revised > n_judged / 4 && n_withdrawn > 0;
        assert!(
            enough,
            "{n_judged_of_calls} sessions with calls, {n_revised} of {n_judged} judgements \
             revised, {n_withdrawn} withdrawn: too few to tell"
        );
    }
}
