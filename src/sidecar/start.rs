//! Starts each stage after the stages to which it passes data, and serves the ports last, so that
//! every stage is ready before a request is answered.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use hyper_util::service::TowerToHyperService;
use judge::evaluate::Coverage;
use judge::pipeline::Rules;
use otlp::span::Now;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::intake::{LastRequest, Onlookers, RequestIntake};
use super::judgements::{Judge, coverage_metrics, judge};
use super::memory_watch::MemoryWatch;
use super::open_journal::{JournalParts, open_journal};
use super::peers::watch_peers;
use super::ports::{Doors, Ports};
use super::record::Recorder;
use super::scoring::{ScoringBounds, ScoringQueue, Worker};
use super::{Addresses, Observer, Plan, Sidecar, StartError, now};
#[cfg(feature = "kafka")]
use super::{kafka_error, topic_judges::TopicJudges};
use crate::admin::{AdminPort, Guard, OtlpAddresses};
use crate::config::{Bound, Budgets, Config};
use crate::export::{self, ExportTasks, Exporter, Print};
use crate::forward::{self, ForwardHandle};
#[cfg(feature = "kafka")]
use crate::kafka;
use crate::listen::{Port, handler};
use crate::page::{Page, PageSetup, ReceiverPorts};
use crate::receive::{self, Receiver};
use crate::register::{self, ConfigOrigin, Register};
use crate::sync::Mutex;
use crate::telemetry::{MetricsSource, Phase, Telemetry};
use crate::transport::Undelivered;

/// Time without a request after which a warning is logged.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// Values that are needed to start the other stages.
struct Ground {
    config: Config,
    started: Now,
    telemetry: Arc<Telemetry>,
    memory_watch: MemoryWatch,
    addresses: Addresses,
    rng: fastrand::Rng,
}

struct ScorePlane {
    exporter: Exporter,
    exporting: ExportTasks,
    rules: Arc<ArcSwap<Rules>>,
    coverage: Arc<Mutex<Coverage>>,
    register: Register,
    watching: (oneshot::Sender<Infallible>, JoinSet<()>),
    page: Option<Page>,
    observer: Option<Arc<Mutex<Observer>>>,
    n_threads: usize,
}

/// The threads that judge received requests or a topic.
#[derive(Default)]
struct JudgingThreads {
    queue: Option<ScoringQueue>,
    #[cfg(feature = "kafka")]
    reading: Option<Arc<TopicJudges>>,
    threads: Vec<JoinHandle<()>>,
}

impl Sidecar {
    /// Starts every stage.
    pub async fn start(plan: Plan) -> Result<Self, StartError> {
        let (mut ground, ports) = Ground::bind(plan.config, plan.cgroup_limit).await?;
        let of_admin = &ground.config.admin;
        let guard = Guard::try_new(ground.addresses.admin, of_admin, &ground.telemetry)?;
        let receiving = ground.receiving().await?;
        let mut journal =
            open_journal(&ground.config, ground.rng.fork(), &ground.telemetry).await?;
        let (forward, forwarding) = ground.start_forwarding(&mut journal)?;
        let mut scores = ground.start_scores(
            &mut journal,
            &forward,
            (plan.print, plan.rules, plan.origin),
        )?;
        scores.observer = plan.observer.map(|observer| Arc::new(Mutex::new(observer)));
        let judging = ground.start_judging(&mut journal, &scores)?;
        let recorder = plan.record.as_deref().map(Recorder::start).transpose()?;
        let (recorder, recording) = recorder.unzip();
        let onlookers = Onlookers {
            recorder,
            page: scores.page.clone(),
        };
        let intake = Arc::new(RequestIntake {
            forward,
            scoring: judging.queue,
            onlookers,
            rules: scores.rules.clone(),
            last_request: LastRequest {
                started: ground.started,
                millis: Arc::default(),
            },
        });
        let receiver = Receiver::new(receiving, intake.clone(), ground.telemetry.clone());
        let mut doors = Doors::new();
        for port in [ports.grpc, ports.http].into_iter().flatten() {
            doors.open(port, receiver.clone().handler(), &ground.telemetry);
        }
        let of_arrivals = intake.last_request.clone();
        let of_arrivals: MetricsSource = Arc::new(move |page| of_arrivals.write_metrics(page));
        let mut metrics = vec![receiver.metrics(), of_arrivals];
        metrics.extend(scores.metrics());
        metrics.extend(journal.metrics);
        #[cfg(feature = "kafka")]
        metrics.extend(judging.reading.as_ref().map(TopicJudges::metrics));
        let admin = ground.open_admin(ports.admin, guard, metrics, &scores);
        let (addresses, telemetry) = (ground.addresses, ground.telemetry.clone());
        let shutdown = ground.config.shutdown.clone();
        let background = ground.start_background(&intake);
        Ok(Self {
            addresses,
            telemetry,
            intake,
            register: scores.register,
            watching: scores.watching,
            doors,
            admin,
            scoring: judging.threads,
            #[cfg(feature = "kafka")]
            reading: judging.reading,
            recording,
            forwarding,
            journal: journal.log_threads,
            exporting: scores.exporting,
            background,
            shutdown,
        })
    }
}

impl Ground {
    /// Binds the ports, but does not serve them yet.
    async fn bind(
        config: Config,
        cgroup_limit: fn() -> Option<usize>,
    ) -> Result<(Self, Ports), StartError> {
        let (started, telemetry) = (now(), Arc::<Telemetry>::default());
        let memory_watch = MemoryWatch::new(&config, cgroup_limit, telemetry.clone());
        let ports = Ports::bind(&config, memory_watch.bounds(), &telemetry).await?;
        let ground = Self {
            addresses: ports.addresses()?,
            config,
            started,
            telemetry,
            memory_watch,
            rng: fastrand::Rng::new(),
        };
        Ok((ground, ports))
    }

    /// Returns the settings of the receivers, or an error if the downstream is this process.
    async fn receiving(&self) -> Result<receive::Settings, StartError> {
        let destination = self.config.forward_destination();
        if let Some(destination) = &destination {
            let Addresses { grpc, http, .. } = self.addresses;
            let listeners: Vec<SocketAddr> = [grpc, http].into_iter().flatten().collect();
            forward::check_loop(destination, &listeners).await?;
        }
        receive::Settings::try_new(
            &self.config.receivers.otlp,
            &self.config.forward,
            &self.config.journal,
            self.memory_watch.bounds(),
            destination.is_some(),
        )
        .map_err(StartError::from)
    }

    /// Starts the deliveries to the downstream and to a topic.
    fn start_forwarding(
        &mut self,
        journal: &mut JournalParts,
    ) -> Result<(ForwardHandle, JoinSet<Undelivered>), StartError> {
        let bounds = self.memory_watch.bounds();
        let settings = forward::Settings {
            destination: self.config.forward_destination(),
            signals: self.config.forward.signals.clone(),
            capacity: bounds.forward_queue.clone(),
            journal: journal.requests.clone(),
        };
        let (forward, delivery) = forward::start(settings, &self.telemetry, self.rng.fork())?;
        let mut forwarding = JoinSet::new();
        if let Some(delivery) = delivery {
            forwarding.spawn(delivery.run());
        }
        #[cfg(feature = "kafka")]
        if self.config.kafka.write.enabled {
            let (queue, delivery) = kafka::start(
                &self.config,
                &bounds.kafka,
                forward.accounting_of_copies(),
                journal.requests.as_ref(),
                &self.telemetry,
                self.rng.fork(),
            )
            .map_err(kafka_error)?;
            forwarding.spawn(delivery.run());
            return Ok((forward.also_into(queue), forwarding));
        }
        Ok((forward, forwarding))
    }

    /// Starts the export of scores, the register of criteria and the page.
    fn start_scores(
        &mut self,
        journal: &mut JournalParts,
        forward: &ForwardHandle,
        (print, rules, origin): (Option<Print>, Rules, Option<ConfigOrigin>),
    ) -> Result<ScorePlane, StartError> {
        let (config, telemetry) = (&self.config, &self.telemetry);
        let bounds = self.memory_watch.bounds();
        let plan = export::ExportPlan {
            config,
            budget: bounds.scores.clone(),
            print,
            marks: (journal.traces.as_ref().map(|traces| traces.marks.clone()))
                .filter(|_| !config.kafka.read.enabled),
            journal: journal.scores.take(),
            spans: forward.queue_of_spans(),
        };
        let (exporter, exporting) = Exporter::start(plan, telemetry, &mut self.rng)?;
        let rules = Arc::new(ArcSwap::from_pointee(rules));
        let n_threads = self.n_threads();
        let coverage = Arc::new(Mutex::new(Coverage::of_pipelines(n_threads)));
        let setup = register::RegisterSetup {
            config: config.clone(),
            origin,
            rules: rules.clone(),
            coverage: coverage.clone(),
            renew_headers: renew_headers(forward.clone(), exporter.clone()),
            clock: now,
        };
        let (register, reloader) = register::open(setup, telemetry)?;
        let (end_watching, ended) = oneshot::channel::<Infallible>();
        let ended = async move { drop(ended.await) };
        let heartbeat = telemetry.heartbeat("register", self.started.instant);
        let mut watching = JoinSet::new();
        watching.spawn(reloader.run(heartbeat, ended));
        let page = config.admin.page.enabled.then(|| {
            Page::new(PageSetup {
                capacity: bounds.page.clone(),
                links: config.admin.links.clone(),
                receivers: ReceiverPorts {
                    grpc: self.addresses.grpc,
                    http: self.addresses.http,
                    has_tls: config.receivers.otlp.tls.is_some(),
                },
                register: register.clone(),
                clock: now,
            })
        });
        Ok(ScorePlane {
            exporter,
            exporting,
            rules,
            coverage,
            register,
            watching: (end_watching, watching),
            page,
            observer: None,
            n_threads,
        })
    }

    /// Starts the threads that judge. A process that reads a topic judges only that topic. It
    /// forwards the requests that it receives and, with `kafka.write`, writes them to a topic, but
    /// does not judge them.
    fn start_judging(
        &self,
        journal: &mut JournalParts,
        scores: &ScorePlane,
    ) -> Result<JudgingThreads, StartError> {
        let (config, rules) = (&self.config, scores.rules.clone());
        let judges: Vec<Judge> = (0..scores.n_threads).map(|_| scores.judge()).collect();
        let bounds = scoring_bounds(config, self.memory_watch.bounds(), &rules);
        let mut settings = self.memory_watch.assemble_settings();
        let mut judging = JudgingThreads::default();
        #[cfg(feature = "kafka")]
        if config.kafka.read.enabled {
            let (reading, threads) = TopicJudges::start(
                config.kafka.clone(),
                settings,
                bounds,
                rules,
                self.telemetry.clone(),
                scores.exporter.clone(),
                judges,
            )?;
            judging.reading = Some(reading);
            judging.threads = threads;
            return Ok(judging);
        }
        if config.scoring.enabled && !config.kafka.read.enabled {
            // Criteria of the state file, too, can have `scope: session`.
            settings.session.max_size = (bounds.traces)().sessions;
            let (queue, workers) = ScoringQueue::prepare(
                settings,
                bounds,
                rules,
                self.telemetry.clone(),
                judges,
                journal.traces.take(),
            );
            judging.queue = Some(queue);
            judging.threads = workers
                .into_iter()
                .map(Worker::start)
                .collect::<io::Result<_>>()?;
        }
        Ok(judging)
    }

    fn n_threads(&self) -> usize {
        let settings = self.memory_watch.assemble_settings();
        // Threads that judge a topic divide the memory by partition, so the memory does not limit
        // the number of threads.
        let reads = self.config.kafka.read.enabled;
        let max_open_size = if reads { usize::MAX } else { settings.max_open_size };
        let threads = self.config.scoring.threads;
        // The CPUs that the process may use, by its affinity and its cgroup's quota.
        let n_cpus = thread::available_parallelism().map_or(1, NonZero::get);
        threads.or(n_cpus, max_open_size, settings.size_limit)
    }

    fn open_admin(
        &self,
        port: Port,
        guard: Guard,
        mut metrics: Vec<MetricsSource>,
        scores: &ScorePlane,
    ) -> Doors {
        let mut api = register::routes(&scores.register).merge(scores.exporter.routes());
        let mut assets = Router::new();
        if let Some(page) = &scores.page {
            metrics.push(page.metrics());
            api = api.merge(page.api());
            assets = page.assets();
        }
        let served = AdminPort {
            scrapes: Arc::default(),
            telemetry: self.telemetry.clone(),
            metrics,
            started_unix_nanos: self.started.unix_nanos,
            otlp: OtlpAddresses {
                grpc: self.addresses.grpc,
                http: self.addresses.http,
            },
            guard: Arc::new(guard),
            api,
            page: assets,
        };
        // Set the phase before the first probe can arrive. A process that only judges a topic is
        // ready once it has joined the group.
        let kafka = &self.config.kafka;
        if !kafka.read.enabled || kafka.write.enabled {
            self.telemetry.enter(Phase::Serving);
        }
        let mut admin = Doors::new();
        admin.open(
            port,
            handler(TowerToHyperService::new(served.router())),
            &self.telemetry,
        );
        admin
    }

    /// Starts the tasks that warn if no request arrives, and that follow the memory limit and the
    /// peers.
    fn start_background(self, intake: &RequestIntake) -> JoinSet<()> {
        let mut background = JoinSet::new();
        let addresses = self.addresses;
        if addresses.grpc.is_some() || addresses.http.is_some() {
            let last_request = intake.last_request.clone();
            background.spawn(last_request.report_silence(SILENCE, addresses));
        }
        background.spawn(self.memory_watch.run());
        if let (Some(peers), Some(scoring)) = (&self.config.assemble.peers, &intake.scoring) {
            let (peers, scoring) = (peers.clone(), scoring.clone());
            background.spawn(watch_peers(peers, scoring, self.telemetry, self.started));
        }
        background
    }
}

impl ScorePlane {
    fn judge(&self) -> Judge {
        judge(
            self.exporter.clone(),
            self.coverage.clone(),
            self.page.clone(),
            self.observer.clone(),
        )
    }

    /// Returns the metrics of scores and of selected trajectories.
    fn metrics(&self) -> [MetricsSource; 2] {
        let exporter = self.exporter.clone();
        let scores: MetricsSource = Arc::new(move |page| exporter.write_metrics(page));
        [scores, coverage_metrics(self.coverage.clone())]
    }
}

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
        traces: Box::new(sizes),
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
