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

use self::levels::{ItemReader, RequestLevels};
use self::resources::RequestResources;
use self::spans::SpanWalk;
use crate::span::{Batch, ScopeHash, SpanAdmission};
use crate::wire::otlp::{scope, scope_group};
use crate::wire::{Fault, delimited_fields};

pub use crate::wire::MalformedProtobuf;

/// The contents of a trace request.
#[derive(Debug, Default)]
pub struct ScannedSpans {
    /// Number of all spans, as `accepted` counts them, including spans that cannot be assembled.
    pub n_spans: usize,
    /// True if a group of spans claims spanscore's instrumentation scope.
    pub claims_own_scope: bool,
    /// The admitted spans. Without an admission, only `n_without_ids` is set.
    pub batch: Batch,
}

/// Validates the body of a trace request, counts its spans, and, with an `admission`, reads the
/// admitted spans.
///
/// The stored size of a span is bounded (see `retention.rs`): by default, 64 KiB each for large
/// values, small values, replies and requests, plus the name, the trace state and expectations. At
/// most 64 KiB of an encoded resource are stored. Equal resources are shared.
///
/// # Errors
/// Returns an error if prost's decoder would reject the request, or if an id has the wrong length:
/// a trace id (of a span or link) that is neither 16 bytes nor empty, or a span id or parent span
/// id that is neither 8 bytes nor empty. One wrong id makes the whole request malformed.
pub fn scan(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
) -> Result<ScannedSpans, MalformedProtobuf> {
    scan_within(body, admission, &mut |_| true)
}

/// Like [`scan`], but calls `has_room` before it allocates memory for more spans, with the total
/// bytes of the list of spans. A span of 30 encoded bytes needs nearly four times as many bytes in
/// the list.
///
/// # Errors
/// Returns the errors of [`scan`], and an error if `has_room` returns false.
pub fn scan_within(
    body: &[u8],
    admission: Option<&dyn SpanAdmission>,
    has_room: &mut dyn FnMut(usize) -> bool,
) -> Result<ScannedSpans, MalformedProtobuf> {
    let mut scan = RequestScan::new(admission, body.len(), has_room);
    let walked = LEVELS.walk(body, &mut scan);
    walked.map_err(|fault| fault.locate(body))?;
    Ok(scan.finish())
}

static LEVELS: RequestLevels = RequestLevels::new("resource_spans", "scope_spans", "spans");

struct RequestScan<'k, 'b> {
    walk: SpanWalk<'k, 'b>,
    resources: RequestResources<'k, 'b>,
    scope: ScopeHash,
    scanned: ScannedSpans,
}

impl<'k, 'b> RequestScan<'k, 'b> {
    fn new(
        admission: Option<&'k dyn SpanAdmission>,
        body_len: usize,
        has_room: &'k mut dyn FnMut(usize) -> bool,
    ) -> Self {
        let mut scanned = ScannedSpans::default();
        if admission.is_some() {
            // Estimate the number of spans from the length of the body, but reserve space for at
            // most an SDK's full batch. The vector grows for a larger request.
            scanned.batch.spans.reserve((body_len / 256).min(512));
        }
        scanned.batch.watched_by = admission.and_then(SpanAdmission::watched_by);
        Self {
            walk: SpanWalk::new(admission, has_room),
            resources: RequestResources::new(admission.map(SpanAdmission::keys)),
            scope: ScopeHash::default(),
            scanned,
        }
    }

    fn finish(mut self) -> ScannedSpans {
        self.scanned.batch.shared_size = self.walk.finish();
        // Later stages account for the spans only, so spare capacity would be unaccounted memory.
        let spans = &mut self.scanned.batch.spans;
        if spans.len() > 1_024 && spans.capacity() - spans.len() > spans.len() / 4 {
            spans.shrink_to_fit();
        }
        self.scanned
    }
}

impl<'b> ItemReader<'b> for RequestScan<'_, 'b> {
    fn resource_group(&mut self, group: &'b [u8]) {
        self.resources.begin(group);
    }

    fn scope_group(&mut self, group: &'b [u8]) {
        // A sender may put the scope after its spans, or send several scopes. The last name is
        // used.
        let scopes = delimited_fields(group, scope_group::SCOPE);
        let name = scopes.filter_map(|scope| delimited_fields(scope, scope::NAME).last());
        self.scope = ScopeHash::new(name.last().unwrap_or_default());
        self.scanned.claims_own_scope |= self.scope == ScopeHash::OWN;
    }

    fn item(&mut self, span: &'b [u8], depth: u32) -> Result<(), Fault> {
        self.scanned.n_spans += 1;
        let resource = self.resources.current();
        self.walk
            .span(span, depth, resource, self.scope, &mut self.scanned.batch)
    }
}
