//! Judges a trace of many runs with `scope: agent`. The bytes of evaluations must grow linearly
//! with the trace while runs are judged, judged again and withdrawn. Does not test time.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crate::support::now;
    use judge::assemble::Settings;
    use judge::evaluate::{Criterion, Evaluation};
    use judge::extract::{AgentRun, Subject, ToolCall, Trajectory};
    use judge::pipeline::{Pipeline, Rules};
    use otlp::span::Batch;
    use otlp::{json as otlp_json, scan};
    use serde_json::{Value, json};

    const CALLS_OF_RUN: usize = 4;

    fn rules() -> Rules {
        let criterion = |name: &str, tool: &str| -> Criterion {
            serde_json::from_value(json!({
                "name": name,
                "scope": "agent",
                "evaluate": { "tool_calls": { "disallowed": [tool] } },
            }))
            .unwrap()
        };
        let criteria = vec![criterion("a", "^drop$"), criterion("b", "^wipe$")];
        Rules::new(criteria)
    }

    fn span(id: usize, parent: usize, operation: &str, name: &str, attribute: &str) -> Value {
        let text = |key: &str, text: &str| json!({ "key": key, "value": { "stringValue": text } });
        json!({
            "traceId": format!("{:032x}", 7),
            "spanId": format!("{id:016x}"),
            "parentSpanId": if parent == 0 { String::new() } else { format!("{parent:016x}") },
            "name": format!("{operation} {name}"),
            "startTimeUnixNano": (1_000 * id).to_string(),
            "endTimeUnixNano": (1_000 * id + 500).to_string(),
            "attributes": [text("gen_ai.operation.name", operation), text(attribute, name)],
        })
    }

    fn batch(spans: &[Value]) -> Batch {
        let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": spans }] }] });
        let protobuf = otlp_json::traces(body.to_string().as_bytes()).unwrap();
        scan::scan(&protobuf, Some(&rules())).unwrap().batch
    }

    fn runs(n_runs: usize) -> Vec<Value> {
        let mut spans = vec![span(1, 0, "invoke_agent", "desk", "gen_ai.agent.name")];
        for run in 0..n_runs {
            let id = 2 + run * (CALLS_OF_RUN + 1);
            let name = format!("expert-{run}");
            spans.push(span(id, 1, "invoke_agent", &name, "gen_ai.agent.name"));
            for call in 1..=CALLS_OF_RUN {
                spans.push(span(
                    id + call,
                    id,
                    "execute_tool",
                    "look",
                    "gen_ai.tool.name",
                ));
            }
        }
        spans
    }

    /// Returns the bytes of the trajectories in evaluations; shared parts count once.
    fn held(evaluations: &[Evaluation]) -> usize {
        let mut parts = BTreeMap::new();
        for evaluation in evaluations {
            let trajectory: &Trajectory = &evaluation.trajectory;
            let attributes = trajectory.agent_runs.iter().map(|run| &run.subject);
            let attributes: usize = attributes
                .map(|subject: &Subject| subject.attributes.len())
                .sum();
            parts.insert(
                std::ptr::from_ref(trajectory).addr(),
                size_of::<Trajectory>() + trajectory.tool_calls.capacity() * size_of::<ToolCall>(),
            );
            parts.insert(
                trajectory.agent_runs.as_ptr().addr(),
                trajectory.agent_runs.len() * size_of::<AgentRun>() + attributes * 16,
            );
            parts.insert(
                trajectory.node_visits.as_ptr().addr(),
                size_of_val(&*trajectory.node_visits),
            );
        }
        parts.values().sum()
    }

    #[test]
    fn what_single_runs_hold_grows_with_the_trace_and_not_with_its_square() {
        let sizes = [30, 300].map(|n_runs| {
            let (rules, now) = (rules(), now());
            let mut pipeline = Pipeline::new(Settings::replay(), now);
            pipeline.take(batch(&runs(n_runs)), now);
            let judged = pipeline.finish(&rules, now);
            assert_eq!(judged.evaluations.len(), 2 * n_runs);
            let first = held(&judged.evaluations);
            // A late call changes one run, so the evaluations of all other runs are not repeated.
            let late = span(900_000, 2, "execute_tool", "drop", "gen_ai.tool.name");
            pipeline.take(batch(&[late]), now);
            let revised = pipeline.finish(&rules, now);
            let changed: Vec<_> = revised.evaluations.iter().collect();
            assert_eq!(changed.len(), 2, "{changed:#?}");
            assert_eq!(changed[0].trajectory.tool_calls.len(), CALLS_OF_RUN + 1);
            assert_eq!(revised.n_unchanged, 2 * n_runs - 2);
            // Late inner runs arrive in all experts' runs, so all runs are judged again.
            let renamed: Vec<Value> = (0..n_runs)
                .map(|run| {
                    let id = 2 + run * (CALLS_OF_RUN + 1);
                    let mut inner = span(
                        800_000 + run,
                        id,
                        "invoke_agent",
                        "inner",
                        "gen_ai.agent.name",
                    );
                    inner["startTimeUnixNano"] = json!((1_000 * id).to_string());
                    inner
                })
                .collect();
            pipeline.take(batch(&renamed), now);
            let judged = pipeline.finish(&rules, now);
            (first, held(&judged.evaluations))
        });
        let [(few, few_later), (many, many_later)] = sizes;
        assert!(
            many < 11 * few,
            "{few} bytes, and {many} of ten times the runs"
        );
        assert!(
            many_later < 11 * few_later,
            "{few_later} bytes, and {many_later} of ten times the runs"
        );
    }
}
