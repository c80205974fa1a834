//! Serves the connections of a bound port until shutdown: HTTP/1.1 and HTTP/2 on one port, with or
//! without TLS. Knows sockets, handshakes and limits of connections; knows nothing of requests.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{self, Instant, Sleep};
use tokio_rustls::TlsAcceptor;

use crate::telemetry::{
    AcceptFailed, ConnectionOpened, HandshakeFailed, Heartbeat, Listening, OpenConnection,
    Telemetry,
};
use crate::tls::PortTls;

/// Most connections of one port; others wait in the system's backlog. An agent opens a handful.
const MAX_CONNECTIONS: usize = 4096;

/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection without traffic in either direction is closed after this long. SDKs send metrics
/// each minute on a kept connection, and one that is closed under them costs them a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// HTTP/2: after this long without traffic, ping the peer.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// HTTP/2: longest wait for the answer to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/1: most bytes that are read ahead, which bounds the headers of a request, and most bytes of
/// an answer that wait to be written.
const MAX_BUFFER: usize = 64 << 10;

/// HTTP/2 flow control. The standard's 64 KiB would make a sender of megabytes wait for us every
/// few frames.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Largest HTTP/2 frame: fewer and larger ones save work per frame, and a request in one frame is
/// passed on without a copy.
const MAX_FRAME: u32 = 1 << 20;

/// HTTP/2: most concurrent requests of a connection.
const MAX_STREAMS: u32 = 256;

/// HTTP/2: largest block of request headers. (HTTP/1.1: 100 headers in [`MAX_BUFFER`].)
const MAX_HEADERS_SIZE: u32 = 32 << 10;

/// Pause after `accept` failed: without it, a lack of file descriptors would cause a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A port could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (`{setting}`): {}", remedy(.error))]
pub struct BindError {
    /// The setting the address came from.
    pub setting: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The system's error.
    pub error: io::Error,
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is taken; stop the program that uses it (another spanscore or a Collector?), \
             or choose another port there"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 are for privileged users, \
             choose a higher one there"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 127.0.0.1 takes requests of this machine only, \
             0.0.0.0 of all"
                .to_owned()
        }
        _ => format!("{error}; choose another address there"),
    }
}

/// A bound port.
#[derive(Debug)]
pub struct Port {
    setting: &'static str,
    listener: TcpListener,
    tls: Option<Arc<PortTls>>,
}

impl Port {
    /// Binds an address; port 0 takes any free port. `setting` names the address in messages and
    /// labels.
    pub async fn bind(
        address: SocketAddr,
        setting: &'static str,
        tls: Option<Arc<PortTls>>,
    ) -> Result<Self, BindError> {
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Self {
                setting,
                listener,
                tls,
            }),
            Err(error) => Err(BindError {
                setting,
                address,
                error,
            }),
        }
    }

    /// The setting the address came from.
    pub fn setting(&self) -> &'static str {
        self.setting
    }

    /// The bound address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves connections until `shutdown`, then accepts no more and waits for running requests.
    /// Dropping the future closes every connection, so the caller should add a deadline.
    pub async fn serve<S, B>(
        self,
        service: S,
        shutdown: impl Future<Output = ()>,
        heartbeat: Heartbeat,
        telemetry: Arc<Telemetry>,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>
            + Clone
            + Send
            + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Self {
            setting,
            listener,
            tls,
        } = self;
        if let Ok(address) = listener.local_addr() {
            Listening {
                setting,
                address,
                tls: tls.is_some(),
            }
            .emit(&telemetry);
        }
        let http = http();
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        let mut ticks = time::interval(Heartbeat::INTERVAL);
        let mut resume = Instant::now();
        let mut failing = false;
        let mut shutdown = pin!(shutdown);
        loop {
            let accept = async {
                time::sleep_until(resume).await;
                let slot = Arc::clone(&slots).acquire_owned().await;
                listener.accept().await.map(|(stream, _)| (stream, slot))
            };
            tokio::select! {
                () = &mut shutdown => break,
                now = ticks.tick() => heartbeat.beat(now.into_std()),
                Some(_) = connections.join_next() => {}
                accepted = accept => match accepted {
                    Ok((stream, slot)) => {
                        failing = false;
                        let open = ConnectionOpened { setting }.emit(&telemetry);
                        let connection = Connection {
                            setting,
                            tls: tls.clone(),
                            http: http.clone(),
                            watcher: graceful.watcher(),
                            open,
                        };
                        let served =
                            connection.serve(stream, service.clone(), Arc::clone(&telemetry));
                        connections.spawn(async move {
                            served.await;
                            drop(slot);
                        });
                    }
                    Err(error) if concerns_one_connection(&error) => {}
                    Err(error) => {
                        AcceptFailed {
                            setting,
                            error: error.to_string(),
                            first: !failing,
                        }
                        .emit(&telemetry);
                        failing = true;
                        resume = Instant::now() + ACCEPT_PAUSE;
                    }
                },
            }
        }
        drop(listener);
        let mut drained = pin!(graceful.shutdown());
        loop {
            tokio::select! {
                () = &mut drained => break,
                now = ticks.tick() => heartbeat.beat(now.into_std()),
                Some(_) = connections.join_next() => {}
            }
        }
        heartbeat.finish();
    }
}

/// Errors of a peer that disconnected before we accepted it; the next connection may be fine.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

fn http() -> auto::Builder<TokioExecutor> {
    // Hyper runs each HTTP/2 request as a task of its own. The tasks end with their connection,
    // whose loss fails their bodies.
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        // No `pipeline_flush`: with it, hyper answers pipelined requests into a write buffer that
        // has no bound. Without it, hyper reads a request once the answer before it is written.
        .max_buf_size(MAX_BUFFER);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADERS_SIZE);
    http
}

// === Connection ===

struct Connection {
    setting: &'static str,
    tls: Option<Arc<PortTls>>,
    http: auto::Builder<TokioExecutor>,
    watcher: Watcher,
    open: OpenConnection,
}

impl Connection {
    async fn serve<S, B>(self, stream: TcpStream, service: S, telemetry: Arc<Telemetry>)
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let Self {
            setting,
            tls,
            http,
            watcher,
            open,
        } = self;
        // A response is a few small frames; waiting to fill a packet would only delay it. If the
        // option cannot be set, the socket works without it.
        let _ = stream.set_nodelay(true);
        match tls {
            None => {
                serve_http(
                    &http,
                    watcher,
                    stream,
                    CertifyingService {
                        service,
                        certified: false,
                    },
                )
                .await
            }
            Some(tls) => {
                let handshake = TlsAcceptor::from(tls.current()).accept(stream);
                match time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
                    Ok(Ok(stream)) => {
                        // Rustls keeps a certificate only once it has verified it.
                        let certified = stream.get_ref().1.peer_certificates().is_some();
                        serve_http(
                            &http,
                            watcher,
                            stream,
                            CertifyingService { service, certified },
                        )
                        .await;
                    }
                    Ok(Err(error)) => HandshakeFailed {
                        setting,
                        error: error.to_string(),
                    }
                    .emit(&telemetry),
                    Err(_) => HandshakeFailed {
                        setting,
                        error: "timed out".to_owned(),
                    }
                    .emit(&telemetry),
                }
            }
        }
        drop(open);
    }
}

/// A request's extension: its connection presented a client certificate of one of our authorities.
#[derive(Debug, Clone, Copy)]
pub struct CertifiedClient;

/// Adds [`CertifiedClient`] to the requests of a connection with a client certificate.
struct CertifyingService<S> {
    service: S,
    certified: bool,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for CertifyingService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, mut request: Request<Incoming>) -> S::Future {
        if self.certified {
            request.extensions_mut().insert(CertifiedClient);
        }
        self.service.call(request)
    }
}

async fn serve_http<I, S, B>(
    http: &auto::Builder<TokioExecutor>,
    watcher: Watcher,
    io: I,
    service: S,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let io = TokioIo::new(IdleTimeoutStream::new(io));
    // The error of a connection needs no log line: its requests were answered, or counted as
    // interrupted.
    let _ = watcher.watch(http.serve_connection(io, service)).await;
}

// === IdleTimeoutStream ===

/// A stream whose reads fail after [`IDLE_TIMEOUT`] without a byte in either direction. Hyper's own
/// timeouts start with a request's first bytes, or, for HTTP/2, with its preface: it would wait
/// forever for a client that connects and sends nothing.
struct IdleTimeoutStream<I> {
    io: I,
    deadline: Pin<Box<Sleep>>,
    /// When the waiting read started. The deadline is only moved when it has passed: moving it for
    /// every read would cost as much as the read.
    since: Instant,
    waiting: bool,
}

impl<I> IdleTimeoutStream<I> {
    fn new(io: I) -> Self {
        Self {
            io,
            deadline: Box::pin(time::sleep(IDLE_TIMEOUT)),
            since: Instant::now(),
            waiting: true,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for IdleTimeoutStream<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Poll::Ready(read) = Pin::new(&mut this.io).poll_read(cx, buf) {
            this.waiting = false;
            return Poll::Ready(read);
        }
        if !this.waiting {
            this.waiting = true;
            this.since = Instant::now();
        }
        ready!(this.deadline.as_mut().poll(cx));
        let deadline = this.since + IDLE_TIMEOUT;
        if deadline <= this.deadline.deadline() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        this.deadline.as_mut().reset(deadline);
        ready!(this.deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<I> {
    // A response may last for hours (`GET /v1/scores`) while its client reads and sends nothing.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.waiting &= written.is_pending();
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.waiting &= written.is_pending();
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
