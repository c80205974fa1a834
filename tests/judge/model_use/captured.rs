//! Tests the model use of recorded runs, which is known independently. The scripted model of the
//! newer recordings counts 11 input and 7 output tokens for each reply; those of the older ones
//! count 51, 52, 53, … and 12 (Python), or about 160 and 24 (JavaScript). Three frameworks also
//! record each agent's own total. That total is not read, because model spans were seen.

use judge::assemble::Settings;
use judge::pipeline::Pipeline;
use otlp::json as otlp_json;
use otlp::scan::scan;
use serde_json::{Value, json};

use super::rules;
use crate::support::captures::scenarios;
use crate::support::now;

/// The model calls of whole traces, their input tokens and their output tokens.
const OF_TRACES: &[(&str, [u64; 3])] = &[
    ("agno/nested", [6, 321, 72]),
    ("anthropic-own-spans/below_agent", [5, 55, 35]),
    // A second instrumentation reports each call again, as a parent or as a sibling.
    ("anthropic-own-spans/openinference", [5, 55, 35]),
    ("anthropic-own-spans/openllmetry", [5, 55, 35]),
    ("google-adk/nested", [6, 321, 72]),
    ("js-langchain-openinference/subagent", [5, 790, 120]),
    ("js-mastra-otel-exporter/subagent", [5, 830, 120]),
    // One span has both spellings.
    ("js-openinference-vercel-v7/generate", [5, 55, 35]),
    ("js-strands/subagent", [5, 800, 120]),
    ("js-vercel-ai-sdk-v6/subagent", [5, 790, 120]),
    ("js-vercel-ai-sdk-v7/bank", [5, 55, 35]),
    ("langgraph-openinference/nested", [6, 321, 72]),
    ("langgraph-openllmetry/nested", [6, 321, 72]),
    // Only an inner span has the usage.
    ("llama-index-genai/bank", [5, 55, 35]),
    ("microsoft-agent-framework/bank", [5, 55, 35]),
    ("openai-agents-logfire/chat", [5, 55, 35]),
    ("openai-agents-logfire/responses", [5, 55, 35]),
    ("openai-agents-openinference/nested", [6, 321, 72]),
    ("pydantic-ai-logfire/nested", [6, 321, 72]),
    ("smolagents/nested", [6, 321, 72]),
];

/// The model calls and tokens of single agents, as their frameworks recorded them.
const OF_AGENTS: &[(&str, &str, [u64; 3])] = &[
    ("js-strands/subagent", "Travel desk", [3, 480, 72]),
    ("js-strands/subagent", "Weather specialist", [2, 320, 48]),
    ("pydantic-ai-logfire/nested", "coordinator", [3, 162, 36]),
    ("pydantic-ai-logfire/nested", "researcher", [3, 159, 36]),
    ("smolagents/nested", "coordinator", [3, 162, 36]),
    ("smolagents/nested", "researcher", [3, 159, 36]),
];

/// Scenarios with model calls whose usage is in no spelling that we read, and the number of these
/// calls.
const WITHOUT_USAGE: &[(&str, u64)] = &[
    ("langgraph-langfuse/bank", 5),
    ("litellm-below-span/agent_span", 5),
    ("mlflow/bank", 5),
];

/// Returns the evaluated agent and the limits of each evaluation of a recorded run.
fn limits(name: &str, scope: &str) -> Vec<(String, Value)> {
    let criterion = json!({ "name": "c", "scope": scope, "evaluate": { "efficiency": {
        "max_model_calls": 1000,
        "max_input_tokens": 100_000,
        "max_output_tokens": 100_000,
        "max_tokens": 100_000,
    } } });
    let rules = rules(&criterion);
    let all = scenarios();
    let scenario = all.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.unwrap_or_else(|| panic!("no capture {name}"));
    let mut pipeline = Pipeline::new(Settings::replay(), now());
    for (file, body) in &scenario.requests {
        if file.contains("traces") {
            let body = if file.ends_with(".json") {
                otlp_json::traces(body).expect("OTLP/JSON")
            } else {
                body.clone()
            };
            let batch = scan(&body, Some(&rules)).expect("OTLP").batch;
            pipeline.take(batch, now());
        }
    }
    let evaluations = pipeline.finish(&rules, now()).evaluations;
    let shown = evaluations.iter().map(|evaluation| {
        let agent = evaluation.trajectory.agent.as_deref().unwrap_or_default();
        (agent.to_owned(), evaluation.details()["limits"].clone())
    });
    shown.collect()
}

fn kept(limit: u64, actual: u64) -> Value {
    json!({ "limit": limit, "actual": actual, "kept": true })
}

fn sums([calls, input, output]: [u64; 3]) -> Value {
    json!({
        "max_model_calls": kept(1000, calls),
        "max_input_tokens": kept(100_000, input),
        "max_output_tokens": kept(100_000, output),
        "max_tokens": kept(100_000, input + output),
    })
}

#[test]
fn recorded_runs_have_the_sums_that_are_known() {
    let mut wrong = Vec::new();
    for (name, known) in OF_TRACES {
        let found = limits(name, "trace");
        let [(_, found)] = found.as_slice() else {
            panic!("{name}: {} evaluations", found.len())
        };
        if *found != sums(*known) {
            wrong.push(format!("{name}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_agent_has_the_total_that_its_framework_records() {
    for (name, agent, known) in OF_AGENTS {
        let found = limits(name, "agent");
        let of_agent = found.iter().find(|(found, _)| found == agent);
        let (_, found) = of_agent.unwrap_or_else(|| panic!("{name}: no {agent} in {found:?}"));
        assert_eq!(*found, sums(*known), "{name}: {agent}");
    }
}

#[test]
fn calls_without_usage_are_counted_and_leave_tokens_open() {
    for (name, n_calls) in WITHOUT_USAGE {
        for (_, found) in limits(name, "trace") {
            assert_eq!(found["max_model_calls"], kept(1000, *n_calls), "{name}");
            let open = json!({ "limit": 100_000, "actual": 0, "kept": null, "at_least": true });
            assert_eq!(found["max_tokens"], open, "{name}");
        }
    }
}
