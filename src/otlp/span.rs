//! Received spans and log records, reduced to their ids, times, resources and the attributes that
//! later stages read. A [`KeySet`] lists these attributes.

mod class;
mod key_set;

mod key_bits;

mod stored_attributes;

mod builder;
mod index;
mod trace_text;

mod attribute;
mod entries;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Instant;

pub use attribute::{Attribute, Value};
pub use builder::{StoredAttributesBuilder, cut_at_char, is_unfinished_json};
pub use class::{Recognition, SpanClass};
pub use entries::EntryRange;
pub use index::IndexedAttributes;
pub use key_bits::KeyBits;
pub use key_set::{KeyId, KeyRule, KeySet, MatchedKey, Retention, WantedBody};
pub use stored_attributes::{Event, StoredAttributes};
pub use trace_text::TraceText;

/// A reading of two clocks. The stages of the pipeline receive the time as an argument and never
/// read a clock.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic time, for all timers.
    pub instant: Instant,
    /// Unix time in nanoseconds. Span times are compared with it to decide whether earlier spans
    /// may have been missed.
    pub unix_nanos: u64,
}

/// A trace id: 16 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

// Hashes the id as one number, because a derived `Hash` would also hash the length of the array.
impl Hash for TraceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.0));
    }
}

impl TraceId {
    /// Returns `None` unless there are 16 bytes, not all of them zero (W3C Trace Context: an
    /// all-zero id is invalid).
    pub fn try_new(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// Returns the 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the first and the last 8 bytes as big-endian numbers.
    pub fn halves(self) -> (u64, u64) {
        let id = u128::from_be_bytes(self.0);
        ((id >> 64) as u64, id as u64)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A span id: 8 bytes, never all zero. Span ids sort by their bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// Returns `None` unless there are 8 bytes, not all of them zero.
    pub fn try_new(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 8] = bytes.try_into().ok()?;
        NonZeroU64::new(u64::from_be_bytes(bytes)).map(Self)
    }

    /// Returns the 8 bytes.
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// The status code of a span (OTLP `Status.StatusCode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Status {
    /// The sender set no status.
    #[default]
    Unset,
    /// The application marked the operation as successful.
    Ok,
    /// The operation failed.
    Error,
}

/// A hash of an instrumentation scope's name, to distinguish the spans of different
/// instrumentations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeHash(u32);

impl Default for ScopeHash {
    fn default() -> Self {
        Self::new(b"")
    }
}

impl ScopeHash {
    /// The instrumentation scope of the scores that spanscore writes.
    pub const OWN: Self = Self::new(Self::OWN_NAME.as_bytes());
    /// The name of [`Self::OWN`].
    pub const OWN_NAME: &str = "spanscore";

    /// Hashes a name with FNV-1a.
    pub const fn new(name: &[u8]) -> Self {
        let mut hash: u32 = 0x811c_9dc5;
        let mut at = 0;
        while at < name.len() {
            hash = (hash ^ name[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        Self(hash)
    }
}

/// A span or log record without its trace, attributes and resource. Traces store their spans in
/// this form.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpanRow {
    /// The id of the span.
    pub span_id: SpanId,
    /// The id of the parent span, if the span names one.
    pub parent_id: Option<SpanId>,
    /// The start in Unix nanoseconds; 0 if the sender set none.
    pub start_unix_nanos: u64,
    /// The end in Unix nanoseconds; 0 if the sender set none.
    pub end_unix_nanos: u64,
    /// The class that `extract` assigned on arrival.
    pub class: SpanClass,
    /// The instrumentation scope that created the span.
    pub scope: ScopeHash,
    /// The position of the attributes in the text of the trace. Not set before the span is stored.
    pub kept: EntryRange,
    /// The index of the resource in the trace. Not set before the span is stored.
    pub resource_idx: u32,
    /// OTLP span flags: the W3C trace flags in the lowest byte, 0x100 "has is-remote", 0x200
    /// "is-remote". OpenTelemetry reserves the bits above.
    pub flags: u16,
    /// Number of received attributes, stored or not; `u16::MAX` for more.
    pub n_attributes: u16,
    /// True if the request to a model contains an earlier answer of the model. `None` if no answer
    /// was found although messages may be missing, or if there are no messages.
    pub repeats_answers: Option<bool>,
    /// True for a span or log record that can raise an alarm.
    pub is_watched: bool,
    /// The status code.
    pub status: Status,
    /// True for a log record. Its id is a hash, its name is the event's name, and its parent, if
    /// any, is the span in which the record was written.
    pub is_record: bool,
}

impl SpanRow {
    /// Bit of `flags`: the is-remote bit is meaningful.
    pub const HAS_IS_REMOTE: u16 = 0x100;
    /// Bits of `flags`: the parent is in another process.
    const REMOTE: u16 = Self::HAS_IS_REMOTE | 0x200;

    /// Returns a span with this id and default values.
    pub fn new(span_id: SpanId) -> Self {
        Self {
            span_id,
            parent_id: None,
            start_unix_nanos: 0,
            end_unix_nanos: 0,
            class: SpanClass::default(),
            scope: ScopeHash::default(),
            kept: EntryRange::default(),
            resource_idx: 0,
            flags: 0,
            n_attributes: 0,
            repeats_answers: None,
            is_watched: false,
            status: Status::Unset,
            is_record: false,
        }
    }

    /// Returns true if the span has ended.
    pub fn ended(&self) -> bool {
        self.end_unix_nanos != 0 && !self.class.partial
    }

    /// Returns true if the span's times are meaningless: the span has no start, or ends before it.
    pub fn is_untimed(&self) -> bool {
        let is_reversed = self.end_unix_nanos != 0 && self.end_unix_nanos < self.start_unix_nanos;
        self.start_unix_nanos == 0 || is_reversed
    }

    /// Returns true if the OTLP flags mark the parent as a span of another process.
    pub fn parent_is_remote(&self) -> bool {
        self.parent_id.is_some() && self.flags & Self::REMOTE == Self::REMOTE
    }

    /// Returns true if the OTLP flags mark the parent as a span of the same process. Many SDKs set
    /// no flags.
    pub fn parent_is_local(&self) -> bool {
        self.parent_id.is_some() && self.flags & Self::REMOTE == Self::HAS_IS_REMOTE
    }

    /// Orders the versions of a span; the greatest version wins. Versions of equal rank can differ
    /// only in attributes, resources, `class.recognition` and `is_watched`.
    pub fn rank(&self) -> impl Ord {
        let Self { class, .. } = self;
        let times = (
            self.end_unix_nanos,
            class.update,
            self.n_attributes,
            !class.partial,
            self.start_unix_nanos,
        );
        let classes = (class.tool_call, class.agent_run, class.model);
        let rest = (self.scope, self.repeats_answers);
        (
            times,
            self.parent_id,
            self.flags,
            self.status,
            classes,
            rest,
        )
    }
}

/// One span or log record of a request, reduced to the attributes that a convention or a selector
/// reads. Some coding agents report their tool calls only in log records, and some instrumentations
/// write a model's messages into log records.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The id of the span's trace.
    pub trace_id: TraceId,
    /// Ids, times and class.
    pub row: SpanRow,
    /// The sender; shared by the spans of one `ResourceSpans`.
    pub resource: Arc<Resource>,
    /// The stored name, trace state, attributes and events.
    pub kept: StoredAttributes,
}

impl Span {
    /// The key under which the scan records a model's reply that was not stored whole. The value is
    /// the number of the reply's key, or an empty text if parts of any reply may never have
    /// arrived. Senders cannot set this key, because its rule is [`Retention::Own`].
    pub const LOST_REPLY: &str = "spanscore.lost.reply";
    /// The key under which the scan records that messages of the request to a model are missing.
    pub const LOST_REQUEST: &str = "spanscore.lost.request";
    /// The key of a log record's body, so that messages in bodies are found like attributes.
    /// Senders cannot set this key, because its rule is [`Retention::Own`].
    pub const RECORD_BODY: &str = "spanscore.log.body";
}

impl Deref for Span {
    type Target = SpanRow;

    fn deref(&self) -> &SpanRow {
        &self.row
    }
}

impl DerefMut for Span {
    fn deref_mut(&mut self) -> &mut SpanRow {
        &mut self.row
    }
}

/// Decides during the scan of a request which spans to store, and which of their attributes.
pub trait SpanAdmission: Send + Sync {
    /// Returns the attributes to store.
    fn keys(&self) -> &KeySet;

    /// Classifies a span and removes from `kept` the attributes that no later stage reads. Returns
    /// false to drop the span. `span.kept` is still empty. The trace id of a log record is the one
    /// that the record names, or else a hash of the record; this method replaces it with the id of
    /// the record's trace.
    fn admit(&self, span: &mut Span, kept: &mut StoredAttributesBuilder) -> bool;

    /// Returns a hash of the settings that determine `is_watched`.
    fn watched_by(&self) -> Option<u64> {
        None
    }
}

/// Admits every span unchanged.
impl SpanAdmission for KeySet {
    fn keys(&self) -> &KeySet {
        self
    }

    fn admit(&self, _: &mut Span, _: &mut StoredAttributesBuilder) -> bool {
        true
    }
}

/// The sender of a span: the resource as received, and its stored attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The encoded `opentelemetry.proto.resource.v1.Resource` as received, up to 64 KiB; score
    /// spans copy it.
    pub encoded: Box<[u8]>,
    /// `service.name`; empty if there is none.
    pub service: Arc<str>,
    /// The stored attributes; name and trace state are empty.
    pub kept: StoredAttributes,
}

impl Resource {
    /// Returns the bytes of this resource.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.encoded.len() + self.service.len() + self.kept.size()
    }
}

/// The sender of a request: an IPv4 address, or the first 64 bits of an IPv6 address, because one
/// customer can use every address in a /64 network. 0 is an unknown sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PeerId(pub u64);

impl From<IpAddr> for PeerId {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_bits().into()),
            // The upper half is 0 for the loopback address, and never for a network.
            IpAddr::V6(address) => match (address.to_bits() >> 64) as u64 {
                0 => Self(address.to_bits() as u64),
                network => Self(network),
            },
        }
    }
}

/// The spans and log records of one request, ready for assembly.
#[derive(Debug, Default)]
pub struct Batch {
    /// The admitted spans with valid ids, or the admitted log records, in the order of the request.
    pub spans: Vec<Span>,
    /// Number of spans that cannot be assembled because the trace or span id is empty or all zero,
    /// and of wanted log records without a trace.
    pub n_without_ids: usize,
    /// Bytes of the texts that the attributes of the spans share.
    pub shared_size: usize,
    /// The sender of the request.
    pub peer: PeerId,
    /// [`SpanAdmission::watched_by`] of the admission that read the spans.
    pub watched_by: Option<u64>,
}

impl Batch {
    /// Returns the approximate bytes of this batch, as the scoring queue counts them. Successive
    /// spans of one resource count the resource once.
    pub fn size(&self) -> usize {
        let mut last = None;
        let mut size = self.shared_size;
        for Span { resource, .. } in &self.spans {
            size += size_of::<Span>();
            if last.replace(Arc::as_ptr(resource)) != Some(Arc::as_ptr(resource)) {
                size += resource.size();
            }
        }
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_of_ipv6_and_a_mapped_address_are_one_peer_each() {
        let peer = |address: &str| PeerId::from(address.parse::<IpAddr>().unwrap());
        assert_eq!(peer("2001:db8::1"), peer("2001:db8::ffff:2"));
        assert_ne!(peer("2001:db8::1"), peer("2001:db8:0:1::1"));
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("::1"), peer("127.0.0.1"));
        assert_ne!(peer("::1"), PeerId::default());
    }
}
