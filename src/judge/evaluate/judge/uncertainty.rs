//! The reasons why a verdict is not given. Knows no single evaluator.

use std::fmt;
use std::sync::Arc;

use text::code;

use crate::assemble::CloseReason;
use crate::evaluate::comparison::score::Missing;
use crate::extract::{Payload, Trajectory};

/// Why there is no verdict.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Uncertainty {
    no_args: bool,
    no_results: bool,
    uncaptured_args: Option<Arc<str>>,
    uncaptured_result: Option<Arc<str>>,
    only_messages: bool,
    overlap: bool,
    too_much: bool,
    too_long_to_search: bool,
    no_duration: bool,
    /// A call whose time is not known, by name.
    untimed_call: Option<Arc<str>>,
    incomplete_call: Option<IncompleteCall>,
    /// A call with an argument that cannot be compared, by name.
    incomparable_call: Option<Arc<str>>,
    cut_short: Option<CutShort>,
}

/// A call of which something is missing, by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum IncompleteCall {
    NotEnded(Arc<str>),
    ValueCut(Arc<str>),
    ValueLost(Arc<str>),
    NoResult(Arc<str>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CutShort {
    reason: CloseReason,
    from_messages: bool,
}

impl Uncertainty {
    pub(super) fn new(missing: Missing, trajectory: &Trajectory) -> Self {
        let name_of = |call_idx: Option<usize>| {
            let call = trajectory.tool_calls.get(call_idx?)?;
            Some(call.name.clone())
        };
        let call = missing
            .cut
            .and_then(|call_idx| trajectory.tool_calls.get(call_idx));
        let incomplete_call = call.and_then(|call| {
            let values = || [&call.args, &call.result].into_iter().flatten();
            let (was_lost, was_cut) = (
                values().any(Payload::is_lost),
                values().any(Payload::is_cut),
            );
            let name = call.name.clone();
            if call.partial && trajectory.cut_short {
                Some(IncompleteCall::NotEnded(name))
            } else if was_lost {
                Some(IncompleteCall::ValueLost(name))
            } else if was_cut {
                Some(IncompleteCall::ValueCut(name))
            } else if trajectory.from_messages && call.result.is_none() {
                Some(IncompleteCall::NoResult(name))
            } else {
                None
            }
        });
        Self {
            no_args: missing.no_args,
            no_results: missing.no_results,
            uncaptured_args: name_of(missing.uncaptured_args),
            uncaptured_result: name_of(missing.uncaptured_result),
            only_messages: missing.only_messages,
            overlap: missing.overlap,
            too_much: missing.too_much,
            too_long_to_search: missing.too_long_to_search,
            no_duration: missing.no_duration,
            untimed_call: name_of(missing.untimed),
            incomplete_call,
            incomparable_call: name_of(missing.incomparable),
            cut_short: trajectory.cut_short.then_some(CutShort {
                reason: trajectory.completeness,
                from_messages: trajectory.from_messages,
            }),
        }
    }
}

impl fmt::Display for Uncertainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CAPTURE: &str = "turn on content capture in the agent's instrumentation";
        let mut reasons = Vec::new();
        if self.no_args {
            reasons.push(format!(
                "no call of this trajectory carries arguments ({CAPTURE})"
            ));
        }
        if self.no_results {
            reasons.push(format!(
                "no call of this trajectory carries a result ({CAPTURE})"
            ));
        }
        if let Some(name) = &self.uncaptured_args {
            reasons.push(format!(
                "the arguments of the call of {} were not captured ({CAPTURE})",
                code(name)
            ));
        }
        if let Some(name) = &self.uncaptured_result {
            reasons.push(format!(
                "the result of the call of {} was not captured ({CAPTURE})",
                code(name)
            ));
        }
        if self.only_messages {
            reasons.push(
                "the calls are known from model messages only, which tell neither when a call ran \
                 nor whether it failed"
                    .to_owned(),
            );
        }
        if self.overlap {
            reasons.push(
                "calls ran at the same time, so their order is open (`overlap: not_evaluated`)"
                    .to_owned(),
            );
        }
        if self.too_much {
            reasons.push(
                "there is too much to compare: too many values under `same`, or too many calls at \
                 one time"
                    .to_owned(),
            );
        }
        if self.too_long_to_search {
            reasons.push(
                "searching the names and values of the calls takes too much work: use smaller \
                 repetitions or fewer patterns (the patterns of all criteria share a limit for \
                 each trace)"
                    .to_owned(),
            );
        }
        if self.no_duration {
            reasons.push(
                "the evaluated span has no start or no end, or ends before it starts".to_owned(),
            );
        }
        if let Some(name) = &self.untimed_call {
            reasons.push(format!(
                "the span of the call of {} has no start, or ends before it starts, so when \
                 it ran is not known",
                code(name)
            ));
        }
        match &self.incomplete_call {
            Some(IncompleteCall::NotEnded(name)) => {
                reasons.push(format!("the call of {} had not ended", code(name)));
            }
            Some(IncompleteCall::ValueCut(name)) => reasons.push(format!(
                "a value of the call of {} was cut (raise `tools.max_value_size`)",
                code(name)
            )),
            Some(IncompleteCall::ValueLost(name)) => reasons.push(format!(
                "the model's message with a value of the call of {} was cut \
                 (raise `tools.max_messages_size`)",
                code(name)
            )),
            Some(IncompleteCall::NoResult(name)) => reasons.push(format!(
                "no message of the models holds the result of the call of {}",
                code(name)
            )),
            None => {}
        }
        if let Some(name) = &self.incomparable_call {
            reasons.push(format!(
                "an argument of the call of {} is NaN, infinite or beyond all doubles, so it \
                 cannot be compared",
                code(name)
            ));
        }
        if let Some(CutShort {
            reason,
            from_messages,
        }) = &self.cut_short
        {
            let consequence = match from_messages {
                true => "its calls are known from model messages only",
                false => "its rest could change the verdict",
            };
            let reason = reason.as_str();
            reasons.push(format!(
                "the trace was cut short ({reason}) and {consequence}"
            ));
        }
        f.write_str(&reasons.join("; "))
    }
}
