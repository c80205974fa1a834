//! A pool of connections to one destination.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::buf::Chain;
use bytes::{Buf, Bytes};
use http_body_util::combinators::MapFrame;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::Frame;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use crate::config::{ClientTls, Destination, Protocol};
use crate::telemetry::Telemetry;
use crate::tls;

use super::TransportError;
use super::answer_limit::{LimitedConnector, MAX_IN_A_ROW};

/// Maximum timeout for connecting. If a host has several addresses, the timeout is divided among
/// them.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the flow-control windows in bytes. Responses are small, so larger windows would not make
/// them faster.
const WINDOW: u32 = 1 << 20;

/// Maximum size of a response's head over HTTP/1, in bytes.
const MAX_BUFFER: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Connections {
    builder: Builder,
    connector: Connector,
    pool: ArcSwap<PooledClient>,
}

/// Connects with or without TLS, according to the scheme. All clients use this type, even without
/// TLS, because each further type would add 0.1 MB to the program.
type Connector = HttpsConnector<LimitedConnector>;

pub(crate) type PooledClient = Client<Connector, Frames>;

impl Connections {
    pub(super) fn new(
        destination: &Destination,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Self, TransportError> {
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_nodelay(true);
        http.set_keepalive(Some(Duration::from_secs(30)));
        http.set_connect_timeout(Some(CONNECT_TIMEOUT.min(destination.timeout)));

        let http = LimitedConnector {
            http,
            max_in_a_row: MAX_IN_A_ROW,
        };

        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(MAX_BUFFER)
            .http2_only(destination.protocol == Protocol::Grpc)
            .http2_initial_stream_window_size(WINDOW)
            .http2_initial_connection_window_size(WINDOW)
            // Ping only while a request is in flight: gRPC servers disconnect clients that ping an
            // idle connection.
            .http2_keep_alive_interval(Duration::from_secs(20))
            .http2_keep_alive_timeout(Duration::from_secs(10));

        let connector = connector(destination, http, telemetry)?;
        Ok(Self {
            pool: ArcSwap::from_pointee(builder.build(connector.clone())),
            builder,
            connector,
        })
    }

    /// Returns the current pool.
    pub(super) fn pool(&self) -> Arc<PooledClient> {
        self.pool.load_full()
    }

    /// Replaces the pool, if it is still `pool`: if several requests on one pool time out, only the
    /// first renews it. When the other end of a connection vanishes silently, only a timeout
    /// reveals it, and the pool would reuse the connection until TCP times out after a quarter of
    /// an hour.
    pub(super) fn renew(&self, pool: &Arc<PooledClient>) {
        let renewed = Arc::new(self.builder.build(self.connector.clone()));
        self.pool.compare_and_swap(pool, renewed);
    }
}

fn connector(
    destination: &Destination,
    http: LimitedConnector,
    telemetry: &Arc<Telemetry>,
) -> Result<Connector, TransportError> {
    let fault = |fault| TransportError::new(destination, fault);
    let unused = ClientTls::unused();
    let client_tls = if destination.endpoint.tls { &destination.tls } else { &unused };
    // The TLS configuration reloads certificate files when they change.
    let config = tls::client_config(client_tls, telemetry).map_err(|it| fault(it.to_string()))?;
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http();
    if let Some(name) = &client_tls.server_name {
        let parsed = name.clone().try_into();
        let name = parsed.map_err(|_| {
            fault(format!(
                "tls.server_name `{name}` is not a host name or address"
            ))
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(match destination.protocol {
        Protocol::Grpc => builder.enable_http2().wrap_connector(http),
        Protocol::HttpProtobuf => builder.enable_http1().enable_http2().wrap_connector(http),
    })
}

/// Returns an HTTP/1 client for a peer that may send answers of any length. Must be called within a
/// runtime.
pub(crate) fn http1_client(config: ClientConfig, connect_timeout: Duration) -> PooledClient {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_connect_timeout(Some(connect_timeout));
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(LimitedConnector {
            http,
            max_in_a_row: usize::MAX,
        });
    Client::builder(TokioExecutor::new()).build(connector)
}

// === Frames ===

/// A body in memory, with or without a prefix, which hyper writes without a copy.
pub(crate) type Frames = Either<Full<Prefixed>, MapFrame<Full<Prefixed>, fn(Data) -> Data>>;

type Prefixed = Chain<Bytes, Bytes>;
type Data = Frame<Prefixed>;

pub(crate) fn frames(message: Bytes) -> Frames {
    Either::Left(Full::new(Bytes::new().chain(message)))
}

/// Returns a gRPC message. Its length is in the prefix, so gRPC clients send no content-length.
pub(super) fn prefixed_frames(prefix: Bytes, message: Bytes) -> Frames {
    Either::Right(Full::new(prefix.chain(message)).map_frame(|data| data))
}
