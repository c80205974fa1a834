//! A bound port in, connections served until told to stop: HTTP/1.1 and HTTP/2 on the same port,
//! with or without TLS. Knows sockets, handshakes and limits of connections; does not know what is
//! asked or answered on them.

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
    AcceptFailed, ConnectionOpened, HandshakeFailed, Listening, OpenConnection, Pulse, Telemetry,
};
use crate::tls::ServerTls;

/// Most connections of one port; further ones wait in the system's backlog. An agent opens a
/// handful.
const MAX_CONNECTIONS: usize = 4096;

/// Longest TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection on which nothing comes in or goes out for so long is closed. SDKs send metrics each
/// minute on connections they keep, and a keep-alive connection closed under their hands costs them
/// a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// HTTP/2: after so long in silence ask whether the peer is still there.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// HTTP/2: how long it may take to answer that.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/2 flow control. The standard's 64 KiB would make a sender of megabytes wait for us every
/// few frames (PERFORMANCE, section 2).
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// Largest HTTP/2 frame: fewer and larger ones save work per frame, and a request in one frame is
/// passed on without a copy.
const MAX_FRAME: u32 = 1 << 20;

/// HTTP/2: most requests at once on a connection.
const MAX_STREAMS: u32 = 256;

/// HTTP/2: largest block of request headers. (HTTP/1.1: 100 headers in hyper's read buffer.)
const MAX_HEADERS_SIZE: u32 = 32 << 10;

/// Wait after the system could not give us a connection: without it, a lack of file descriptors
/// would be a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A port could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (`{setting}`): {}", remedy(.error))]
pub struct BindError {
    /// The setting the address came from.
    pub setting: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    pub error: io::Error,
}

fn remedy(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the port is taken; stop the program that has it (another spanscore or a Collector?), \
                                     or choose another port there"
            .to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 are for privileged users, choose a higher one there".to_owned()
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; 127.0.0.1 takes requests of this machine only, 0.0.0.0 of all".to_owned()
        }
        _ => format!("{error}; choose another address there"),
    }
}

/// A port that is ours.
#[derive(Debug)]
pub struct Port {
    setting: &'static str,
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
}

impl Port {
    /// Binds an address; port 0 takes any free one. `setting` is where the address came from, for
    /// messages and labels.
    pub async fn bind(
        address: SocketAddr,
        setting: &'static str,
        tls: Option<Arc<ServerTls>>,
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

    /// Where the address came from.
    pub fn setting(&self) -> &'static str {
        self.setting
    }

    /// The address that was really bound.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves connections until `shutdown`, then takes no more and waits for the requests that have
    /// begun. Dropping the future cuts every connection, so a deadline belongs around it.
    pub async fn serve<S, B>(
        self,
        service: S,
        shutdown: impl Future<Output = ()>,
        pulse: Pulse,
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
        let mut heartbeat = time::interval(Pulse::INTERVAL);
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
                now = heartbeat.tick() => pulse.beat(now.into_std()),
                Some(_) = connections.join_next() => {}
                accepted = accept => match accepted {
                    Ok((stream, slot)) => {
                        failing = false;
                        let open = ConnectionOpened { setting }.emit(&telemetry);
                        let connection = Connection { setting, tls: tls.clone(), http: http.clone(), watcher: graceful.watcher(), open };
                        let served = connection.serve(stream, service.clone(), Arc::clone(&telemetry));
                        connections.spawn(async move {
                            served.await;
                            drop(slot);
                        });
                    }
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        AcceptFailed { setting, error: error.to_string(), first: !failing }.emit(&telemetry);
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
                now = heartbeat.tick() => pulse.beat(now.into_std()),
                Some(_) = connections.join_next() => {}
            }
        }
        pulse.rest();
    }
}

/// Errors of a peer that went away before we took its connection; the next one may be fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

fn http() -> auto::Builder<TokioExecutor> {
    // Hyper runs each HTTP/2 request as a task of its own. Those end with their connection: its
    // loss fails their bodies.
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .pipeline_flush(true);
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
    tls: Option<Arc<ServerTls>>,
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
        // An answer is a few small frames; waiting to fill a packet would only delay it. A socket
        // without the option works as well.
        let _ = stream.set_nodelay(true);
        match tls {
            None => {
                speak(
                    &http,
                    watcher,
                    stream,
                    Marked {
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
                        speak(&http, watcher, stream, Marked { service, certified }).await;
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

/// In a request's extensions: its connection began with a client certificate of one of our
/// authorities.
#[derive(Debug, Clone, Copy)]
pub struct CertifiedClient;

/// Marks the requests of a connection as [`CertifiedClient`]'s, where they are.
struct Marked<S> {
    service: S,
    certified: bool,
}

impl<S: Service<Request<Incoming>>> Service<Request<Incoming>> for Marked<S> {
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

async fn speak<I, S, B>(http: &auto::Builder<TokioExecutor>, watcher: Watcher, io: I, service: S)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let io = TokioIo::new(Watchful::new(io));
    // How a connection ends is its client's affair: what matters of it was answered, or counted by
    // the request it cut off.
    let _ = watcher.watch(http.serve_connection(io, service)).await;
}

// === Watchful ===

/// A stream whose reads fail after [`IDLE_TIMEOUT`] without a byte in either direction. Hyper's own
/// timeouts begin with a request's first bytes, or, for HTTP/2, with its preface: a client that
/// connects and says nothing would be waited for for ever.
struct Watchful<I> {
    io: I,
    deadline: Pin<Box<Sleep>>,
    /// When the read that waits began to; the deadline is moved when it has passed, not for every
    /// read, which would cost as much as the read.
    since: Instant,
    waiting: bool,
}

impl<I> Watchful<I> {
    fn new(io: I) -> Self {
        Self {
            io,
            deadline: Box::pin(time::sleep(IDLE_TIMEOUT)),
            since: Instant::now(),
            waiting: true,
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watchful<I> {
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

impl<I: AsyncWrite + Unpin> AsyncWrite for Watchful<I> {
    // An answer may go on for hours (`GET /v1/scores`), to one who has nothing to say but takes
    // what comes.
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
