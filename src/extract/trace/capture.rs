//! Pure. Whether arguments and results are captured at all where a call was recorded: they are if
//! other calls that the same instrumentation recorded carry theirs. Does not know what a part
//! holds.

use std::hash::Hash;

use hashbrown::HashSet;

use super::span_roles::SpanRoles;
use crate::extract::spans::SpanIdx;
use crate::extract::spans::conventions::is_written_by_many;
use crate::extract::tool_call::{CapturedParts, Payload, ToolCall};
use crate::span::ScopeHash;

/// Records calls, and captures their values or does not: a convention in a service, and its
/// instrumentation scope if many instrumentations write by that convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CallRecorder<'a> {
    convention: &'a str,
    service: &'a str,
    scope: ScopeHash,
}

impl<'a> CallRecorder<'a> {
    /// The recorder of a span's call.
    pub(crate) fn of(roles: &'a SpanRoles<'_>, span_idx: SpanIdx) -> Self {
        let span = &roles.spans[span_idx].0;
        let convention = roles.conventions[span_idx];
        Self {
            convention,
            service: &span.resource.service,
            scope: if is_written_by_many(convention) {
                span.scope
            } else {
                ScopeHash::default()
            },
        }
    }
}

/// The recorders that capture arguments, and those that capture results.
#[derive(Debug)]
pub(crate) struct Capturing<R> {
    args: HashSet<R>,
    results: HashSet<R>,
}

impl<R: Eq + Hash> Capturing<R> {
    /// By the parts that the calls carry themselves, before messages complete them.
    pub(crate) fn new<'c>(calls: impl Iterator<Item = (R, &'c ToolCall)>) -> Self
    where
        R: Copy,
    {
        let carries = |part: &Option<Payload>| part.as_ref().is_some_and(|part| !part.is_lost());
        let mut capturing = Self {
            args: HashSet::new(),
            results: HashSet::new(),
        };
        for (recorder, call) in calls {
            if carries(&call.args) {
                capturing.args.insert(recorder);
            }
            if carries(&call.result) {
                capturing.results.insert(recorder);
            }
        }
        capturing
    }

    pub(crate) fn parts_of(&self, recorder: &R) -> CapturedParts {
        CapturedParts {
            args: !self.args.is_empty() && self.args.contains(recorder),
            result: !self.results.is_empty() && self.results.contains(recorder),
        }
    }
}

/// Does the call lack a part?
pub(crate) fn lacks_part(call: &ToolCall) -> bool {
    call.args.is_none() || call.result.is_none()
}

/// Sets what is captured of calls that come without spans: it depends on their conventions alone.
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
