//! Serves the connections of a bound port until shutdown: HTTP/1.1 and HTTP/2 on one port, with or
//! without TLS.

mod slots;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::http::uri::Authority;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{self, Instant, Sleep};
use tokio_rustls::TlsAcceptor;

use crate::telemetry::{
    AcceptFailed, ConnectionEvicted, ConnectionOpened, ConnectionRejected, HandshakeFailed,
    Heartbeat, Listening, Telemetry,
};
use crate::tls::PortTls;

use slots::ConnectionSlot;

pub use slots::{ConnectionLimits, ConnectionSlots};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time without traffic in either direction after which a connection is closed. SDKs send metrics
/// each minute on an open connection, and lose a request if the connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);

/// HTTP/2: time without traffic after which the peer is pinged.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// HTTP/2: timeout for the response to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/1: maximum bytes that are read ahead, which limits the headers of a request, and maximum
/// bytes of an unsent answer.
const MAX_BUFFER: usize = 64 << 10;

/// HTTP/2: the window of a connection and of each of its streams, in bytes. Data within the window
/// is in our memory until a request reads it, so the slot of a connection includes the window.
const WINDOW: u32 = 64 << 10;

/// HTTP/2: the window of the first connections, in bytes, so that a sender of megabytes waits less
/// often.
const WIDE_WINDOW: u32 = 512 << 10;

/// Maximum size of an HTTP/2 frame in bytes. An incomplete frame is in our memory.
const MAX_FRAME: u32 = 64 << 10;

/// HTTP/2: maximum bytes of unsent answers, for each stream.
const MAX_SEND_BUFFER: usize = 64 << 10;

/// HTTP/2: maximum size of a block of request headers, in bytes. (HTTP/1.1: 100 headers in
/// [`MAX_BUFFER`].)
const MAX_HEADERS_SIZE: u32 = 16 << 10;

/// Pause after a failed `accept`. Without the pause, a lack of file descriptors would cause a busy
/// loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (`{setting}`): {}", remedy(.error, .setting))]
pub struct BindError {
    pub setting: &'static str,
    pub address: SocketAddr,
    pub error: io::Error,
}

fn remedy(error: &io::Error, setting: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "the port is in use; stop the program that uses it (another spanscore or a \
                 Collector?), or choose another port in `{setting}`"
            )
        }
        io::ErrorKind::PermissionDenied => {
            format!(
                "permission denied; ports below 1024 are for privileged users, choose a higher \
                 port in `{setting}`"
            )
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; use 127.0.0.1 for local requests only, or 0.0.0.0 \
             for all"
                .to_owned()
        }
        _ => format!("{error}; choose another address in `{setting}`"),
    }
}

/// Answers the requests of a port.
pub type Handler = Arc<dyn Fn(Request<Incoming>) -> AnswerFuture + Send + Sync>;

type AnswerFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Returns a handler that calls a service.
pub fn handler<S>(service: S) -> Handler
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S: Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Arc::new(move |request| {
        let answer = service.call(request);
        Box::pin(async move {
            let Ok(answer) = answer.await;
            answer
        })
    })
}

#[derive(Debug)]
pub struct Port {
    setting: &'static str,
    listener: TcpListener,
    tls: Option<Arc<PortTls>>,
    slots: Arc<ConnectionSlots>,
}

impl Port {
    /// Binds an address; port 0 means any free port. `setting` names the address in messages and
    /// labels; connections use `slots`.
    pub async fn bind(
        address: SocketAddr,
        setting: &'static str,
        tls: Option<Arc<PortTls>>,
        slots: &Arc<ConnectionSlots>,
    ) -> Result<Self, BindError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| BindError {
            setting,
            address,
            error,
        })?;
        Ok(Self {
            setting,
            listener,
            tls,
            slots: slots.clone(),
        })
    }

    pub fn setting(&self) -> &'static str {
        self.setting
    }

    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves connections until `shutdown`, then accepts no more and waits for running requests.
    /// Dropping the future closes every connection, so the caller can add a timeout.
    pub async fn serve(
        self,
        handler: Handler,
        shutdown: impl Future<Output = ()>,
        heartbeat: Heartbeat,
        telemetry: Arc<Telemetry>,
    ) {
        let (setting, listener) = (self.setting, self.listener);
        if let Ok(address) = listener.local_addr() {
            Listening {
                setting,
                address,
                tls: self.tls.is_some(),
            }
            .emit(&telemetry);
        }
        let served = Arc::new(ServedPort {
            setting,
            http: [WINDOW, WIDE_WINDOW].map(|window| http(window, self.slots.limits.streams)),
            slots: self.slots,
            tls: self.tls,
            handler,
            telemetry,
        });
        let closing = watch::Sender::new(false);
        let mut connections = JoinSet::new();
        let mut ticks = time::interval(Heartbeat::INTERVAL);
        let mut resume = Instant::now();
        let mut failing = false;
        let mut shutdown = pin!(shutdown);
        loop {
            let accept = async {
                time::sleep_until(resume).await;
                listener.accept().await
            };
            tokio::select! {
                () = &mut shutdown => break,
                now = ticks.tick() => heartbeat.beat(now.into_std()),
                Some(_) = connections.join_next() => {}
                accepted = accept => match accepted {
                    Ok((stream, peer)) => {
                        failing = false;
                        let peer = peer.ip().to_canonical();
                        let served = Arc::clone(&served);
                        connections.spawn(served.connection(stream, peer, closing.subscribe()));
                    }
                    Err(error) if concerns_one_connection(&error) => {}
                    Err(error) => {
                        AcceptFailed {
                            setting,
                            error: error.to_string(),
                            first: !failing,
                        }
                        .emit(&served.telemetry);
                        failing = true;
                        resume = Instant::now() + ACCEPT_PAUSE;
                    }
                },
            }
        }
        drop(listener);
        closing.send_replace(true);
        loop {
            tokio::select! {
                ended = connections.join_next() => if ended.is_none() { break },
                now = ticks.tick() => heartbeat.beat(now.into_std()),
            }
        }
        heartbeat.finish();
    }
}

/// Returns true for the error of a peer that disconnected before we accepted its connection. The
/// next connection may succeed.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

fn http(window: u32, max_streams: u32) -> auto::Builder<TokioExecutor> {
    // Hyper runs each HTTP/2 request as a separate task. When a connection ends, the bodies of its
    // requests fail, so their tasks end, too.
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        // Without `pipeline_flush`, hyper reads a request only after it has written the answer to
        // the previous one. With it, hyper would put answers into an unbounded buffer.
        .max_buf_size(MAX_BUFFER);
    http.http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_frame_size(MAX_FRAME)
        .max_concurrent_streams(max_streams)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .max_header_list_size(MAX_HEADERS_SIZE);
    http
}

// === ServedPort ===

/// What the connections of a port share.
struct ServedPort {
    setting: &'static str,
    /// The builder with the usual windows, and the one with the larger windows.
    http: [auto::Builder<TokioExecutor>; 2],
    slots: Arc<ConnectionSlots>,
    tls: Option<Arc<PortTls>>,
    handler: Handler,
    telemetry: Arc<Telemetry>,
}

impl ServedPort {
    async fn connection(
        self: Arc<Self>,
        stream: TcpStream,
        peer: IpAddr,
        mut closing: watch::Receiver<bool>,
    ) {
        let (setting, telemetry) = (self.setting, &self.telemetry);
        let Some(slot) = self.slots.admit(peer, self.tls.is_some()) else {
            return ConnectionRejected { setting, peer }.emit(telemetry);
        };
        let open = ConnectionOpened { setting }.emit(telemetry);
        let http = &self.http[usize::from(slot.is_wide)];
        // Ends when the port closes or another connection needs the slot, with `true` in the second
        // case.
        let mut ending = pin!(async {
            tokio::select! {
                () = slot.evicted() => true,
                // If the port was dropped, its connections are closed, too.
                _ = closing.wait_for(|closing| *closing) => false,
            }
        });
        // A response is a few small frames, and waiting to fill a packet would only delay it. If
        // the option cannot be set, the socket works without it.
        let _ = stream.set_nodelay(true);
        let handler = Arc::clone(&self.handler);
        let is_evicted = match &self.tls {
            None => {
                let io = Box::new(stream);
                serve_http(http, slot.clone(), ending, io, handler, peer, false).await
            }
            Some(tls) => {
                let handshake = TlsAcceptor::from(tls.current()).accept(stream);
                let shaken = tokio::select! {
                    shaken = time::timeout(HANDSHAKE_TIMEOUT, handshake) => shaken,
                    is_evicted = &mut ending => {
                        if is_evicted {
                            ConnectionEvicted { setting, peer }.emit(telemetry);
                        }
                        return;
                    }
                };
                let shaken = shaken.unwrap_or_else(|_| Err(io::Error::other("timed out")));
                match shaken {
                    Ok(stream) => {
                        // Rustls stores a certificate only after verifying it.
                        let certified = stream.get_ref().1.peer_certificates().is_some();
                        let io = Box::new(stream);
                        serve_http(http, slot.clone(), ending, io, handler, peer, certified).await
                    }
                    Err(error) => {
                        let error = error.to_string();
                        HandshakeFailed { setting, error }.emit(telemetry);
                        false
                    }
                }
            }
        };
        if is_evicted {
            ConnectionEvicted { setting, peer }.emit(telemetry);
        }
        drop(open);
    }
}

/// A request's extension: the peer's address.
#[derive(Debug, Clone, Copy)]
pub struct PeerAddress(pub IpAddr);

/// A request's extension, set if the connection presented a client certificate of one of our
/// authorities.
#[derive(Debug, Clone, Copy)]
pub struct CertifiedClient;

/// Returns true for a loopback name, with any port, because `kubectl port-forward` can use another
/// port number.
pub fn is_loopback_name(authority: &Authority) -> bool {
    let host = authority.host();
    let ip = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || ip.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// A connection for HTTP, with or without TLS. It is used as a trait object, so that hyper is
/// compiled only once; a second copy would add 0.1 MB to the program.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Serves a connection to its end. Returns `true` if the connection was evicted.
async fn serve_http(
    http: &auto::Builder<TokioExecutor>,
    slot: Arc<ConnectionSlot>,
    ending: impl Future<Output = bool>,
    io: Box<dyn Stream>,
    handler: Handler,
    peer: IpAddr,
    certified: bool,
) -> bool {
    let service = service_fn(move |mut request: Request<Incoming>| {
        let extensions = request.extensions_mut();
        extensions.insert(PeerAddress(peer));
        if certified {
            extensions.insert(CertifiedClient);
        }
        let guard = slot.request();
        let answer = handler(request);
        async move {
            // The request counts as unanswered until the whole body was sent.
            Ok::<_, Infallible>(answer.await.map(|body| {
                body.map_err(move |error| {
                    let _unanswered = &guard;
                    error
                })
            }))
        }
    });
    let io = TokioIo::new(IdleTimeoutStream::new(io));
    let mut served = pin!(http.serve_connection(io, service));
    // The error of a connection needs no log line, because its requests were answered or counted as
    // interrupted.
    let is_evicted = tokio::select! {
        _ = served.as_mut() => return false,
        is_evicted = ending => is_evicted,
    };
    served.as_mut().graceful_shutdown();
    // An evicted connection can only say that it ends, because its slot is used again. The caller
    // of [`Port::serve`] limits the other wait.
    let longest = if is_evicted { Duration::ZERO } else { Duration::MAX };
    drop(time::timeout(longest, served).await);
    is_evicted
}

// === IdleTimeoutStream ===

/// A stream whose reads fail after [`IDLE_TIMEOUT`] without a byte in either direction. Hyper's own
/// timeouts start with a request's first bytes or the preface of HTTP/2, so hyper would wait
/// forever for a client that connects and sends nothing.
struct IdleTimeoutStream<I> {
    io: I,
    deadline: Pin<Box<Sleep>>,
    /// Start of the pending read. The deadline is moved only after it has passed, because moving it
    /// at every read would cost as much as the read.
    since: Option<Instant>,
}

impl<I> IdleTimeoutStream<I> {
    fn new(io: I) -> Self {
        Self {
            io,
            deadline: Box::pin(time::sleep(IDLE_TIMEOUT)),
            since: Some(Instant::now()),
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
            this.since = None;
            return Poll::Ready(read);
        }
        let deadline = *this.since.get_or_insert_with(Instant::now) + IDLE_TIMEOUT;
        ready!(this.deadline.as_mut().poll(cx));
        if deadline > this.deadline.deadline() {
            this.deadline.as_mut().reset(deadline);
            ready!(this.deadline.as_mut().poll(cx));
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for IdleTimeoutStream<I> {
    // A client may read a response for hours (`GET /v1/scores`) without sending anything, so
    // written bytes count as traffic.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.since = self.since.filter(|_| written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.since = self.since.filter(|_| written.is_pending());
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
