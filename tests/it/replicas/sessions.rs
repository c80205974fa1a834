//! Moves the recorded sessions to another time and changes their trace ids, so that one recording
//! gives many runs of one service. Splits requests like a router by trace id.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use otlp::json;
use prost::Message;

use crate::support::captures::{Scenario, scenarios};

/// The service of all sessions, as if they were runs of one team's agent.
const SERVICE: &str = "agents";

/// The OTLP flags of a span whose parent is known to be in another process.
const REMOTE: u32 = 0x300;

pub(super) struct Session {
    requests: Vec<Request>,
}

#[derive(Debug, Clone)]
pub(super) enum Request {
    Spans(ExportTraceServiceRequest),
    Records(ExportLogsServiceRequest),
}

/// Returns all sessions except those in which a parent was never recorded: these look torn even
/// when complete.
pub(super) fn sessions() -> Vec<Session> {
    let mut sessions: Vec<Session> = scenarios().iter().map(Session::new).collect();
    sessions.retain(|session| !session.lacks_parents());
    assert!(sessions.len() > 100, "{}", sessions.len());
    sessions
}

impl Session {
    fn new(scenario: &Scenario) -> Self {
        let requests = scenario.requests.iter();
        let requests = requests.filter_map(|(file, body)| {
            let is_json = file.ends_with(".json");
            let transcoded = |transcode: fn(&[u8]) -> Vec<u8>| {
                if is_json { transcode(body) } else { body.clone() }
            };
            if file.contains(".metrics.") {
                return None;
            }
            Some(if file.contains(".logs.") {
                let body = transcoded(|body| json::logs(body).unwrap());
                Request::Records(ExportLogsServiceRequest::decode(&*body).unwrap())
            } else {
                let body = transcoded(|body| json::traces(body).unwrap());
                Request::Spans(ExportTraceServiceRequest::decode(&*body).unwrap())
            })
        });
        Self {
            requests: requests.collect(),
        }
    }

    fn lacks_parents(&self) -> bool {
        let (mut ids, mut parents) = (BTreeSet::new(), BTreeSet::new());
        for request in &self.requests {
            let Request::Spans(request) = request else {
                continue;
            };
            let scopes = request
                .resource_spans
                .iter()
                .flat_map(|one| &one.scope_spans);
            for span in scopes.flat_map(|scope| &scope.spans) {
                ids.insert(&span.span_id);
                let is_remote = span.flags & REMOTE == REMOTE;
                if !span.parent_span_id.is_empty() && !is_remote {
                    parents.insert(&span.parent_span_id);
                }
            }
        }
        !parents.is_subset(&ids)
    }

    /// Returns the session's run in this round. Its earliest time is `begin`, in Unix nanoseconds.
    /// The first two bytes of the trace ids contain the round.
    pub(super) fn renewed(&self, round: u16, begin: u64) -> Vec<Request> {
        let mut requests = self.requests.clone();
        let mut first = u64::MAX;
        for request in &mut requests {
            request.each_time(&mut |time| first = first.min(*time));
        }
        for request in &mut requests {
            request.each_time(&mut |time| *time = *time - first + begin);
            request.each_trace_id(&mut |id| set_round(id, round));
            request.each_resource(&mut |resource| {
                resource
                    .attributes
                    .retain(|pair| pair.key != "service.name");
                resource.attributes.push(KeyValue {
                    key: "service.name".to_owned(),
                    value: Some(AnyValue {
                        value: Some(any_value::Value::StringValue(SERVICE.to_owned())),
                    }),
                    ..KeyValue::default()
                });
            });
        }
        requests
    }
}

fn set_round(id: &mut [u8], round: u16) {
    if let [first, second, ..] = id {
        [*first, *second] = round.to_be_bytes();
    }
}

/// Returns the part of a trace id that does not depend on the round.
pub(super) fn recorded_id(trace_id: &str) -> &str {
    &trace_id[4..]
}

pub(super) fn round_of(trace_id: &str) -> u16 {
    u16::from_str_radix(&trace_id[..4], 16).unwrap()
}

impl Request {
    pub(super) fn signal(&self) -> &'static str {
        match self {
            Self::Spans(_) => "traces",
            Self::Records(_) => "logs",
        }
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Spans(request) => request.encode_to_vec(),
            Self::Records(request) => request.encode_to_vec(),
        }
    }

    /// Splits the request by destination. `place` returns the index of the destination of a trace
    /// id, which is empty for a log record without one.
    pub(super) fn placed(&self, place: impl Fn(&[u8]) -> usize) -> BTreeMap<usize, Self> {
        let mut places: Vec<usize> = Vec::new();
        self.clone().each_trace_id(&mut |id| places.push(place(id)));
        places.sort_unstable();
        places.dedup();
        let part = |at: usize| {
            let mut part = self.clone();
            match &mut part {
                Self::Spans(request) => {
                    for resource in &mut request.resource_spans {
                        for scope in &mut resource.scope_spans {
                            scope.spans.retain(|span| place(&span.trace_id) == at);
                        }
                        resource.scope_spans.retain(|scope| !scope.spans.is_empty());
                    }
                }
                Self::Records(request) => {
                    for resource in &mut request.resource_logs {
                        for scope in &mut resource.scope_logs {
                            scope.log_records.retain(|one| place(&one.trace_id) == at);
                        }
                        let scopes = &mut resource.scope_logs;
                        scopes.retain(|scope| !scope.log_records.is_empty());
                    }
                }
            }
            (at, part)
        };
        places.into_iter().map(part).collect()
    }

    fn each_time(&mut self, see: &mut impl FnMut(&mut u64)) {
        let mut see = |time: &mut u64| {
            if *time > 0 {
                see(time);
            }
        };
        match self {
            Self::Spans(request) => {
                let resources = request.resource_spans.iter_mut();
                let scopes = resources.flat_map(|resource| &mut resource.scope_spans);
                for span in scopes.flat_map(|scope| &mut scope.spans) {
                    see(&mut span.start_time_unix_nano);
                    see(&mut span.end_time_unix_nano);
                    for event in &mut span.events {
                        see(&mut event.time_unix_nano);
                    }
                }
            }
            Self::Records(request) => {
                let resources = request.resource_logs.iter_mut();
                let scopes = resources.flat_map(|resource| &mut resource.scope_logs);
                for record in scopes.flat_map(|scope| &mut scope.log_records) {
                    see(&mut record.time_unix_nano);
                    see(&mut record.observed_time_unix_nano);
                }
            }
        }
    }

    fn each_trace_id(&mut self, see: &mut impl FnMut(&mut Vec<u8>)) {
        match self {
            Self::Spans(request) => {
                let resources = request.resource_spans.iter_mut();
                let scopes = resources.flat_map(|resource| &mut resource.scope_spans);
                for span in scopes.flat_map(|scope| &mut scope.spans) {
                    see(&mut span.trace_id);
                    for link in &mut span.links {
                        see(&mut link.trace_id);
                    }
                }
            }
            Self::Records(request) => {
                let resources = request.resource_logs.iter_mut();
                let scopes = resources.flat_map(|resource| &mut resource.scope_logs);
                for record in scopes.flat_map(|scope| &mut scope.log_records) {
                    see(&mut record.trace_id);
                }
            }
        }
    }

    fn each_resource(&mut self, see: &mut impl FnMut(&mut Resource)) {
        match self {
            Self::Spans(request) => {
                for resource in &mut request.resource_spans {
                    see(resource.resource.get_or_insert_default());
                }
            }
            Self::Records(request) => {
                for resource in &mut request.resource_logs {
                    see(resource.resource.get_or_insert_default());
                }
            }
        }
    }
}
