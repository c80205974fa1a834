//! Starts sidecars on free ports, sends requests through them, and checks what they deliver.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::HeaderMap;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::TokioExecutor;
use judge::assemble::Settings;
use judge::extract::Trajectory;
use judge::pipeline::{Pipeline, Rules};
use otlp::span::TraceId;
use otlp::{json, scan, scan_logs};
use spanscore::cli::configuration::Disk;
use spanscore::config::{Config, Protocol, Signal, Sources};
use spanscore::sidecar::{self, Observer, Plan, Sidecar};
use spanscore::transport::{Client, DeliveryOutcome};

use super::backend::Backend;
use crate::support::captures::Scenario;

const CRITERIA: &str = "
criteria:
  - name: two calls at least
    evaluate: { tool_call_order: { tool_calls_order: [a, b] } }
";

/// Frameworks whose payloads show each call exactly once. The calls that are extracted from them
/// must have the names of the calls that were really made.
const WHOLE: [&str; 5] = [
    "plain-opentelemetry/",
    "pydantic-ai/",
    "openai-agents-openinference/",
    "js-otel-sdk/",
    "js-vercel-ai-sdk-v7/",
];

/// Sends recorded sessions through sidecars. Sessions with one trace share a sidecar. A session
/// with several traces gets a separate sidecar: its traces must be judged in one slice to complete
/// each other's calls, and other sessions could prevent that.
pub(crate) async fn all_pass_through(scenarios: Vec<Scenario>, protocol: Protocol) {
    let is_of_one_trace = |scenario: &Scenario| replayed(&scenario.requests).0 <= 1;
    let (of_one, of_several): (Vec<_>, Vec<_>) = scenarios.into_iter().partition(is_of_one_trace);
    assert!(of_one.len() > 50, "{} share a sidecar", of_one.len());
    println!(
        "{} of one trace, {} of several",
        of_one.len(),
        of_several.len()
    );
    pass_through(&of_one, protocol).await;
    for scenario in &of_several {
        pass_through(std::slice::from_ref(scenario), protocol).await;
    }
}

/// Sends these sessions through one sidecar. It must deliver exactly the sent bytes (JSON as
/// protobuf), and must extract the same calls from each session as a replay of that session alone.
async fn pass_through(scenarios: &[Scenario], protocol: Protocol) {
    let backend = Backend::start().await;
    // No trace closes before the sidecar stops.
    let settings = ["settle", "max_settle", "settle_remote", "inactive"];
    let settings = settings.map(|key| (format!("assemble.{key}"), "1h"));
    let settings = settings.each_ref().map(|(key, time)| (&**key, *time));
    let config = config_with(&backend.address.to_string(), protocol, &settings);
    let (sidecar, seen) = start(&config).await;
    let address = match protocol {
        Protocol::Grpc => sidecar.addresses.grpc.unwrap(),
        Protocol::HttpProtobuf => sidecar.addresses.http.unwrap(),
    };
    let client = client(address, protocol);
    for scenario in scenarios {
        for (file, body) in &scenario.requests {
            let signal = signal(file);
            if file.ends_with(".json") {
                post_json(sidecar.addresses.http.unwrap(), signal, body).await;
                continue;
            }
            let answer = client
                .send(signal, Bytes::from(body.clone()), &HeaderMap::new())
                .await;
            assert!(
                matches!(
                    answer,
                    DeliveryOutcome::Delivered {
                        n_rejected: 0,
                        message: None
                    }
                ),
                "{} {file}: {answer:?}",
                scenario.name
            );
        }
    }
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;

    // Requests are delivered concurrently, so they may arrive at the downstream in another order.
    let arrived = backend.arrived().into_iter();
    let mut arrived: Vec<(&str, Bytes)> = arrived
        .filter(|arrived| !is_ours(&arrived.body))
        .map(|arrived| (arrived.signal, arrived.body))
        .collect();
    arrived.sort();
    let mut n_sent = 0;
    for scenario in scenarios {
        for (file, body) in &scenario.requests {
            let signal = signal(file);
            let body = match (file.ends_with(".json"), signal) {
                (false, _) => body.clone(),
                (true, Signal::Traces) => json::traces(body).unwrap(),
                (true, Signal::Logs) => json::logs(body).unwrap(),
                (true, Signal::Metrics) => json::metrics(body).unwrap(),
            };
            let sent = (signal.as_str(), Bytes::from(body));
            let at = arrived.binary_search(&sent);
            let at = at.unwrap_or_else(|_| panic!("{} {file}: not to the byte", scenario.name));
            // A request that was sent twice must arrive twice.
            arrived.remove(at);
            n_sent += 1;
        }
    }
    assert!(
        arrived.is_empty(),
        "{n_sent} were sent, and {} more arrived",
        arrived.len()
    );
    for (signal, books) in telemetry.item_counts() {
        assert_eq!(
            (books.accepted, books.queued),
            (books.sent, 0),
            "the books of {signal} balance with nothing dropped"
        );
    }

    // If a trace was judged several times, its last trajectory is complete.
    let seen = seen.lock().unwrap();
    let seen: BTreeMap<TraceId, &Arc<Trajectory>> =
        seen.iter().map(|one| (one.trace_id, one)).collect();
    let mut n_traces = 0;
    for Scenario {
        name,
        expected,
        requests,
    } in scenarios
    {
        let (_, replayed) = replayed(requests);
        n_traces += replayed.len();
        let calls = |trajectory: &Arc<Trajectory>| {
            let Trajectory {
                root, tool_calls, ..
            } = &**trajectory;
            (root.to_string(), tool_calls.clone())
        };
        let of_scenario = replayed.iter().map(|one| {
            let seen = seen.get(&one.trace_id);
            seen.unwrap_or_else(|| panic!("{name}: no {}", one.trace_id))
        });
        let of_scenario: Vec<_> = of_scenario.collect();
        for (seen, replayed) in of_scenario.iter().zip(&replayed) {
            assert_eq!(
                calls(seen),
                calls(replayed),
                "{name}: the sidecar understands what replay understands"
            );
        }
        if WHOLE.iter().any(|framework| name.starts_with(framework)) {
            let of_scenario = of_scenario.iter();
            let mut names: Vec<&str> = of_scenario
                .flat_map(|trajectory| &trajectory.tool_calls)
                .map(|call| &*call.name)
                .collect();
            let mut made: Vec<&str> = expected["tool_calls"]
                .as_array()
                .unwrap()
                .iter()
                .map(|call| call["name"].as_str().unwrap())
                .collect();
            names.sort();
            made.sort();
            assert_eq!(names, made, "{name}: the calls that were really made");
        }
    }
    assert_eq!(seen.len(), n_traces, "each trace is of one session");
}

pub(crate) fn config(backend: &Backend, protocol: Protocol) -> Config {
    config_with(&backend.address.to_string(), protocol, &[])
}

/// Like [`config`], with further keys set.
pub(crate) fn config_with(backend: &str, protocol: Protocol, more: &[(&str, &str)]) -> Config {
    config_of(CRITERIA, backend, protocol, more)
}

/// Like [`config_with`], with another configuration text.
pub(crate) fn config_of(
    text: &str,
    backend: &str,
    protocol: Protocol,
    more: &[(&str, &str)],
) -> Config {
    let protocol = match protocol {
        Protocol::Grpc => "grpc",
        Protocol::HttpProtobuf => "http/protobuf",
    };
    let flags = [
        ("receivers.otlp.grpc.listen", "127.0.0.1:0".to_owned()),
        ("receivers.otlp.http.listen", "127.0.0.1:0".to_owned()),
        ("admin.listen", "127.0.0.1:0".to_owned()),
        ("forward.endpoint", format!("http://{backend}")),
        ("forward.protocol", protocol.to_owned()),
        ("shutdown.quiet", "0s".to_owned()),
    ];
    let mut flags: Vec<(String, String)> =
        flags.map(|(key, value)| (key.to_owned(), value)).to_vec();
    flags.extend(
        more.iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
    );
    let sources = Sources {
        file: Some((Path::new("test.yaml"), text)),
        environment: &BTreeMap::new(),
        flags: &flags,
        files: &Disk,
    };
    Config::load(&sources)
        .unwrap_or_else(|problems| panic!("{problems}"))
        .config
}

fn rules(config: &Config) -> Rules {
    Rules::following(
        None,
        config.criteria.clone(),
        &config.tools,
        config.explain,
        &config.scores.copy_attributes,
    )
    .expecting(config.expectations())
}

type Seen = Arc<Mutex<Vec<Arc<Trajectory>>>>;

pub(crate) async fn start(config: &Config) -> (Sidecar, Seen) {
    let seen = Seen::default();
    let observed = seen.clone();
    let observer: Observer = Box::new(move |judged, _| {
        let mut seen = observed.lock().unwrap();
        seen.extend(judged.trajectories.iter().cloned());
        // Later traces may have completed these trajectories.
        seen.extend(judged.revised.iter().cloned());
    });
    (start_observed(config, observer).await, seen)
}

pub(crate) async fn start_observed(config: &Config, observer: Observer) -> Sidecar {
    let plan = Plan {
        config: config.clone(),
        origin: None,
        rules: rules(config),
        cgroup_limit: || None,
        print: None,
        observer: Some(observer),
        record: None,
    };
    Sidecar::start(plan).await.unwrap()
}

pub(crate) fn client(address: std::net::SocketAddr, protocol: Protocol) -> Client {
    let mut config = Config::default();
    config.forward.endpoint = Some(format!("http://{address}"));
    config.forward.protocol = Some(protocol);
    Client::new(&config.forward_destination().unwrap(), &Arc::default()).unwrap()
}

async fn post_json(address: std::net::SocketAddr, signal: Signal, body: &[u8]) {
    let client = HttpClient::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let request = Request::post(format!("http://{address}/v1/{}", signal.as_str()))
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_vec())))
        .unwrap();
    let response = tokio::time::timeout(Duration::from_secs(30), client.request(request))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "{}"
    );
}

/// Returns the signal that the file name of a recorded request contains.
pub(crate) fn signal(file: &str) -> Signal {
    Signal::ALL
        .into_iter()
        .find(|signal| file.contains(&format!(".{}.", signal.as_str())))
        .unwrap()
}

/// Returns true if the body has spanscore's scope, as our own scores and metrics do.
pub(crate) fn is_ours(body: &[u8]) -> bool {
    memchr::memmem::find(body, b"\x0a\x09spanscore").is_some()
}

/// Judges these requests without a network. Returns the number of traces, and the trajectories.
pub(crate) fn replayed(requests: &[(String, Vec<u8>)]) -> (usize, Vec<Arc<Trajectory>>) {
    let rules = rules(&Config::default());
    let now = sidecar::now();
    let mut pipeline = Pipeline::new(Settings::replay(), now);
    for (file, body) in requests {
        let is_json = file.ends_with(".json");
        let batch = match signal(file) {
            Signal::Traces if is_json => {
                scan::scan(&json::traces(body).unwrap(), Some(&rules))
                    .unwrap()
                    .batch
            }
            Signal::Traces => scan::scan(body, Some(&rules)).unwrap().batch,
            Signal::Logs if is_json => {
                scan_logs::scan(&json::logs(body).unwrap(), Some(&rules))
                    .unwrap()
                    .batch
            }
            Signal::Logs => scan_logs::scan(body, Some(&rules)).unwrap().batch,
            Signal::Metrics => continue,
        };
        pipeline.take(batch, now);
    }
    let mut trace_ids = BTreeSet::new();
    let judged = pipeline.end_of_input(&rules, now, |trace| {
        trace_ids.insert(trace.trace_id);
    });
    (trace_ids.len(), judged.trajectories)
}
