//! Compares the arguments of a call in an OTLP/JSON request with a criterion in a YAML file, and
//! with the same criterion from the API's state file. Two numbers are equal only if their exact
//! values are. Does not test values other than numbers.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use judge::assemble::Settings;
    use judge::evaluate::{Criterion, Evaluation};
    use judge::pipeline::{Pipeline, Rules};
    use otlp::{json as otlp_json, scan};
    use proptest::prelude::*;
    use serde_json::json;
    use spanscore::cli::configuration::Disk;
    use spanscore::config::{Config, Sources};
    use spanscore::sidecar;

    fn load(expected: &str) -> Result<Config, String> {
        let tool_calls = format!("[{{ name: pay, args: {{ amount: {expected} }} }}]");
        let text = format!(
            "criteria:\n  - name: amount\n    evaluate:\n      tool_call_args:\n        \
             tool_calls: {tool_calls}\n"
        );
        let sources = Sources {
            file: Some((Path::new("spanscore.yaml"), &text)),
            environment: &BTreeMap::new(),
            flags: &[],
            files: &Disk,
        };
        Config::load(&sources)
            .map(|loaded| loaded.config)
            .map_err(|problems| problems.render(false))
    }

    /// Judges a run that calls `pay`. `args` is an OTLP value with the arguments.
    fn judged(expected: &str, args: &str) -> Evaluation {
        let config = load(expected).unwrap();
        // The state file contains the same criterion.
        let stored = serde_json::to_vec(&config.criteria).unwrap();
        let criteria: Vec<Criterion> = serde_json::from_slice(&stored).unwrap();
        assert_eq!(criteria[0].revision(), config.criteria[0].revision());
        let rules = Rules::new(criteria);
        let attribute = |key: &str, value: &str| format!(r#"{{"key":"{key}","value":{value}}}"#);
        let attributes = [
            attribute("gen_ai.operation.name", r#"{"stringValue":"execute_tool"}"#),
            attribute("gen_ai.tool.name", r#"{"stringValue":"pay"}"#),
            attribute("gen_ai.tool.call.arguments", args),
        ];
        let body = format!(
            r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{
                "traceId":"{:032x}","spanId":"{:016x}","name":"execute_tool pay",
                "startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":[{}]}}]}}]}}]}}"#,
            7,
            7,
            attributes.join(",")
        );
        let protobuf = otlp_json::traces(body.as_bytes()).unwrap();
        let batch = scan::scan(&protobuf, Some(&rules)).unwrap().batch;
        let now = sidecar::now();
        let mut pipeline = Pipeline::new(Settings::replay(), now);
        pipeline.take(batch, now);
        let mut judged = pipeline.finish(&rules, now);
        assert_eq!(judged.evaluations.len(), 1);
        judged.evaluations.remove(0)
    }

    fn verdict(expected: &str, args: &str) -> &'static str {
        judged(expected, args).verdict.as_str()
    }

    fn text(args: &str) -> String {
        json!({ "stringValue": args }).to_string()
    }

    #[test]
    fn numbers_of_any_length_are_compared_exactly() {
        for (expected, amount, verdict_of) in [
            ("12345678901234567890123", "12345678901234567890123", "pass"),
            ("12345678901234567890123", "12345678901234567890124", "fail"),
            ("1000000000000000000000", "1e21", "pass"),
            ("18446744073709551616", "18446744073709551615", "fail"),
            ("0.1", "0.10", "pass"),
            ("0.1", "0.10000000000000000555", "fail"),
            ("2", "2.000", "pass"),
            ("9007199254740993", "9007199254740992.0", "fail"),
            ("-0.0", "0", "pass"),
            ("\"5\"", "5", "fail"),
        ] {
            for args in [
                format!(r#"{{"amount": {amount}}}"#),
                format!(r#"{{'amount': {amount}, 'note': None}}"#),
            ] {
                assert_eq!(
                    verdict(expected, &text(&args)),
                    verdict_of,
                    "{expected} = {args}"
                );
            }
        }
    }

    #[test]
    fn a_number_that_json_cannot_write_is_not_evaluated() {
        for args in [
            text(r#"{"amount": NaN}"#),
            text(r#"{"amount": -Infinity, "note": "x"}"#),
            text(r#"{"amount": 1e400}"#),
            text("{'amount': nan}"),
            r#"{"kvlistValue":{"values":[{"key":"amount","value":{"doubleValue":"NaN"}}]}}"#
                .to_owned(),
        ] {
            let evaluation = judged("5", &args);
            assert_eq!(evaluation.verdict.as_str(), "not_evaluated", "{args}");
            let explanation = evaluation.explanation();
            assert!(
                explanation.contains("an argument of the call of `pay` is NaN, infinite"),
                "{explanation}"
            );
        }
        // The values of all other fields are still certain.
        let other = text(r#"{"other": NaN, "amount": 5}"#);
        assert_eq!(verdict("5", &other), "pass");
        let other = text(r#"{"other": NaN, "amount": 6}"#);
        assert_eq!(verdict("5", &other), "fail");
    }

    #[test]
    fn a_criterion_cannot_expect_what_json_cannot_write() {
        for expected in [".nan", ".inf", "-.inf"] {
            let report = load(expected).err().unwrap_or_default();
            assert!(report.contains("a finite number"), "{expected}: {report}");
            assert!(report.contains("spanscore.yaml:5"), "{report}");
        }
    }

    proptest! {
        #[test]
        fn a_double_equals_itself_and_no_other(bits: u64, as_attribute: bool) {
            let float = f64::from_bits(bits);
            prop_assume!(float.is_finite() && float.next_up().is_finite());
            let args = |float: f64| if as_attribute {
                    let value = format!(r#"{{"doubleValue":{float:e}}}"#);
                    let amount = format!(r#"{{"key":"amount","value":{value}}}"#);
                    format!(r#"{{"kvlistValue":{{"values":[{amount}]}}}}"#)
            } else {
                text(&json!({ "amount": float }).to_string())
            };
            let expected = json!(float).to_string();
            prop_assert_eq!(verdict(&expected, &args(float)), "pass", "{}", &expected);
            prop_assert_eq!(verdict(&expected, &args(float.next_up())), "fail", "{}", &expected);
        }
    }

    proptest! {
        #[test]
        fn a_threshold_is_the_same_after_the_state_file(bits: u64) {
            let threshold = f64::from_bits(bits).abs() % 1.0;
            prop_assume!(threshold.is_finite());
            let written = json!({
                "name": "a",
                "threshold": threshold,
                "evaluate": { "tool_call_order": { "tool_calls_order": ["x"] } },
            });
            let criterion: Criterion = serde_json::from_value(written).unwrap();
            prop_assert_eq!(criterion.threshold.to_bits(), threshold.to_bits());
            let stored = serde_json::to_vec(&criterion).unwrap();
            let restored: Criterion = serde_json::from_slice(&stored).unwrap();
            prop_assert_eq!(restored.threshold.to_bits(), threshold.to_bits());
        }
    }
}
