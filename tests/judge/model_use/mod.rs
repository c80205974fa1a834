//! Tests limits of `efficiency` on model calls and their tokens, from trees of spans to verdicts.
//! Each tree arrives as OTLP through the scan and the pipeline. Does not prove which spans
//! frameworks write, except for the recordings in `captured`.

mod captured;
mod conformance;
mod oracle;
mod unseen;

use judge::assemble::Settings;
use judge::evaluate::{Evaluation, Explain, judge};
use judge::pipeline::{Pipeline, Rules};
use otlp::scan::scan;
use serde_json::{Value, json};

use crate::support::cases::{Cut, Node, scopes_of};
use crate::support::now;
use crate::support::spans::request_of;

impl Node {
    fn new(kind: &str, parent: Option<usize>, ms: (u64, u64), attributes: Value) -> Self {
        let Value::Object(mut attributes) = attributes else {
            panic!("attributes are an object")
        };
        let mut add = |key: &str, value: &str| {
            attributes.insert(key.to_owned(), Value::from(value));
        };
        match kind {
            "agent" => add("gen_ai.operation.name", "invoke_agent"),
            "model" => add("gen_ai.operation.name", "chat"),
            "chain" => add("openinference.span.kind", "CHAIN"),
            "tool" => {
                add("openinference.span.kind", "TOOL");
                add("tool.name", "search");
            }
            _ => {}
        }
        Self {
            name: kind.to_owned(),
            parent,
            start_ms: ms.0,
            end_ms: ms.1,
            attributes,
            error: false,
            scope: String::new(),
        }
    }
}

#[test]
fn a_run_that_is_a_model_span_too_counts_no_token_twice() {
    let usage = json!({ "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1 });
    let mut both = usage.clone();
    both["langsmith.span.kind"] = json!("llm");
    both["gen_ai.agent.name"] = json!("clerk");
    let limits = json!({ "max_model_calls": 1, "max_tokens": 6 });
    let criterion = json!({ "name": "c", "evaluate": { "efficiency": limits } });
    let alone = vec![Node::new("agent", None, (0, 9), both)];
    let mut around = alone.clone();
    around.push(Node::new("model", Some(0), (1, 2), usage));
    for tree in [alone, around] {
        let arriving = 0..tree.len();
        let evaluations = judged(&rules(&criterion), &tree, arriving, Cut::Whole, false);
        assert_eq!(evaluations[0].explanation(), "2 limits kept", "{tree:?}");
    }
}

#[test]
fn cached_and_total_tokens_count_in_every_spelling() {
    let vercel = json!({
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.usage.inputTokens": 10,
        "ai.usage.cachedInputTokens": 5000,
        "ai.usage.outputTokens": 1,
    });
    let mut with_details = vercel.clone();
    with_details["ai.usage.inputTokenDetails.cacheReadTokens"] = json!(4000);
    with_details["ai.usage.inputTokenDetails.cacheWriteTokens"] = json!(1000);
    let sides = json!({ "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1 });
    let only = |key: &str| json!({ key: 5000 });
    let both = |side: &str| json!({ "gen_ai.usage.total_tokens": 5000, side: 9 });
    let unknown = [0, u64::MAX];
    for (attributes, within, input, total) in [
        (vercel, None, [5010; 2], [5011; 2]),
        (with_details, None, [5010; 2], [5011; 2]),
        (only("gen_ai.usage.total_tokens"), None, unknown, [5000; 2]),
        (only("llm.token_count.total"), None, unknown, [5000; 2]),
        (only("llm.usage.total_tokens"), None, unknown, [5000; 2]),
        (only("ai.usage.totalTokens"), None, unknown, [5000; 2]),
        (both("gen_ai.usage.input_tokens"), None, [9; 2], [5000; 2]),
        (both("gen_ai.usage.output_tokens"), None, unknown, [5000; 2]),
        // The inner model span records input and output, the outer one only the total.
        (
            only("gen_ai.usage.total_tokens"),
            Some(sides),
            [5; 2],
            [6; 2],
        ),
    ] {
        let mut tree = vec![
            Node::new("agent", None, (0, 9), json!({})),
            Node::new("model", Some(0), (1, 8), attributes.clone()),
        ];
        tree.extend(within.map(|within| Node::new("model", Some(1), (2, 7), within)));
        let rules =
            rules(&json!({ "name": "c", "evaluate": { "efficiency": { "max_tokens": 1 } } }));
        let evaluations = judged(&rules, &tree, 0..tree.len(), Cut::Whole, false);
        let used = evaluations[0].trajectory.model_use;
        let found = [used.input, used.total].map(|tokens| [tokens.least, tokens.most]);
        assert_eq!(found, [input, total], "{attributes}");
    }
}

#[test]
fn siblings_that_contradict_each_other_are_two_calls() {
    let usage = |input: u64, output: u64, id: &str| {
        let mut usage = json!({
            "gen_ai.usage.input_tokens": input,
            "gen_ai.usage.output_tokens": output,
        });
        if !id.is_empty() {
            usage["gen_ai.response.id"] = json!(id);
        }
        usage
    };
    let mut excluding = usage(100, 10, "");
    excluding["gen_ai.usage.cache_read.input_tokens"] = json!(50);
    let none = json!({});
    // The expected numbers: certain calls, possible calls, least tokens, most tokens.
    for (siblings, expected) in [
        (
            vec![usage(1000, 10, "a"), usage(1000, 10, "a")],
            [1, 1, 1010, 1010],
        ),
        (vec![usage(1000, 10, ""); 3], [1, 1, 1010, 1010]),
        (
            vec![none.clone(), usage(7, 1, ""), usage(7, 1, "")],
            [1, 1, 8, 8],
        ),
        (
            vec![usage(1000, 10, ""), usage(2000, 20, "")],
            [2, 2, 3030, 3030],
        ),
        (vec![usage(7, 1, "a"), usage(7, 1, "b")], [2, 2, 16, 16]),
        (
            vec![none, usage(7, 1, "a"), usage(9, 1, "b")],
            [2, 2, 18, 18],
        ),
        (vec![usage(150, 10, ""), excluding], [1, 1, 160, 160]),
        // Instrumentations disagree on whether reasoning tokens count.
        (vec![usage(7, 10, ""), usage(7, 15, "")], [1, 2, 17, 39]),
        (vec![usage(7, 15, ""), usage(7, 10, "")], [1, 2, 17, 39]),
        (
            vec![usage(7, 15, ""), usage(7, 12, ""), usage(7, 10, "")],
            [1, 3, 17, 58],
        ),
    ] {
        let mut tree = vec![Node::new("agent", None, (0, 99), json!({}))];
        for (at, attributes) in (1..).zip(&siblings) {
            let mut node = Node::new("model", Some(0), (at, 50 - at), attributes.clone());
            node.scope = format!("scope {at}");
            tree.push(node);
        }
        let limits = json!({ "max_model_calls": 9, "max_tokens": 9999 });
        let rules = rules(&json!({ "name": "c", "evaluate": { "efficiency": limits } }));
        let evaluations = judged(&rules, &tree, 0..tree.len(), Cut::Whole, false);
        let used = evaluations[0].trajectory.model_use;
        let found = [
            used.n_certain,
            used.n_calls,
            used.total.least,
            used.total.most,
        ];
        assert_eq!(found, expected, "{siblings:?}");
    }
}

#[test]
fn usage_is_kept_only_for_those_who_read_it() {
    let usage = json!({ "gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 1 });
    let mut of_agent = usage.clone();
    of_agent["gen_ai.agent.name"] = json!("clerk");
    let tree = [
        Node::new("agent", None, (0, 9), of_agent),
        Node::new("model", Some(0), (1, 2), usage),
    ];
    // A selector on a usage attribute makes the scan store that attribute, but not the other usage
    // attributes. A limit that is registered later must not treat it as the recorded usage.
    let select = json!({ "attributes": { "gen_ai.usage.input_tokens": "5" } });
    let limit = json!({ "name": "c", "select": select, "evaluate": {
        "efficiency": { "max_output_tokens": 1 },
    } });
    let calls = json!({ "name": "c", "select": select, "evaluate": {
        "efficiency": { "max_calls": 1 },
    } });
    let both = judged(&rules(&limit), &tree, 0..2, Cut::Whole, false);
    assert_eq!(both[0].explanation(), "1 limit kept");
    let without = judged(&rules(&calls), &tree, 0..2, Cut::Whole, false);
    assert_eq!(without.len(), 1);
    let trajectory = &without[0].trajectory;
    let later = judge(&rules(&limit).criteria, trajectory, &Explain::default());
    assert_eq!(
        later[0].explanation(),
        "not evaluated: no criterion read the tokens of models when this run was seen. So far: 0 \
         limits kept"
    );
}

fn rules(criterion: &Value) -> Rules {
    let text = json!({ "criteria": [criterion] }).to_string();
    Rules::from_json(&text).expect("a valid criterion")
}

/// Returns the evaluations of a tree after only the `arriving` spans, in this order.
fn judged(
    rules: &Rules,
    tree: &[Node],
    arriving: impl IntoIterator<Item = usize>,
    cut: Cut,
    is_drained: bool,
) -> Vec<Evaluation> {
    let now = now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    let body = request_of("tests", scopes_of(tree, arriving, cut));
    let batch = scan(&body, Some(rules)).expect("OTLP").batch;
    pipeline.take(batch, now);
    let judged = if is_drained {
        pipeline.drain(rules, now)
    } else {
        pipeline.finish(rules, now)
    };
    judged.evaluations
}
