//! Evaluations in, score spans, events, metrics and backends' own scores out. Knows how scores are
//! written down and sent off; does not know how they came about.
//!
//! [`Exporter::export`] writes each evaluation into the open batch of every shape at once, so that what waits is bytes, counted, and no
//! trajectory is held on to. Each shape has a destination, a queue and a delivery of its own: one
//! backend's outage stays its own, and none of them touches the original telemetry.

mod feed;
mod feed_http;
mod metrics_page;
mod outlet;
mod print;
pub mod score_event;
pub mod score_line;
pub mod score_metrics;
pub mod score_series;
pub mod score_span;
mod score_wire;
mod writer;
mod writer_datadog;
mod writer_langfuse;
mod writer_mlflow;
mod writer_phoenix;
mod writers;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use axum::Router;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::config::{self, Config, Destination, Off, Shape};
use crate::evaluate::{Evaluation, Explain};
use crate::sync::Mutex;
use crate::telemetry::{
    Heartbeat, MetricsPage, ScoreLabelsFolded, ScoreShapeOff, ScoresUnprinted, Telemetry,
};
use crate::transport::{CompletionGuard, TransportError};

use feed::Feed;
use outlet::{Outlet, Outlets};
use print::Printer;
use score_line::Colour;
use score_metrics::Metrics;
use score_series::{Folded, Limits};
use score_wire::Batch;
use writers::{Ticket, Writers};

/// A batch is sent when it has grown to this many bytes: gRPC peers take 4 MiB by default.
const MAX_BATCH_SIZE: usize = 2 << 20;
/// However small `scores.metrics.interval` is set: collecting thousands of series must not become
/// all we do.
const MIN_INTERVAL: Duration = Duration::from_millis(10);
/// What the exporter is told at start.
pub struct Plan<'a> {
    /// `scores`, and the `forward` that it falls back on.
    pub config: &'a Config,
    /// Most bytes of scores that wait, all shapes together.
    pub budget: usize,
    /// Where evaluations are printed, if they are: where no endpoint is set at all.
    pub print: Option<Print>,
}

/// Evaluations as text: what `run` does where no endpoint is set at all.
pub struct Print {
    /// For whom.
    pub form: Form,
    /// Where to; written by a thread of its own, and left alone once a write fails.
    pub out: Box<dyn Write + Send>,
}

/// For whom evaluations are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Human(Colour),
    /// For programs: the lines of `replay --format jsonl`.
    Jsonl,
}

/// Why no exporter could be started.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A destination cannot be used.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The printing thread could not be started.
    #[error("cannot start the thread that prints scores: {0}")]
    Print(#[source] io::Error),
}

/// Takes evaluations. Clones are handles of the same one.
#[derive(Debug, Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

/// The exporter's tasks; the one who stops it holds on to them.
#[derive(Debug)]
pub struct Running {
    shared: Arc<Shared>,
    outlets: Outlets,
    writers: Option<writers::Running>,
    batcher: JoinSet<()>,
    stop: watch::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    spans: Option<Lane<score_span::Settings>>,
    events: Option<Lane<Vec<String>>>,
    metrics: Metrics,
    metrics_outlet: Option<Outlet>,
    printer: Option<(Form, Printer)>,
    writers: Option<Writers>,
    feed: Arc<Feed>,
    max_evaluations: usize,
    max_batch_size: usize,
    /// Something was put into an empty batch.
    begun: Notify,
    /// We are about to be stopped.
    hurried: Notify,
    telemetry: Arc<Telemetry>,
}

/// A shape that travels in batches.
#[derive(Debug)]
struct Lane<S> {
    settings: S,
    open: Mutex<Open>,
    outlet: Outlet,
}

/// The batch that is being filled, and what stands for it with those who wait until it is
/// delivered.
#[derive(Debug, Default)]
struct Open {
    batch: Batch,
    ticket: Option<Arc<Ticket>>,
}

// === impl Exporter ===

impl Exporter {
    /// Starts the shapes that have a destination, and says why an enabled one has none (unless
    /// evaluations are printed instead). Must be called within a runtime. `rng` is for jitter and
    /// for the `service.instance.id` of our metrics, so its seed must differ between processes.
    pub fn start(
        plan: Plan<'_>,
        telemetry: &Arc<Telemetry>,
        rng: &mut fastrand::Rng,
    ) -> Result<(Self, Running), ExportError> {
        let Plan {
            config,
            budget,
            print,
        } = plan;
        let scores = &config.scores;
        let [span, event, metrics] = [Shape::Span, Shape::Event, Shape::Metrics].map(|shape| {
            match config.score_destination(shape) {
                Ok(destination) => Some(destination),
                Err(off) => {
                    if !matches!(off, Off::Disabled(_)) && print.is_none() {
                        ScoreShapeOff {
                            shape: shape.as_str(),
                            why: off.to_string(),
                        }
                        .emit(telemetry);
                    }
                    None
                }
            }
        });
        let n_shares = [&span, &event, &metrics].into_iter().flatten().count()
            + usize::from(print.is_some())
            + scores.writers.len();
        let share = budget / n_shares.max(1);

        let mut outlets = Outlets::new(share, telemetry.clone());
        let mut outlet = |name, shape: Shape, destination: Option<Destination>| {
            destination
                .map(|destination| outlets.open(name, shape.signal(), &destination, rng.fork()))
                .transpose()
        };
        let span = outlet("score_spans", Shape::Span, span)?;
        let event = outlet("score_events", Shape::Event, event)?;
        let metrics_outlet = outlet("score_metrics", Shape::Metrics, metrics)?;
        let printer = print
            .map(|Print { form, out }| Printer::start(out, share).map(|printer| (form, printer)))
            .transpose();

        let (writers, running_writers) = Writers::start(config, share, telemetry, rng)?.unzip();

        let shared = Arc::new(Shared {
            spans: span.map(|outlet| Lane {
                settings: span_settings(scores),
                open: Mutex::default(),
                outlet,
            }),
            events: event.map(|outlet| Lane {
                settings: scores.copy_attributes.clone(),
                open: Mutex::default(),
                outlet,
            }),
            metrics: Metrics::new(metrics_settings(&scores.metrics, uuid(rng))),
            metrics_outlet,
            printer: printer.map_err(ExportError::Print)?,
            writers,
            feed: Arc::new(Feed::new(telemetry.clone())),
            max_evaluations: scores.batch.max_evaluations.max(1),
            // A batch must leave room for others in its queue.
            max_batch_size: MAX_BATCH_SIZE.min(share / 4),
            begun: Notify::new(),
            hurried: Notify::new(),
            telemetry: telemetry.clone(),
        });
        let (stop, stopped) = watch::channel(());
        let heartbeat =
            telemetry.heartbeat("score batches", tokio::time::Instant::now().into_std());
        let mut batcher = JoinSet::new();
        let (max_delay, interval) = (
            scores.batch.max_delay.0,
            scores.metrics.interval.0.max(MIN_INTERVAL),
        );
        batcher.spawn(run_batcher(
            shared.clone(),
            stopped,
            heartbeat,
            max_delay,
            interval,
        ));
        let exporter = Self {
            shared: shared.clone(),
        };
        Ok((
            exporter,
            Running {
                shared,
                outlets,
                writers: running_writers,
                batcher,
                stop,
            },
        ))
    }

    /// Takes evaluations in every shape. Never waits: what finds its queue full pushes out the
    /// oldest, which is counted.
    pub fn export(&self, evaluations: &[Evaluation], explain: &Explain, now_unix_nanos: u64) {
        let shared = &*self.shared;
        for evaluation in evaluations {
            if let Some(folded) = shared.metrics.record(evaluation, now_unix_nanos) {
                ScoreLabelsFolded {
                    limit: limit_name(folded),
                }
                .emit(&shared.telemetry);
            }
        }
        let tickets = shared.spans.as_ref().map_or_else(Vec::new, |lane| {
            shared.fill(lane, evaluations, |batch, evaluation| {
                score_span::push(batch, evaluation, &lane.settings, explain)
            })
        });
        if let Some(writers) = &shared.writers {
            writers.take(evaluations, &tickets, now_unix_nanos);
        }
        if let Some(lane) = &shared.events {
            shared.fill(lane, evaluations, |batch, evaluation| {
                score_event::push(batch, evaluation, &lane.settings, now_unix_nanos)
            });
        }
        shared.feed.push(evaluations, now_unix_nanos);
        if let Some((form, printer)) = &shared.printer {
            for evaluation in evaluations {
                let n_dropped = printer.print(print_text(*form, evaluation));
                if n_dropped > 0 {
                    ScoresUnprinted {
                        n_items: n_dropped as u64,
                        reason: "queue_full",
                    }
                    .emit(&shared.telemetry);
                }
            }
        }
    }

    /// `GET /v1/scores`: evaluations as they come, for those who are let to the admin port's API.
    pub fn routes(&self) -> Router {
        feed_http::routes(self.shared.feed.clone())
    }

    /// Writes the scores' metrics for `/metrics`, whether or not they are sent anywhere.
    pub fn write_metrics(&self, page: &mut MetricsPage) {
        metrics_page::write(&self.shared.metrics.collect(), page);
    }
}

impl Shared {
    /// Answers, where there are writers, with the ticket of the batch into which each evaluation
    /// went, if it went into one.
    fn fill<S>(
        &self,
        lane: &Lane<S>,
        evaluations: &[Evaluation],
        push: impl Fn(&mut Batch, &Evaluation),
    ) -> Vec<Option<Weak<Ticket>>> {
        let mut tickets = Vec::new();
        let mut open = lane.open.lock();
        let was_empty = open.batch.n_items() == 0;
        for evaluation in evaluations {
            let n_before = open.batch.n_items();
            push(&mut open.batch, evaluation);
            if let Some(writers) = &self.writers {
                let is_in = n_before < open.batch.n_items();
                let ticket = open.ticket.get_or_insert_with(|| writers.ticket());
                tickets.push(is_in.then(|| Arc::downgrade(ticket)));
            }
            if open.batch.n_items() >= self.max_evaluations
                || open.batch.size() >= self.max_batch_size
            {
                open.send(&lane.outlet);
            }
        }
        if was_empty && open.batch.n_items() > 0 {
            self.begun.notify_one();
        }
        tickets
    }

    fn flush(&self) {
        fn flush<S>(lane: &Lane<S>) {
            let mut open = lane.open.lock();
            if open.batch.n_items() > 0 {
                open.send(&lane.outlet);
            }
        }
        self.spans.iter().for_each(flush);
        self.events.iter().for_each(flush);
    }

    fn send_metrics(&self) {
        if let Some(outlet) = &self.metrics_outlet
            && let Some((body, n_points)) = self.metrics.request()
        {
            outlet.send(n_points, body, None);
        }
    }
}

impl Open {
    fn send(&mut self, outlet: &Outlet) {
        outlet.send(
            self.batch.n_items(),
            self.batch.take(),
            self.ticket.take().map(|ticket| CompletionGuard(ticket)),
        );
    }
}

/// Sends what has waited long enough, and the metrics on their interval, until told to stop.
async fn run_batcher(
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<()>,
    heartbeat: Heartbeat,
    mut max_delay: Duration,
    interval: Duration,
) {
    let mut flush_at = None;
    let mut metrics_at = tokio::time::Instant::now() + interval;
    loop {
        let now = tokio::time::Instant::now();
        heartbeat.beat(now.into_std());
        if flush_at.is_some_and(|flush_at| flush_at <= now) {
            flush_at = None;
            shared.flush();
        }
        if metrics_at <= now {
            // After a pause of the whole process one collection makes up for all that were missed.
            metrics_at = now + interval;
            shared.send_metrics();
        }
        let wake_at = (now + Heartbeat::INTERVAL)
            .min(metrics_at)
            .min(flush_at.unwrap_or(metrics_at));
        tokio::select! {
            () = shared.begun.notified() => flush_at = flush_at.or(Some(tokio::time::Instant::now() + max_delay)),
            () = shared.hurried.notified() => {
                // What is open goes now, and from here on nothing waits for company.
                max_delay = Duration::ZERO;
                (flush_at, metrics_at) = (Some(now), now);
            }
            () = tokio::time::sleep_until(wake_at) => {}
            _ = stopped.changed() => return heartbeat.finish(),
        }
    }
}

// === impl Running ===

impl Running {
    /// Sends the open batches and the metrics now, and every later score at once: we are about to
    /// be stopped.
    pub fn begin_drain(&self) {
        self.shared.hurried.notify_one();
    }

    /// Sends the open batches and the metrics as they stand, delivers what it can until `deadline`,
    /// and says how many items of which queue it could not deliver. The pipeline must have been
    /// drained before: what is exported later may be lost.
    pub async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        // The batcher may be gone, which is as good.
        let _ = self.stop.send(());
        while self.batcher.join_next().await.is_some() {}
        self.shared.feed.close();
        self.shared.flush();
        self.shared.send_metrics();
        let mut left = self.outlets.drain(deadline).await;
        // Last, since they wait for the score spans.
        if let Some(writers) = self.writers {
            left.extend(writers.drain(deadline).await);
        }
        if let Some((_, printer)) = &self.shared.printer {
            let n_left = printer.finish(deadline).await as u64;
            if n_left > 0 {
                ScoresUnprinted {
                    n_items: n_left,
                    reason: "shutdown",
                }
                .emit(&self.shared.telemetry);
                left.insert("print", n_left);
            }
        }
        left
    }
}

// === configuration, translated ===

fn span_settings(scores: &config::Scores) -> score_span::Settings {
    score_span::Settings {
        copy_attributes: scores.copy_attributes.clone(),
        on_revision: scores.span.on_revision,
        status_on_fail: scores.span.status_on_fail,
        sample_pass: scores.span.sample_pass,
    }
}

fn metrics_settings(
    metrics: &config::MetricScores,
    instance_id: String,
) -> score_metrics::Settings {
    score_metrics::Settings {
        temporality: metrics.temporality,
        limits: Limits {
            max_services: metrics.max_services,
            max_agents: metrics.max_agents,
        },
        instance_id,
    }
}

/// A random UUID (version 4).
fn uuid(rng: &mut fastrand::Rng) -> String {
    let bits = rng.u128(..) & !(0xf << 76 | 0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

fn limit_name(folded: Folded) -> &'static str {
    match folded {
        Folded::Services => "scores.metrics.max_services",
        Folded::Agents => "scores.metrics.max_agents",
        Folded::Series => "2 000 series of an instrument",
    }
}

fn print_text(form: Form, evaluation: &Evaluation) -> String {
    match form {
        Form::Human(colour) => format!("{}\n", score_line::human(evaluation, colour)),
        Form::Jsonl => format!(
            "{}\n",
            serde_json::Value::Object(score_line::json(evaluation))
        ),
    }
}
