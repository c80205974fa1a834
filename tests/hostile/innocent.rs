//! An innocent client and a probe. The client sends a small request 20 ms after each answer, on a
//! connection that it reopens only after a failure, and never retries. The probe requests `/livez`
//! twice a second.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use crate::sidecar::{LongRunExport, Target};
use crate::wire::{Ids, call, lasting, post, request, root_lasting, spans};

/// Maximum wait for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) n_sent: usize,
    pub(crate) n_served: usize,
    pub(crate) n_probes: usize,
    pub(crate) n_live: usize,
    pub(crate) failures: BTreeMap<String, usize>,
}

pub(crate) struct Innocent {
    report: Arc<Mutex<Report>>,
    n_in_a_row: Arc<AtomicUsize>,
    ending: watch::Sender<bool>,
    tasks: [JoinHandle<()>; 2],
}

impl Innocent {
    pub(crate) fn start(target: &Target, runtime: &Handle) -> Self {
        let (http, admin) = (target.http, target.admin);
        let tls = target.tls.clone().map(TlsConnector::from);
        let report: Arc<Mutex<Report>> = Arc::default();
        let n_in_a_row: Arc<AtomicUsize> = Arc::default();
        let ending = watch::Sender::new(false);
        let sending = {
            let (report, n_in_a_row, ending) =
                (report.clone(), n_in_a_row.clone(), ending.subscribe());
            async move {
                let request = post("/v1/traces", "", &spans(10, false));
                let mut connection = None;
                while !*ending.borrow() {
                    let answered =
                        timeout(PATIENCE, ask(http, tls.as_ref(), &mut connection, &request)).await;
                    let failure = match answered {
                        Ok(Ok(())) => None,
                        Ok(Err(error)) => Some(error.to_string()),
                        Err(_) => Some("no answer in time".to_owned()),
                    };
                    let mut report = report.lock().await;
                    report.n_sent += 1;
                    match failure {
                        None => {
                            report.n_served += 1;
                            n_in_a_row.fetch_add(1, Ordering::Relaxed);
                        }
                        Some(failure) => {
                            connection = None;
                            n_in_a_row.store(0, Ordering::Relaxed);
                            *report.failures.entry(failure).or_default() += 1;
                        }
                    }
                    drop(report);
                    sleep(Duration::from_millis(20)).await;
                }
            }
        };
        let probing = {
            let (report, ending) = (report.clone(), ending.subscribe());
            async move {
                let request = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
                while !*ending.borrow() {
                    let answered = timeout(PATIENCE, ask(admin, None, &mut None, request)).await;
                    let mut report = report.lock().await;
                    report.n_probes += 1;
                    report.n_live += usize::from(matches!(answered, Ok(Ok(()))));
                    drop(report);
                    sleep(Duration::from_millis(500)).await;
                }
            }
        };
        Self {
            report,
            n_in_a_row,
            ending,
            tasks: [runtime.spawn(sending), runtime.spawn(probing)],
        }
    }

    /// Returns once ten requests in a row were served.
    pub(crate) async fn served_again(&self) {
        self.n_in_a_row.store(0, Ordering::Relaxed);
        while self.n_in_a_row.load(Ordering::Relaxed) < 10 {
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn stop(self) -> Report {
        self.ending.send_replace(true);
        for task in self.tasks {
            // The task only counts; it does not panic.
            let _ = task.await;
        }
        std::mem::take(&mut *self.report.lock().await)
    }
}

/// A run that began before the attack and ends after it.
pub(crate) struct LongRun {
    http: SocketAddr,
    ids: Ids,
    /// Spans that are sent at the end of the run.
    spans: Vec<Vec<u8>>,
    start_nanos: u64,
}

impl LongRun {
    pub(crate) async fn begin(http: SocketAddr, export: LongRunExport) -> io::Result<Self> {
        let ids = Ids::new(1, 1);
        let mut spans = vec![call(ids, 2, "a", "")];
        if export == LongRunExport::AsSpansEnd {
            ask(http, None, &mut None, &request(&std::mem::take(&mut spans))).await?;
        }
        Ok(Self {
            http,
            ids,
            spans,
            start_nanos: unix_nanos(),
        })
    }

    /// Ends the run, and waits until it has been judged in full.
    pub(crate) async fn end(self, admin: SocketAddr) -> Result<(), String> {
        let Self {
            http,
            ids,
            mut spans,
            start_nanos,
        } = self;
        let times = lasting(start_nanos, unix_nanos());
        spans.push(root_lasting(ids, times, &[]));
        let ended = ask(http, None, &mut None, &request(&spans)).await;
        ended.map_err(|error| format!("the long run could not end: {error}"))?;
        let mut seen = String::new();
        for _ in 0..100 {
            seen = get(admin, &format!("/v1/runs/{}", ids.trace()))
                .await
                .unwrap_or_default();
            if seen.contains(r#""completeness":"root_ended""#) {
                return Ok(());
            }
            sleep(Duration::from_millis(100)).await;
        }
        Err(format!("the long run was not judged in full: {seen}"))
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the sidecar compares a run's start with its own clock"
)]
fn unix_nanos() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_nanos() as u64)
}

pub(crate) async fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<C: AsyncRead + AsyncWrite + Unpin + Send> Connection for C {}

/// Sends a request on an open connection or on a new one, and reads the whole answer. An answer
/// other than 200 is an error that contains the reason.
async fn ask(
    address: SocketAddr,
    tls: Option<&TlsConnector>,
    connection: &mut Option<Box<dyn Connection>>,
    request: &[u8],
) -> io::Result<()> {
    let mut stream: Box<dyn Connection> = match (connection.take(), tls) {
        (Some(stream), _) => stream,
        (None, None) => Box::new(TcpStream::connect(address).await?),
        (None, Some(tls)) => {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            Box::new(tls.connect(name, stream).await?)
        }
    };
    stream.write_all(request).await?;
    let mut answer = Vec::new();
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        if body.len() >= length {
            let status = head.split(' ').nth(1).unwrap_or_default();
            if status != "200" {
                let reason: String = body.chars().filter(|c| matches!(c, ' '..='~')).collect();
                return Err(io::Error::other(format!("{status} {reason}")));
            }
            *connection = Some(stream);
            return Ok(());
        }
    }
}
