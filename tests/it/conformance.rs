//! Runs the cases about values and about tokens, whose labels independent oracles computed
//! (`tests/conformance/README-beyond.md`), through `replay` and through a sidecar over OTLP/HTTP.
//! Each case is a separate service, which its criterion selects. Compares labels only;
//! `tests/judge` compares scores and details.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use hyper::header::HeaderMap;
use opentelemetry_proto::tonic::trace::v1::ScopeSpans;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use spanscore::config::{Protocol, Signal};
use spanscore::sidecar::Observer;
use spanscore::transport::DeliveryOutcome;

use crate::support::backend::Backend;
use crate::support::cases::{
    Cut, TimedCase, TreeCase, criterion_of_case, scopes_of, spans_of, unpacked,
};
use crate::support::program::run;
use crate::support::sidecars::{client, config_of, start_observed};
use crate::support::spans::request_of;

/// The label of each case.
type Labels = BTreeMap<String, String>;

struct Case {
    criterion: Value,
    /// `None` if the criterion must be rejected.
    label: Option<String>,
    body: Vec<u8>,
}

fn cases() -> BTreeMap<String, Case> {
    fn read<C: DeserializeOwned>(packed: &[u8]) -> Vec<C> {
        let text = unpacked(packed);
        let lines = text.lines().map(serde_json::from_str);
        lines.collect::<Result<_, _>>().expect("cases")
    }
    let mut cases = BTreeMap::new();
    for case in read::<TimedCase>(include_bytes!("../conformance/values.jsonl.gz")) {
        let mut fields = case.criteria.clone();
        fields["criterion"] = Value::Object(case.criterion.clone());
        let scope = ScopeSpans {
            spans: spans_of(&case),
            ..ScopeSpans::default()
        };
        let label = case.expected["label"].as_str().map(str::to_owned);
        add(
            &mut cases,
            (case.id, &case.evaluator),
            fields,
            label,
            vec![scope],
        );
    }
    for case in read::<TreeCase>(include_bytes!("../conformance/tokens.jsonl.gz")) {
        let cuts: &[Cut] =
            if case.cut { &[Cut::ParentMissing, Cut::RootOpen] } else { &[Cut::Whole] };
        for &cut in cuts {
            let mut fields = case.criteria.clone();
            fields["criterion"] = case.criterion.clone();
            let scopes = scopes_of(&case.tree, 0..case.tree.len(), cut);
            let id = format!("{} {cut:?}", case.id);
            let label = case.expected["label"].as_str().map(str::to_owned);
            add(&mut cases, (id, &case.evaluator), fields, label, scopes);
        }
    }
    assert!(cases.len() >= 265, "only {} cases", cases.len());
    cases
}

fn add(
    cases: &mut BTreeMap<String, Case>,
    (id, evaluator): (String, &str),
    fields: Value,
    label: Option<String>,
    mut scopes: Vec<ScopeSpans>,
) {
    let mut criterion = criterion_of_case(&id, evaluator, &fields);
    criterion["select"]["service"] = json!(id);
    for span in scopes.iter_mut().flat_map(|scope| &mut scope.spans) {
        span.trace_id[8..].copy_from_slice(&(1 + cases.len() as u64).to_be_bytes());
    }
    let body = request_of(&id, scopes);
    let case = Case {
        criterion,
        label,
        body,
    };
    assert!(cases.insert(id, case).is_none(), "each case has an id");
}

/// Returns a configuration with the criteria of the cases whose criterion loads.
fn configuration(cases: &BTreeMap<String, Case>) -> String {
    let criteria = cases.values().filter(|case| case.label.is_some());
    json!({ "criteria": criteria.map(|case| &case.criterion).collect::<Vec<_>>() }).to_string()
}

fn assert_labels(cases: &BTreeMap<String, Case>, found: &Labels) {
    let wrong: Vec<String> = (cases.iter())
        .filter_map(|(id, case)| Some((id, case.label.as_ref()?)))
        .filter(|(id, label)| found.get(*id) != Some(label))
        .map(|(id, label)| format!("{id} is {:?}, expected {label}", found.get(id)))
        .collect();
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn replay_answers_as_the_oracles() {
    let cases = cases();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let config = path("spanscore.json");
    std::fs::write(&config, configuration(&cases)).unwrap();
    let loaded = cases.values().filter(|case| case.label.is_some());
    let files: Vec<String> = (0..)
        .zip(loaded)
        .map(|(at, case)| {
            let file = path(&format!("{at}.traces.pb"));
            std::fs::write(&file, &case.body).unwrap();
            file
        })
        .collect();
    let options = ["replay", "--format", "jsonl", "--config", &config];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (_, out, err) = run(&[&options, files.as_slice()].concat());
    let labels = out.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}: {err}"));
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        (text("criterion"), text("label"))
    });
    assert_labels(&cases, &labels.collect());
}

#[test]
fn criteria_that_the_oracles_refuse_are_refused_at_their_place() {
    let cases = cases();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("spanscore.json");
    // The file has one line per criterion.
    let refused: Vec<&Case> = cases.values().filter(|case| case.label.is_none()).collect();
    assert!(refused.len() >= 39, "only {} are refused", refused.len());
    let lines: Vec<String> = (refused.iter().map(|case| case.criterion.to_string())).collect();
    std::fs::write(
        &file,
        format!("{{\"criteria\":[\n{}\n]}}", lines.join(",\n")),
    )
    .unwrap();
    let (code, _, err) = run(&["validate", "--config", file.to_str().unwrap()]);
    assert_eq!(code, 2, "{err}");
    for (line, criterion) in (2..).zip(&lines) {
        let place = format!("spanscore.json:{line}:");
        assert!(err.contains(&place), "{criterion} was loaded");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_answers_as_the_oracles() {
    let cases = cases();
    let backend = Backend::start().await;
    let address = backend.address.to_string();
    // The waits are so long that open traces are judged only when the sidecar stops.
    let settings = ["settle", "max_settle", "settle_remote", "inactive"];
    let settings = settings.map(|key| (format!("assemble.{key}"), "1h"));
    let settings = settings.each_ref().map(|(key, time)| (&**key, *time));
    let protocol = Protocol::HttpProtobuf;
    let config = config_of(&configuration(&cases), &address, protocol, &settings);
    let labels = Arc::new(Mutex::new(Labels::new()));
    let observed = Arc::clone(&labels);
    let observer: Observer = Box::new(move |judged, _| {
        let mut labels = observed.lock().unwrap();
        labels.extend(judged.evaluations.iter().map(|evaluation| {
            let name = evaluation.criterion.name().to_owned();
            (name, evaluation.verdict.as_str().to_owned())
        }));
    });
    let sidecar = start_observed(&config, observer).await;
    let client = client(sidecar.addresses.http.unwrap(), protocol);
    for (id, case) in &cases {
        let body = Bytes::from(case.body.clone());
        let answer = client.send(Signal::Traces, body, &HeaderMap::new()).await;
        let is_accepted = matches!(answer, DeliveryOutcome::Delivered { n_rejected: 0, .. });
        assert!(is_accepted, "{id}: {answer:?}");
    }
    sidecar.stop().await;
    assert_labels(&cases, &labels.lock().unwrap());
}
