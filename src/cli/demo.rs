//! `spanscore demo`: runs a real sidecar on its real ports, sends it a recorded agent session over
//! OTLP, and receives its output as a backend would. Everything that it prints is a real result.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use hyper::header::HeaderMap;
use judge::evaluate::Evaluation;
use judge::extract::Trajectory;
use otlp::span::{PeerId, SpanAdmission};
use text::wrapped;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::configuration::Disk;
use super::global::NoConfiguration;
use super::run::page_address;
use super::{Exit, Streams, inspect, rules};
use crate::config::{Config, Protocol, Signal, Sources};
use crate::export::score_line;
use crate::listen::{BindError, ConnectionLimits, ConnectionSlots, Port};
use crate::receive::{self, Acknowledgement, Received, Receiver, RequestSink};
use crate::sidecar::{self, Addresses, Plan, Sidecar, StartError};
use crate::sync::Mutex;
use crate::telemetry::Telemetry;
use crate::transport::{Client, DeliveryOutcome, QueueRefusal};

/// Options of `demo`.
#[derive(Debug, Args)]
pub(super) struct Demo {
    /// Keep the sidecar running after the session, and print the address of the page that shows the
    /// run. Stop it with Ctrl+C.
    #[arg(long)]
    pub(super) keep: bool,
    #[command(flatten)]
    pub(super) no_configuration: NoConfiguration,
}

/// A session of a pydantic-ai agent, as the agent's exporter sent it.
const RECORDING: [&[u8]; 6] = [
    include_bytes!("../../examples/recording/001.traces.pb"),
    include_bytes!("../../examples/recording/002.traces.pb"),
    include_bytes!("../../examples/recording/003.traces.pb"),
    include_bytes!("../../examples/recording/004.traces.pb"),
    include_bytes!("../../examples/recording/005.traces.pb"),
    include_bytes!("../../examples/recording/006.traces.pb"),
];

/// The criteria that judge the session.
const CRITERIA: &str = include_str!("../../examples/demo.yaml");

/// Settle time of the demo. It is short because no span of a recording is late.
const SETTLE: &str = "300ms";

/// Maximum wait for the scores.
const PATIENCE: Duration = Duration::from_secs(20);

/// Maximum length of a shown value, in characters.
const MAX_SHOWN: usize = 80;

pub(super) fn demo(is_kept: bool, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let Some(runtime) = streams.runtime(&mut Builder::new_multi_thread())? else {
        return Ok(Exit::NoStart);
    };
    let shown = match runtime.block_on(show(is_kept, streams)) {
        Ok(shown) => shown,
        Err(DemoError::Output(error)) => return Err(error),
        Err(error) => return streams.complain(&error.to_string()).map(|()| Exit::NoStart),
    };
    Ok(shown)
}

/// An error of the demo.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error(transparent)]
    Start(#[from] StartError),
    #[error("the sidecar rejected a request: {0}")]
    NotTaken(String),
    #[error("no scores arrived within {} s; see the sidecar's log above", PATIENCE.as_secs())]
    NoScores,
    #[error(transparent)]
    Output(#[from] io::Error),
}

async fn show(is_kept: bool, streams: &mut Streams<'_>) -> Result<Exit, DemoError> {
    let backend = Backend::start().await?;
    let (mut judged, sidecar, moved) = start(&backend).await?;
    let Addresses { grpc, http, admin } = sidecar.addresses;
    let shown = |address: Option<SocketAddr>| {
        address.map_or_else(|| "off".to_owned(), |address| address.to_string())
    };

    let look = streams.look;
    let out = &mut *streams.out;
    writeln!(
        out,
        "spanscore {} is running: OTLP/gRPC on {}, OTLP/HTTP on {}",
        env!("CARGO_PKG_VERSION"),
        shown(grpc),
        shown(http)
    )?;
    writeln!(
        out,
        "  health and metrics on {admin}, a simulated backend on {}",
        backend.address
    )?;
    if moved {
        writeln!(
            out,
            "  (the default ports are in use on this machine, so the demo uses free ones)"
        )?;
    }
    out.flush()?;

    feed(grpc, http).await?;
    let (trajectories, evaluations) = tokio::time::timeout(PATIENCE, collect(&mut judged))
        .await
        .map_err(|_| DemoError::NoScores)?;

    writeln!(
        out,
        "\nThe recorded session was sent over both protocols. The agent's tool calls:\n"
    )?;
    for trajectory in &trajectories {
        let text = inspect::human(trajectory, inspect::Shown::Whole(MAX_SHOWN));
        writeln!(out, "{}", wrapped(&text, look.width))?;
    }
    writeln!(
        out,
        "The scores ({} criteria, examples/demo.yaml):\n",
        rules(&config(&backend, false)).criteria.len()
    )?;
    for evaluation in &evaluations {
        writeln!(out, "{}", score_line::human(evaluation, look).trim_end())?;
    }
    if is_kept {
        let page = page_address(admin, false);
        writeln!(
            out,
            "\nLook at the run at {page} and send it your own (OTLP/gRPC {}, OTLP/HTTP {}). Ctrl+C \
             ends the demo.",
            shown(grpc),
            shown(http)
        )?;
        out.flush()?;
        tokio::signal::ctrl_c().await?;
        writeln!(out)?;
    }
    out.flush()?;

    sidecar.stop().await;
    let Arrived {
        n_originals,
        n_original_bytes,
        n_scores,
    } = backend.stop();
    let n_sent = RECORDING.len();
    let same = if n_originals == n_sent {
        "identical to those sent"
    } else {
        "NOT identical to those sent"
    };
    writeln!(
        out,
        "\nThe backend received {n_originals} of {n_sent} requests, {n_original_bytes} bytes, \
         {same},"
    )?;
    writeln!(
        out,
        "and {n_scores} more with the scores: spans in the same trace, log events, metrics.\n"
    )?;
    writeln!(
        out,
        "Next: start `spanscore run` and point your agent at it:"
    )?;
    writeln!(
        out,
        "  export OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4317   # or :4318 for OTLP/HTTP"
    )?;
    Ok(if n_originals == n_sent && !evaluations.is_empty() {
        Exit::Fine
    } else {
        Exit::CriterionFailed
    })
}

type Seen = (Vec<Arc<Trajectory>>, Vec<Evaluation>);

/// Starts the sidecar on its default ports. If one of them is in use, starts it on free ports.
async fn start(backend: &Backend) -> Result<(mpsc::Receiver<Seen>, Sidecar, bool), DemoError> {
    for moved in [false, true] {
        let config = config(backend, moved);
        let (sender, judged) = mpsc::channel(64);
        let observer: sidecar::Observer = Box::new(move |judged, _| {
            if !judged.trajectories.is_empty() {
                // The demo drops the receiver after it has the scores.
                let _ = sender.try_send((judged.trajectories.clone(), judged.evaluations.clone()));
            }
        });
        let plan = Plan {
            rules: rules(&config),
            config,
            origin: None,
            cgroup_limit: || None,
            print: None,
            observer: Some(observer),
            record: None,
        };
        match Sidecar::start(plan).await {
            Err(error) if !moved && error.is::<BindError>() => {}
            started => return Ok((judged, started?, moved)),
        }
    }
    Err(DemoError::NoScores)
}

fn config(backend: &Backend, moved: bool) -> Config {
    let mut flags = vec![
        (
            "forward.endpoint".to_owned(),
            format!("http://{}", backend.address),
        ),
        ("forward.protocol".to_owned(), "grpc".to_owned()),
        ("assemble.settle".to_owned(), SETTLE.to_owned()),
        ("scores.batch.max_delay".to_owned(), "100ms".to_owned()),
        ("shutdown.quiet".to_owned(), "0s".to_owned()),
    ];
    if moved {
        let ports = [
            "receivers.otlp.grpc.listen",
            "receivers.otlp.http.listen",
            "admin.listen",
        ];
        flags.extend(ports.map(|port| (port.to_owned(), "127.0.0.1:0".to_owned())));
    }
    let file = Some((Path::new("examples/demo.yaml"), CRITERIA));
    let sources = Sources {
        file,
        environment: &BTreeMap::new(),
        flags: &flags,
        files: &Disk,
    };
    Config::load(&sources)
        .expect("the bundled configuration is valid, as a test makes sure")
        .config
}

/// Sends the recording; alternates between gRPC and HTTP.
async fn feed(grpc: Option<SocketAddr>, http: Option<SocketAddr>) -> Result<(), DemoError> {
    let not_taken = |error: String| DemoError::NotTaken(error);
    let mut clients = Vec::new();
    for (address, protocol) in [(grpc, Protocol::Grpc), (http, Protocol::HttpProtobuf)] {
        let Some(address) = address else { continue };
        let mut config = Config::default();
        config.forward.endpoint = Some(format!("http://{address}"));
        config.forward.protocol = Some(protocol);
        let destination = config
            .forward_destination()
            .ok_or_else(|| not_taken("it has no address".to_owned()))?;
        clients.push(
            Client::new(&destination, &Arc::default())
                .map_err(|error| not_taken(error.to_string()))?,
        );
    }
    for (body, client) in RECORDING.iter().zip(clients.iter().cycle()) {
        match client
            .send(Signal::Traces, Bytes::from_static(body), &HeaderMap::new())
            .await
        {
            DeliveryOutcome::Delivered { .. } => {}
            answer => return Err(not_taken(format!("{answer:?}"))),
        }
    }
    Ok(())
}

/// Waits for the evaluations of the recorded session, which is one trace.
async fn collect(judged: &mut mpsc::Receiver<Seen>) -> Seen {
    judged.recv().await.unwrap_or_default()
}

// === the simulated backend ===

/// Receives OTLP requests and counts them.
struct Backend {
    address: SocketAddr,
    taken: Arc<Taken>,
    _serving: JoinSet<()>,
}

#[derive(Default)]
struct Taken(Mutex<Arrived>);

/// Counts of the received requests. A request whose bytes equal a sent request is an original; all
/// others contain scores or metrics.
#[derive(Default, Clone, Copy)]
struct Arrived {
    n_originals: usize,
    n_original_bytes: usize,
    n_scores: usize,
}

impl Backend {
    async fn start() -> Result<Self, DemoError> {
        let config = Config::default();
        let telemetry = Arc::new(Telemetry::default());
        let budgets = config.budgets(None).bounds();
        let slots = ConnectionSlots::new(ConnectionLimits {
            memory: budgets.connections.clone(),
            connections: 64,
            streams: 100,
        });
        let port = Port::bind((Ipv4Addr::LOCALHOST, 0).into(), "demo", None, &slots)
            .await
            .map_err(StartError::from)?;
        let address = port.address()?;
        let settings = receive::Settings::try_new(
            &config.receivers.otlp,
            &config.forward,
            &config.journal,
            &budgets,
            false,
        )
        .map_err(|error| DemoError::Start(error.into()))?;
        let taken = Arc::new(Taken::default());
        let receiver = Receiver::new(settings, taken.clone(), telemetry.clone());
        let heartbeat = telemetry.heartbeat("backend", sidecar::now().instant);
        let mut serving = JoinSet::new();
        serving.spawn(port.serve(
            receiver.handler(),
            std::future::pending(),
            heartbeat,
            telemetry,
        ));
        Ok(Self {
            address,
            taken,
            _serving: serving,
        })
    }

    fn stop(self) -> Arrived {
        *self.taken.0.lock()
    }
}

impl RequestSink for Taken {
    fn admission(&self) -> Option<Arc<dyn SpanAdmission>> {
        None
    }

    fn check_room(&self, _: Signal, _: PeerId, _: usize) -> Result<(), QueueRefusal> {
        Ok(())
    }

    fn offer(&self, received: Received) -> Result<Acknowledgement, QueueRefusal> {
        let mut arrived = self.0.lock();
        if RECORDING.contains(&&received.body[..]) {
            arrived.n_originals += 1;
            arrived.n_original_bytes += received.body.len();
        } else {
            arrived.n_scores += 1;
        }
        Ok(Acknowledgement::Now)
    }
}
