//! The results of many traces that become due together are delivered in slices, with heartbeats in
//! between. They must equal the results of a single call. Counts evaluations; does not test the
//! memory of a process.

#[cfg(test)]
mod tests {
    use crate::support::now;
    use judge::assemble::Settings;
    use judge::evaluate::Criterion;
    use judge::pipeline::{Judged, JudgementSink, Pipeline, Rules};
    use otlp::span::Batch;
    use otlp::{json as otlp_json, scan};
    use serde_json::{Value, json};

    /// Maximum number of evaluations in a slice. Each counts as 1.5 KiB against the 256 KiB of a
    /// slice.
    const MAX_HELD: usize = 256 / 3 * 2 + 2;

    #[derive(Default)]
    struct Slices {
        n_evaluations: Vec<usize>,
        lines: Vec<String>,
        n_beats: usize,
    }

    impl JudgementSink for Slices {
        fn take(&mut self, slice: &mut Judged) {
            self.n_evaluations.push(slice.evaluations.len());
            self.lines.extend(lines(slice));
        }

        fn beat(&mut self) {
            self.n_beats += 1;
        }
    }

    fn lines(judged: &Judged) -> impl Iterator<Item = String> {
        let lines = judged.evaluations.iter().map(|evaluation| {
            let trace_id = evaluation.trajectory.trace_id;
            let name = evaluation.criterion.name();
            format!("{trace_id:?} {name} {:?}", evaluation.verdict)
        });
        lines.collect::<Vec<_>>().into_iter()
    }

    fn rules(n_criteria: usize) -> Rules {
        let criteria = (0..n_criteria).map(|n| -> Criterion {
            serde_json::from_value(json!({
                "name": format!("criterion-{n}"),
                "evaluate": { "tool_calls": { "disallowed": [format!("^tool-{n}$")] } },
            }))
            .unwrap()
        });
        Rules::new(criteria.collect())
    }

    fn batch(rules: &Rules, n_traces: usize) -> Batch {
        let spans: Vec<Value> = (1..=n_traces)
            .map(|trace| {
                let tool = format!("tool-{}", trace % 7);
                json!({
                    "traceId": format!("{trace:032x}"),
                    "spanId": format!("{trace:016x}"),
                    "name": "call",
                    "startTimeUnixNano": "1000",
                    "endTimeUnixNano": "2000",
                    "attributes": [{ "key": "tool.name", "value": { "stringValue": tool } }],
                })
            })
            .collect();
        let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] });
        let protobuf = otlp_json::traces(body.to_string().as_bytes()).unwrap();
        scan::scan(&protobuf, Some(rules)).unwrap().batch
    }

    #[test]
    fn what_falls_due_at_once_is_handed_on_in_slices_with_the_same_results() {
        let (rules, now) = (rules(20), now());
        let mut at_once = Pipeline::new(Settings::replay(), now);
        at_once.take(batch(&rules, 2_000), now);
        let judged = at_once.drain(&rules, now);
        assert_eq!(judged.evaluations.len(), 40_000);

        let mut slices = Slices::default();
        let mut in_slices = Pipeline::new(Settings::replay(), now);
        in_slices.take_into(&rules, batch(&rules, 2_000), now, &mut slices);
        assert!(slices.n_evaluations.is_empty(), "nothing is due yet");
        in_slices.drain_into(&rules, now, &mut slices);
        let most = slices.n_evaluations.iter().max().unwrap();
        assert!(*most <= MAX_HELD, "{most} evaluations in one slice");
        assert_eq!(slices.lines, lines(&judged).collect::<Vec<_>>());
        assert!(slices.n_beats >= 40_000, "{} beats", slices.n_beats);
    }

    #[test]
    fn one_trace_with_many_criteria_is_handed_on_in_slices() {
        let (rules, now) = (rules(5_000), now());
        let mut slices = Slices::default();
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        pipeline.take(batch(&rules, 1), now);
        pipeline.drain_into(&rules, now, &mut slices);
        assert_eq!(slices.lines.len(), 5_000);
        let most = slices.n_evaluations.iter().max().unwrap();
        assert!(*most <= MAX_HELD, "{most} evaluations in one slice");
    }

    #[test]
    fn traces_beyond_the_limit_are_judged_while_their_request_is_taken_in() {
        let (rules, now) = (rules(1), now());
        let settings = Settings {
            max_open_traces: 100,
            max_recent_traces: 100,
            ..Settings::replay()
        };
        let mut slices = Slices::default();
        let mut pipeline = Pipeline::new(settings, now);
        let n_traces = 20_000;
        pipeline.take_into(&rules, batch(&rules, n_traces), now, &mut slices);
        let during = slices.lines.len();
        assert!(during > n_traces / 2, "{during} judged while taken in");
        pipeline.drain_into(&rules, now, &mut slices);
        assert_eq!(slices.lines.len(), n_traces);
    }
}
