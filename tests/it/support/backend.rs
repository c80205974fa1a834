//! A backend for tests. It accepts OTLP over gRPC and HTTP on a loopback port, and stores the raw
//! bytes of every request. It is built directly on hyper and shares no code with the sidecar.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    /// The signal: `traces`, `logs` or `metrics`.
    pub(crate) signal: &'static str,
    /// The message without gRPC's five-byte prefix.
    pub(crate) body: Bytes,
}

/// The backend. Dropping it stops it.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    arrived: Arc<Mutex<Vec<Arrived>>>,
    _serving: JoinSet<()>,
}

impl Backend {
    pub(crate) async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    /// Starts a backend at a separate loopback address, so that no sidecar can bind its port while
    /// the backend is down.
    pub(crate) async fn start_apart() -> Self {
        Self::start_at("127.0.0.2:0").await
    }

    /// Starts or restarts a backend at this address.
    pub(crate) async fn start_at(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let arrived: Arc<Mutex<Vec<Arrived>>> = Arc::default();
        let taken = arrived.clone();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let taken = taken.clone();
                connections.spawn(async move {
                    let service = service_fn(move |request| answer(request, taken.clone()));
                    // If a client disconnects, the backend ignores the error.
                    let _ = auto::Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self {
            address,
            arrived,
            _serving: serving,
        }
    }

    pub(crate) fn arrived(&self) -> Vec<Arrived> {
        self.arrived.lock().unwrap().clone()
    }
}

async fn answer(
    request: Request<Incoming>,
    taken: Arc<Mutex<Vec<Arrived>>>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_lowercase();
    let signal = if path.contains("trace") {
        "traces"
    } else if path.contains("log") {
        "logs"
    } else {
        "metrics"
    };
    let is_grpc = request
        .headers()
        .get("content-type")
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    let Ok(whole) = request.into_body().collect().await else {
        // The sender was killed, so nobody reads the response.
        return Ok(Response::new(Full::new(Bytes::new()).boxed()));
    };
    let whole = whole.to_bytes();
    if !is_grpc {
        taken.lock().unwrap().push(Arrived {
            signal,
            body: whole,
        });
        let mut response = Response::new(Full::new(Bytes::new()).boxed());
        response.headers_mut().insert(
            "content-type",
            HeaderValue::from_static("application/x-protobuf"),
        );
        return Ok(response);
    }
    assert_eq!(whole[0], 0, "not compressed");
    assert_eq!(
        u32::from_be_bytes(whole[1..5].try_into().unwrap()) as usize,
        whole.len() - 5,
        "one message"
    );
    taken.lock().unwrap().push(Arrived {
        signal,
        body: whole.slice(5..),
    });
    let trailers = HeaderMap::from_iter([(
        HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    // An empty gRPC message: a zero flag and a length of zero.
    let body = Full::new(Bytes::from_static(&[0; 5])).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body.boxed());
    response
        .headers_mut()
        .insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}
