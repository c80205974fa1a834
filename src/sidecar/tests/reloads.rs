//! Reloads a real sidecar under load hundreds of times: no request may be refused, no trace lost,
//! and every score must come from one set of criteria. The tests do not prove that reads 200 ms
//! apart agree on a slow disk, nor measure the cost of a reload.

use std::time::Duration;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use bytes::Bytes;
use hyper::header::HeaderMap;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message;
use tokio::sync::watch;

use super::super::*;
use crate::cli::configuration::Disk;
use crate::config::{Protocol, Signal, Sources};
use crate::register::{ConfigOrigin, ReloadOutcome, Start};
use crate::transport::{Client, DeliveryOutcome};

const N_RELOADS: usize = 300;
/// Number of traces that are open from before the first reload until after the last.
const N_OPEN: u32 = 50;
const N_CLIENTS: u32 = 2;

/// The criteria that judged each trace, by name and revision.
type Scores = Arc<Mutex<BTreeMap<String, Vec<(String, String)>>>>;

fn file(generation: usize) -> String {
    let criterion = |which: &str| {
        format!(
            "- {{ name: {which}, evaluate: {{ tool_call_order: {{ tool_calls_order: [search, \
             \"g{generation}\"] }} }} }}\n"
        )
    };
    format!("criteria:\n{}{}", criterion("one"), criterion("two"))
}

pub(super) fn request(trace: u32, tool: Option<&str>) -> Bytes {
    let id = if tool.is_some() { 2_u64 } else { 1 };
    let text = |text: &str| AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    };
    let time = now().unix_nanos;
    let span = Span {
        trace_id: (1_u128 << 64 | u128::from(trace)).to_be_bytes().to_vec(),
        span_id: id.to_be_bytes().to_vec(),
        parent_span_id: if tool.is_some() { 1_u64.to_be_bytes().to_vec() } else { Vec::new() },
        name: "run".to_owned(),
        start_time_unix_nano: time,
        end_time_unix_nano: time + 1,
        attributes: tool
            .map(|tool| KeyValue {
                key: "tool.name".to_owned(),
                value: Some(text(tool)),
                ..KeyValue::default()
            })
            .into_iter()
            .collect(),
        ..Span::default()
    };
    let scope_spans = vec![ScopeSpans {
        spans: vec![span],
        ..ScopeSpans::default()
    }];
    ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            scope_spans,
            ..ResourceSpans::default()
        }],
    }
    .encode_to_vec()
    .into()
}

pub(super) async fn deliver(client: &Client, body: Bytes) {
    let answer = client.send(Signal::Traces, body, &HeaderMap::new()).await;
    assert!(
        matches!(
            answer,
            DeliveryOutcome::Delivered {
                n_rejected: 0,
                message: None
            }
        ),
        "{answer:?}"
    );
}

/// Starts a sidecar with this file, on separate ports. The sidecar reloads only on request.
pub(super) async fn start(
    path: &std::path::Path,
    more: &[(&str, &str)],
    observer: Option<Observer>,
) -> Sidecar {
    let flags = [
        ("receivers.otlp.grpc.listen", "127.0.0.1:0"),
        ("receivers.otlp.http.enabled", "false"),
        ("admin.listen", "127.0.0.1:0"),
        ("assemble.settle", "1ms"),
        ("reload.interval", "0"),
        ("shutdown.quiet", "0s"),
    ];
    let flags = flags.iter().chain(more);
    let flags: Vec<(String, String)> = flags
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let text = std::fs::read_to_string(path).unwrap();
    let config = Config::load(&Sources {
        file: Some((path, &text)),
        environment: &BTreeMap::new(),
        flags: &flags,
        files: &Disk,
    });
    let config = config
        .unwrap_or_else(|problems| panic!("{problems}"))
        .config;
    let origin = ConfigOrigin {
        path: path.to_owned(),
        may_be_absent: false,
        start: Start::Sound,
        environment: BTreeMap::new(),
        flags,
        files: Arc::new(Disk),
        settle_time: Duration::ZERO,
    };
    let rules = crate::register::merge::rules(&config, config.criteria.clone(), None);
    let plan = Plan {
        config,
        origin: Some(origin),
        rules,
        cgroup_limit: || None,
        print: None,
        observer,
        record: None,
    };
    Sidecar::start(plan).await.unwrap()
}

fn noting(scores: &Scores) -> Observer {
    let scores = scores.clone();
    Box::new(move |judged, _| {
        for evaluation in &judged.evaluations {
            assert_eq!(evaluation.revision, 0);
            let mut scores = scores.lock().unwrap();
            let of_trace = scores
                .entry(evaluation.trajectory.trace_id.to_string())
                .or_default();
            of_trace.push((
                evaluation.criterion.name().to_owned(),
                evaluation.criterion.revision().to_owned(),
            ));
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_load_refuse_no_request_lose_no_trace_and_mix_no_sets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("spanscore.yaml");
    std::fs::write(&path, file(0)).unwrap();
    let scores = Scores::default();
    let sidecar = start(
        &path,
        &[("shutdown.deadline", "60s")],
        Some(noting(&scores)),
    )
    .await;
    let mut config = Config::default();
    config.forward.endpoint = Some(format!("http://{}", sidecar.addresses.grpc.unwrap()));
    config.forward.protocol = Some(Protocol::Grpc);
    let client = Client::new(&config.forward_destination().unwrap(), &Arc::default()).unwrap();
    for trace in 0..N_OPEN {
        deliver(&client, request(trace, Some("search"))).await;
    }

    let (stop, stopped) = watch::channel(false);
    let mut load = JoinSet::new();
    for sender in 0..N_CLIENTS {
        let (client, stopped) = (client.clone(), stopped.clone());
        load.spawn(async move {
            let mut trace = (sender + 1) << 24;
            while !*stopped.borrow() {
                trace += 1;
                deliver(&client, request(trace, Some("search"))).await;
                deliver(&client, request(trace, None)).await;
            }
            (trace & 0x00ff_ffff) as usize
        });
    }

    let revisions = |register: &Register| {
        let list = register.revisions();
        (list.get("one").cloned(), list.get("two").cloned())
    };
    let mut known = BTreeSet::from([revisions(&sidecar.register)]);
    let (mut n_applied, mut n_refused) = (0, 0);
    for generation in 1..=N_RELOADS {
        let whole = file(generation);
        let text = match generation % 3 {
            0 => whole,
            // This text is not a valid configuration.
            1 => whole.replace("evaluate", "evalute"),
            // The file is only partly written. Some prefixes are valid YAML with fewer criteria.
            _ => whole[..whole.len() * (generation % 97) / 97].to_owned(),
        };
        std::fs::write(&path, text).unwrap();
        match sidecar.register.reload().await.unwrap() {
            ReloadOutcome::Applied { .. } => {
                n_applied += 1;
                known.insert(revisions(&sidecar.register));
            }
            ReloadOutcome::Refused { .. } => n_refused += 1,
            ReloadOutcome::NoFile => panic!("there is a file"),
        }
    }
    assert!(
        n_applied > N_RELOADS / 4 && n_refused > N_RELOADS / 4,
        "{n_applied} {n_refused}"
    );
    std::fs::write(&path, file(N_RELOADS + 1)).unwrap();
    assert!(matches!(
        sidecar.register.reload().await.unwrap(),
        ReloadOutcome::Applied { changed: true, .. }
    ));
    let last = revisions(&sidecar.register);
    known.insert(last.clone());

    stop.send_replace(true);
    let n_sent: usize = load.join_all().await.into_iter().sum();
    for trace in 0..N_OPEN {
        deliver(&client, request(trace, None)).await;
    }
    let telemetry = sidecar.telemetry.clone();
    sidecar.stop().await;

    let scores = scores.lock().unwrap();
    let n_closed = telemetry.counter("spanscore_traces_closed_total", &[("reason", "root_ended")]);
    assert_eq!(
        n_closed as usize,
        n_sent + N_OPEN as usize,
        "every trace was closed by its root's end"
    );
    assert_eq!(telemetry.counter("spanscore_unscored_spans_total", &[]), 0);
    for (trace, of_trace) in scores.iter() {
        let of = |name: &str| {
            of_trace
                .iter()
                .find(|(of, _)| of == name)
                .map(|(_, revision)| revision.clone())
        };
        let set = (of("one"), of("two"));
        assert!(
            known.contains(&set) && of_trace.len() <= 2,
            "{trace}: {of_trace:?} is no set that was in force"
        );
    }
    for trace in 0..N_OPEN {
        let trace = format!("{:032x}", 1_u128 << 64 | u128::from(trace));
        let of_trace: Vec<_> = scores[&trace]
            .iter()
            .map(|(_, revision)| Some(revision.clone()))
            .collect();
        assert_eq!(
            of_trace,
            [last.0.clone(), last.1.clone()],
            "an open trace is judged by the set in force when it closes"
        );
    }
}
