//! A request to deliver, and the encoding of its route in the journal.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use hyper::Method;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use otlp::span::{PeerId, TraceId};

use crate::config::Signal;
use crate::fair::Charge;

/// Bytes that a request costs in addition to its body and route.
pub(super) const OVERHEAD: usize = 256;

#[derive(Debug, Clone)]
pub struct OutboundRequest {
    pub signal: Signal,
    pub body: Bytes,
    /// Number of spans, log records, data points or scores.
    pub n_items: u64,
    pub route: Route,
    pub peer: PeerId,
    /// The charge on the queue's budget, released when the request is done.
    pub charge: Option<Arc<Charge>>,
}

/// The target of a request at its destination.
#[derive(Debug, Clone)]
pub enum Route {
    /// OTLP's service for the signal; the body is protobuf.
    Otlp {
        /// The request's own headers.
        headers: HeaderMap,
    },
    /// The backend's own API; the body is JSON.
    Api {
        /// The trace that the request is about. Requests about one trace are sent one after the
        /// other, in the order in which they were enqueued.
        trace_id: TraceId,
        /// Targets, tried in this order until one does not answer "unknown".
        targets: Arc<[ApiTarget]>,
    },
}

/// A method and path of a backend's own API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiTarget {
    /// `POST` or `PATCH`; the journal can store no other method.
    pub method: Method,
    /// Path and query below the endpoint's base path; starts with `/`.
    pub path: String,
}

impl OutboundRequest {
    /// Creates an OTLP request without headers.
    pub fn otlp(signal: Signal, body: Bytes, n_items: u64) -> Self {
        Self {
            signal,
            body,
            n_items,
            route: Route::default(),
            peer: PeerId::default(),
            charge: None,
        }
    }

    /// Returns the bytes of a queue's budget that the request uses.
    pub fn cost(&self) -> usize {
        let route: usize = match &self.route {
            Route::Otlp { headers } => headers
                .iter()
                .map(|(name, value)| name.as_str().len() + value.len())
                .sum(),
            Route::Api { targets, .. } => targets.iter().map(|target| target.path.len()).sum(),
        };
        self.body.len() + route + OVERHEAD
    }

    /// Returns the trace whose requests are sent one after the other.
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        match &self.route {
            Route::Otlp { .. } => None,
            Route::Api { trace_id, .. } => Some(*trace_id),
        }
    }
}

impl Default for Route {
    fn default() -> Self {
        Self::Otlp {
            headers: HeaderMap::new(),
        }
    }
}

impl Route {
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Otlp { headers } => encode_headers(headers),
            Self::Api { trace_id, targets } => encode_api(*trace_id, targets),
        }
    }

    /// Decodes the metadata of a record with scores or with a request. Returns `None` if the
    /// targets of scores are damaged.
    pub(super) fn decode(meta: Bytes, is_score: bool) -> Option<Self> {
        // Scores that are sent over OTLP have no headers.
        if is_score && !meta.is_empty() {
            return decode_api(meta);
        }
        let headers = decode_headers(meta);
        Some(Self::Otlp { headers })
    }
}

fn encode_api(trace_id: TraceId, targets: &[ApiTarget]) -> Bytes {
    let mut bytes = trace_id.as_bytes().to_vec();
    for target in targets {
        // This program creates the paths, and they are short.
        bytes.put_u8(u8::from(target.method == Method::PATCH));
        bytes.put_u16_le(u16::try_from(target.path.len()).unwrap_or(u16::MAX));
        bytes.put_slice(target.path.as_bytes());
    }
    bytes.into()
}

/// Returns `None` for bytes that [`encode_api`] did not write.
fn decode_api(mut bytes: Bytes) -> Option<Route> {
    let trace_id = TraceId::try_new(bytes.get(..16)?)?;
    bytes.advance(16);
    let mut targets = Vec::new();
    while bytes.len() >= 3 {
        let method = if bytes.get_u8() == 0 { Method::POST } else { Method::PATCH };
        let n_path = usize::from(bytes.get_u16_le());
        if bytes.len() < n_path {
            return None;
        }
        let path = String::from_utf8(bytes.split_to(n_path).to_vec()).ok()?;
        targets.push(ApiTarget { method, path });
    }
    let targets = (!targets.is_empty()).then(|| targets.into())?;
    Some(Route::Api { trace_id, targets })
}

/// Encodes headers: the lengths of name and value, then name and value.
fn encode_headers(headers: &HeaderMap) -> Bytes {
    let mut bytes = Vec::new();
    for (name, value) in headers {
        // The limits of HTTP/2 and hyper are far below these lengths.
        bytes.put_u16_le(u16::try_from(name.as_str().len()).unwrap_or(u16::MAX));
        bytes.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
        bytes.put_slice(name.as_str().as_bytes());
        bytes.put_slice(value.as_bytes());
    }
    bytes.into()
}

/// Decodes headers, up to the first incomplete one. Omits invalid ones.
fn decode_headers(mut bytes: Bytes) -> HeaderMap {
    let mut headers = HeaderMap::new();
    while bytes.len() >= 6 {
        let (n_name, n_value) = (usize::from(bytes.get_u16_le()), bytes.get_u32_le() as usize);
        if bytes.len() < n_name + n_value {
            break;
        }
        let (name, value) = (bytes.split_to(n_name), bytes.split_to(n_value));
        if let (Ok(name), Ok(mut value)) = (
            HeaderName::from_bytes(&name),
            HeaderValue::from_maybe_shared(value),
        ) {
            value.set_sensitive(true);
            headers.append(name, value);
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_back_in_order_and_kept_out_of_debug_output() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-tenant", "a"),
            ("authorization", "key"),
            ("x-tenant", "b"),
        ] {
            headers.append(
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            );
        }
        let read = decode_headers(encode_headers(&headers));
        assert_eq!(read, headers);
        assert!(read.values().all(HeaderValue::is_sensitive));
        assert_eq!(decode_headers(Bytes::new()), HeaderMap::new());
        let cut = encode_headers(&headers).slice(..20);
        assert_eq!(decode_headers(cut).len(), 1, "what is cut is left out");
    }

    #[test]
    fn an_api_route_is_read_back_and_cut_bytes_are_not() {
        let trace = TraceId::try_new(&[7; 16]).unwrap();
        let paths = [(Method::PATCH, "/a?b=c"), (Method::POST, "/d")];
        let written = paths.map(|(method, path)| ApiTarget {
            method,
            path: path.to_owned(),
        });
        let meta = encode_api(trace, &written);
        let read = decode_api(meta.clone());
        let Some(Route::Api { trace_id, targets }) = read else {
            panic!("{read:?}");
        };
        assert_eq!((trace_id, &targets[..]), (trace, &written[..]));
        for n_bytes in [0, 15, 16, 20] {
            assert!(decode_api(meta.slice(..n_bytes)).is_none(), "{n_bytes}");
        }
    }
}
