//! Tests hand-written agent loops. Each request to the model is a separate trace, and the result of
//! a call is in the next request. OTLP requests in any order of arrival must give the same
//! evaluations. Does not test how other instrumentations write messages.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use crate::support::now;
    use judge::assemble::Settings;
    use judge::evaluate::{Evaluation, Verdict};
    use judge::pipeline::{Judged, Pipeline, Rules};
    use otlp::span::{Batch, Now};
    use otlp::{json as otlp_json, scan};
    use serde_json::{Value, json};

    const START: u64 = 1_700_000_000_000_000_000;
    const SECOND: u64 = 1_000_000_000;

    fn rules() -> Rules {
        let evaluate = json!({ "tool_call_output": { "tool_outputs": [{
            "name": "get_weather",
            "output": "sunny",
        }] } });
        let criterion =
            serde_json::from_value(json!({ "name": "output", "evaluate": evaluate })).unwrap();
        Rules::new(vec![criterion])
    }

    /// Returns a request to the model, this many seconds after the start. `answers` are the tool
    /// results that it contains, `asks` the calls that the model's reply requests.
    fn request(service: &str, second: u64, answers: &[(&str, &str)], asks: &[&str]) -> Batch {
        let text =
            |key: &str, text: String| json!({ "key": key, "value": { "stringValue": text } });
        let answers = answers.iter().map(|(id, response)| {
            json!({
                "type": "tool_call_response",
                "id": id,
                "response": response,
            })
        });
        let input = json!([
            { "role": "user", "parts": [{ "type": "text", "content": "How is the weather?" }] },
            { "role": "assistant", "parts": [] },
            { "role": "tool", "parts": answers.collect::<Vec<Value>>() },
        ]);
        let asks = asks.iter().map(|id| {
            json!({
                "type": "tool_call",
                "id": id,
                "name": "get_weather",
                "arguments": { "city": "Oslo" },
            })
        });
        let output = json!([{ "role": "assistant", "parts": asks.collect::<Vec<Value>>() }]);
        let span = json!({
            "traceId": format!("{second:032x}"),
            "spanId": format!("{second:016x}"),
            "name": "chat",
            "startTimeUnixNano": (START + second * SECOND).to_string(),
            "endTimeUnixNano": (START + second * SECOND + SECOND / 2).to_string(),
            "attributes": [
                text("gen_ai.operation.name", "chat".to_owned()),
                text("gen_ai.input.messages", input.to_string()),
                text("gen_ai.output.messages", output.to_string()),
            ],
        });
        let resource = json!({ "attributes": [text("service.name", service.to_owned())] });
        let body = json!({ "resourceSpans": [{
            "resource": resource,
            "scopeSpans": [{ "spans": [span] }],
        }] });
        scan::scan(
            &otlp_json::traces(body.to_string().as_bytes()).unwrap(),
            Some(&rules()),
        )
        .unwrap()
        .batch
    }

    struct Fed {
        pipeline: Pipeline,
        rules: Rules,
        now: Now,
        last: BTreeMap<String, Evaluation>,
    }

    impl Fed {
        fn new(settings: Settings) -> Self {
            let now = Now {
                instant: now().instant,
                unix_nanos: START,
            };
            Self {
                pipeline: Pipeline::new(settings, now),
                rules: rules(),
                now,
                last: BTreeMap::new(),
            }
        }

        fn send(&mut self, batch: Batch) {
            self.pipeline.take(batch, self.now);
        }

        fn wait(&mut self, seconds: u64) -> usize {
            self.now.instant += Duration::from_secs(seconds);
            let judged = self.pipeline.advance(&self.rules, self.now);
            self.note(judged)
        }

        fn note(&mut self, judged: Judged) -> usize {
            let n_evaluations = judged.evaluations.len();
            self.last.extend(
                judged
                    .evaluations
                    .into_iter()
                    .map(|evaluation| (evaluation.trajectory.trace_id.to_string(), evaluation)),
            );
            n_evaluations
        }

        fn verdict(&self, second: u64) -> (Verdict, u32) {
            let evaluation = &self.last[&format!("{second:032x}")];
            (evaluation.verdict, evaluation.revision)
        }
    }

    fn settings() -> Settings {
        Settings {
            settle: Duration::from_secs(5),
            max_settle: Duration::from_secs(15),
            ..Settings::replay()
        }
    }

    #[test]
    fn a_result_comes_with_the_next_trace() {
        let mut fed = Fed::new(settings());
        fed.send(request("shop", 1, &[], &["call_1"]));
        fed.wait(5);
        assert_eq!(fed.verdict(1), (Verdict::NotEvaluated, 0));
        fed.send(request("shop", 2, &[("call_1", "sunny")], &[]));
        assert_eq!(fed.wait(5), 0, "the trace that asked settles anew");
        assert_eq!(fed.wait(5), 1);
        assert_eq!(fed.verdict(1), (Verdict::Pass, 1));
    }

    #[test]
    fn a_result_for_a_forgotten_trace_is_a_lost_revision() {
        for (n_between, n_lost) in [(0, 0), (40, 1)] {
            let mut fed = Fed::new(Settings {
                max_recent_size: 8 << 10,
                ..settings()
            });
            fed.send(request("shop", 1, &[], &["call_1"]));
            fed.wait(20);
            for second in 2..2 + n_between {
                fed.send(request("shop", second, &[], &[]));
                fed.wait(20);
            }
            fed.send(request("shop", 50, &[("call_1", "sunny")], &[]));
            fed.now.instant += Duration::from_secs(20);
            let judged = fed.pipeline.advance(&fed.rules, fed.now);
            assert_eq!(judged.n_lost, n_lost, "{n_between} traces in between");
        }
    }

    #[test]
    fn the_order_of_arrival_and_of_closing_changes_nothing() {
        let traces = [
            request("shop", 1, &[], &["call_1", "call_2"]),
            request(
                "shop",
                2,
                &[("call_1", "sunny"), ("call_2", "rain")],
                &["call_3"],
            ),
            request("shop", 3, &[("call_3", "rain")], &[]),
        ];
        for order in [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ] {
            // If bit `place` of `waits` is set, the traces so far are judged before the next trace
            // arrives.
            for waits in 0..8 {
                let mut fed = Fed::new(settings());
                for (place, at) in order.into_iter().enumerate() {
                    fed.send(Batch {
                        spans: traces[at].spans.clone(),
                        ..Batch::default()
                    });
                    fed.wait(if waits >> place & 1 == 1 { 20 } else { 1 });
                }
                let judged = fed.pipeline.drain(&fed.rules, fed.now);
                fed.note(judged);
                assert_eq!(
                    (fed.verdict(1).0, fed.verdict(2).0),
                    (Verdict::Pass, Verdict::Fail),
                    "{order:?} {waits:03b}"
                );
            }
        }
    }

    #[test]
    fn an_id_that_two_traces_ask_for_is_no_evidence() {
        let traces = || {
            [
                request("shop", 1, &[], &["call_0"]),
                request("shop", 2, &[("call_0", "sunny")], &[]),
                request("shop", 3, &[], &["call_0"]),
                request("shop", 4, &[("call_0", "rain")], &[]),
            ]
        };
        for step in [0, 6, 20] {
            for rotation in 0..4 {
                let mut traces = traces();
                traces.rotate_left(rotation);
                let mut fed = Fed::new(settings());
                for trace in traces {
                    fed.send(trace);
                    fed.wait(step);
                }
                let judged = fed.pipeline.finish(&fed.rules, fed.now);
                fed.note(judged);
                assert_eq!(
                    (fed.verdict(1).0, fed.verdict(3).0),
                    (Verdict::NotEvaluated, Verdict::NotEvaluated),
                    "{step} {rotation}"
                );
            }
        }
    }

    #[test]
    fn a_verdict_by_an_id_that_is_asked_for_again_is_taken_back() {
        let mut fed = Fed::new(settings());
        fed.send(request("shop", 1, &[], &["call_0"]));
        fed.send(request("shop", 2, &[("call_0", "sunny")], &[]));
        fed.wait(6);
        assert_eq!(fed.verdict(1), (Verdict::Pass, 0));
        fed.send(request("bank", 3, &[], &["call_0"]));
        fed.wait(20);
        assert_eq!(fed.verdict(1), (Verdict::Pass, 0), "another service's");
        fed.send(request("shop", 4, &[], &["call_0"]));
        fed.wait(20);
        fed.wait(6);
        assert_eq!(fed.verdict(1), (Verdict::NotEvaluated, 1));
        assert_eq!(fed.verdict(4), (Verdict::NotEvaluated, 0));
    }

    #[test]
    fn an_id_that_is_asked_for_again_is_not_forgotten() {
        let mut fed = Fed::new(Settings {
            max_recent_size: 1 << 20,
            ..settings()
        });
        for second in 1..1_000 {
            let own = format!("call_{second}");
            let answer = "x".repeat(2_000);
            fed.send(request(
                "shop",
                second,
                &[(&own, &answer)],
                &[&own, "call_0"],
            ));
            fed.wait(6);
        }
        fed.send(request("shop", 1_001, &[("call_0", "sunny")], &["call_0"]));
        fed.send(request("shop", 1_002, &[("call_0", "sunny")], &[]));
        fed.wait(20);
        assert_eq!(fed.verdict(1_001).0, Verdict::NotEvaluated);
    }

    #[test]
    fn another_services_answer_and_an_old_one_are_none() {
        let mut fed = Fed::new(Settings {
            recent_ttl: Duration::from_secs(3_600),
            ..Settings::replay()
        });
        fed.send(request("shop", 2, &[], &["call_0"]));
        fed.send(request("bank", 3, &[("call_0", "sunny")], &[]));
        fed.send(request("shop", 1, &[("call_0", "sunny")], &[]));
        fed.send(request("shop", 4_000, &[("call_0", "sunny")], &[]));
        let judged = fed.pipeline.finish(&fed.rules, fed.now);
        fed.note(judged);
        assert_eq!(fed.verdict(2), (Verdict::NotEvaluated, 0));
    }

    #[test]
    fn remembered_answers_are_part_of_the_budget() {
        let limit = 1 << 20;
        let mut fed = Fed::new(Settings {
            max_recent_size: limit,
            ..settings()
        });
        for second in 1..2_000 {
            let id = format!("call_{second}");
            fed.send(request(
                "shop",
                second,
                &[(&id, &"x".repeat(2_000))],
                &[&id],
            ));
            fed.wait(6);
            assert!(fed.pipeline.stats().recent_size <= limit);
        }
        assert!(
            fed.pipeline.stats().recent_size > limit / 2,
            "{} bytes",
            fed.pipeline.stats().recent_size
        );
    }
}
