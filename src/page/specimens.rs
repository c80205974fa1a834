//! Reads a few requests for spans that look like tool calls, and proposes settings that would
//! recognise those spans.
//!
//! Attributes that no convention uses are not stored with a trace, so they are read from the
//! requests: all of the first spans after the start, and later a few while a proposal is missing.
//! Only keys of attributes are stored, and the values that mark a tool call.

use std::collections::VecDeque;

use judge::extract::Unrecognised;
use otlp::span::{SpanId, TraceId};
use otlp::wire::otlp::{any_value, key_value, request, resource_group, scope_group, span};
use otlp::wire::{delimited_fields, fields};

use crate::config::Spelling;

/// Number of spans after the start that are all read, up to [`MAX_SPANS`] of each request: a
/// developer who tries an agent sends few.
const AT_FIRST: usize = 4_096;
/// Later, one span out of this many is read.
const ONE_OF: usize = 64;
/// Maximum number of spans that are read from one request; reading them takes less than a
/// millisecond.
const MAX_SPANS: usize = 1_024;
const MAX_PROPOSALS: usize = 128;
/// Maximum length of a proposed key in bytes.
const MAX_KEY: usize = 200;

/// Proposals for the latest spans that look like tool calls.
#[derive(Debug)]
pub(super) struct Specimens {
    /// Number of spans that may still be read.
    budget: usize,
    oldest_first: VecDeque<Proposal>,
}

#[derive(Debug)]
struct Proposal {
    trace_id: TraceId,
    span_id: SpanId,
    is_marked: bool,
    setting: String,
}

impl Default for Specimens {
    fn default() -> Self {
        Self {
            budget: AT_FIRST,
            oldest_first: VecDeque::new(),
        }
    }
}

impl Specimens {
    /// Reads some spans of a valid request. `is_wanted` is true if a proposal is missing. Returns
    /// true if the next request is needed, too.
    pub(super) fn look_at(&mut self, body: &[u8], n_spans: u64, is_wanted: bool) -> bool {
        if is_wanted {
            let n_spans = usize::try_from(n_spans).unwrap_or(usize::MAX);
            let n_more = n_spans.div_ceil(ONE_OF).min(MAX_SPANS);
            self.budget = (self.budget + n_more).min(AT_FIRST);
        }
        let n_read = self.budget.min(MAX_SPANS);
        let spans = delimited_fields(body, request::RESOURCE_GROUPS)
            .flat_map(|group| delimited_fields(group, resource_group::SCOPE_GROUPS))
            .flat_map(|group| delimited_fields(group, scope_group::ITEMS));
        for span in spans.take(n_read) {
            self.budget -= 1;
            self.read(span);
        }
        self.budget > 0
    }

    fn read(&mut self, encoded: &[u8]) {
        let (mut trace_id, mut span_id) = (None, None);
        let mut attributes: Vec<(&str, &str)> = Vec::new();
        for field in fields(encoded).flatten() {
            match (field.number, field.content) {
                (span::TRACE_ID, Some(bytes)) => trace_id = TraceId::try_new(bytes),
                (span::SPAN_ID, Some(bytes)) => span_id = SpanId::try_new(bytes),
                (span::ATTRIBUTES, Some(attribute)) => attributes.extend(text_of(attribute)),
                _ => {}
            }
        }
        if let (Some(trace_id), Some(span_id)) = (trace_id, span_id)
            && let Some(spelling) = Spelling::guess(attributes)
        {
            if self.oldest_first.len() == MAX_PROPOSALS {
                self.oldest_first.pop_front();
            }
            self.oldest_first.push_back(Proposal {
                trace_id,
                span_id,
                is_marked: spelling.is_marked(),
                setting: spelling.setting(),
            });
        }
    }

    /// Returns the setting to try, as YAML, for a trace without a recognised tool call. `inspect
    /// --verbose` proposes the same setting.
    pub(super) fn proposal(&self, found: &Unrecognised) -> Option<&str> {
        let proposals = self.oldest_first.iter().filter(|proposal| {
            proposal.trace_id == found.trace_id && found.others.contains(&proposal.span_id)
        });
        let best = proposals.min_by_key(|proposal| !proposal.is_marked);
        best.map(|proposal| proposal.setting.as_str())
    }
}

/// Returns the key and value of an attribute; the value is empty if it is not a text.
fn text_of(attribute: &[u8]) -> Option<(&str, &str)> {
    let last = |message, number| delimited_fields(message, number).last();
    let key = std::str::from_utf8(last(attribute, key_value::KEY)?).ok()?;
    let value = last(attribute, key_value::VALUE).and_then(|value| last(value, any_value::STRING));
    let value = value.and_then(|text| std::str::from_utf8(text).ok());
    (key.len() <= MAX_KEY).then_some((key, value.unwrap_or_default()))
}
