//! Tests that every recorded session gets exactly the same scores on one thread and on several.
//! Whole sidecars judge when they stop, so the results do not depend on the clock. Does not test
//! throughput, or traces that close at different times (`cross_trace_results` does).

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use hyper::header::HeaderMap;
    use judge::evaluate::Criterion;
    use otlp::json as otlp_json;
    use serde_json::{Map, Value, json};
    use spanscore::config::{Config, Protocol, Signal};
    use spanscore::export::score_line;
    use spanscore::sidecar::{Observer, Sidecar};
    use spanscore::transport::DeliveryOutcome;

    use crate::support::backend::Backend;
    use crate::support::captures::{self, Scenario};
    use crate::support::sidecars::{client, config_with, signal, start_observed};

    /// Returns criteria about the order, the names, the arguments and the results of the recorded
    /// calls.
    fn criteria(scenarios: &[Scenario]) -> Vec<Criterion> {
        let calls = scenarios
            .iter()
            .flat_map(|scenario| scenario.expected["tool_calls"].as_array())
            .flatten();
        // Some sessions have no calls, but an order needs at least one name.
        let names = calls.filter_map(|call| call["name"].as_str());
        let names: BTreeSet<&str> = names.chain(["get_weather"]).collect();
        let entries = |key: &str, value: Value| -> Vec<Value> {
            let entry = |name: &&str| json!({ "name": name, key: value });
            names.iter().map(entry).collect()
        };
        let oslo = json!({ "city": "Oslo" });
        let evaluate = [
            json!({ "tool_call_order": { "tool_calls_order": names } }),
            json!({ "tool_calls": { "disallowed": names } }),
            json!({ "tool_call_args": { "tool_calls": entries("args", oslo) } }),
            json!({ "tool_call_output": { "tool_outputs": entries("output", json!("sunny")) } }),
        ];
        let criterion = |(n, evaluate)| {
            serde_json::from_value(json!({ "name": format!("c{n}"), "evaluate": evaluate }))
                .unwrap()
        };
        evaluate.into_iter().enumerate().map(criterion).collect()
    }

    /// Divides the recorded sessions among sidecars. A sidecar judges its sessions together when it
    /// stops. Each share fits into one slice, so all its scores must be equal, not only the latest.
    fn shares(scenarios: &[Scenario]) -> Vec<&[Scenario]> {
        const MAX_SHARE: usize = 320 << 10;
        let size = |one: &Scenario| -> usize {
            let bodies = one.requests.iter().map(|(_, body)| body.len());
            bodies.sum()
        };
        let mut taken = 0;
        let shares = scenarios.chunk_by(|one, next| {
            taken += size(one);
            let fits = taken + size(next) <= MAX_SHARE;
            if !fits {
                taken = 0;
            }
            fits
        });
        shares.collect()
    }

    fn config(backend: &Backend, n_threads: usize, scenarios: &[Scenario]) -> Config {
        let more = [
            ("scoring.threads", &*n_threads.to_string()),
            // No trace closes before the sidecar stops.
            ("assemble.settle", "1h"),
            ("assemble.max_settle", "1h"),
            ("assemble.settle_remote", "1h"),
            ("assemble.inactive", "1h"),
            ("assemble.restart_guard", "0"),
        ];
        Config {
            criteria: criteria(scenarios),
            ..config_with(&backend.address.to_string(), Protocol::Grpc, &more)
        }
    }

    /// Returns the lines of all scores, sorted.
    async fn scores(n_threads: usize, scenarios: &[Scenario]) -> Vec<Map<String, Value>> {
        let backend = Backend::start().await;
        let lines: Arc<Mutex<Vec<Map<String, Value>>>> = Arc::default();
        let seen = Arc::clone(&lines);
        let observer: Observer = Box::new(move |judged, _| {
            let lines = judged.evaluations.iter().map(score_line::json);
            seen.lock().unwrap().extend(lines);
        });
        let sidecar = start_observed(&config(&backend, n_threads, scenarios), observer).await;
        send(&sidecar, scenarios).await;
        let n_unscored = sidecar
            .telemetry
            .counter("spanscore_unscored_spans_total", &[]);
        sidecar.stop().await;
        assert_eq!(n_unscored, 0);
        let mut lines = std::mem::take(&mut *lines.lock().unwrap());
        lines.sort_by_cached_key(|line| serde_json::to_string(line).unwrap());
        lines
    }

    async fn send(sidecar: &Sidecar, scenarios: &[Scenario]) {
        let client = client(sidecar.addresses.grpc.unwrap(), Protocol::Grpc);
        for (file, body) in scenarios.iter().flat_map(|scenario| &scenario.requests) {
            let signal = signal(file);
            let body = match (file.ends_with(".json"), signal) {
                (false, _) => body.clone(),
                (true, Signal::Traces) => otlp_json::traces(body).unwrap(),
                (true, Signal::Logs) => otlp_json::logs(body).unwrap(),
                (true, Signal::Metrics) => continue,
            };
            let answer = client
                .send(signal, Bytes::from(body), &HeaderMap::new())
                .await;
            let is_taken = matches!(answer, DeliveryOutcome::Delivered { n_rejected: 0, .. });
            assert!(is_taken, "{file}: {answer:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn half_of_the_recorded_sessions_have_the_same_scores_on_any_number_of_threads() {
        same_scores_of_half(0).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_other_recorded_sessions_have_the_same_scores_on_any_number_of_threads() {
        same_scores_of_half(1).await;
    }

    async fn same_scores_of_half(half: usize) {
        let scenarios = captures::scenarios();
        for scenarios in shares(&scenarios).into_iter().skip(half).step_by(2) {
            let on_one = scores(1, scenarios).await;
            let on_several = scores(4, scenarios).await;
            let names = || scenarios.iter().map(|it| &*it.name).collect::<Vec<_>>();
            assert_eq!(on_several.len(), on_one.len(), "{:?}", names());
            for (several, one) in on_several.iter().zip(&on_one) {
                assert_eq!(several, one, "{:?}", names());
            }
        }
    }

    /// The traces of all sessions do not fit into one slice. Results from other slices then lead to
    /// revisions, so only the latest scores must be equal.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all_sessions_at_once_have_the_same_latest_scores_on_two_threads() {
        same_latest_scores(2).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn all_sessions_at_once_have_the_same_latest_scores_on_four_threads() {
        same_latest_scores(4).await;
    }

    async fn same_latest_scores(n_threads: usize) {
        let scenarios = captures::scenarios();
        let latest = |lines: Vec<Map<String, Value>>| {
            let mut latest: BTreeMap<String, (u64, Map<String, Value>)> = BTreeMap::new();
            for mut line in lines {
                let revision = line.remove("revision").and_then(|it| it.as_u64());
                let revision = revision.unwrap_or_default();
                let key = format!("{} {}", line["trace_id"], line["criterion"]);
                let known = latest.get(&key).map_or(0, |(revision, _)| *revision);
                if revision >= known {
                    latest.insert(key, (revision, line));
                }
            }
            latest
                .into_iter()
                .map(|(key, (_, line))| (key, line))
                .collect::<BTreeMap<_, _>>()
        };
        let on_one = latest(scores(1, &scenarios).await);
        assert!(on_one.len() > 4 * 100, "{} scores", on_one.len());
        let on_several = latest(scores(n_threads, &scenarios).await);
        for (key, line) in &on_one {
            assert_eq!(on_several.get(key), Some(line));
        }
        assert_eq!(on_several.len(), on_one.len());
    }
}
