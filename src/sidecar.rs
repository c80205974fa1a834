//! Builds the stages, connects them with bounded channels and drains them. The one place that reads
//! the clock and owns the threads.

mod cgroup;
#[cfg(feature = "kafka")]
mod copies;
mod intake;
mod judgements;
mod keeping;
mod memory_watch;
mod peers;
mod ports;
mod rebuild;
mod record;
mod scoring;
#[cfg(feature = "kafka")]
mod topic_judges;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use axum::Router;
use hyper_util::service::TowerToHyperService;
use judge::evaluate::Coverage;
use judge::pipeline::{Judged, Rules};
use otlp::span::Now;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::admin::{AdminPort, Guard, OtlpAddresses, TokenError};
use crate::config::{Bound, Budgets, Config};
use crate::export::{self, ExportError, Exporter};
use crate::forward::{self, ForwardError, ForwardHandle};
use crate::journal::{JournalError, Keeping};
use crate::listen::BindError;
use crate::page::{Page, PageSetup, ReceiverPorts};
use crate::receive::{self, Receiver};
use crate::register::{self, ConfigOrigin, Register, StateError};
use crate::sync::Mutex;
use crate::telemetry::{DrainBegun, MetricsSource, Phase, Stopped, Telemetry};
use crate::tls::TlsError;
use crate::transport::Undelivered;

use intake::{LastRequest, Onlookers, RequestIntake};
use judgements::{coverage_metrics, judge};
use keeping::{JournalParts, open_journal, write_down};
use memory_watch::MemoryWatch;
use peers::PeerWatch;
use ports::{Doors, Ports};
use record::{Recorder, Recording};
use scoring::{ScoringBounds, ScoringQueue};
#[cfg(feature = "kafka")]
use topic_judges::{TopicJudges, TopicJudgesPlan};

pub use cgroup::memory_limit;

/// The only code that reads both clocks; all other code takes time as an argument.
#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clock"
)]
pub fn now() -> Now {
    let since_epoch = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    Now {
        instant: Instant::now(),
        unix_nanos: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
    }
}

/// Returns the number of CPUs that the process may use, by its affinity and its cgroup's quota.
fn n_cpus() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Time without a request after the start until a warning is logged.
const SILENCE: Duration = Duration::from_secs(60);

/// Time that requests in flight get after the listeners close.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Share of the shutdown deadline that is reserved for judging and delivering, if senders never
/// stop sending.
const KEPT_FOR_DELIVERY: f64 = 0.4;

/// Share of the shutdown deadline that is reserved for delivering scores, if judging takes long.
const KEPT_FOR_LAST_SCORES: f64 = 0.1;

/// The arguments of [`Sidecar::start`].
pub struct Plan {
    /// The configuration; every value has been checked.
    pub config: Config,
    /// Source of the configuration, for reloads.
    pub origin: Option<ConfigOrigin>,
    /// The criteria and expectations that judge traces.
    pub rules: Rules,
    /// Reads the memory limit of the cgroup in bytes, if there is one: at the start, and at each
    /// `reload.interval`.
    pub cgroup_limit: fn() -> Option<usize>,
    /// The output of printed evaluations, if any.
    pub print: Option<export::Print>,
    /// The observer of all judgements, called on the thread that judged.
    pub observer: Option<Observer>,
    /// The folder of recorded requests, if requests are recorded.
    pub record: Option<PathBuf>,
}

/// A function that sees every judgement; it must return at once.
pub type Observer = Box<dyn FnMut(&Judged, &Rules) + Send>;

/// An error while starting a sidecar.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The token of the API cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The state file cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The downstream cannot be used.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A destination of scores cannot be used.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// A setting of the receivers cannot be used.
    #[error("{0}")]
    Receive(String),
    /// A setting of Kafka cannot be used.
    #[cfg(feature = "kafka")]
    #[error("`kafka`: {0}")]
    Kafka(String),
    /// The system refused a thread or an address.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// The addresses of a running sidecar.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// OTLP/gRPC.
    pub grpc: Option<SocketAddr>,
    /// OTLP/HTTP.
    pub http: Option<SocketAddr>,
    /// Health, metrics, page and API.
    pub admin: SocketAddr,
}

/// A running sidecar. Dropping it aborts all work; [`Sidecar::stop`] stops it in order.
pub struct Sidecar {
    /// The addresses of its ports.
    pub addresses: Addresses,
    /// The metrics and heartbeats.
    pub telemetry: Arc<Telemetry>,
    /// Lives until the ports are closed; dropping it ends the scoring queue.
    intake: Arc<RequestIntake>,
    /// The criteria in force, and their changes.
    pub register: Register,
    /// Dropping the first field ends the watcher of configuration files.
    watching: (oneshot::Sender<Infallible>, JoinSet<()>),
    doors: Doors,
    admin: Doors,
    scoring: Vec<JoinHandle<()>>,
    #[cfg(feature = "kafka")]
    reading: Option<TopicJudges>,
    recording: Recording,
    forwarding: JoinSet<Undelivered>,
    journal: Vec<Keeping>,
    exporting: export::ExportTasks,
    /// Tasks that report silence and follow the memory limit and the peers.
    background: JoinSet<()>,
    deadline: Duration,
    quiet: Duration,
}

impl Sidecar {
    /// Starts every stage, the ports last, so that every stage is ready when a request is answered.
    pub async fn start(plan: Plan) -> Result<Self, StartError> {
        let Plan {
            config,
            origin,
            rules,
            cgroup_limit,
            print,
            observer,
            record,
        } = plan;
        let started = now();
        let telemetry = Arc::new(Telemetry::default());
        let memory_watch = MemoryWatch::new(&config, cgroup_limit, telemetry.clone());
        let bounds = memory_watch.bounds().clone();
        let mut rng = fastrand::Rng::new();

        let destination = config.forward_destination();
        let ports = Ports::bind(&config, &bounds, &telemetry).await?;
        let addresses = ports.addresses()?;
        let guard = Arc::new(Guard::try_new(addresses.admin, &config.admin, &telemetry)?);
        if let Some(destination) = &destination {
            let listeners: Vec<SocketAddr> = [addresses.grpc, addresses.http]
                .into_iter()
                .flatten()
                .collect();
            forward::check_loop(destination, &listeners).await?;
        }
        let receiving = receive::Settings::try_new(
            &config.receivers.otlp,
            &config.forward,
            &config.journal,
            &bounds,
            destination.is_some(),
        )
        .map_err(StartError::Receive)?;

        let JournalParts {
            log: journal_log,
            requests,
            #[cfg(feature = "kafka")]
                copies: copies_log,
            marks,
            scores: scores_log,
            traces,
            metrics: journal_metrics,
            keeping,
            ..
        } = open_journal(&config, rng.fork(), &telemetry).await?;
        let forward = forward::Settings {
            destination,
            signals: config.forward.signals.clone(),
            capacity: bounds.forward_queue.clone(),
            journal: requests,
        };
        let (forward, delivery) = forward::start(forward, &telemetry, rng.fork())?;
        #[cfg(feature = "kafka")]
        let (forward, kafka) =
            copies::into_kafka(forward, &config, &bounds, copies_log, &telemetry, &mut rng)?;
        let mut forwarding = JoinSet::new();
        if let Some(delivery) = delivery {
            forwarding.spawn(delivery.run());
        }
        #[cfg(feature = "kafka")]
        let kafka_metrics = kafka.map(|(delivery, metrics)| {
            forwarding.spawn(delivery.run());
            metrics
        });

        let reads = config.kafka.read.enabled;
        let exporting = export::ExportPlan {
            config: &config,
            budget: bounds.scores.clone(),
            print,
            marks: marks.filter(|_| !reads),
            journal: scores_log,
            spans: forward.queue_of_spans(),
        };
        let (exporter, exporting) = Exporter::start(exporting, &telemetry, &mut rng)?;

        let rules = Arc::new(ArcSwap::from_pointee(rules));
        let mut assembling = memory_watch.assemble_settings();
        // The threads that judge a topic have separate memory for each partition.
        let max_open_size = if reads { usize::MAX } else { assembling.max_open_size };
        let threads = config.scoring.threads;
        let n_threads = threads.or(n_cpus(), max_open_size, assembling.size_limit);
        let coverage = Arc::new(Mutex::new(Coverage::of_pipelines(n_threads)));
        let setup = register::RegisterSetup {
            config: config.clone(),
            origin,
            rules: rules.clone(),
            coverage: coverage.clone(),
            renew_headers: renew_headers(forward.clone(), exporter.clone()),
            clock: now,
        };
        let (register, reloader) = register::open(setup, &telemetry)?;
        let mut watching = JoinSet::new();
        let (end_watching, ended) = oneshot::channel::<Infallible>();
        let ended = async move { drop(ended.await) };
        watching.spawn(reloader.run(telemetry.heartbeat("register", started.instant), ended));
        let page = config.admin.page.enabled.then(|| {
            Page::new(PageSetup {
                capacity: bounds.page.clone(),
                links: config.admin.links.clone(),
                receivers: ReceiverPorts {
                    grpc: addresses.grpc,
                    http: addresses.http,
                    has_tls: config.receivers.otlp.tls.is_some(),
                },
                register: register.clone(),
                clock: now,
            })
        });
        let observer = observer.map(|observer| Arc::new(Mutex::new(observer)));
        let judge = || {
            judge(
                exporter.clone(),
                coverage.clone(),
                page.clone(),
                observer.clone(),
            )
        };
        // A process that reads a topic judges only that topic; the requests that it receives are
        // only written and forwarded.
        let judges_received = config.scoring.enabled && !reads;
        let (scoring, threads) = if judges_received {
            let bounds = scoring_bounds(&config, &bounds, &rules);
            // Criteria from the state file count, too.
            let sizes = bounds.sizes();
            assembling.session.max_size = sizes.map_or(0, |sizes| sizes.sessions);
            let (scoring, threads) = ScoringQueue::start(
                assembling,
                bounds,
                rules.clone(),
                telemetry.clone(),
                (0..n_threads).map(|_| judge()).collect(),
                traces,
            )?;
            (Some(scoring), threads)
        } else {
            (None, Vec::new())
        };
        #[cfg(feature = "kafka")]
        let (reading, threads) = if reads {
            let plan = TopicJudgesPlan {
                config: config.kafka.clone(),
                settings: memory_watch.assemble_settings(),
                bounds: scoring_bounds(&config, &bounds, &rules),
                rules: rules.clone(),
                telemetry: telemetry.clone(),
                exporter: exporter.clone(),
                judges: (0..n_threads).map(|_| judge()).collect(),
            };
            let (reading, threads) = TopicJudges::start(plan)?;
            (Some(reading), threads)
        } else {
            (None, threads)
        };

        let (recorder, recording) = Recorder::start(record.as_deref())?;
        let intake = Arc::new(RequestIntake {
            forward,
            scoring,
            onlookers: Onlookers {
                recorder,
                page: page.clone(),
            },
            journal: journal_log,
            rules,
            started: started.instant,
            last_offer: Arc::default(),
        });
        let last_request = LastRequest {
            started,
            millis: intake.last_offer.clone(),
        };
        let mut background = JoinSet::new();
        if addresses.grpc.is_some() || addresses.http.is_some() {
            background.spawn(last_request.clone().report_silence(SILENCE, addresses));
        }
        background.spawn(memory_watch.run());
        if let (Some(peers), Some(scoring)) = (&config.assemble.peers, &intake.scoring) {
            let watch = PeerWatch::new(peers, scoring.clone(), telemetry.clone(), started);
            background.spawn(watch.run());
        }
        let receiver = Receiver::new(receiving, intake.clone(), telemetry.clone());
        let (mut doors, mut admin) = (Doors::new(), Doors::new());
        for port in [ports.grpc, ports.http].into_iter().flatten() {
            doors.open(port, receiver.clone(), &telemetry);
        }
        let scores = exporter.routes();
        let score_metrics: MetricsSource = Arc::new(move |page| exporter.write_metrics(page));
        let arrival_metrics: MetricsSource = Arc::new(move |page| last_request.write_metrics(page));
        let mut metrics = vec![
            receiver.metrics(),
            arrival_metrics,
            score_metrics,
            coverage_metrics(coverage),
        ];
        metrics.extend(journal_metrics);
        #[cfg(feature = "kafka")]
        metrics.extend(kafka_metrics);
        #[cfg(feature = "kafka")]
        metrics.extend(reading.as_ref().map(TopicJudges::metrics));
        let mut api = register::routes(&register).merge(scores);
        let mut assets = Router::new();
        if let Some(page) = page {
            metrics.push(page.metrics());
            api = api.merge(page.api());
            assets = page.assets();
        }
        let port = AdminPort {
            scrapes: Arc::default(),
            telemetry: telemetry.clone(),
            metrics,
            started_unix_nanos: started.unix_nanos,
            otlp: OtlpAddresses {
                grpc: addresses.grpc,
                http: addresses.http,
            },
            guard,
            api,
            page: assets,
        };
        // Set the phase before the first probe can arrive. A judge is ready once it has joined the
        // group.
        if !reads || config.kafka.write.enabled {
            telemetry.enter(Phase::Serving);
        }
        admin.open(
            ports.admin,
            TowerToHyperService::new(port.router()),
            &telemetry,
        );

        let (deadline, quiet) = (config.shutdown.deadline.0, config.shutdown.quiet.0);
        Ok(Self {
            addresses,
            telemetry,
            intake,
            register,
            watching: (end_watching, watching),
            doors,
            admin,
            scoring: threads,
            #[cfg(feature = "kafka")]
            reading,
            recording,
            forwarding,
            journal: keeping,
            exporting,
            background,
            deadline,
            quiet,
        })
    }

    /// Starts the drain (`spanscore drain`): closes traces sooner and sends scores at once, and
    /// still accepts requests. The sidecar is not ready from here on.
    pub fn begin_drain(&self) {
        self.telemetry.enter(Phase::Draining);
        DrainBegun {}.emit(&self.telemetry);
        self.exporting.begin_drain();
        if let Some(scoring) = &self.intake.scoring {
            scoring.begin_drain();
        }
    }

    /// Accepts requests until senders fall quiet or the deadline is near, judges open traces, and
    /// delivers the queues.
    pub async fn stop(self) -> Stopped {
        let Self {
            addresses: _,
            telemetry,
            intake,
            register: _,
            watching: (end_watching, mut watching),
            doors,
            admin,
            scoring,
            #[cfg(feature = "kafka")]
            reading,
            recording,
            mut forwarding,
            journal,
            exporting,
            mut background,
            deadline,
            quiet,
        } = self;
        let begun = now().instant;
        let deadline_at = begun + deadline;
        intake.forward.begin_drain();
        telemetry.enter(Phase::Draining);
        #[cfg(feature = "kafka")]
        if let Some(reading) = &reading {
            reading.begin_stop();
        }
        // A process that only reads has no senders.
        let quiet = if doors.is_empty() { Duration::ZERO } else { quiet };
        intake
            .fall_quiet(
                quiet,
                begun,
                begun + deadline.mul_f64(1.0 - KEPT_FOR_DELIVERY),
            )
            .await;
        doors
            .close(LAST_REQUESTS.min(deadline.mul_f64(KEPT_FOR_DELIVERY / 2.0)))
            .await;

        let forward = intake.forward.clone();
        background.shutdown().await;
        // Drop the last handle of the scoring queue: its threads judge open traces, export their
        // scores and end.
        drop(intake);
        if !scoring.is_empty() {
            let joined = tokio::task::spawn_blocking(move || {
                for thread in scoring {
                    // A panic was reported when it happened.
                    let _ = thread.join();
                }
            });
            // If judging takes longer, scores that are exported later are lost.
            let _ = tokio::time::timeout_at(
                (deadline_at - deadline.mul_f64(KEPT_FOR_LAST_SCORES)).into(),
                joined,
            )
            .await;
        }
        recording.finish(LAST_REQUESTS).await;
        forward.close(deadline_at);
        // A panicked delivery was reported, and must not abort the stop.
        let forwarded = async { while forwarding.join_next().await.is_some() {} };
        let ((), scores_left) = tokio::join!(forwarded, exporting.drain(deadline_at));
        let is_kept = !journal.is_empty();
        write_down(journal).await;
        admin.close(Duration::from_millis(200)).await;
        drop(end_watching);
        while watching.join_next().await.is_some() {}
        // The item counts include items left by a panicked delivery.
        let item_counts = telemetry.item_counts();
        let n_queued: u64 = item_counts.values().map(|books| books.queued).sum();
        let n_dropped: u64 = item_counts
            .values()
            .filter_map(|books| books.dropped.get("shutdown"))
            .sum();
        let n_kept = if is_kept { n_queued } else { 0 };
        Stopped {
            n_undelivered: n_queued - n_kept + n_dropped + telemetry.n_left_for_kafka(),
            n_kept,
            n_undelivered_scores: scores_left.values().sum(),
            n_kept_scores: if is_kept { export::n_queued(&telemetry) } else { 0 },
        }
    }
}

/// Returns the limits of scoring.
fn scoring_bounds(
    config: &Config,
    bounds: &Budgets<Bound>,
    rules: &Arc<ArcSwap<Rules>>,
) -> ScoringBounds {
    let (assemble, open, recent, rules) = (
        config.assemble.clone(),
        bounds.open.clone(),
        bounds.recent.clone(),
        Arc::clone(rules),
    );
    let sizes = move || assemble.sizes(open.get(), recent.get(), rules.load().judge_sessions());
    ScoringBounds {
        queue: bounds.scoring_queue.clone(),
        traces: Some(Box::new(sizes)),
    }
}

/// Returns a function that makes all further requests use the headers of a reloaded configuration.
fn renew_headers(forward: ForwardHandle, exporter: Exporter) -> register::RenewHeaders {
    Box::new(move |config| {
        if let Some(destination) = config.forward_destination() {
            let renewed = forward.renew_headers(&destination);
            renewed.map_err(|error| error.to_string())?;
        }
        let renewed = exporter.renew_headers(config);
        renewed.map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests;
