//! The body of a trace request in, the number of its spans and their slim form out, in one pass
//! that validates every byte. It accepts exactly what prost's decoder accepts of an
//! `ExportTraceServiceRequest`, but for ids of the wrong length. Knows the wire format of OTLP and
//! the key set it is handed; does not know what the keys mean, what becomes of the request, or who
//! asks.

mod keep;
pub(super) mod logs;
mod render;
pub(super) mod shape;
mod spans;
mod value;

use std::borrow::Borrow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::HashSet;
use smallvec::SmallVec;

use self::keep::Keeper;
use self::shape::{Kind, RESOURCE, SCOPE, Shape};
use self::spans::SpanWalk;
use self::value::{HeldKind, key_value};
use crate::span::{Batch, KeySet, Resource, cut_at_char};
use crate::wire::otlp::{request, resource, resource_group, scope, scope_group};
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, check_utf8, delimited_fields, enter, key};

pub use crate::wire::MalformedProtobuf;

/// The instrumentation scope of our own score spans: they are counted and forwarded, but never
/// assembled.
pub const OWN_SCOPE: &str = "spanscore";

/// What a trace request holds.
#[derive(Debug, Default)]
pub struct Scanned {
    /// All its spans, whether they can be assembled or not: what `accepted` counts.
    pub n_spans: usize,
    /// The slim spans; empty (but for `n_without_ids`) where none were asked for.
    pub batch: Batch,
}

/// Validate the body of a trace request, count its spans, and, where a key set is given, yield
/// their slim form.
///
/// A span's facts are bounded as said in `keep.rs` (by default at most 64 KiB of large values, 64
/// KiB of small ones, 64 KiB of messages, and the names), a resource at 64 KiB. A resource that
/// occurs several times is shared.
///
/// # Errors
/// Anything that prost's decoder refuses, and trace ids (of spans and links) that are neither 16
/// bytes nor empty, span ids and parent span ids that are neither 8 bytes nor empty. Then the whole
/// request is malformed.
pub fn scan(body: &[u8], keys: Option<&KeySet>) -> Result<Scanned, MalformedProtobuf> {
    let mut scan = RequestScan::new(keys, body.len());
    match scan.request(body) {
        Ok(()) => Ok(scan.finish()),
        Err(fault) => Err(fault.locate(body)),
    }
}

const RESOURCE_SPANS: u64 = key(request::RESOURCE_GROUPS, LEN);
const RESOURCE_FIELD: u64 = key(resource_group::RESOURCE, LEN);
const SCOPE_SPANS: u64 = key(resource_group::SCOPE_GROUPS, LEN);
const SCOPE_FIELD: u64 = key(scope_group::SCOPE, LEN);
const SPANS: u64 = key(scope_group::ITEMS, LEN);

static RESOURCE_SPANS_FIELDS: Shape = Shape::new([
    (
        resource_group::RESOURCE,
        "resource",
        Kind::Message(&RESOURCE),
    ),
    (resource_group::SCOPE_GROUPS, "scope_spans", Kind::Bytes),
    (resource_group::SCHEMA_URL, "schema_url", Kind::Str),
]);
static SCOPE_SPANS_FIELDS: Shape = Shape::new([
    (scope_group::SCOPE, "scope", Kind::Message(&SCOPE)),
    (scope_group::ITEMS, "spans", Kind::Bytes),
    (scope_group::SCHEMA_URL, "schema_url", Kind::Str),
]);
static REQUEST_FIELDS: Shape =
    Shape::new([(request::RESOURCE_GROUPS, "resource_spans", Kind::Bytes)]);

/// Longest encoded resource kept, in bytes; of a longer one only the first fields are kept. Real
/// ones have a few hundred bytes.
const MAX_RESOURCE_SIZE: usize = 64 << 10;
/// Longest service name kept, in bytes.
const MAX_SERVICE_SIZE: usize = 1 << 10;

/// The occurrences of one message: taken together they are the message.
type Pieces<'b> = SmallVec<[&'b [u8]; 1]>;

struct RequestScan<'k, 'b> {
    walk: SpanWalk<'k, 'b>,
    resources: Resources<'k>,
    n_spans: usize,
    batch: Batch,
}

impl<'k, 'b> RequestScan<'k, 'b> {
    fn new(keys: Option<&'k KeySet>, body_len: usize) -> Self {
        let mut batch = Batch::default();
        if keys.is_some() {
            // About what a full batch of an SDK has; more is grown.
            batch.spans.reserve((body_len / 256).min(512));
        }
        Self {
            walk: SpanWalk::new(keys.map(Keeper::new)),
            resources: Resources {
                keeper: keys.map(Keeper::new),
                seen: HashSet::new(),
                last: None,
            },
            n_spans: 0,
            batch,
        }
    }

    fn finish(mut self) -> Scanned {
        self.batch.shared_size = self.walk.finish();
        Scanned {
            n_spans: self.n_spans,
            batch: self.batch,
        }
    }

    fn request(&mut self, body: &'b [u8]) -> Result<(), Fault> {
        let mut cursor = Cursor::new(body);
        while !cursor.is_empty() {
            match cursor.varint()? {
                RESOURCE_SPANS => {
                    let bytes = cursor.delimited()?;
                    self.resource_spans(bytes, enter(RECURSION_LIMIT, bytes)?)
                        .map_err(|fault| fault.within("resource_spans"))?;
                }
                other => REQUEST_FIELDS.check_field(other, &mut cursor, RECURSION_LIMIT)?,
            }
        }
        Ok(())
    }

    fn resource_spans(&mut self, bytes: &'b [u8], depth: u32) -> Result<(), Fault> {
        let first_span = self.batch.spans.len();
        let mut pieces = Pieces::new();
        // The resource as far as it is known when spans come: all of it, unless a sender puts spans
        // before it.
        let mut known: Option<(usize, Arc<Resource>)> = None;
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                RESOURCE_FIELD => {
                    let resource = cursor.delimited()?;
                    RESOURCE
                        .check(resource, enter(depth, resource)?)
                        .map_err(|fault| fault.within("resource"))?;
                    pieces.push(resource);
                }
                SCOPE_SPANS => {
                    let scope_spans = cursor.delimited()?;
                    let (_, resource) =
                        known.get_or_insert_with(|| (pieces.len(), self.resources.intern(&pieces)));
                    let resource = Arc::clone(resource);
                    self.scope_spans(scope_spans, enter(depth, scope_spans)?, &resource)
                        .map_err(|fault| fault.within("scope_spans"))?;
                }
                other => RESOURCE_SPANS_FIELDS.check_field(other, &mut cursor, depth)?,
            }
        }
        if let Some((n_pieces, _)) = known
            && n_pieces < pieces.len()
            && first_span < self.batch.spans.len()
        {
            let resource = self.resources.intern(&pieces);
            for span in &mut self.batch.spans[first_span..] {
                span.resource = Arc::clone(&resource);
            }
        }
        Ok(())
    }

    fn scope_spans(
        &mut self,
        bytes: &'b [u8],
        depth: u32,
        resource: &Arc<Resource>,
    ) -> Result<(), Fault> {
        let (first_span, n_without_ids) = (self.batch.spans.len(), self.batch.n_without_ids);
        let mut scope_name: &[u8] = b"";
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                SPANS => {
                    let span = cursor.delimited()?;
                    self.n_spans += 1;
                    let depth = enter(depth, span)?;
                    self.walk
                        .span(span, depth, resource, &mut self.batch)
                        .map_err(|fault| fault.within("spans"))?;
                }
                SCOPE_FIELD => {
                    let scope = cursor.delimited()?;
                    SCOPE
                        .check(scope, enter(depth, scope)?)
                        .map_err(|fault| fault.within("scope"))?;
                    scope_name = delimited_fields(scope, scope::NAME)
                        .last()
                        .unwrap_or(scope_name);
                }
                other => SCOPE_SPANS_FIELDS.check_field(other, &mut cursor, depth)?,
            }
        }
        if scope_name == OWN_SCOPE.as_bytes() {
            self.batch.spans.truncate(first_span);
            self.batch.n_without_ids = n_without_ids;
        }
        Ok(())
    }
}

// === Resources ===

/// The distinct resources of a request.
struct Resources<'k> {
    keeper: Option<Keeper<'k>>,
    seen: HashSet<ByEncoding>,
    last: Option<Arc<Resource>>,
}

impl Resources<'_> {
    fn intern(&mut self, pieces: &Pieces<'_>) -> Arc<Resource> {
        let merged;
        let encoded = match pieces.as_slice() {
            [] => &[][..],
            _ if self.keeper.is_none() => &[][..],
            [one] if one.len() <= MAX_RESOURCE_SIZE => one,
            _ => {
                merged = merge(pieces);
                &merged[..]
            }
        };
        if let Some(last) = &self.last
            && *last.encoded == *encoded
        {
            return Arc::clone(last);
        }
        let resource = match self.seen.get(encoded) {
            Some(seen) => Arc::clone(&seen.0),
            None => {
                let resource = Arc::new(self.read(encoded));
                self.seen.insert(ByEncoding(Arc::clone(&resource)));
                resource
            }
        };
        self.last = Some(Arc::clone(&resource));
        resource
    }

    fn read(&mut self, encoded: &[u8]) -> Resource {
        let mut service: Option<Arc<str>> = None;
        for attribute in delimited_fields(encoded, resource::ATTRIBUTES) {
            let Ok((key, held)) = key_value(attribute, RECURSION_LIMIT, check_utf8) else {
                continue;
            };
            if key == b"service.name" && service.is_none() {
                service = Some(match held.kind {
                    HeldKind::Str => {
                        String::from_utf8_lossy(cut_at_char(held.bytes, MAX_SERVICE_SIZE)).into()
                    }
                    _ => Arc::default(),
                });
            }
            if let Some(keeper) = &mut self.keeper
                && let Some(kept) = keeper.keys().find(key)
            {
                keeper.attribute(kept, held, attribute);
            }
        }
        let kept = self
            .keeper
            .as_mut()
            .map(Keeper::take_alone)
            .unwrap_or_default();
        Resource {
            encoded: encoded.into(),
            service: service.unwrap_or_default(),
            kept,
        }
    }
}

/// All occurrences as one message, as many whole fields of it as the bound allows.
fn merge(pieces: &Pieces<'_>) -> Vec<u8> {
    let mut merged = Vec::new();
    for piece in pieces {
        let mut cursor = Cursor::new(piece);
        while !cursor.is_empty() {
            let field = cursor.rest();
            if cursor
                .varint()
                .and_then(|key| cursor.skip_unread(key, 0, RECURSION_LIMIT))
                .is_err()
            {
                break;
            }
            let field = &field[..field.len() - cursor.rest().len()];
            if merged.len() + field.len() > MAX_RESOURCE_SIZE {
                return merged;
            }
            merged.extend_from_slice(field);
        }
    }
    merged
}

/// Hashes and compares as the encoding.
struct ByEncoding(Arc<Resource>);

impl Borrow<[u8]> for ByEncoding {
    fn borrow(&self) -> &[u8] {
        &self.0.encoded
    }
}

impl PartialEq for ByEncoding {
    fn eq(&self, other: &Self) -> bool {
        self.0.encoded == other.0.encoded
    }
}

impl Eq for ByEncoding {}

impl Hash for ByEncoding {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.encoded.hash(state);
    }
}
