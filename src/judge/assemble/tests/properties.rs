//! Compares the buffer with a model that recomputes everything each time. The comparison does not
//! cover limits and budgets; the examples in `tests` do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use otlp::span::SpanRow;
use proptest::prelude::{
    Just, Strategy, any, prop, prop_assert, prop_assert_eq, prop_oneof, proptest,
};

use super::fixture::{BEGIN, Fixture, Sent, Told, settings, span, trace_id};
use crate::assemble::{CloseReason, Settings};

// === the model ===

const SETTLE: u64 = 5;
const SETTLE_REMOTE: u64 = 15;
const MAX_SETTLE: u64 = 15;
const INACTIVE: u64 = 180;
const EXPIRED: u64 = 3_600;

/// One trace, modelled as closely to docs/design.md#when-is-a-trace-done as code can be.
#[derive(Default)]
struct Model {
    spans: BTreeMap<u64, Sent>,
    is_open: bool,
    opened: u64,
    told_expired: bool,
    last_news: u64,
    settling: Option<(u64, u64)>,
    unscored: bool,
    revision: u32,
}

impl Model {
    fn send(&mut self, sent: &Sent, now: u64) {
        let id = u64::from_be_bytes(sent.span.span_id.to_bytes());
        if self
            .spans
            .get(&id)
            .is_some_and(|known| rank(known) >= rank(sent))
        {
            return;
        }
        self.open(now);
        self.spans.insert(id, sent.clone());
        self.last_news = now;
        self.settle(now);
    }

    fn mark_unscored(&mut self, now: u64) {
        if !self.unscored && !self.is_open && !self.spans.is_empty() {
            self.open(now);
            self.last_news = now;
            self.settle(now);
        }
        self.unscored = true;
    }

    fn open(&mut self, now: u64) {
        if !self.is_open {
            (self.is_open, self.opened, self.told_expired, self.settling) =
                (true, now, false, None);
        }
    }

    fn settle(&mut self, now: u64) {
        self.settling = match (self.settling, self.settle_time()) {
            (Some((before, since)), Some(settle)) if before == settle => Some((settle, since)),
            (_, Some(settle)) => Some((settle, now)),
            (_, None) => None,
        };
    }

    fn settle_time(&self) -> Option<u64> {
        let roots = || {
            self.spans
                .values()
                .filter(|sent| sent.span.parent_id.is_none())
        };
        let may_be_top = |sent: &Sent| sent.span.parent_is_remote() && !sent.span.class.tool_call;
        let mut remote = self
            .spans
            .values()
            .filter(|sent| ended(sent) && may_be_top(sent));
        match roots().next() {
            Some(_) => roots().all(ended).then_some(SETTLE),
            None => remote.next().map(|_| SETTLE_REMOTE),
        }
    }

    fn is_quiet(&self) -> bool {
        let mut tops = self.tops().peekable();
        tops.peek().is_some() && tops.all(ended) && !self.parent_missing()
    }

    fn parent(&self, sent: &Sent) -> Option<&Sent> {
        sent.span
            .parent_id
            .and_then(|id| self.spans.get(&u64::from_be_bytes(id.to_bytes())))
    }

    fn parent_missing(&self) -> bool {
        self.spans.values().any(|sent| {
            sent.span.parent_id.is_some()
                && self.parent(sent).is_none()
                && !sent.span.parent_is_remote()
        })
    }

    fn tops(&self) -> impl Iterator<Item = &Sent> {
        let is_top = |sent: &&Sent| match sent.span.parent_id {
            None => true,
            Some(_) => {
                let interesting =
                    |below: &&Sent| below.span.class.agent_run || below.span.class.model;
                let has_agent_descendant = self
                    .spans
                    .values()
                    .filter(interesting)
                    .any(|below| self.ancestors(below).contains(&sent.span.span_id));
                self.parent(sent).is_none()
                    && sent.span.parent_is_remote()
                    && !sent.span.class.tool_call
                    && (sent.span.class.agent_run || has_agent_descendant)
            }
        };
        self.spans.values().filter(is_top)
    }

    fn ancestors(&self, sent: &Sent) -> BTreeSet<otlp::span::SpanId> {
        let mut ancestors = BTreeSet::new();
        let mut at = sent;
        while let Some(parent) = self.parent(at)
            && ancestors.insert(parent.span.span_id)
        {
            at = parent;
        }
        ancestors
    }

    fn reason(&self, reason: CloseReason) -> CloseReason {
        let reaches_back = self.tops().any(|top| {
            let SpanRow {
                start_unix_nanos,
                end_unix_nanos,
                ..
            } = top.span.row;
            start_unix_nanos > 0
                && start_unix_nanos < BEGIN * 1_000_000_000
                && (!ended(top) || end_unix_nanos > (BEGIN - 120) * 1_000_000_000)
        });
        if self.unscored || reaches_back { CloseReason::Incomplete } else { reason }
    }

    fn close_due(&mut self, now: u64) -> Option<(CloseReason, u32)> {
        if !self.is_open {
            return None;
        }
        let revision = self.revision;
        let has_settled = self.settling.is_some_and(|(settle, since)| {
            (self.last_news + settle).min(since + MAX_SETTLE.max(settle)) <= now
        });
        if has_settled && !self.is_quiet() {
            self.settling = None;
        }
        let reason = match self.settling {
            Some(_) if has_settled => CloseReason::RootEnded,
            None if self.last_news + INACTIVE <= now => CloseReason::Inactive,
            _ if self.opened + EXPIRED <= now && !self.told_expired => {
                self.told_expired = true;
                self.revision += 1;
                return Some((CloseReason::Expired, revision));
            }
            _ => return None,
        };
        self.is_open = false;
        self.revision += 1;
        Some((self.reason(reason), revision))
    }
}

fn ended(sent: &Sent) -> bool {
    sent.span.end_unix_nanos > 0 && !sent.span.class.partial
}

fn rank(sent: &Sent) -> impl Ord {
    let span = &sent.span;
    let class = span.class;
    let first = (
        span.end_unix_nanos,
        class.update,
        span.n_attributes,
        !class.partial,
        span.start_unix_nanos,
        span.parent_id,
        span.flags,
    );
    (
        first,
        span.status,
        class.tool_call,
        class.agent_run,
        class.model,
        span.scope,
        span.kept.clone(),
    )
}

// === inputs ===

#[derive(Debug, Clone)]
enum Step {
    Send(Sent),
    MarkUnscored(u64),
    Wait(u64),
}

fn sent() -> impl Strategy<Value = Sent> {
    let tree = (
        1..3u64,
        1..9u64,
        prop::option::weighted(0.8, 1..11u64),
        prop_oneof![Just(0u16), Just(0x101), Just(0x301)],
    );
    let times = (
        -200..50i64,
        prop_oneof![Just(0), 1..3i64, -150..-100i64, Just(300)],
    );
    let class = (any::<[bool; 4]>(), 0..10u8, 0..3u32, 0..3u16);
    (tree, times, class, prop_oneof![Just("a"), Just("b")]).prop_map(
        |(tree, times, class, name)| {
            let (trace, id, parent, flags) = tree;
            let mut sent = span(id).of(trace).lasting(times.0, times.1).named(name);
            if let Some(parent) = parent {
                sent = sent.under(parent);
            }
            if times.1 == 0 {
                sent = sent.open();
            }
            sent.span.flags = flags;
            let ([tool_call, agent_run, model, partial], kind, update, n_attributes) = class;
            // One in five is a tool call, one in ten a model span or agent run.
            (
                sent.span.class.tool_call,
                sent.span.class.model,
                sent.span.class.agent_run,
            ) = (
                tool_call && kind < 4,
                model && kind == 4,
                agent_run && kind == 5,
            );
            (
                sent.span.class.partial,
                sent.span.class.update,
                sent.span.n_attributes,
            ) = (partial && kind > 7, update, n_attributes);
            sent
        },
    )
}

fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(0u64),
        4 => 1..6u64,
        1 => Just(15u64),
        1 => Just(180u64),
        1 => 100..2_000u64,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => sent().prop_map(Step::Send),
        1 => (1..3u64).prop_map(Step::MarkUnscored),
        4 => wait().prop_map(Step::Wait),
    ]
}

/// Returns settings under which no trace is forgotten, because a forgotten trace cannot be revised
/// (see `a_trace_is_forgotten_after_an_hour`).
fn unforgetful() -> Settings {
    Settings {
        recent_ttl: Duration::MAX,
        ..settings()
    }
}

/// Inserts the spans in this order, with these waits in between, and lets the buffer settle.
/// Returns the last revision of each trace.
fn last_revisions(
    spans: &[Sent],
    waits: &[u64],
) -> BTreeMap<String, (CloseReason, bool, Vec<Sent>)> {
    let mut buffer = Fixture::new(unforgetful());
    let mut last = BTreeMap::new();
    let mut note = |told: Vec<Told>| {
        for told in told {
            assert_eq!(told.first, told.revision == 0);
            last.insert(
                told.trace_id.to_string(),
                (told.reason, told.parent_missing, told.spans),
            );
        }
    };
    for (sent, &wait) in spans.iter().zip(waits.iter().cycle()) {
        buffer.send(sent.clone());
        note(buffer.wait(wait));
    }
    note(buffer.finish());
    last
}

proptest! {
    #[test]
    fn the_buffer_agrees_with_a_model_that_looks_at_everything_each_time(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut buffer = Fixture::new(unforgetful());
        let mut models: BTreeMap<u64, Model> = BTreeMap::new();
        for step in steps.into_iter().chain([15, 180, 4_000].map(Step::Wait)) {
            match step {
                Step::Send(sent) => {
                    let trace = u64::from(sent.span.trace_id.as_bytes()[15]);
                    models.entry(trace).or_default().send(&sent, buffer.secs());
                    buffer.send(sent);
                }
                Step::MarkUnscored(trace) => {
                    models.entry(trace).or_default().mark_unscored(buffer.secs());
                    buffer.mark_unscored(trace);
                }
                Step::Wait(secs) => {
                    let mut told = buffer.wait(secs);
                    told.sort_by_key(|told| told.trace_id);
                    let mut expected = Vec::new();
                    for (&trace, model) in &mut models {
                        if let Some((reason, revision)) = model.close_due(buffer.secs()) {
                            let mut spans: Vec<Sent> = model.spans.values().cloned().collect();
                            spans.sort_by_key(|sent| {
                                (sent.span.start_unix_nanos, sent.span.span_id)
                            });
                            let parent_missing = model.parent_missing();
                            let id = trace_id(trace);
                            expected.push((id, reason, revision, parent_missing, spans));
                        }
                    }
                    let told: Vec<_> =
                        told.into_iter()
                            .map(|told| {
                                let Told { trace_id, reason, revision, parent_missing, spans, .. } =
                                    told;
                                (trace_id, reason, revision, parent_missing, spans)
                            })
                            .collect();
                    prop_assert_eq!(told, expected);
                }
            }
        }
        prop_assert_eq!(buffer.buffer.stats().n_open, 0);
        prop_assert_eq!(buffer.buffer.stats().open_size, 0);
    }

    #[test]
    fn any_order_batching_and_repetition_ends_in_the_same_revision(
        (spans, shuffled) in prop::collection::vec(sent(), 1..25).prop_flat_map(|spans| {
            let twice = spans.iter().chain(&spans);
            let repeated: Vec<Sent> = twice.chain(spans.iter().take(5)).cloned().collect();
            (Just(spans), Just(repeated).prop_shuffle())
        }),
        waits in prop::collection::vec(wait(), 1..8),
    ) {
        let at_once = last_revisions(&spans, &[0]);
        prop_assert!(!at_once.is_empty());
        prop_assert_eq!(&at_once, &last_revisions(&shuffled, &waits));
        prop_assert_eq!(&at_once, &last_revisions(&shuffled, &[0]));
    }
}
