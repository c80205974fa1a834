//! Tests a running sidecar, the program, and files of the repository. They are one test
//! program, so that the library is linked only once. `tests/judge` tests judging, which needs no
//! sidecar. `tests/README.md` lists what each module proves.

#![cfg(test)]

/// The root folder of the repository, in which this program runs.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

mod support;

mod alarms;
mod backends;
mod chart_schema;
mod cli;
mod conformance;
mod contributing;
mod durability;
mod end_to_end;
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
mod numbers;
mod proposals;
mod readme;
mod replicas;
mod restarts;
mod session_scope;
mod tidy;
