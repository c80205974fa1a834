//! Writes a first configuration, on request with criteria proposed from recorded runs. Does not
//! know whether the recorded runs were good ones, and says so.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::evaluate::lcs;
use crate::extract::Trajectory;
use crate::located::to_yaml;

const HEAD: &str = "\
# spanscore: what goes where, and what every trace is judged by.
# Everything is optional. Check this file with `spanscore validate`; see every key with \
`spanscore validate --print`.

# Agents send their telemetry here: OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317 (gRPC) or \
http://localhost:4318 (HTTP).
receivers:
  otlp:
    grpc: { listen: \"127.0.0.1:4317\" }
    http: { listen: \"127.0.0.1:4318\" }

# It goes on from here, untouched, to your tracing backend or Collector, and the scores with it.
# Without an endpoint it is scored and not forwarded, and the scores are printed.
forward:
  # endpoint: https://otlp.example.com      # http(s)://host:port, and a path if the backend has one
  # headers: { authorization: \"Bearer ${env:OTLP_API_KEY}\" }
  # signals: [traces]                       # what the backend takes; all three if left out

";

const EXAMPLE: &str = "\
# What every trace is judged by. Until there is a criterion, `spanscore run` prints the tool \
calls it sees, ready to be pasted here.
criteria:
  # - name: checkout-order
  #   description: customers are checked before an order is created
  #   select: { root: \"invoke_agent *\", calls: create_order }     \
# which traces; every one if left out
  #   evaluate:
  #     tool_call_order: { tool_calls_order: [validate_user, check_inventory, create_order] }
  #   threshold: 0.8                        \
# the share of the order that is enough to pass; 1.0 if left out
";

const PROPOSED: &str = "\
# What every trace is judged by. Proposed from recorded traces: this is what was done there, \
which need not be what should be done.
# Take out the calls that do not matter, and check that names and selectors are not narrower \
than you mean.
";

const NOTHING_TO_PROPOSE: &str = "\
# The recording holds no tool calls that all runs of one agent share, so there is nothing to \
propose: here is an example.
";

/// A commented first configuration. With trajectories, it has a criterion for each kind of run
/// (equal root and agent) that expects the calls that all recorded runs of this kind share, in
/// order.
pub fn starter(trajectories: Option<&[Trajectory]>) -> String {
    let Some(trajectories) = trajectories else {
        return format!("{HEAD}{EXAMPLE}");
    };
    match proposal(trajectories) {
        Some(criteria) => format!("{HEAD}{PROPOSED}{criteria}"),
        None => format!("{HEAD}{NOTHING_TO_PROPOSE}{EXAMPLE}"),
    }
}

/// The proposed criteria alone, ready to be pasted into a configuration; `None` where there is
/// nothing to propose.
pub fn proposal(trajectories: &[Trajectory]) -> Option<String> {
    let criteria = proposed(trajectories);
    (!criteria.is_empty()).then(|| to_yaml(&json!({ "criteria": criteria })))
}

/// Runs of one kind, and the calls that all of them made in one order.
struct Kind<'a> {
    root: &'a str,
    agent: Option<&'a str>,
    shared: Vec<&'a str>,
    n_runs: usize,
}

fn proposed(trajectories: &[Trajectory]) -> Vec<Value> {
    let mut kinds: Vec<Kind<'_>> = Vec::new();
    for trajectory in trajectories
        .iter()
        .filter(|trajectory| !trajectory.tool_calls.is_empty())
    {
        let (root, agent) = (&*trajectory.root, trajectory.agent.as_deref());
        // Retries and loops are rarely part of the rule: repeated calls of one tool count once.
        let mut names: Vec<&str> = trajectory
            .tool_calls
            .iter()
            .map(|call| &*call.name)
            .collect();
        names.dedup();
        match kinds
            .iter_mut()
            .find(|kind| kind.root == root && kind.agent == agent)
        {
            Some(kind) => {
                kind.shared = common(&names, &kind.shared);
                kind.n_runs += 1;
            }
            None => kinds.push(Kind {
                root,
                agent,
                shared: names,
                n_runs: 1,
            }),
        }
    }

    let mut taken = BTreeMap::new();
    kinds
        .into_iter()
        .filter(|kind| !kind.shared.is_empty())
        .map(
            |Kind {
                 root,
                 agent,
                 shared,
                 n_runs,
             }| {
                let mut select = serde_json::Map::new();
                if !root.is_empty() {
                    select.insert("root".to_owned(), glob(root).into());
                }
                if let Some(agent) = agent {
                    select.insert("agent".to_owned(), glob(agent).into());
                }
                let runs = if n_runs == 1 {
                    "one recorded run".to_owned()
                } else {
                    format!("all {n_runs} recorded runs")
                };
                json!({
                    "name": unused(&slug(agent.unwrap_or(root)), &mut taken),
                    "description": format!("what {runs} did, in this order"),
                    "select": select,
                    "evaluate": { "tool_call_order": { "tool_calls_order": shared } },
                })
            },
        )
        .collect()
}

fn common<'a>(names: &[&'a str], shared: &[&'a str]) -> Vec<&'a str> {
    let mut ids = BTreeMap::new();
    let mut ids_of = |names: &[&'a str]| -> Vec<u32> {
        names
            .iter()
            .map(|name| {
                let next = ids.len() as u32;
                *ids.entry(*name).or_insert(next)
            })
            .collect()
    };
    let (actual, expected) = (ids_of(names), ids_of(shared));
    lcs::common_subsequence(&actual, &expected)
        .into_iter()
        .map(|(_, name_idx)| shared[name_idx])
        .collect()
}

/// A name as a glob that it matches: `*` and `?` cannot be escaped, but a `?` matches either.
fn glob(name: &str) -> String {
    name.replace('*', "?")
}

fn slug(name: &str) -> String {
    let words: Vec<String> = name
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    if words.is_empty() {
        "order".to_owned()
    } else {
        format!("{}-order", words.join("-"))
    }
}

fn unused(slug: &str, taken: &mut BTreeMap<String, usize>) -> String {
    let n = taken.entry(slug.to_owned()).or_default();
    *n += 1;
    if *n == 1 {
        slug.to_owned()
    } else {
        format!("{slug}-{n}")
    }
}
