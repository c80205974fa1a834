//! Exports evaluations as score spans, events, metrics, printed lines and a live stream, and writes
//! them to backends' own score APIs.
//!
//! [`Exporter::export`] immediately encodes evaluations into the open batches of the signals.
//! Queues contain only encoded bytes, which count against the queue's limit, and no trajectory
//! stays in memory. Each signal has a separate queue and delivery: an outage of its destination
//! affects no signal with another destination, and never the original telemetry.

pub mod score_event;
pub mod score_line;
pub mod score_metrics;
pub mod score_series;
pub mod score_span;
mod score_wire;
mod writer_datadog;
mod writer_langfuse;
mod writer_mlflow;
mod writer_phoenix;
mod writer_score;

mod writer;

mod lanes;

mod backends;
mod metrics_page;
mod print;
mod queues;
mod signals;
mod stream;
mod stream_http;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use bytes::Bytes;
use judge::evaluate::{CriterionSeverity, Evaluation, Explain, JudgedBy, Stage};
use judge::pipeline::Judged;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::config::{Bound, Config, Destination, Off, Scores, Shape, Signal};
use crate::journal::{JournalLog, JudgedMarks, Ledger, Ticket};
use crate::sync::Mutex;
use crate::telemetry::{
    AlarmRaised, Heartbeat, MetricsPage, ScoreLabelsFolded, ScoreShapeOff, ScoresUnprinted,
    Telemetry,
};
use crate::transport::{OutboundRequest, Queue, SentHeaders, TransportError};

pub use lanes::n_queued;

use backends::Backend;
use print::Printer;
use queues::ScoreQueues;
use score_line::Look;
use score_metrics::ScoreMetrics;
use score_series::Folded;
use signals::BatchedSignal;
use stream::ScoreStream;

/// Lower bound of the delay after which waiting marks of judged traces cause a flush.
const MIN_MARK_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay of an alarm, during which further alarms join its batch.
const MAX_ALARM_DELAY: Duration = Duration::from_millis(50);
/// Lower bound of `scores.metrics.interval`: collecting thousands of series must not use a whole
/// core.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

pub struct ExportPlan<'a> {
    /// The configuration: `scores`, and `forward` as its fallback.
    pub config: &'a Config,
    /// Maximum bytes of queued scores, for all queues together.
    pub budget: Bound,
    pub print: Option<Print>,
    /// Marks a trace as judged once its scores are journaled, delivered or dropped.
    pub marks: Option<Arc<JudgedMarks>>,
    /// The log that stores scores until their delivery.
    pub journal: Option<JournalLog>,
    /// The queue that delivers the judged spans, if this process delivers them.
    pub spans: Option<Queue>,
}

pub struct Print {
    pub form: PrintForm,
    /// The output. A separate thread writes to it, and stops once a write fails.
    pub out: Box<dyn Write + Send>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrintForm {
    Human(Look),
    /// JSON lines for programs, as `replay --format jsonl` writes.
    Jsonl,
}

#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error("cannot start the thread that prints scores: {0}")]
    Print(#[source] io::Error),
}

/// Clones share one exporter.
#[derive(Debug, Clone)]
pub struct Exporter {
    shared: Arc<Shared>,
}

/// The tasks of an exporter, for the owner that stops them.
#[derive(Debug)]
pub struct ExportTasks {
    shared: Arc<Shared>,
    queues: ScoreQueues,
    batcher: JoinSet<()>,
    stop: watch::Sender<()>,
}

struct Shared {
    signals: Vec<BatchedSignal>,
    /// The headers of each shape with a destination, and of each backend.
    headers: (Vec<(Shape, SentHeaders)>, Vec<SentHeaders>),
    metrics: ScoreMetrics,
    metrics_queue: Option<Queue>,
    printer: Option<(PrintForm, Printer)>,
    backends: Vec<Backend>,
    ledger: Arc<Ledger>,
    marks: Option<Arc<JudgedMarks>>,
    stream: Arc<ScoreStream>,
    /// Notified when a batch gets its first score, and when marks are added.
    batch_opened: Notify,
    alarm_added: Notify,
    drain_begun: Notify,
    telemetry: Arc<Telemetry>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

// === impl Exporter ===

impl Exporter {
    /// Starts every signal that has a destination, and logs why an enabled signal has none (unless
    /// evaluations are printed instead). Must be called within a runtime. `rng` creates jitter and
    /// the `service.instance.id` of the metrics, so its seed must differ between processes.
    pub fn start(
        plan: ExportPlan<'_>,
        telemetry: &Arc<Telemetry>,
        rng: &mut fastrand::Rng,
    ) -> Result<(Self, ExportTasks), ExportError> {
        let (config, scores) = (plan.config, &plan.config.scores);
        let destinations = destinations(config, plan.print.is_some(), telemetry);
        let n_printers = usize::from(plan.print.is_some());
        let share = (plan.budget).share(destinations.len() + n_printers + scores.writers.len());
        let mut queues = ScoreQueues {
            capacity: share.clone(),
            telemetry: telemetry.clone(),
            queues: Vec::new(),
            journal: plan.journal,
            spans: plan.spans,
            deliveries: JoinSet::new(),
        };
        let settings = Arc::new(scores.clone());
        let (mut headers, mut backend_headers) = (Vec::new(), Vec::new());
        let (mut signals, mut metrics_queue, mut backends) = (Vec::new(), None, Vec::new());
        for (shape, destination) in destinations {
            let (queue, sent) = queues.open(lanes::queue_name(shape), &destination, rng.fork())?;
            headers.push((shape, sent));
            match shape {
                Shape::Span | Shape::Event => signals.push(BatchedSignal {
                    shape,
                    scores: settings.clone(),
                    quarter_of_queue: share.share(4),
                    queue,
                    open: Mutex::default(),
                }),
                Shape::Metrics => metrics_queue = Some(queue),
            }
        }
        for (backend_idx, writer) in scores.writers.iter().enumerate() {
            let destination = config.writer_destination(backend_idx, writer);
            let name = writer::queue_name(writer);
            let (queue, sent) = queues.open(name, &destination, rng.fork())?;
            backend_headers.push(sent);
            let writer = writer.clone();
            backends.push(Backend { writer, queue });
        }
        let printer = plan.print.map(|Print { form, out }| {
            let printer = Printer::start(out, share);
            printer.map(|printer| (form, printer))
        });
        let shared = Arc::new(Shared {
            signals,
            headers: (headers, backend_headers),
            metrics: ScoreMetrics::new(&scores.metrics, uuid(rng)),
            metrics_queue,
            printer: printer.transpose().map_err(ExportError::Print)?,
            backends,
            ledger: (plan.marks.as_ref()).map_or_else(Arc::default, |it| Arc::clone(it.ledger())),
            marks: plan.marks,
            stream: Arc::new(ScoreStream::new(telemetry.clone())),
            batch_opened: Notify::new(),
            alarm_added: Notify::new(),
            drain_begun: Notify::new(),
            telemetry: telemetry.clone(),
        });
        let (stop, stopped) = watch::channel(());
        let mut batcher = JoinSet::new();
        let started = tokio::time::Instant::now().into_std();
        let heartbeat = telemetry.heartbeat("score batches", started);
        batcher.spawn(run_batcher(shared.clone(), stopped, settings, heartbeat));
        let tasks = ExportTasks {
            shared: shared.clone(),
            queues,
            batcher,
            stop,
        };
        Ok((Self { shared }, tasks))
    }

    /// Exports evaluations in all configured forms (some get no score span), and alarms as events,
    /// metrics, lines of the stream and, if the criterion requests them, score spans. With a
    /// journal, marks the traces as judged once all their scores are journaled, delivered or
    /// dropped. Never waits: a full queue drops and counts its oldest scores.
    pub fn export(&self, judged: &Judged, explain: &Explain, now_unix_nanos: u64) {
        let (evaluations, alarms) = (&judged.evaluations, &judged.alarms);
        let marks = judged.marks.encode();
        if evaluations.is_empty() && alarms.is_empty() && marks.is_none() {
            return;
        }
        if !evaluations.is_empty() {
            self.add(evaluations, explain, now_unix_nanos);
        }
        if !alarms.is_empty() {
            self.add_alarms(judged, explain, now_unix_nanos);
        }
        // Marks wait for scores that were added before them, so add marks last.
        if let (Some((marks, oldest)), Some(judged)) = (&marks, &self.shared.marks) {
            judged.add(marks, *oldest);
            self.shared.batch_opened.notify_one();
        }
        if alarms
            .iter()
            .any(|alarm| alarm.stage == Stage::Alarm && !alarm.replayed)
        {
            self.shared.alarm_added.notify_one();
        }
    }

    /// Counts and logs new alarms, and adds all alarms to the stream, to the open batches of events
    /// and, if the criterion requests it, of score spans.
    fn add_alarms(&self, judged: &Judged, explain: &Explain, now_unix_nanos: u64) {
        let shared = &*self.shared;
        for alarm in &judged.alarms {
            if alarm.stage != Stage::Alarm || alarm.replayed {
                continue;
            }
            shared
                .metrics
                .record_alarm(alarm, judged.alarmed_unix_nanos, now_unix_nanos);
            AlarmRaised {
                criterion: alarm.criterion.name(),
                severity: alarm
                    .criterion
                    .severity()
                    .map_or("", CriterionSeverity::as_str),
                trace_id: alarm.trajectory.trace_id.to_string(),
                service: &alarm.trajectory.service,
                explanation: alarm.explanation(),
                second: now_unix_nanos / 1_000_000_000,
            }
            .emit(&shared.telemetry);
        }
        let has_span = |alarm: &&Evaluation| {
            let JudgedBy::Criterion(criterion) = &alarm.criterion else {
                return false;
            };
            alarm.stage == Stage::Alarm && criterion.alarm.is_some_and(|alarm| alarm.score_span)
        };
        let with_span: Vec<Evaluation> = judged.alarms.iter().filter(has_span).cloned().collect();
        for signal in &shared.signals {
            let alarms = if signal.shape == Shape::Span { &with_span } else { &judged.alarms };
            signal.add(alarms, explain, now_unix_nanos, &shared.ledger);
        }
        shared.stream.push(&judged.alarms, now_unix_nanos);
    }

    fn add(&self, evaluations: &[Evaluation], explain: &Explain, now_unix_nanos: u64) {
        let shared = &*self.shared;
        // A repeated evaluation was counted when it was first reported.
        for evaluation in evaluations.iter().filter(|it| !it.replayed) {
            if let Some(folded) = shared.metrics.record(evaluation, now_unix_nanos) {
                let limit = limit_name(folded);
                ScoreLabelsFolded { limit }.emit(&shared.telemetry);
            }
        }
        for signal in &shared.signals {
            if signal.add(evaluations, explain, now_unix_nanos, &shared.ledger) {
                shared.batch_opened.notify_one();
            }
        }
        for backend in &shared.backends {
            backend.send(evaluations, now_unix_nanos, &shared.ledger);
        }
        shared.stream.push(evaluations, now_unix_nanos);
        if let Some((form, printer)) = &shared.printer {
            for evaluation in evaluations {
                let n_dropped = printer.print(print_text(*form, evaluation));
                shared.count_unprinted(n_dropped, "queue_full");
            }
        }
    }

    /// Sends the open batches now. Returns a ticket number that is greater than the ticket numbers
    /// of all scores exported so far.
    pub fn flush(&self) -> u64 {
        self.shared.flush();
        self.shared.ledger.next()
    }

    /// Returns the ticket number below which all scores are journaled, delivered or dropped.
    pub fn low(&self) -> u64 {
        self.shared.ledger.low()
    }

    /// Returns true if all queues of evaluations are at most half full, so that no queue drops
    /// scores soon.
    pub fn has_room(&self) -> bool {
        let shared = &*self.shared;
        let of_signals = shared.signals.iter().map(|signal| &signal.queue);
        let of_backends = shared.backends.iter().map(|backend| &backend.queue);
        let printer = shared.printer.as_ref();
        of_signals.chain(of_backends).all(Queue::is_half_empty)
            && printer.is_none_or(|(_, printer)| printer.is_half_empty())
    }

    /// Uses the headers of `config` for all further requests. Only the headers may differ from the
    /// configuration at the start.
    ///
    /// # Errors
    /// Returns an error if a header is invalid. Headers that were replaced before the error stay
    /// replaced.
    pub fn renew_headers(&self, config: &Config) -> Result<(), TransportError> {
        let (of_shapes, of_backends) = &self.shared.headers;
        for (shape, headers) in of_shapes {
            if let Ok(destination) = config.score_destination(*shape) {
                headers.replace(&destination)?;
            }
        }
        let writers = config.scores.writers.iter().enumerate();
        for ((backend_idx, writer), headers) in writers.zip(of_backends) {
            headers.replace(&config.writer_destination(backend_idx, writer))?;
        }
        Ok(())
    }

    /// Returns the route `GET /v1/scores`, a stream of evaluations, for the API of the admin port.
    pub fn routes(&self) -> Router {
        stream_http::routes(self.shared.stream.clone())
    }

    /// Writes the scores' metrics for `/metrics`, even if no destination receives them.
    pub fn write_metrics(&self, page: &mut MetricsPage) {
        metrics_page::write(&self.shared.metrics.collect(), page);
    }
}

impl Shared {
    fn flush(&self) {
        let send_open = || {
            for signal in &self.signals {
                signal.flush(&self.ledger);
            }
        };
        match &self.marks {
            Some(marks) => marks.turn(send_open),
            None => send_open(),
        }
    }

    fn write_marks(&self) {
        if let Some(marks) = &self.marks {
            marks.write();
        }
    }

    fn send_metrics(&self) {
        if let Some(queue) = &self.metrics_queue
            && let Some((body, n_points)) = self.metrics.request()
        {
            let body = Bytes::from(body);
            let request = OutboundRequest::otlp(Signal::Metrics, body, n_points as u64);
            queue.send(request, Ticket::default());
        }
    }

    fn count_unprinted(&self, n_texts: usize, reason: &'static str) {
        let n_items = n_texts as u64;
        if n_items > 0 {
            ScoresUnprinted { n_items, reason }.emit(&self.telemetry);
        }
    }
}

/// Sends batches that are old enough, and the metrics at their interval, until stopped.
async fn run_batcher(
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<()>,
    settings: Arc<Scores>,
    heartbeat: Heartbeat,
) {
    let mut max_delay = settings.batch.max_delay.0;
    let interval = settings.metrics.interval.0.max(MIN_INTERVAL);
    let mut flush_at = None;
    let mut metrics_at = tokio::time::Instant::now() + interval;
    loop {
        let now = tokio::time::Instant::now();
        heartbeat.beat(now.into_std());
        if flush_at.is_some_and(|flush_at| flush_at <= now) {
            flush_at = None;
            shared.flush();
        }
        // Marks wait for a turn, for example because the journal rejected them.
        if shared.marks.as_ref().is_some_and(|it| it.is_waiting()) {
            flush_at = flush_at.or(Some(now + max_delay.max(MIN_MARK_DELAY)));
        }
        if metrics_at <= now {
            // If the whole process was paused, one collection replaces all that were missed.
            metrics_at = now + interval;
            shared.send_metrics();
        }
        let wake_at = (now + Heartbeat::INTERVAL)
            .min(metrics_at)
            .min(flush_at.unwrap_or(metrics_at));
        tokio::select! {
            () = shared.batch_opened.notified() => {
                flush_at = flush_at.or(Some(tokio::time::Instant::now() + max_delay));
            }
            () = shared.alarm_added.notified() => {
                let soon = tokio::time::Instant::now() + MAX_ALARM_DELAY;
                flush_at = Some(flush_at.map_or(soon, |at: tokio::time::Instant| at.min(soon)));
            }
            () = shared.drain_begun.notified() => {
                // Send open batches immediately, and delay no later batch.
                max_delay = Duration::ZERO;
                (flush_at, metrics_at) = (Some(now), now);
            }
            () = shared.ledger.changed() => shared.write_marks(),
            () = tokio::time::sleep_until(wake_at) => {}
            _ = stopped.changed() => return heartbeat.finish(),
        }
    }
}

// === impl ExportTasks ===

impl ExportTasks {
    /// Sends the open batches and the metrics now, and every later score immediately.
    pub fn begin_drain(&self) {
        self.shared.drain_begun.notify_one();
    }

    /// Sends the open batches and the metrics, delivers until `deadline`, and returns the number of
    /// undelivered items by queue. Call it after the pipeline has drained, because scores that are
    /// exported later may be lost.
    pub async fn drain(mut self, deadline: Instant) -> BTreeMap<&'static str, u64> {
        // The batcher may have stopped already.
        let _ = self.stop.send(());
        while self.batcher.join_next().await.is_some() {}
        self.shared.stream.close();
        self.shared.flush();
        self.shared.send_metrics();
        let mut left = self.queues.drain(deadline).await;
        self.shared.write_marks();
        if let Some((_, printer)) = &self.shared.printer {
            let n_left = printer.finish(deadline).await;
            self.shared.count_unprinted(n_left, "shutdown");
            if n_left > 0 {
                left.insert("print", n_left as u64);
            }
        }
        left
    }
}

// === configuration, translated ===

/// Returns the destination of each enabled shape. Logs why an enabled shape has none, unless
/// evaluations are printed instead.
fn destinations(
    config: &Config,
    is_printed: bool,
    telemetry: &Telemetry,
) -> Vec<(Shape, Destination)> {
    let mut destinations = Vec::new();
    for shape in Shape::ALL {
        match config.score_destination(shape) {
            Ok(destination) => destinations.push((shape, destination)),
            Err(Off::Disabled(_)) => {}
            Err(_) if is_printed => {}
            Err(off) => ScoreShapeOff {
                shape: shape.as_str(),
                why: off.to_string(),
            }
            .emit(telemetry),
        }
    }
    destinations
}

/// Returns a random UUID (version 4).
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
        Folded::Series => "750 combinations of labels",
    }
}

fn print_text(form: PrintForm, evaluation: &Evaluation) -> String {
    match form {
        PrintForm::Human(look) => format!("{}\n", score_line::human(evaluation, look)),
        PrintForm::Jsonl => format!("{}\n", score_line::json_text(evaluation)),
    }
}
