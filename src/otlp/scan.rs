//! Validates the body of a trace request, counts its spans and reads them, in one pass. Accepts the
//! `ExportTraceServiceRequest`s that prost's decoder accepts, except those with ids of the wrong
//! length.

pub(super) mod levels;
pub(super) mod logs;
mod resources;
mod spans;

mod known_keys;
mod requests;
mod retention;

mod call_words;
mod shorten;

mod any_value_json;
mod value;

pub(super) mod schema;

use std::sync::Arc;

use self::levels::RequestLevels;
use self::resources::{RequestResources, occurrences};
use self::schema::{RESOURCE, SCOPE};
use self::spans::SpanWalk;
use crate::span::{Batch, Resource, ScopeHash, SpanAdmission};
use crate::wire::otlp::{request, resource_group, scope, scope_group};
use crate::wire::{Cursor, Fault, LEN, RECURSION_LIMIT, delimited_fields, enter, key};

pub use crate::wire::MalformedProtobuf;

/// The contents of a trace request.
#[derive(Debug, Default)]
pub struct ScannedSpans {
    /// Number of all spans, as `accepted` counts them, including spans that cannot be assembled.
    pub n_spans: usize,
    /// True if a group of spans claims the instrumentation scope of spanscore.
    pub claims_own_scope: bool,
    /// The kept spans. Without an admission, only `n_without_ids` is set.
    pub batch: Batch,
}

/// Validates the body of a trace request, counts its spans, and, with an `admission`, reads the
/// admitted spans.
///
/// The kept size of a span is bounded (see `retention.rs`): by default, 64 KiB each for large
/// values, small values, replies and requests, plus the name and trace state. A resource has at
/// most 64 KiB. Equal resources are shared.
///
/// # Errors
/// A request that prost's decoder rejects, or that has an id of the wrong length: a trace id (of a
/// span or link) that is neither 16 bytes nor empty, or a span id or parent span id that is neither
/// 8 bytes nor empty. One wrong id makes the whole request malformed.
pub fn scan(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
) -> Result<ScannedSpans, MalformedProtobuf> {
    scan_within(body, admission, &mut |_| true)
}

/// Like [`scan`], but calls `has_room` before allocating memory for more spans, with the bytes that
/// the list of spans then needs. A span of 30 encoded bytes needs three times as many.
///
/// # Errors
/// The errors of [`scan`], and an error if `has_room` returns false.
pub fn scan_within(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
    has_room: &mut dyn FnMut(usize) -> bool,
) -> Result<ScannedSpans, MalformedProtobuf> {
    let mut scan = RequestScan::new(admission, body.len(), has_room);
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

static LEVELS: RequestLevels = RequestLevels::new("resource_spans", "scope_spans", "spans");

struct RequestScan<'k, 'b> {
    walk: SpanWalk<'k, 'b>,
    resources: RequestResources<'k>,
    n_spans: usize,
    claims_own_scope: bool,
    batch: Batch,
}

impl<'k, 'b> RequestScan<'k, 'b> {
    fn new(
        admission: Option<&'k dyn SpanAdmission>,
        body_len: usize,
        has_room: &'k mut dyn FnMut(usize) -> bool,
    ) -> Self {
        let mut batch = Batch::default();
        if admission.is_some() {
            // About the size of an SDK's full batch. The vector grows for a larger request.
            batch.spans.reserve((body_len / 256).min(512));
        }
        Self {
            walk: SpanWalk::new(admission, has_room),
            resources: RequestResources::new(admission.map(SpanAdmission::keys)),
            n_spans: 0,
            claims_own_scope: false,
            batch,
        }
    }

    fn finish(mut self) -> ScannedSpans {
        self.batch.shared_size = self.walk.finish();
        // Later stages account for the spans only: spare capacity would be unaccounted memory.
        let spans = &mut self.batch.spans;
        if spans.len() > 1_024 && spans.capacity() - spans.len() > spans.len() / 4 {
            spans.shrink_to_fit();
        }
        ScannedSpans {
            n_spans: self.n_spans,
            claims_own_scope: self.claims_own_scope,
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
                other => LEVELS
                    .request
                    .fields
                    .check_field(other, &mut cursor, RECURSION_LIMIT)?,
            }
        }
        Ok(())
    }

    fn resource_spans(&mut self, bytes: &'b [u8], depth: u32) -> Result<(), Fault> {
        // A sender may put the resource after its spans.
        let occurrences = occurrences(bytes, resource_group::RESOURCE);
        let mut interned: Option<Arc<Resource>> = None;
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                RESOURCE_FIELD => {
                    let resource = cursor.delimited()?;
                    RESOURCE
                        .check(resource, enter(depth, resource)?)
                        .map_err(|fault| fault.within("resource"))?;
                }
                SCOPE_SPANS => {
                    let scope_spans = cursor.delimited()?;
                    let resource =
                        interned.get_or_insert_with(|| self.resources.intern(&occurrences));
                    let resource = Arc::clone(resource);
                    self.scope_spans(scope_spans, enter(depth, scope_spans)?, &resource)
                        .map_err(|fault| fault.within("scope_spans"))?;
                }
                other => LEVELS
                    .resource_group
                    .fields
                    .check_field(other, &mut cursor, depth)?,
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
        // A sender may put the scope after its spans, or send several scopes: the last name counts.
        let scopes = delimited_fields(bytes, scope_group::SCOPE);
        let name = scopes.filter_map(|scope| delimited_fields(scope, scope::NAME).last());
        let scope_hash = ScopeHash::new(name.last().unwrap_or_default());
        self.claims_own_scope |= scope_hash == ScopeHash::OWN;
        let mut cursor = Cursor::new(bytes);
        while !cursor.is_empty() {
            match cursor.varint()? {
                SPANS => {
                    let span = cursor.delimited()?;
                    self.n_spans += 1;
                    let depth = enter(depth, span)?;
                    self.walk
                        .span(span, depth, resource, scope_hash, &mut self.batch)
                        .map_err(|fault| fault.within("spans"))?;
                }
                SCOPE_FIELD => {
                    let scope = cursor.delimited()?;
                    SCOPE
                        .check(scope, enter(depth, scope)?)
                        .map_err(|fault| fault.within("scope"))?;
                }
                other => LEVELS
                    .scope_group
                    .fields
                    .check_field(other, &mut cursor, depth)?,
            }
        }
        Ok(())
    }
}
