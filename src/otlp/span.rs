//! What arrives: spans and log records, reduced to their ids, times, resources and the
//! attributes that later stages read. Which keys to keep is an argument; knows nothing of wire
//! formats, traces, tools or criteria.

mod class;
mod key_set;

mod kept_attributes;

mod builder;
mod index;
mod trace_text;

mod attribute;
mod entries;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

pub use attribute::{Attribute, Value};
pub use builder::{KeptAttributesBuilder, cut_at_char, is_unfinished_json};
pub use class::{Recognition, SpanClass};
pub use index::IndexedAttributes;
pub use kept_attributes::{Event, KeptAttributes};
pub use key_set::{Keep, Kept, KeyId, KeyRule, KeySet, WantedBody};
pub use trace_text::{KeptPlace, LentText, TraceText};

/// The two clocks, read by the shell only: no stage reads a clock of its own.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic time; every timer runs on it.
    pub instant: Instant,
    /// Unix time in nanoseconds; compared with span times only by `assemble.restart_guard`.
    pub unix_nanos: u64,
}

/// A trace id: 16 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TraceId([u8; 16]);

// Hashed as one number: the length of a slice would be hashed with it.
impl Hash for TraceId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(u128::from_ne_bytes(self.0));
    }
}

impl TraceId {
    /// `None` for anything but 16 bytes that are not all zero (W3C Trace Context: an all-zero id is
    /// invalid).
    pub fn try_new(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The first and the last 8 bytes, as numbers.
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

/// A span id: 8 bytes, never all zero. Orders as its bytes do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

impl SpanId {
    /// `None` for anything but 8 bytes that are not all zero.
    pub fn try_new(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 8] = bytes.try_into().ok()?;
        NonZeroU64::new(u64::from_be_bytes(bytes)).map(Self)
    }

    /// The 8 bytes.
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
    /// Not set by the sender.
    #[default]
    Unset,
    /// Set to success by the application.
    Ok,
    /// The operation failed.
    Error,
}

/// The name of an instrumentation scope, hashed: tells the spans of one instrumentation from those
/// of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeHash(u32);

impl Default for ScopeHash {
    fn default() -> Self {
        Self::new(b"")
    }
}

impl ScopeHash {
    /// The instrumentation scope of our own scores.
    pub const OWN: Self = Self::new(Self::OWN_NAME.as_bytes());
    /// Its name.
    pub const OWN_NAME: &str = "spanscore";

    /// The hash (FNV-1a) of a name.
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

/// One span, reduced to ids, times, status, and the attributes that a convention or a selector
/// reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Its own id.
    pub span_id: SpanId,
    /// Its parent, if it names one.
    pub parent_id: Option<SpanId>,
    /// Start, Unix nanoseconds; 0 if the sender gave none.
    pub start_unix_nanos: u64,
    /// End, Unix nanoseconds; 0 if the sender gave none.
    pub end_unix_nanos: u64,
    /// OTLP span flags: the W3C trace flags in the lowest byte, 0x100 "has is-remote", 0x200
    /// "is-remote".
    pub flags: u32,
    /// Number of attributes that were sent, kept or not.
    pub n_attributes: u32,
    /// Do the messages that a model was asked with repeat an answer of it? `None` if there are
    /// none, or if some may be missing.
    pub repeats_answers: Option<bool>,
    /// Status code.
    pub status: Status,
    /// What it was recognised as when it arrived.
    pub class: SpanClass,
    /// The instrumentation scope that made it.
    pub scope: ScopeHash,
    /// The sender; shared by the spans of one `ResourceSpans`.
    pub resource: Arc<Resource>,
    /// Name, trace state, kept attributes and kept events.
    pub kept: KeptAttributes,
}

impl Span {
    /// Set in `flags` when the sender knows whether the parent is remote.
    pub const HAS_IS_REMOTE: u32 = 0x100;
    /// Set in `flags` when the parent is in another process.
    pub const IS_REMOTE: u32 = 0x200;
    /// The key under which the scan notes a reply of a model that is not kept whole: the number of
    /// the reply's own key, or an empty text if parts of any may never have arrived. No sender can
    /// set it: its rule is [`Keep::Own`].
    pub const LOST_REPLY: &str = "spanscore.lost.reply";
    /// The key under which the scan notes that messages which a model was asked with are missing.
    pub const LOST_REQUEST: &str = "spanscore.lost.request";

    /// The span's name.
    pub fn name(&self) -> &str {
        self.kept.name()
    }

    /// Does it have no start, or does it end before it starts? Then its times say nothing.
    pub fn is_untimed(&self) -> bool {
        let is_reversed = self.end_unix_nanos != 0 && self.end_unix_nanos < self.start_unix_nanos;
        self.start_unix_nanos == 0 || is_reversed
    }

    /// The value of the first attribute with this key.
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.kept.get(key)
    }

    /// The value of the first attribute with this key, if it is a string.
    pub fn text(&self, key: KeyId) -> Option<&str> {
        match self.get(key)? {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Do the OTLP flags mark the parent as being in another process?
    pub fn parent_is_remote(&self) -> bool {
        self.parent_id.is_some()
            && self.flags & (Self::HAS_IS_REMOTE | Self::IS_REMOTE)
                == Self::HAS_IS_REMOTE | Self::IS_REMOTE
    }

    /// Do the OTLP flags mark the parent as being in this process? Many SDKs set no flags.
    pub fn parent_is_local(&self) -> bool {
        self.parent_id.is_some()
            && self.flags & (Self::HAS_IS_REMOTE | Self::IS_REMOTE) == Self::HAS_IS_REMOTE
    }

    /// Bytes of this span, without its resource, which is shared.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.kept.size()
    }
}

/// Decides about each span while its request is scanned.
pub trait SpanAdmission: Send + Sync {
    /// The attributes to keep.
    fn keys(&self) -> &KeySet;

    /// Classifies a span, and removes from `kept` what no later stage reads of it. `span.kept` is
    /// still empty. Returns false for a span that is not kept.
    fn admit(&self, span: &mut Span, kept: &mut KeptAttributesBuilder) -> bool;
}

/// Keeps every span as it is.
impl SpanAdmission for KeySet {
    fn keys(&self) -> &KeySet {
        self
    }

    fn admit(&self, _: &mut Span, _: &mut KeptAttributesBuilder) -> bool {
        true
    }
}

/// The sender of a span: the resource as it was received, and the attributes that selectors read.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The encoded `opentelemetry.proto.resource.v1.Resource`, copied from the request, so that
    /// score spans can carry it.
    pub encoded: Box<[u8]>,
    /// `service.name`; empty if there is none.
    pub service: Arc<str>,
    /// Kept attributes; name and trace state are empty.
    pub kept: KeptAttributes,
}

impl Resource {
    /// Bytes of this resource.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.encoded.len() + self.service.len() + self.kept.size()
    }
}

/// The sender of a request: an IPv4 address, or a network of 64 bits of IPv6, since a customer has
/// a whole one and chooses addresses in it as it likes. 0 is an unknown sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PeerId(pub u64);

impl From<IpAddr> for PeerId {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self(address.to_bits().into()),
            // The upper half of the loopback address is 0; those of networks are not.
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
    /// Spans with valid ids, in the order of the request.
    pub spans: Vec<Span>,
    /// The log records that the key set wants, in the order of the request.
    pub log_records: Vec<LogRecord>,
    /// Spans that cannot be assembled: their trace or span id is empty or all zero.
    pub n_without_ids: usize,
    /// Bytes of the text that the kept attributes of all spans share.
    pub shared_size: usize,
    /// Who sent them.
    pub peer: PeerId,
}

/// A log record, reduced like a span: some coding agents report their tool calls in no other way,
/// and some instrumentations write the messages of a model into records.
#[derive(Debug, Clone, PartialEq)]
pub struct LogRecord {
    /// The start of its encoding's SHA-256: a record that is sent twice is one record.
    pub record_id: SpanId,
    /// Its time, Unix nanoseconds; 0 if the sender gave none.
    pub time_unix_nanos: u64,
    /// The span in which it was written, if it names one.
    pub span_id: Option<SpanId>,
    /// The sender.
    pub resource: Arc<Resource>,
    /// Its event name (as the name), the trace that it names, its kept attributes, and its body if
    /// the key set wants it, under [`LogRecord::BODY`].
    pub kept: KeptAttributes,
}

impl LogRecord {
    /// The key under which a body is kept, so that messages are read from bodies as from
    /// attributes. No sender can set it: its rule is [`Keep::Own`].
    pub const BODY: &str = "spanscore.log.body";

    /// The event name.
    pub fn name(&self) -> &str {
        self.kept.name()
    }

    /// The trace that it names, which need not be the trace with which it is held.
    pub fn named_trace(&self) -> Option<TraceId> {
        self.kept.named_trace()
    }

    /// The value of the first attribute with this key.
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.kept.get(key)
    }
}

impl Batch {
    /// Approximate bytes of this batch, as the scoring queue counts them. A resource counts once,
    /// since the spans of one resource follow each other.
    pub fn size(&self) -> usize {
        let spans = self.spans.iter();
        let spans = spans.map(|span| (size_of::<Span>(), &span.resource));
        let log_records = self.log_records.iter();
        let log_records = log_records.map(|record| (size_of::<LogRecord>(), &record.resource));
        let mut last = None;
        let mut size = self.shared_size;
        for (own_size, resource) in spans.chain(log_records) {
            size += own_size;
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
