//! Reads the arguments and results of calls, and notes which of them were not captured. Knows
//! nothing of what is expected of them.

use hashbrown::HashMap;
use serde_json::Value;

use super::score::{Missing, NoText, PathsSeen};
use super::value_path::ValuePath;
use crate::extract::{Beginning, Payload, ToolCall, Trajectory};

/// No, maybe or yes, in this order, so that "and" is the least and "or" the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Tri {
    No,
    Maybe,
    Yes,
}

impl From<bool> for Tri {
    fn from(yes: bool) -> Self {
        if yes { Self::Yes } else { Self::No }
    }
}

impl From<Option<bool>> for Tri {
    fn from(yes: Option<bool>) -> Self {
        yes.map_or(Self::Maybe, Self::from)
    }
}

impl std::ops::Not for Tri {
    type Output = Self;

    fn not(self) -> Self {
        match self {
            Self::No => Self::Yes,
            Self::Maybe => Self::Maybe,
            Self::Yes => Self::No,
        }
    }
}

impl Tri {
    /// For details, where `Maybe` is `null`.
    pub(crate) fn known(self) -> Option<bool> {
        match self {
            Self::No => Some(false),
            Self::Maybe => None,
            Self::Yes => Some(true),
        }
    }
}

/// A value of a call, as far as it is known.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<T> {
    /// Captured whole.
    Value(T),
    /// The call has none: others that were recorded like it carry theirs, so capture is on.
    None,
    /// Not captured, or cut.
    Unknown,
}

/// What is known of the arguments or the result of a call.
pub(crate) enum Read<'a> {
    /// The value, whole.
    Whole(&'a Value),
    /// What stands before the cut.
    Beginning(Beginning),
    /// The call has none.
    None,
    /// Nothing.
    Unknown,
}

/// The work that one evaluation may spend on searching texts, half a second on one core with most
/// patterns and four seconds at worst. A pattern of twenty characters can search 20 MiB.
pub(crate) const MAX_SEARCH: u64 = 128 << 20;

/// Reads arguments and results of a trajectory's calls, and notes which reads failed.
pub(crate) struct CapturedValues<'a> {
    trajectory: &'a Trajectory,
    missing: Missing,
    no_text: Option<NoText>,
    /// The paths that were followed, each where it is written, and whether they led to a value.
    followed: HashMap<*const ValuePath, Tri>,
    /// The work spent on searching, and the most that may be.
    searched: u64,
    max_search: u64,
}

impl<'a> CapturedValues<'a> {
    /// For evaluators that search nothing.
    pub(crate) fn new(trajectory: &'a Trajectory) -> Self {
        Self::within(trajectory, 0)
    }

    /// Reads for an evaluator that may spend at most this much work on searching, and at most
    /// [`MAX_SEARCH`].
    pub(crate) fn within(trajectory: &'a Trajectory, max_search: u64) -> Self {
        Self {
            trajectory,
            missing: Missing::default(),
            no_text: None,
            followed: HashMap::new(),
            searched: 0,
            max_search: max_search.min(MAX_SEARCH),
        }
    }

    /// Searches a text, unless too much work has been spent on searching. Then the answer is not
    /// known.
    pub(crate) fn search(&mut self, cost: u64, search: impl FnOnce() -> bool) -> Tri {
        if !self.spend_searching(cost) {
            return Tri::Maybe;
        }
        Tri::from(search())
    }

    /// Takes work off what is left, and notes if too little is.
    pub(crate) fn spend_searching(&mut self, cost: u64) -> bool {
        let is_left = self.spend(cost);
        self.missing.too_long_to_search |= !is_left;
        is_left
    }

    /// Takes this much work off what is left; `false` if too little is.
    pub(crate) fn spend(&mut self, cost: u64) -> bool {
        let searched = self.searched.saturating_add(cost);
        let is_left = searched <= self.max_search;
        if is_left {
            self.searched = searched;
        }
        is_left
    }

    /// The arguments of a call, as JSON.
    pub(crate) fn args(&mut self, call_idx: usize) -> Known<&'a Value> {
        match self.known(call_idx, false) {
            Some(Some(payload)) => Known::Value(payload.json()),
            Some(None) => Known::None,
            None => Known::Unknown,
        }
    }

    /// Notes a call with an argument that cannot be compared.
    pub(crate) fn note_incomparable(&mut self, call_idx: usize) {
        self.missing.incomparable = self.missing.incomparable.or(Some(call_idx));
    }

    /// Notes a call with a value that is no number where an order is asked.
    pub(crate) fn note_no_number(&mut self, call_idx: usize, path: &ValuePath) {
        let no_number = &mut self.missing.no_number;
        no_number.get_or_insert_with(|| Box::new((call_idx, path.clone())));
    }

    /// Notes a call up to which a sum has too many digits.
    pub(crate) fn note_long_sum(&mut self, call_idx: usize, path: &ValuePath) {
        let long_sum = &mut self.missing.long_sum;
        long_sum.get_or_insert_with(|| Box::new((call_idx, path.clone())));
    }

    /// Notes a value that a pattern under `args` reads, or else this operator, if it is no text.
    pub(crate) fn note_no_text(
        &mut self,
        call_idx: usize,
        path: &str,
        value: &Value,
        operator: Option<&'static str>,
    ) {
        let kind = match value {
            Value::Number(_) => "a number",
            Value::Bool(_) => "a boolean",
            Value::Array(_) => "a list",
            Value::Object(_) => "a map",
            Value::Null | Value::String(_) => return,
        };
        let is_first = (self.no_text.as_ref())
            .is_none_or(|first| (call_idx, path) < (first.call_idx, &first.path));
        if is_first {
            self.no_text = Some(NoText {
                call_idx,
                path: path.to_owned(),
                kind,
                operator,
            });
        }
    }

    /// Notes a call with arguments that are no map where a key of them is asked for.
    pub(crate) fn note_no_map(&mut self, call_idx: usize) {
        self.missing.no_map = self.missing.no_map.or(Some(call_idx));
    }

    /// Notes whether the path of a condition led to a value in a call.
    pub(crate) fn note_followed(&mut self, path: &ValuePath, led: Tri) {
        let so_far = self.followed.entry(path).or_insert(led);
        *so_far = led.max(*so_far);
    }

    /// Where these paths led, which are those of a criterion.
    pub(crate) fn paths_seen<'p>(&self, paths: impl Iterator<Item = &'p ValuePath>) -> PathsSeen {
        let mut seen = PathsSeen::default();
        for (path, at) in paths.zip(0..u64::BITS) {
            match self.followed.get(&std::ptr::from_ref(path)) {
                Some(Tri::Yes) => seen.somewhere |= 1 << at,
                Some(Tri::No) => seen.nowhere |= 1 << at,
                Some(Tri::Maybe) | None => {}
            }
        }
        seen
    }

    /// The first of these values.
    pub(crate) fn no_text(&self) -> Option<NoText> {
        self.no_text.clone()
    }

    /// The text of a call's result, empty where the call has none; `None` where it is not known.
    pub(crate) fn result(&mut self, call_idx: usize) -> Option<&'a str> {
        let payload = self.known(call_idx, true)?;
        // A message answers every call: if none was seen, the result is not known.
        if payload.is_none() && self.trajectory.from_messages {
            self.note_cut(call_idx);
            return None;
        }
        Some(payload.map_or("", |payload| &payload.text))
    }

    /// The result of a call, as JSON.
    pub(crate) fn result_json(&mut self, call_idx: usize) -> Known<&'a Value> {
        let trajectory = self.trajectory;
        let payload = trajectory.tool_calls[call_idx].result.as_ref();
        match (self.result(call_idx), payload) {
            (None, _) => Known::Unknown,
            (Some(_), Some(payload)) => Known::Value(payload.json()),
            (Some(_), None) => Known::None,
        }
    }

    /// The arguments of a call or its result, or what was kept of them. A value that was cut counts
    /// as missing only once [`Self::note_cut`] says so.
    pub(crate) fn read(&mut self, call_idx: usize, of_result: bool) -> Read<'a> {
        let cut = self.missing.cut;
        let known = if of_result { self.result_json(call_idx) } else { self.args(call_idx) };
        match known {
            Known::Value(value) => return Read::Whole(value),
            Known::None => return Read::None,
            Known::Unknown => {}
        }
        let call = &self.trajectory.tool_calls[call_idx];
        let part = call.part(of_result);
        let is_final = !(self.trajectory.cut_short && (call.partial || part.may_change));
        let payload = part.payload;
        let payload = payload.filter(|payload| is_final && payload.is_cut());
        let payload = payload.filter(|payload| self.spend_searching(payload.text.len() as u64));
        match payload.and_then(Beginning::new) {
            Some(beginning) => {
                self.missing.cut = cut;
                Read::Beginning(beginning)
            }
            None => Read::Unknown,
        }
    }

    /// Notes a call whose answer lies behind a cut.
    pub(crate) fn note_cut(&mut self, call_idx: usize) {
        self.missing.cut = self.missing.cut.or(Some(call_idx));
    }

    /// Did a call fail?
    pub(crate) fn error(&mut self, call_idx: usize) -> Known<bool> {
        let trajectory = self.trajectory;
        let call = &trajectory.tool_calls[call_idx];
        if trajectory.from_messages && call.uncertainty.error {
            self.missing.only_messages = true;
            return Known::Unknown;
        }
        // The rest of a cut trace may hold the end of this span, or other attempts of this call.
        if trajectory.cut_short && (call.partial || call.uncertainty.error) {
            self.missing.cut = self.missing.cut.or(Some(call_idx));
            return Known::Unknown;
        }
        Known::Value(call.error)
    }

    /// The trajectory whose calls it reads.
    pub(crate) fn trajectory(&self) -> &'a Trajectory {
        self.trajectory
    }

    /// Notes that times were needed where calls have none of their own.
    pub(crate) fn lack_times(&mut self) {
        self.missing.only_messages = true;
    }

    /// The work spent on searching so far.
    pub(crate) fn searched(&self) -> u64 {
        self.searched
    }

    /// The reads that failed so far.
    pub(crate) fn missing(&self) -> Missing {
        self.missing.clone()
    }

    /// The arguments or the result of a call; `None` where they are not known.
    fn known(&mut self, call_idx: usize, of_result: bool) -> Option<Option<&'a Payload>> {
        let calls = &self.trajectory.tool_calls;
        let part = calls[call_idx].part(of_result);
        // The rest of a cut trace may hold the end of this span, another span of this call, or a
        // model message that repeats it.
        let may_come = calls[call_idx].partial || part.payload.is_none() || part.may_change;
        let unfinished = self.trajectory.cut_short && may_come;
        match part.payload {
            Some(payload) if !payload.is_cut() && !unfinished => return Some(Some(payload)),
            None if part.is_captured && !unfinished => return Some(None),
            None if !part.is_captured => {}
            _ => self.note_cut(call_idx),
        }
        let carries = |call: &ToolCall| {
            let payload = call.part(of_result).payload;
            payload.is_some_and(|payload| !payload.is_lost())
        };
        let missing = &mut self.missing;
        let (captured_nowhere, uncaptured) = if of_result {
            (&mut missing.no_results, &mut missing.uncaptured_result)
        } else {
            (&mut missing.no_args, &mut missing.uncaptured_args)
        };
        if !calls.iter().any(carries) {
            *captured_nowhere = true;
        } else if part.payload.is_none() && !part.is_captured {
            uncaptured.get_or_insert(call_idx);
        }
        None
    }
}
