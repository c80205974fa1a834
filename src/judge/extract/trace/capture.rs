//! Decides whether the instrumentation of a call captures arguments and results: it captures a part
//! that any of its calls has.

use std::hash::Hash;

use hashbrown::HashMap;
use otlp::span::ScopeHash;

use super::span_roles::SpanRoles;
use crate::extract::spans::SpanIdx;
use crate::extract::spans::conventions::is_written_by_many;
use crate::extract::tool_call::{CapturedParts, Payload, ToolCall};

/// The instrumentation that records a call: a convention in a service, and the instrumentation
/// scope if many instrumentations share the convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallRecorder<'a> {
    convention: &'a str,
    service: &'a str,
    scope: ScopeHash,
}

impl<'a> CallRecorder<'a> {
    pub(crate) fn of(roles: &'a SpanRoles<'_>, span_idx: SpanIdx) -> Self {
        let span = &roles.spans[span_idx];
        let convention = roles.roles[span_idx].convention;
        Self {
            convention,
            service: &roles.trace.resource(span).service,
            scope: if is_written_by_many(convention) { span.scope } else { ScopeHash::default() },
        }
    }
}

/// The parts of calls that each recorder captures.
#[derive(Debug)]
pub(crate) struct Capturing<R> {
    /// The recorder of the first call. Most traces have only one recorder, and need no table.
    first: Option<R>,
    by_first: CapturedParts,
    by_others: HashMap<R, CapturedParts>,
}

impl<R: Eq + Hash> Capturing<R> {
    pub(crate) fn new<'c>(calls: impl Iterator<Item = (R, &'c ToolCall)>) -> Self
    where
        R: Copy,
    {
        let carries = |part: &Option<Payload>| part.as_ref().is_some_and(|part| !part.is_lost());
        let mut capturing = Self {
            first: None,
            by_first: CapturedParts::default(),
            by_others: HashMap::new(),
        };
        for (recorder, call) in calls {
            let captured = if *capturing.first.get_or_insert(recorder) == recorder {
                &mut capturing.by_first
            } else {
                capturing.by_others.entry(recorder).or_default()
            };
            captured.args |= carries(&call.args);
            captured.result |= carries(&call.result);
        }
        capturing
    }

    pub(crate) fn parts_of(&self, recorder: &R) -> CapturedParts {
        if self.first.as_ref() == Some(recorder) {
            return self.by_first;
        }
        self.by_others.get(recorder).copied().unwrap_or_default()
    }
}

pub(crate) fn lacks_part(call: &ToolCall) -> bool {
    call.args.is_none() || call.result.is_none()
}

/// Sets the captured parts of calls without spans, by the convention of each call alone.
pub fn set_captured(calls: &mut [ToolCall]) {
    let capturing: Vec<CapturedParts> = {
        let recorded = calls.iter().map(|call| (&*call.convention, call));
        let capturing = Capturing::new(recorded);
        let conventions = calls.iter().map(|call| &*call.convention);
        conventions
            .map(|convention| capturing.parts_of(&convention))
            .collect()
    };
    for (call, captured) in calls.iter_mut().zip(capturing) {
        call.captured = captured;
    }
}
