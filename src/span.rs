//! Pure. What arrives: spans slimmed down to the facts that somebody reads, with their ids, resources and kept attributes.
//! Knows which keys to keep only because it is told; knows nothing of wire formats, traces, tools or criteria.

use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;

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
        let mut last = None;
        let mut size = 0;
        for span in &self.spans {
            size += span.size();
            if last.replace(Arc::as_ptr(&span.resource)) != Some(Arc::as_ptr(&span.resource)) {
                size += span.resource.size();
            }
        }
        size
    }
}

// === Facts ===

/// A value of an attribute, borrowed from where it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// A string.
    Str(&'a str),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// An OTLP array or map, as compact JSON.
    Json(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
}

/// One kept attribute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attribute<'a> {
    /// Which key, or which prefix of keys.
    pub key: KeyId,
    /// What followed the prefix; empty for a whole key.
    pub suffix: &'a str,
    /// Its value, possibly cut.
    pub value: Value<'a>,
    /// The value was longer than what is kept of one: never compare it as if it were whole.
    pub cut: bool,
}

/// One kept span event.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Event<'a> {
    /// Which name.
    pub name: KeyId,
    bytes: &'a [u8],
}

impl<'a> Event<'a> {
    /// Its kept attributes.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        Entries { bytes: self.bytes }.filter_map(Entry::attribute)
    }
}

/// What is kept of a span beyond its fixed fields, packed into one allocation: name, trace state, attributes, events.
/// Two equal `Facts` mean the same thing, and their byte order breaks ties between versions of a span.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Facts(Box<[u8]>);

impl Facts {
    /// The span's name.
    pub fn name(&self) -> &str {
        self.entries().find(|entry| entry.tag == Tag::Name).map_or("", |entry| entry.str())
    }

    /// The W3C trace state, empty where there was none.
    pub fn trace_state(&self) -> &str {
        self.entries().find(|entry| entry.tag == Tag::TraceState).map_or("", |entry| entry.str())
    }

    /// The kept attributes, in the order they were sent.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.entries().filter_map(Entry::attribute)
    }

    /// The kept events, in the order they were sent.
    pub fn events(&self) -> impl Iterator<Item = Event<'_>> {
        self.entries().filter(|entry| entry.tag == Tag::Event).map(|entry| Event { name: entry.key, bytes: entry.payload })
    }

    /// The value of the first attribute with this key (OTLP asks for unique keys; where a sender repeats one, the first counts).
    pub fn get(&self, key: KeyId) -> Option<Value<'_>> {
        self.attribute(key).map(|attribute| attribute.value)
    }

    /// The first attribute with this key.
    pub fn attribute(&self, key: KeyId) -> Option<Attribute<'_>> {
        self.entries().find(|entry| entry.key == key && entry.tag.is_value())?.attribute()
    }

    /// The same with each attribute as `keep` gives it back, and without the attributes and whole events that are refused.
    pub fn retain(&mut self, mut keep: impl for<'a> FnMut(Attribute<'a>) -> Option<Attribute<'a>>, keep_event: impl Fn(KeyId) -> bool) {
        let mut kept = FactsBuilder { bytes: Vec::with_capacity(self.0.len()), event: None };
        let mut rest = self.entries();
        loop {
            let before = rest.bytes;
            let Some(entry) = rest.next() else { break };
            let whole = &before[..before.len() - rest.bytes.len()];
            match entry.attribute() {
                None if entry.tag == Tag::Event && !keep_event(entry.key) => {}
                None => kept.bytes.extend_from_slice(whole),
                Some(attribute) => match keep(attribute) {
                    Some(same) if same == attribute => kept.bytes.extend_from_slice(whole),
                    Some(other) => kept.attribute(other),
                    None => {}
                },
            }
        }
        if kept.bytes.len() != self.0.len() {
            *self = kept.finish();
        }
    }

    /// Bytes on the heap.
    pub fn size(&self) -> usize {
        self.0.len()
    }

    fn entries(&self) -> Entries<'_> {
        Entries { bytes: &self.0 }
    }
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts")
            .field("name", &self.name())
            .field("attributes", &self.attributes().collect::<Vec<_>>())
            .field("n_events", &self.events().count())
            .finish()
    }
}

/// Builds [`Facts`]; one builder serves a whole request, since its scratch space is kept.
#[derive(Debug, Default)]
pub struct FactsBuilder {
    bytes: Vec<u8>,
    /// Where the open event's payload starts.
    event: Option<usize>,
}

impl FactsBuilder {
    /// Set the span's name, which is UTF-8. An empty one need not be set.
    pub fn name(&mut self, name: impl AsRef<[u8]>) {
        self.push(Tag::Name, KeyId::NONE, b"", name.as_ref(), false);
    }

    /// Set the W3C trace state, which is UTF-8.
    pub fn trace_state(&mut self, trace_state: impl AsRef<[u8]>) {
        self.push(Tag::TraceState, KeyId::NONE, b"", trace_state.as_ref(), false);
    }

    /// Add an attribute whose key's suffix and whose value the caller knows to be UTF-8, without checking that again (what is not, reads as
    /// the empty string).
    pub fn utf8(&mut self, key: KeyId, suffix: &[u8], text: &[u8], cut: bool) {
        self.push(Tag::Str, key, suffix, text, cut);
    }

    /// Add an attribute; between `begin_event` and `end_event` it belongs to that event.
    pub fn attribute(&mut self, attribute: Attribute<'_>) {
        let Attribute { key, suffix, value, cut } = attribute;
        let suffix = suffix.as_bytes();
        match value {
            Value::Str(text) => self.push(Tag::Str, key, suffix, text.as_bytes(), cut),
            Value::Json(text) => self.push(Tag::Json, key, suffix, text.as_bytes(), cut),
            Value::Bytes(bytes) => self.push(Tag::Bytes, key, suffix, bytes, cut),
            Value::Bool(value) => self.push(Tag::Bool, key, suffix, &[u8::from(value)], cut),
            Value::Int(value) => self.push(Tag::Int, key, suffix, &value.to_le_bytes(), cut),
            Value::Double(value) => self.push(Tag::Double, key, suffix, &value.to_bits().to_le_bytes(), cut),
        }
    }

    /// Open an event: the attributes that follow are its own.
    pub fn begin_event(&mut self, name: KeyId) {
        self.bytes.push(Tag::Event as u8);
        self.bytes.extend_from_slice(&name.0.to_le_bytes());
        self.bytes.push(0);
        self.bytes.extend_from_slice(&[0; 4]);
        self.event = Some(self.bytes.len());
    }

    /// Close the open event.
    pub fn end_event(&mut self) {
        if let Some(start) = self.event.take() {
            let len = u32::try_from(self.bytes.len() - start).unwrap_or(u32::MAX);
            self.bytes[start - 4..start].copy_from_slice(&len.to_le_bytes());
        }
    }

    /// How many bytes have been kept so far, so that a caller can bound a span.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing kept yet?
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Hand out what was built, in an allocation of its own size, and start anew.
    pub fn finish(&mut self) -> Facts {
        self.end_event();
        let facts = Facts(self.bytes.as_slice().into());
        self.bytes.clear();
        facts
    }

    /// Layout of an entry: tag (1), key (2), suffix length (1, 255 at most; longer keys are no key of ours), payload length (4), suffix, payload.
    fn push(&mut self, tag: Tag, key: KeyId, suffix: &[u8], payload: &[u8], cut: bool) {
        let suffix = suffix.get(..suffix.len().min(255)).unwrap_or_default();
        let tag = tag as u8 | if cut { CUT } else { 0 };
        let [key_0, key_1] = key.0.to_le_bytes();
        let [len_0, len_1, len_2, len_3] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
        self.bytes.reserve(8 + suffix.len() + payload.len());
        self.bytes.extend_from_slice(&[tag, key_0, key_1, suffix.len() as u8, len_0, len_1, len_2, len_3]);
        self.bytes.extend_from_slice(suffix);
        self.bytes.extend_from_slice(payload);
    }
}

const CUT: u8 = 0x80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Tag {
    Name,
    TraceState,
    Event,
    Str,
    Bool,
    Int,
    Double,
    Json,
    Bytes,
}

impl Tag {
    const ALL: [Self; 9] =
        [Self::Name, Self::TraceState, Self::Event, Self::Str, Self::Bool, Self::Int, Self::Double, Self::Json, Self::Bytes];

    fn is_value(self) -> bool {
        !matches!(self, Self::Name | Self::TraceState | Self::Event)
    }
}

#[derive(Clone, Copy)]
struct Entry<'a> {
    tag: Tag,
    cut: bool,
    key: KeyId,
    suffix: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Entry<'a> {
    fn str(self) -> &'a str {
        std::str::from_utf8(self.payload).unwrap_or_default()
    }

    fn attribute(self) -> Option<Attribute<'a>> {
        let value = match self.tag {
            Tag::Name | Tag::TraceState | Tag::Event => return None,
            Tag::Str => Value::Str(self.str()),
            Tag::Json => Value::Json(self.str()),
            Tag::Bytes => Value::Bytes(self.payload),
            Tag::Bool => Value::Bool(self.payload.first() == Some(&1)),
            Tag::Int => Value::Int(i64::from_le_bytes(self.payload.try_into().ok()?)),
            Tag::Double => Value::Double(f64::from_bits(u64::from_le_bytes(self.payload.try_into().ok()?))),
        };
        Some(Attribute { key: self.key, suffix: std::str::from_utf8(self.suffix).unwrap_or_default(), value, cut: self.cut })
    }
}

struct Entries<'a> {
    bytes: &'a [u8],
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (head, rest) = self.bytes.split_at_checked(8)?;
        let tag = *Tag::ALL.get(usize::from(head[0] & !CUT))?;
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (suffix, rest) = rest.split_at_checked(usize::from(head[3]))?;
        let (payload, rest) = rest.split_at_checked(len)?;
        self.bytes = rest;
        Some(Entry { tag, cut: head[0] & CUT != 0, key: KeyId(u16::from_le_bytes([head[1], head[2]])), suffix, payload })
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
