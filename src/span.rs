//! Pure. What arrives: spans slimmed down to the facts that somebody reads, with their ids, resources and kept attributes.
//! Knows which keys to keep only because it is told; knows nothing of wire formats, traces, tools or criteria.

mod facts;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

pub use facts::{Attribute, Event, Facts, FactsBuilder, Value};

/// The two clocks, read once by the shell and handed in: nothing below reads a clock of its own.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic time; every timer runs on it.
    pub instant: Instant,
    /// Unix time in nanoseconds; compared with span times only by `assemble.restart_guard`.
    pub unix_nanos: u64,
}

/// A trace id: 16 bytes, never all zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// `None` for anything but 16 bytes that are not all zero (W3C Trace Context: an all-zero id is invalid).
    pub fn try_new(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 16] = bytes.try_into().ok()?;
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    /// The 16 bytes.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
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
    /// Nobody said.
    #[default]
    Unset,
    /// The author said it went well.
    Ok,
    /// The operation failed.
    Error,
}

/// One span, slimmed down: ids, times, status, and the facts that a convention or a selector reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// The trace it belongs to.
    pub trace_id: TraceId,
    /// Its own id.
    pub span_id: SpanId,
    /// Its parent, if it names one.
    pub parent_id: Option<SpanId>,
    /// Start, Unix nanoseconds; 0 where the sender gave none.
    pub start_unix_nanos: u64,
    /// End, Unix nanoseconds; 0 where the sender gave none.
    pub end_unix_nanos: u64,
    /// OTLP span flags: the W3C trace flags in the lowest byte, 0x100 "has is-remote", 0x200 "is-remote".
    pub flags: u32,
    /// How many attributes the sender set, kept or not.
    pub n_attributes: u32,
    /// Status code.
    pub status: Status,
    /// Who sent it; shared by the spans of one `ResourceSpans`.
    pub resource: Arc<Resource>,
    /// Name, trace state, kept attributes and kept events.
    pub facts: Facts,
}

impl Span {
    /// Set in `flags` when the sender knows whether the parent is remote.
    pub const HAS_IS_REMOTE: u32 = 0x100;
    /// Set in `flags` when the parent is in another process.
    pub const IS_REMOTE: u32 = 0x200;

    /// The span's name.
    pub fn name(&self) -> &str {
        self.facts.name()
    }

    /// The value of the first attribute with this key.
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.facts.get(key)
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
        self.parent_id.is_some() && self.flags & (Self::HAS_IS_REMOTE | Self::IS_REMOTE) == Self::HAS_IS_REMOTE | Self::IS_REMOTE
    }

    /// Bytes this span holds on to, its resource left out (that is shared).
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.facts.size()
    }
}

/// Who sent a span: the resource as it was received, and what selectors read of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// The encoded `opentelemetry.proto.resource.v1.Resource`, copied out of the request, so that score spans can carry it.
    pub encoded: Box<[u8]>,
    /// `service.name`; empty where there is none.
    pub service: Box<str>,
    /// Kept attributes (its name and trace state are empty).
    pub facts: Facts,
}

impl Resource {
    /// Bytes it holds on to.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.encoded.len() + self.service.len() + self.facts.size()
    }
}

/// The spans of one request, ready for assembly.
#[derive(Debug, Default)]
pub struct Batch {
    /// Spans with valid ids, in the order of the request; our own score spans are left out.
    pub spans: Vec<Span>,
    /// Spans that cannot be assembled: their trace or span id is empty or all zero.
    pub n_without_ids: usize,
}

impl Batch {
    /// Bytes it holds on to, roughly: what the scoring queue counts. A resource counts once, since the spans of one stand together.
    pub fn size(&self) -> usize {
        let resources = self.spans.chunk_by(|span, next| Arc::ptr_eq(&span.resource, &next.resource));
        resources.map(|spans| spans[0].resource.size() + spans.iter().map(Span::size).sum::<usize>()).sum()
    }
}

// === KeySet ===

/// A key that somebody reads: a position in the [`KeySet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u16);

impl KeyId {
    /// The key of what has none.
    const NONE: Self = Self(u16::MAX);
}

/// What is kept of an attribute with a certain key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The value, up to `max_value_size`.
    Value,
    /// Messages of a model, up to `max_messages_size`, and only if a tool call is found in them by a substring search.
    Messages,
    /// The presence alone: an empty string is kept.
    Presence,
}

/// A row of the table that says which keys to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The key; a prefix of keys if it ends in `.` or holds a `*` (the star is not part of it). What stands between a first and a last star
    /// must occur after the prefix: `llm.output_messages.*tool_call*`.
    pub key: &'static str,
    /// What is kept of it.
    pub keep: Keep,
}

/// Which attributes and events to keep, and how much of them. Built by the stages that read them, obeyed by the scan.
/// Ids are stable: a set that extends another gives every old key its old id.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<(Box<str>, Keep)>,
    exact: HashMap<Box<[u8]>, KeyId>,
    /// Prefixes, with what must occur after them.
    prefixes: Vec<(KeyId, &'static str)>,
    /// Longest value kept of one attribute, in bytes (`tools.max_value_size`).
    pub max_value_size: usize,
    /// Longest messages kept of one span, in bytes (`tools.max_messages_size`).
    pub max_messages_size: usize,
}

/// What the key set says of an attribute's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Its id.
    pub key: KeyId,
    /// What is kept of it.
    pub keep: Keep,
    /// What follows the prefix; empty for a whole key.
    pub suffix: &'a [u8],
}

impl KeySet {
    /// A set of these keys, in this order: the n-th gets the id n.
    pub fn new(rules: &[KeyRule]) -> Self {
        let mut keys = Self::default();
        for rule in rules {
            match rule.key.split_once('*') {
                Some((prefix, needle)) => keys.add_prefix(prefix, needle.strip_suffix('*').unwrap_or(needle), rule.keep),
                None if rule.key.ends_with('.') => keys.add_prefix(rule.key, "", rule.keep),
                None => keys.add(rule.key, rule.keep),
            };
        }
        keys
    }

    /// The id of a whole key, added if it is new (a key that is there keeps what is kept of it).
    pub fn add(&mut self, key: &str, keep: Keep) -> KeyId {
        if let Some(id) = self.exact.get(key.as_bytes()) {
            return *id;
        }
        let id = self.next_id();
        self.keys.push((key.into(), keep));
        self.exact.insert(key.as_bytes().into(), id);
        id
    }

    /// The id of a whole key that is in the set.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.exact.get(key.as_bytes()).copied()
    }

    /// The key, or prefix, with this id.
    pub fn name(&self, id: KeyId) -> &str {
        self.keys.get(usize::from(id.0)).map_or("", |(name, _)| name)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Is nothing kept?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Is this key kept, and what of it? Takes bytes: the scan asks before it checks UTF-8.
    pub fn find<'a>(&self, key: &'a [u8]) -> Option<Kept<'a>> {
        if let Some(&id) = self.exact.get(key) {
            return Some(Kept { key: id, keep: self.keys[usize::from(id.0)].1, suffix: b"" });
        }
        self.prefixes.iter().find_map(|&(id, needle)| {
            let (prefix, keep) = &self.keys[usize::from(id.0)];
            let suffix = key.strip_prefix(prefix.as_bytes())?;
            (needle.is_empty() || memchr::memmem::find(suffix, needle.as_bytes()).is_some()).then_some(Kept {
                key: id,
                keep: *keep,
                suffix,
            })
        })
    }

    fn add_prefix(&mut self, prefix: &str, needle: &'static str, keep: Keep) -> KeyId {
        let id = self.next_id();
        self.keys.push((prefix.into(), keep));
        self.prefixes.push((id, needle));
        id
    }

    fn next_id(&self) -> KeyId {
        KeyId(u16::try_from(self.keys.len()).unwrap_or(u16::MAX - 1))
    }
}
