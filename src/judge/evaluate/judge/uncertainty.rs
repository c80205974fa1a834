//! Explains why there is no verdict.

use text::{code, counted};

use crate::assemble::{CloseReason, TurnsSeen};
use crate::evaluate::comparison::score::{Explain, Missing, UnknownTokens};
use crate::evaluate::comparison::value_path::PathValues;
use crate::evaluate::parameters::condition::number_of;
use crate::extract::{Payload, Trajectory};

/// Describes the earlier turns; `None` if they are not the reason.
fn earlier_turn(missing: &Missing, trajectory: &Trajectory) -> Option<String> {
    let named = missing.earlier_turn?;
    let earlier = trajectory.earlier_turns.as_ref()?;
    Some(match named.and_then(|at| earlier.names.get(at)) {
        Some(name) => format!(
            "an earlier turn of this session called {}, but this trace does not show its outcome",
            code(name)
        ),
        None if earlier.seen == TurnsSeen::Unknown => {
            "earlier turns of this session, if there were any, were not seen".to_owned()
        }
        None => "earlier turns of this session were not seen".to_owned(),
    })
}

/// Describes why the call with missing evidence is incomplete.
fn incomplete(missing: &Missing, trajectory: &Trajectory) -> Option<String> {
    let call = trajectory.tool_calls.get(missing.cut?)?;
    let (name, mut values) = (
        code(&call.name),
        [&call.args, &call.result].into_iter().flatten(),
    );
    if call.partial && trajectory.cut_short {
        Some(format!("the call of {name} had not ended"))
    } else if values.clone().any(Payload::is_lost) {
        Some(format!(
            "the model's message with a value of the call of {name} was cut (raise \
             `tools.max_messages_size`)"
        ))
    } else if values.any(Payload::is_cut) {
        Some(format!(
            "a value of the call of {name} was cut (raise `tools.max_value_size`)"
        ))
    } else {
        let has_none = trajectory.from_messages && call.result.is_none();
        has_none.then(|| {
            format!(
                "no message of the models contains the result of the call \
                                  of {name}"
            )
        })
    }
}

fn no_number(missing: &Missing, trajectory: &Trajectory, explain: &Explain) -> Option<String> {
    let (call_idx, path) = &**missing.no_number.as_ref()?;
    let call = trajectory.tool_calls.get(*call_idx)?;
    let found = path.values_in(call);
    let mut values = found.iter().flat_map(PathValues::present);
    let value = values.find(|value| number_of(value).is_none());
    let shown = value.and_then(|value| explain.value(&value.to_string()));
    let shown = shown.map_or_else(String::new, |text| format!(": {}", code(&text)));
    Some(format!(
        "{} of {} is not a number{shown}",
        code(path.as_str()),
        trajectory.called(*call_idx)
    ))
}

fn not_whole(completeness: CloseReason) -> String {
    let why = match completeness {
        CloseReason::StartUnseen => "it may have begun before its first turn here",
        CloseReason::Incomplete => "spans of its turns are missing",
        CloseReason::Evicted => "the memory for sessions was full",
        CloseReason::Shutdown => "spanscore stopped before the session ended",
        CloseReason::NotWhole => {
            "other processes may receive turns of it; if none does, set `assemble.session.whole`"
        }
        _ => "it is still open",
    };
    format!(
        "the session was not seen whole ({}): {why}",
        completeness.as_str()
    )
}

pub(super) fn reasons(missing: &Missing, trajectory: &Trajectory, explain: &Explain) -> String {
    const CAPTURE: &str = "turn on content capture in the agent's instrumentation";
    let name = |call: Option<usize>| Some(code(&trajectory.tool_calls.get(call?)?.name));
    let reasons = [
        earlier_turn(missing, trajectory),
        missing
            .no_args
            .then(|| format!("no call of this trajectory has arguments ({CAPTURE})")),
        missing
            .no_results
            .then(|| format!("no call of this trajectory has a result ({CAPTURE})")),
        name(missing.uncaptured_args).map(|name| {
            format!("the arguments of the call of {name} were not captured ({CAPTURE})")
        }),
        name(missing.uncaptured_result)
            .map(|name| format!("the result of the call of {name} was not captured ({CAPTURE})")),
        missing.only_messages.then(|| {
            "the calls are known from model messages only, which show neither when a call ran nor \
             whether it failed"
                .to_owned()
        }),
        missing.overlap.then(|| {
            "calls ran at the same time, so their order is open (`overlap: not_evaluated`)"
                .to_owned()
        }),
        missing.too_much.then(|| {
            "there is too much to compare: too many values under `same`, too many calls at one \
             time, or too many calls in all"
                .to_owned()
        }),
        missing.too_long_to_search.then(|| {
            "searching the names and values of the calls takes too much work: use smaller \
             repetitions or fewer patterns (the patterns of all criteria share a limit for each \
             trace)"
                .to_owned()
        }),
        missing.no_duration.then(|| {
            "the evaluated span has no start or no end, or ends before it starts".to_owned()
        }),
        missing.unknown_tokens.map(|unknown| match unknown {
            UnknownTokens::NoModel => "no model span was seen".to_owned(),
            UnknownTokens::Totals => "the totals that agents recorded do not decide it".to_owned(),
            UnknownTokens::NotStored => {
                "no criterion read the tokens of models when this run was seen".to_owned()
            }
            UnknownTokens::Unrecorded { n_calls, what } => {
                let n_all = usize::try_from(trajectory.model_use.n_calls).unwrap_or(usize::MAX);
                let all = counted(n_all, "model call", "model calls");
                format!("{n_calls} of {all} {what}")
            }
        }),
        name(missing.untimed).map(|name| {
            format!(
                "the span of the call of {name} has no start, or ends before it starts, so its \
                 time is unknown"
            )
        }),
        incomplete(missing, trajectory),
        name(missing.incomparable).map(|name| {
            format!(
                "an argument of the call of {name} is NaN, infinite or beyond all doubles, so it \
                 cannot be compared"
            )
        }),
        no_number(missing, trajectory, explain),
        (missing.no_map)
            .map(|call| format!("the arguments of {} are no map", trajectory.called(call))),
        missing.long_sum.as_ref().map(|long_sum| {
            let (call_idx, path) = &**long_sum;
            format!(
                "{} up to {} adds up to more than 38 digits",
                code(path.as_str()),
                trajectory.called(*call_idx)
            )
        }),
        (missing.no_value).then(|| {
            "no call that `total` counts has a value at its path, which may be misspelt".to_owned()
        }),
        trajectory.cut_short.then(|| {
            if trajectory.turns.is_some() {
                return not_whole(trajectory.completeness);
            }
            let consequence = if trajectory.from_messages {
                "its calls are known from model messages only"
            } else {
                "its rest could change the verdict"
            };
            let reason = trajectory.completeness.as_str();
            format!("the trace was cut short ({reason}) and {consequence}")
        }),
    ];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    reasons.join("; ")
}
