//! A scriptable OTLP backend for tests: records every request and sends the scripted answers.
//! Implements HTTP/1.1 and HTTP/2 without tonic, so that it can also answer wrongly; other tests
//! use tonic's server as a real gRPC peer.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Version, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use crate::config::{Backoff, ClientTls, Compression, Destination, Endpoint, Protocol, Secret};

#[derive(Debug, Clone)]
pub(crate) struct PeerRequest {
    pub(crate) at: Instant,
    /// Number of the connection, counted from 1.
    pub(crate) connection: usize,
    pub(crate) version: Version,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    /// The body, without gRPC's prefix.
    pub(crate) body: Bytes,
    /// gRPC's prefix.
    pub(crate) prefix: Option<[u8; 5]>,
}

/// An answer that a test prescribes.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// A success with the bytes of the response message.
    Taken(Vec<u8>),
    /// A gRPC status in trailers. With `early` it is in the headers, where servers that fail
    /// immediately send it.
    Grpc {
        code: i32,
        headers: Vec<(&'static str, String)>,
        early: bool,
    },
    Http {
        status: u16,
        headers: Vec<(&'static str, String)>,
        body: Vec<u8>,
    },
    Silence,
    /// The connection is closed without an answer.
    HangUp,
}

impl Reply {
    pub(crate) fn taken() -> Self {
        Self::Taken(Vec::new())
    }

    pub(crate) fn grpc(code: tonic::Code) -> Self {
        Self::Grpc {
            code: code as i32,
            headers: Vec::new(),
            early: false,
        }
    }

    pub(crate) fn http(status: u16) -> Self {
        Self::Http {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }
}

type Script = dyn Fn(usize, &PeerRequest) -> Reply + Send + Sync;

/// The backend. Stops when dropped.
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<PeerRequest>>>,
    n_received: watch::Receiver<usize>,
    task: JoinSet<()>,
}

impl Peer {
    /// Listens on a free port and answers the n-th request (from 0) by `script`.
    pub(crate) async fn start(
        script: impl Fn(usize, &PeerRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), None, script).await
    }

    /// Starts a peer that accepts every request.
    pub(crate) async fn willing() -> Self {
        Self::start(|_, _| Reply::taken()).await
    }

    pub(crate) async fn start_at(
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
        script: impl Fn(usize, &PeerRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (count, n_received) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(serve(
            listener,
            tls,
            Arc::new(script),
            received.clone(),
            Arc::new(count),
        ));
        Self {
            address,
            received,
            n_received,
            task,
        }
    }

    /// Closes the port and the connections.
    pub(crate) async fn stop(mut self) {
        self.task.shutdown().await;
    }

    pub(crate) fn received(&self) -> Vec<PeerRequest> {
        self.received.lock().unwrap().clone()
    }

    /// Waits until `n` requests have arrived.
    pub(crate) async fn has_received(&self, n: usize) -> Vec<PeerRequest> {
        self.n_received
            .clone()
            .wait_for(|n_received| *n_received >= n)
            .await
            .unwrap();
        self.received()
    }

    pub(crate) fn destination(&self, protocol: Protocol) -> Destination {
        destination(self.address, protocol)
    }
}

/// Returns a destination whose retry intervals are milliseconds.
pub(crate) fn destination(address: SocketAddr, protocol: Protocol) -> Destination {
    Destination {
        origin: "forward.endpoint".to_owned(),
        endpoint: Endpoint {
            tls: false,
            host: address.ip().to_string(),
            port: address.port(),
            base_path: String::new(),
        },
        protocol,
        headers: vec![("x-key".to_owned(), Secret::new("s3cret"))],
        compression: Compression::None,
        timeout: Duration::from_secs(10),
        max_concurrency: 8,
        tls: ClientTls::default(),
        retry: Backoff {
            initial: Duration::from_millis(2),
            multiplier: 1.5,
            max: Duration::from_millis(20),
        },
    }
}

async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    script: Arc<Script>,
    received: Arc<Mutex<Vec<PeerRequest>>>,
    count: Arc<watch::Sender<usize>>,
) {
    let mut connections = JoinSet::new();
    let mut n_connections = 0;
    while let Ok((stream, _)) = listener.accept().await {
        n_connections += 1;
        let (connection, tls, script, received, count) = (
            n_connections,
            tls.clone(),
            script.clone(),
            received.clone(),
            count.clone(),
        );
        connections.spawn(async move {
            let service = service_fn(move |request| {
                answer(
                    connection,
                    request,
                    script.clone(),
                    received.clone(),
                    count.clone(),
                )
            });
            let builder = auto::Builder::new(TokioExecutor::new());
            // Some tests break connections intentionally.
            let _ = match tls {
                None => {
                    builder
                        .serve_connection(TokioIo::new(stream), service)
                        .await
                }
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => {
                        builder
                            .serve_connection(TokioIo::new(stream), service)
                            .await
                    }
                    Err(_) => return,
                },
            };
        });
    }
}

async fn answer(
    connection: usize,
    request: Request<Incoming>,
    script: Arc<Script>,
    received: Arc<Mutex<Vec<PeerRequest>>>,
    count: Arc<watch::Sender<usize>>,
) -> Result<
    Response<http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>>,
    Box<dyn std::error::Error + Send + Sync>,
> {
    let (head, body) = request.into_parts();
    let mut body = body.collect().await?.to_bytes();
    let is_grpc = head
        .headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value == "application/grpc");
    let prefix = is_grpc.then(|| body.split_to(5)[..].try_into().unwrap());
    let request = PeerRequest {
        at: Instant::now(),
        connection,
        version: head.version,
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body,
        prefix,
    };
    let reply = {
        let mut received = received.lock().unwrap();
        received.push(request);
        script(received.len() - 1, &received[received.len() - 1])
    };
    count.send_modify(|n_received| *n_received += 1);

    let mut response = Response::builder();
    let pairs = |pairs: Vec<(&'static str, String)>| -> HeaderMap {
        pairs
            .into_iter()
            .map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    };
    let grpc_trailers = |code: i32, headers| {
        let mut trailers = pairs(headers);
        trailers.insert("grpc-status", code.to_string().parse().unwrap());
        trailers
    };
    let full = |body: Vec<u8>| Full::new(Bytes::from(body));
    match reply {
        Reply::Taken(message) if is_grpc => {
            let mut body = vec![0];
            body.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
            body.extend_from_slice(&message);
            let trailers = grpc_trailers(0, Vec::new());
            Ok(response.header(CONTENT_TYPE, "application/grpc").body(
                full(body)
                    .with_trailers(async { Some(Ok(trailers)) })
                    .boxed(),
            )?)
        }
        Reply::Taken(message) => Ok(response
            .header(CONTENT_TYPE, "application/x-protobuf")
            .body(full(message).boxed())?),
        Reply::Grpc {
            code,
            headers,
            early: true,
        } => {
            *response.headers_mut().unwrap() = grpc_trailers(code, headers);
            Ok(response.body(full(Vec::new()).boxed())?)
        }
        Reply::Grpc {
            code,
            headers,
            early: false,
        } => {
            let trailers = grpc_trailers(code, headers);
            Ok(response.body(
                full(Vec::new())
                    .with_trailers(async { Some(Ok(trailers)) })
                    .boxed(),
            )?)
        }
        Reply::Http {
            status,
            headers,
            body,
        } => {
            *response.headers_mut().unwrap() = pairs(headers);
            Ok(response
                .status(StatusCode::from_u16(status)?)
                .body(full(body).boxed())?)
        }
        Reply::Silence => std::future::pending().await,
        Reply::HangUp => Err("hang up".into()),
    }
}
