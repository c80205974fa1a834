//! Test helpers: spans built in one line, and a buffer whose clock moves only on request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use otlp::span::{
    EntryRange, Now, PeerId, Resource, Span, SpanId, SpanRow, StoredAttributes,
    StoredAttributesBuilder, TraceId,
};

use crate::assemble::{
    CloseReason, Closed, Inserted, Memo, Partition, Settings, TornServices, Trace, TraceBuffer,
};

/// The Unix time at which every test begins, in seconds.
pub(super) const BEGIN: u64 = 1_800_000_000;

/// The memo of a trace in these tests: the number of times that the trace was reported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Reported(pub(super) u32);

impl Memo for Reported {
    fn size(&self) -> usize {
        0
    }
}

/// Returns the default times and numbers of the configuration, with large memory limits.
pub(super) fn settings() -> Settings {
    Settings {
        partition: Partition::WHOLE,
        sender_key: 0,
        settle: Duration::from_secs(5),
        max_settle: Duration::from_secs(15),
        settle_remote: Duration::from_secs(15),
        inactive: Duration::from_secs(180),
        restart_guard: Some(Duration::from_secs(120)),
        warm_up: Duration::ZERO,
        has_peers: false,
        expired: Duration::from_secs(3_600),
        span_limit: 32_000,
        size_limit: 16 << 20,
        max_open_traces: 100_000,
        max_open_size: 1 << 30,
        max_recent_traces: 100_000,
        max_recent_size: 1 << 30,
        recent_ttl: Duration::from_secs(3_600),
        ..Settings::replay()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "an Instant can be had in no other way; every test counts from this one"
)]
pub(super) fn begin() -> Now {
    Now {
        instant: Instant::now(),
        unix_nanos: BEGIN * 1_000_000_000,
    }
}

pub(super) fn trace_id(n: u64) -> TraceId {
    TraceId::try_new(&u128::from(n).to_be_bytes()).unwrap()
}

pub(super) fn span_id(n: u64) -> SpanId {
    SpanId::try_new(&n.to_be_bytes()).unwrap()
}

pub(super) fn kept(name: &str) -> StoredAttributes {
    let mut builder = StoredAttributesBuilder::default();
    builder.name(name);
    builder.finish()
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sent {
    pub(super) span: Span,
}

/// Returns a span of trace 1 without a parent, from second 1 to second 2 after `BEGIN`.
pub(super) fn span(id: u64) -> Sent {
    let span = Span {
        trace_id: trace_id(1),
        row: SpanRow::new(span_id(id)),
        resource: Arc::new(Resource {
            encoded: Box::default(),
            service: "shop".into(),
            kept: StoredAttributes::default(),
        }),
        kept: kept("span"),
    };
    Sent { span }.lasting(1, 2)
}

impl Sent {
    pub(super) fn of(mut self, trace: u64) -> Self {
        self.span.trace_id = trace_id(trace);
        self
    }

    pub(super) fn of_service(mut self, service: &str) -> Self {
        let mut resource = (*self.span.resource).clone();
        resource.service = service.into();
        self.span.resource = resource.into();
        self
    }

    pub(super) fn under(mut self, parent: u64) -> Self {
        self.span.parent_id = Some(span_id(parent));
        self
    }

    /// Sets start and end in seconds after `BEGIN`, or before it if negative.
    pub(super) fn lasting(mut self, from: i64, to: i64) -> Self {
        let unix_nanos = |secs: i64| BEGIN.saturating_add_signed(secs) * 1_000_000_000;
        (self.span.start_unix_nanos, self.span.end_unix_nanos) = (unix_nanos(from), unix_nanos(to));
        self
    }

    pub(super) fn open(mut self) -> Self {
        self.span.end_unix_nanos = 0;
        self
    }

    pub(super) fn remote(mut self) -> Self {
        self.span.flags = 0x301;
        self
    }

    /// Marks the parent as a span of the same process.
    pub(super) fn local(mut self) -> Self {
        self.span.flags = 0x101;
        self
    }

    pub(super) fn tool(mut self) -> Self {
        self.span.class.tool_call = true;
        self
    }

    pub(super) fn agent_run(mut self) -> Self {
        self.span.class.agent_run = true;
        self
    }

    pub(super) fn model(mut self) -> Self {
        self.span.class.model = true;
        self
    }

    pub(super) fn partial(mut self) -> Self {
        self.span.class.partial = true;
        self.span.end_unix_nanos = self.span.start_unix_nanos;
        self
    }

    pub(super) fn named(mut self, name: &str) -> Self {
        self.span.kept = kept(name);
        self
    }
}

pub(super) struct Fixture {
    pub(super) buffer: TraceBuffer<Reported>,
    /// Set only if the settings have peers.
    pub(super) torn: Option<TornServices>,
    pub(super) begin: Now,
    secs: u64,
}

impl Fixture {
    pub(super) fn new(settings: Settings) -> Self {
        let begin = begin();
        Self {
            torn: settings.has_peers.then(TornServices::default),
            buffer: TraceBuffer::with_fixed_hashes(settings, begin),
            begin,
            secs: 0,
        }
    }

    pub(super) fn now(&self) -> Now {
        Now {
            instant: self.begin.instant + Duration::from_secs(self.secs),
            unix_nanos: self.begin.unix_nanos + self.secs * 1_000_000_000,
        }
    }

    pub(super) fn secs(&self) -> u64 {
        self.secs
    }

    pub(super) fn send(&mut self, sent: Sent) -> Inserted {
        self.send_from(PeerId::default(), sent)
    }

    pub(super) fn send_from(&mut self, peer: PeerId, sent: Sent) -> Inserted {
        self.buffer.insert(sent.span, peer, self.now())
    }

    pub(super) fn skip(&mut self, secs: u64) {
        self.secs += secs;
    }

    pub(super) fn wait(&mut self, secs: u64) -> Vec<Told> {
        self.skip(secs);
        let closed = self.buffer.close_due(self.now(), usize::MAX);
        self.judge(closed)
    }

    /// Closes everything that is due, at each deadline, until no deadline is left.
    pub(super) fn finish(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        while let Some(deadline) = self.buffer.next_deadline() {
            let secs = (deadline - self.begin.instant).as_secs_f64().ceil() as u64;
            told.extend(self.wait(secs.saturating_sub(self.secs)));
        }
        told
    }

    pub(super) fn close_all(&mut self, otherwise: CloseReason) -> Vec<Told> {
        self.buffer.make_all_due(otherwise, self.now());
        self.wait(0)
    }

    pub(super) fn mark_unscored(&mut self, trace: u64) {
        self.buffer.mark_unscored(&[trace_id(trace)], self.now());
    }

    /// Judges each trace and returns it to the buffer, like the pipeline.
    fn judge(&mut self, closed: Vec<Closed<Reported>>) -> Vec<Told> {
        let now = self.now();
        let judge = |mut closed: Closed<Reported>| {
            if let Some(torn) = &mut self.torn {
                closed.check_torn(torn);
            }
            let told = Told {
                trace_id: closed.trace.trace_id,
                reason: closed.trace.reason,
                parent_missing: closed.trace.parent_missing,
                arrival: closed.trace.arrival,
                spans: sent(&closed.trace),
                first: closed.first,
                revision: closed.memo.0,
            };
            closed.memo.0 += 1;
            self.buffer.remember(closed, now);
            told
        };
        closed.into_iter().map(judge).collect()
    }
}

fn sent(trace: &Trace) -> Vec<Sent> {
    let spans = trace.spans.rows().iter();
    spans
        .map(|row| Sent {
            span: Span {
                trace_id: trace.trace_id,
                row: SpanRow {
                    kept: EntryRange::default(),
                    resource_idx: 0,
                    ..*row
                },
                resource: Arc::clone(trace.spans.resource(row)),
                kept: kept(trace.spans.name(row)),
            },
        })
        .collect()
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) trace_id: TraceId,
    pub(super) reason: CloseReason,
    pub(super) parent_missing: bool,
    pub(super) arrival: u64,
    pub(super) spans: Vec<Sent>,
    pub(super) first: bool,
    pub(super) revision: u32,
}

pub(super) fn reasons(told: &[Told]) -> Vec<CloseReason> {
    told.iter().map(|told| told.reason).collect()
}

pub(super) fn traces(told: &[Told]) -> Vec<TraceId> {
    told.iter().map(|told| told.trace_id).collect()
}
