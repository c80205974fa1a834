//! All integration tests in one program, so that the library is linked only once. `tests/README.md`
//! lists what each module proves.

#![cfg(test)]

mod support;

mod agent_scope;
mod arrival_order;
mod backends;
mod captures;
mod chart_schema;
mod cli;
mod conformance;
mod contributing;
mod convention_docs;
mod corpus;
mod cross_trace_results;
mod durability;
mod end_to_end;
mod evaluator_docs;
mod evaluator_properties;
mod judged_requests;
mod judged_slices;
mod judging_threads;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "kafka")]
mod kafka_collector;
#[cfg(feature = "kafka")]
mod kafka_faults;
#[cfg(feature = "kafka")]
mod kafka_judges;
#[cfg(feature = "kafka")]
mod kafka_load;
#[cfg(feature = "kafka")]
mod kafka_logins;
#[cfg(feature = "kafka")]
mod kafka_topics;
mod kept_values;
mod log_judging;
mod log_records;
mod numbers;
mod readme;
mod rebuilt_traces;
mod recorded_calls;
mod reloaded_rules;
mod replicas;
mod restarts;
mod revised_rules;
mod rule_abuse;
mod rule_oracle;
mod rule_texts;
mod rules_page;
mod span_expectations;
mod tidy;
mod timed_conformance;
mod trace_sizes;
mod untimed_calls;
mod verdict_stability;
