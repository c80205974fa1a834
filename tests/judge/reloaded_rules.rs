//! Tests traces that are open while `tools` is reloaded. Under the old rules, the scan dropped
//! values that only the new rules read, and no verdict may depend on their absence. Does not test
//! when files are read.

#[cfg(test)]
mod tests {
    use crate::support::now;
    use judge::assemble::{CloseReason, Settings};
    use judge::evaluate::{Criterion, Evaluation, Explain, Verdict};
    use judge::extract::Tools;
    use judge::pipeline::{Pipeline, Rules};
    use otlp::span::Batch;
    use otlp::{json as otlp_json, scan};
    use serde_json::{Value, json};

    use crate::support::records::{SECOND, START, attributes};

    fn tools(names: &[&str], ignore: &[&str]) -> Tools {
        Tools {
            name_attributes: names.iter().map(|&name| name.to_owned()).collect(),
            ignore: ignore.iter().map(|&name| name.to_owned()).collect(),
            ..Tools::default()
        }
    }

    fn rules(previous: Option<&Rules>, tools: &Tools, copied: &[&str]) -> Rules {
        let criterion: Criterion = serde_json::from_value(json!({
            "name": "rule", "evaluate": { "tool_calls": { "disallowed": ["delete"] } },
        }))
        .unwrap();
        let copied: Vec<String> = copied.iter().map(|&name| name.to_owned()).collect();
        Rules::following(
            previous,
            vec![criterion],
            tools,
            Explain::default(),
            &copied,
        )
    }

    fn scanned(rules: &Rules, id: u64, parent: &str, values: &Value) -> Batch {
        let span = json!({
            "traceId": format!("{:032x}", 1), "spanId": format!("{id:016x}"),
            "parentSpanId": parent, "name": "step", "attributes": attributes(values),
            "startTimeUnixNano": (START + id * SECOND).to_string(),
            "endTimeUnixNano": (START + (20 - id) * SECOND).to_string(),
        });
        let body = json!({ "resourceSpans": [{ "scopeSpans": [{ "spans": [span] }] }] });
        let body = otlp_json::traces(body.to_string().as_bytes()).unwrap();
        scan::scan(&body, Some(rules)).unwrap().batch
    }

    fn deletes(rules: &Rules) -> Batch {
        scanned(
            rules,
            2,
            &format!("{:016x}", 1),
            &json!({ "acme.tool": "delete" }),
        )
    }

    fn root(rules: &Rules) -> Batch {
        let values = json!({ "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "a" });
        scanned(rules, 1, "", &values)
    }

    /// Judges batches that arrived under earlier rules, by the rules `last`.
    fn judged(batches: Vec<Batch>, last: &Rules) -> Evaluation {
        let now = now();
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        for batch in batches {
            pipeline.take(batch, now);
        }
        let judged = pipeline.finish(last, now);
        judged.evaluations.into_iter().next_back().unwrap()
    }

    fn told(evaluation: &Evaluation) -> (Verdict, CloseReason) {
        (evaluation.verdict, evaluation.trajectory.completeness)
    }

    const UNKNOWN: (Verdict, CloseReason) = (Verdict::NotEvaluated, CloseReason::Incomplete);

    #[test]
    fn what_only_the_new_rules_read_is_not_taken_for_absent() {
        let old = rules(None, &tools(&["tool.name"], &[]), &[]);
        let new = rules(Some(&old), &tools(&["tool.name", "acme.tool"], &[]), &[]);
        let open = vec![deletes(&old), root(&new)];
        assert_eq!(told(&judged(open, &new)), UNKNOWN);
        let later = rules(Some(&new), &tools(&["tool.name", "acme.tool"], &["x"]), &[]);
        let open = vec![deletes(&old), root(&later)];
        assert_eq!(told(&judged(open, &later)), UNKNOWN);
        let kept = vec![deletes(&new), root(&later)];
        let failed = (Verdict::Fail, CloseReason::RootEnded);
        assert_eq!(told(&judged(kept, &later)), failed);
    }

    #[test]
    fn a_reload_that_reads_no_more_of_calls_costs_no_verdict() {
        let passed = (Verdict::Pass, CloseReason::RootEnded);
        let old = rules(None, &tools(&["tool.name", "acme.tool"], &[]), &[]);
        for (tools, copied) in [
            (tools(&["tool.name", "acme.tool"], &["delete"]), &[][..]),
            (tools(&["tool.name"], &[]), &[]),
            (tools(&["tool.name", "acme.tool"], &["delete"]), &["tenant"]),
        ] {
            let new = rules(Some(&old), &tools, copied);
            let open = vec![deletes(&old), root(&new)];
            assert_eq!(told(&judged(open, &new)), passed, "{tools:?}");
        }
    }

    #[test]
    fn an_attribute_that_scores_copied_before_is_kept_from_the_next_version_on() {
        let tool = tools(&["tool.name"], &[]);
        let old = rules(None, &tool, &[]);
        // After a reload, scores copy the attribute, but spans scanned under the old rules lack it.
        let copying = rules(Some(&old), &tool, &["acme.tool"]);
        let new = rules(Some(&copying), &tools(&["acme.tool"], &[]), &[]);
        let open = vec![deletes(&old), root(&new)];
        assert_eq!(told(&judged(open, &new)), UNKNOWN);
    }
}
