//! Criteria about calls that a trace contains, and about calls that it does not contain: some for
//! each evaluator, and more for results that can be certain early.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use judge::evaluate::RULE_TEMPLATES;
use judge::extract::{ToolCall, Trajectory};
use serde_json::{Value, json};

use crate::support::repetitions::number;

/// Maximum number of a trajectory's calls for which criteria are made.
const MAX_CALLS: usize = 5;

/// Returns one random criterion of each kind; `.ci/extended properties` uses up to 1,000 of each.
pub(crate) fn some_about(trajectories: &[Arc<Trajectory>], random: &mut Rng) -> Vec<Value> {
    let n_of_kind = number("SPANSCORE_TEST_CRITERIA", 1) as usize;
    let mut by_kind: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for criterion in about(trajectories) {
        by_kind.entry(kind(&criterion)).or_default().push(criterion);
    }
    let picked = by_kind.into_values().flat_map(|mut of_kind| {
        random.shuffle(&mut of_kind);
        of_kind.truncate(n_of_kind);
        of_kind
    });
    picked.collect()
}

/// Returns the form of a criterion, without the calls' names, values and numbers.
fn kind(value: &Value) -> String {
    const NAMED_BY_CALLS: [&str; 3] = ["args", "parameters", "tool_calls_count"];
    const CHOICES: [&str; 2] = ["error", "score"];
    match value {
        Value::Object(fields) => {
            let kinds = fields.iter().map(|(key, value)| match &**key {
                key if NAMED_BY_CALLS.contains(&key) => key.to_owned(),
                key if CHOICES.contains(&key) => format!("{key}:{value}"),
                key => format!("{key}{}", kind(value)),
            });
            format!("{{{}}}", kinds.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => items.first().map(kind).unwrap_or_default(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => String::new(),
    }
}

fn about(trajectories: &[Arc<Trajectory>]) -> Vec<Value> {
    let mut list = Vec::new();
    let mut add = |evaluate: Value| {
        list.push(json!({ "name": list.len().to_string(), "evaluate": evaluate }));
    };
    for trajectory in trajectories
        .iter()
        .filter(|trajectory| !trajectory.tool_calls.is_empty())
        .take(3)
    {
        let calls = &trajectory.tool_calls;
        let names: Vec<&str> = calls.iter().map(|call| &*call.name).collect();
        let backwards: Vec<&str> = names.iter().rev().copied().collect();
        for names in [&names, &backwards] {
            add(json!({ "tool_call_order": { "tool_calls_order": names } }));
            add(json!({ "tool_call_order": { "tool_calls_order": names, "strict": true } }));
            for score in [
                "exact",
                "in_order",
                "any_order",
                "subset",
                "superset",
                "precision",
                "recall",
                "f1",
                "lcs_ratio",
                "edit",
            ] {
                let fields = json!({ "expected": names, "score": score });
                add(json!({ "trajectory_match": fields }));
            }
            let fields = json!({ "expected": &names[..1], "score": "f1", "include_failed": false });
            add(json!({ "trajectory_match": fields }));
            add(json!({ "execution_order": { "expected_output": names } }));
            add(json!({ "execution_order": {
                "expected_output": names,
                "should_consider_ordering": true,
            } }));
            add(json!({ "execution_order": {
                "expected_output": names,
                "should_exact_match": true,
            } }));
            for pair in names.windows(2).take(MAX_CALLS) {
                add(json!({ "tool_order": { "expected_tools": [
                    { "tool_name": pair[0] },
                    { "tool_name": pair[1] },
                ] } }));
                add(json!({ "tool_calls": { "sequence": [exactly(pair[0]), exactly(pair[1])] } }));
                for (template, _) in RULE_TEMPLATES.iter().filter(|(_, has_b)| *has_b) {
                    let (a, b) = (exactly(pair[0]), exactly(pair[1]));
                    let mut fields = json!({ "a": { "name": a }, "b": b });
                    add(json!({ "constraints": { "rules": [{ *template: fields }] } }));
                    if template.starts_with("not_") {
                        fields["within"] = json!("1ms");
                        fields["a"]["error"] = json!(false);
                        add(json!({ "constraints": { "rules": [{ *template: fields }] } }));
                    }
                }
            }
        }
        add(json!({ "execution_order": {
            "expected_output": trajectory.node_visits,
            "should_consider_ordering": true,
            "over": "nodes",
        } }));
        for limit in [
            "max_calls",
            "max_errors",
            "max_duplicates",
            "max_repeats",
            "max_retries",
        ] {
            add(json!({ "efficiency": { limit: 0 } }));
            add(json!({ "efficiency": { limit: calls.len() / 2 } }));
        }
        add(json!({ "efficiency": { "max_duration": "1ms" } }));
        let used = trajectory.model_use;
        for (limit, most) in [
            ("max_model_calls", used.n_calls),
            ("max_input_tokens", used.input.least),
            ("max_output_tokens", used.output.least),
            ("max_tokens", used.total.least),
        ] {
            add(json!({ "efficiency": { limit: most } }));
            add(json!({ "efficiency": { limit: most / 2 } }));
        }
        for call in calls.iter().take(MAX_CALLS) {
            of_call(
                call,
                calls.iter().filter(|other| other.name == call.name).count(),
                &mut add,
            );
        }
    }
    let mut selected = Vec::new();
    for trajectory in trajectories
        .iter()
        .filter(|trajectory| !trajectory.tool_calls.is_empty())
        .take(2)
    {
        let evaluate =
            json!({ "tool_calls": { "disallowed": [exactly(&trajectory.tool_calls[0].name)] } });
        let mut agents: Vec<&str> = trajectory
            .agent_runs
            .iter()
            .map(|run| &*run.name)
            .take(3)
            .collect();
        agents.extend(trajectory.agent.as_deref());
        for agent in agents {
            selected.push(json!({ "select": { "agent": agent }, "evaluate": evaluate }));
        }
        selected.push(json!({ "select": { "root": &*trajectory.root }, "evaluate": evaluate }));
        selected.push(json!({
            "select": { "service": &*trajectory.service, "agent": "*" },
            "evaluate": evaluate,
        }));
        for name in trajectory
            .tool_calls
            .iter()
            .map(|call| &*call.name)
            .take(MAX_CALLS)
        {
            selected.push(json!({ "select": { "calls": name }, "evaluate": evaluate }));
            selected.push(json!({
                "scope": "agent",
                "evaluate": { "tool_calls": { "disallowed": [exactly(name)] } },
            }));
            selected.push(json!({
                "scope": "agent",
                "evaluate": { "tool_call_count": { "tool_calls_count": { name: ["<", 1] } } },
            }));
        }
    }
    for (number, mut criterion) in selected.into_iter().enumerate() {
        criterion["name"] = json!(format!("selected {number}"));
        list.push(criterion);
    }
    list
}

fn of_call(call: &ToolCall, n_of_name: usize, add: &mut impl FnMut(Value)) {
    let name = &*call.name;
    for (operator, n) in [
        (">=", n_of_name),
        ("=", 0),
        ("<", n_of_name),
        ("!=", n_of_name - 1),
    ] {
        add(json!({ "tool_call_count": { "tool_calls_count": { name: [operator, n] } } }));
    }
    for error in [true, false] {
        let failed = json!({ "name": exactly(name), "error": error });
        add(json!({ "tool_calls": { "disallowed": [failed] } }));
        add(json!({ "tool_calls": { "required": [failed] } }));
    }
    for rule in [
        json!({ "existence": { "a": exactly(name), "min": n_of_name } }),
        json!({ "absence": { "a": exactly(name), "max": n_of_name - 1 } }),
        json!({ "exactly": { "a": exactly(name), "count": n_of_name } }),
        json!({ "init": { "a": exactly(name) } }),
        json!({ "end": { "a": exactly(name), "overlap": "pass" } }),
    ] {
        add(json!({ "constraints": { "rules": [rule] } }));
    }
    add(json!({ "tool_calls": { "required": [exactly(name)] } }));
    add(json!({ "tool_calls": { "required": [{
        "name": exactly(name),
        "min_count": n_of_name,
    }] } }));
    add(json!({ "tool_calls": { "required": [{ "name": exactly(name), "before_step": 2 }] } }));
    add(json!({ "tool_calls": { "disallowed": [exactly(name)] } }));
    let args = call
        .args
        .as_ref()
        .map(|args| args.json().clone())
        .filter(Value::is_object)
        .unwrap_or_else(|| json!({}));
    for args in [args.clone(), json!({ "nobody": "asks" }), json!({})] {
        add(json!({ "tool_order": { "expected_tools": [{
            "tool_name": name,
            "parameters": args,
        }] } }));
        add(json!({ "tool_call_args": {
            "tool_calls": [{ "name": name, "args": args }],
            "exact": true,
        } }));
        for key in args
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key)
            .take(2)
        {
            for pattern in [".", "^nothing like it$"] {
                let fits = json!({ "name": exactly(name), "args": { key: pattern } });
                add(json!({ "tool_calls": { "required": [fits] } }));
                add(json!({ "tool_calls": { "disallowed": [fits] } }));
                add(json!({ "tool_calls": { "sequence": [fits] } }));
            }
            let path = format!("args.{key}");
            let equal = json!({ "name": exactly(name), "where": { &path: args[key] } });
            add(json!({ "tool_calls": { "disallowed": [equal] } }));
            add(json!({ "constraints": { "rules": [{ "exactly": { "a": equal } }] } }));
            if let Value::Number(number) = &args[key] {
                for condition in [
                    json!({ "regex": exactly(number.as_str()) }),
                    json!({ "gt": 100 }),
                ] {
                    let fits = json!({ "name": exactly(name), "where": { &path: condition } });
                    add(json!({ "tool_calls": { "disallowed": [fits] } }));
                }
            }
        }
    }
    add(json!({ "tool_calls": { "disallowed": [{ "name": exactly(name), "command": "." }] } }));
    let result = call.result.as_ref().map_or("", |result| &result.text);
    for output in [result, "", "nothing like it"] {
        add(
            json!({ "tool_call_output": { "tool_outputs": [{ "name": name, "output": output }] } }),
        );
    }
    add(json!({ "tool_calls": { "disallowed": [{ "name": exactly(name), "result": "^$" }] } }));
}

fn exactly(name: &str) -> String {
    let escaped: String = name
        .chars()
        .flat_map(
            |char| {
                if char.is_alphanumeric() { vec![char] } else { vec!['\\', char] }
            },
        )
        .collect();
    // A backslash before white space or `_` is not a valid escape.
    format!("^{}$", escaped.replace("\\ ", " ").replace("\\_", "_"))
}
