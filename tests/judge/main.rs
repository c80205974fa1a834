//! Tests of judging, from OTLP bytes to verdicts, that need neither a sidecar nor the program.
//! `tests/README.md` lists what each module proves.

#![cfg(test)]
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests read recordings and read the clock; the crate itself must not"
)]

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

mod support;

mod agent_scope;
mod alarms;
mod arrival_order;
mod captures;
mod conformance;
mod convention_docs;
mod corpus;
mod cross_trace_results;
mod evaluator_docs;
mod evaluator_properties;
mod judged_requests;
mod judged_slices;
mod kept_values;
mod log_judging;
mod model_use;
mod rebuilt_traces;
mod reloaded_rules;
mod rule_abuse;
mod rule_oracle;
mod rule_texts;
mod rules_page;
mod session_scope;
mod sessions;
mod span_expectations;
mod timed_conformance;
mod trace_sizes;
mod traces;
mod value_oracle;
mod verdict_stability;
