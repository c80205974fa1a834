//! Reads the arguments and results of calls, and records which reads failed and why.

use hashbrown::HashMap;
use serde_json::Value;

use super::score::{Missing, PathsSeen, ReadBy, UnusableValue};
use super::value_path::{PathValues, ValuePath};
use crate::extract::{Payload, ToolCall, Trajectory};

/// No, maybe or yes, in ascending order, so that `min` is "and" and `max` is "or".
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
    /// Returns the answer for details, where `Maybe` is `null`.
    pub(crate) fn known(self) -> Option<bool> {
        match self {
            Self::No => Some(false),
            Self::Maybe => None,
            Self::Yes => Some(true),
        }
    }
}

/// Returns the kind of a value that is not text; `None` for text and for null.
pub(crate) fn kind_of(value: &Value) -> Option<&'static str> {
    match value {
        Value::Number(_) => Some("a number"),
        Value::Bool(_) => Some("a boolean"),
        Value::Array(_) => Some("a list"),
        Value::Object(_) => Some("a map"),
        Value::Null | Value::String(_) => None,
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Known<T> {
    /// The complete value was captured.
    Value(T),
    /// The call has no value: other calls recorded in the same way have one, so capture is on.
    None,
    /// Not captured, cut, or may still change because the trace was cut short.
    Unknown,
}

/// The outcome of following a path in all calls read so far.
struct Followed {
    led: Tri,
    /// The first call that has no value at the path, or none in an element that a `*` of the path
    /// selects, and the reason, such as "missing".
    lacking: Option<(usize, &'static str)>,
}

/// Maximum units of work that one evaluation spends on searching texts: half a second on one core
/// with ordinary patterns, four seconds at worst. A pattern of twenty characters can search 20 MiB.
pub(crate) const MAX_SEARCH: u64 = 128 << 20;

pub(crate) struct CapturedValues<'a> {
    trajectory: &'a Trajectory,
    pub(crate) missing: Missing,
    /// The first value that could not be used.
    pub(crate) unusable: Option<UnusableValue>,
    /// The outcome for each path. The path's address in the criterion identifies the path.
    followed: HashMap<*const ValuePath, Followed>,
    /// The units of work spent on searching.
    searched: u64,
    max_search: u64,
}

impl<'a> CapturedValues<'a> {
    /// Creates a reader for evaluators that search nothing.
    pub(crate) fn new(trajectory: &'a Trajectory) -> Self {
        Self::within(trajectory, 0)
    }

    /// Creates a reader that spends at most `max_search` units of work on searching, but no more
    /// than [`MAX_SEARCH`].
    pub(crate) fn within(trajectory: &'a Trajectory, max_search: u64) -> Self {
        Self {
            trajectory,
            missing: Missing::default(),
            unusable: None,
            followed: HashMap::new(),
            searched: 0,
            max_search: max_search.min(MAX_SEARCH),
        }
    }

    pub(crate) fn search(&mut self, cost: u64, search: impl FnOnce() -> bool) -> Tri {
        if !self.spend_searching(cost) {
            return Tri::Maybe;
        }
        Tri::from(search())
    }

    /// Spends work from the budget; if too little is left, sets `missing.too_long_to_search` and
    /// returns `false`.
    pub(crate) fn spend_searching(&mut self, cost: u64) -> bool {
        let is_left = self.spend(cost);
        self.missing.too_long_to_search |= !is_left;
        is_left
    }

    pub(crate) fn spend(&mut self, cost: u64) -> bool {
        let searched = self.searched.saturating_add(cost);
        let is_left = searched <= self.max_search;
        if is_left {
            self.searched = searched;
        }
        is_left
    }

    pub(crate) fn args(&mut self, call_idx: usize) -> Known<&'a Value> {
        match self.known(call_idx, false) {
            Some(Some(payload)) => Known::Value(payload.json()),
            Some(None) => Known::None,
            None => Known::Unknown,
        }
    }

    pub(crate) fn note_no_number(&mut self, call_idx: usize, path: &ValuePath) {
        let no_number = &mut self.missing.no_number;
        no_number.get_or_insert_with(|| Box::new((call_idx, path.clone())));
    }

    pub(crate) fn note_long_sum(&mut self, call_idx: usize, path: &ValuePath) {
        let long_sum = &mut self.missing.long_sum;
        long_sum.get_or_insert_with(|| Box::new((call_idx, path.clone())));
    }

    /// Records an unusable value if it precedes the recorded one, by call and then by path.
    pub(crate) fn note_unusable(
        &mut self,
        call_idx: usize,
        path: &str,
        kind: &'static str,
        reader: ReadBy,
    ) {
        let is_first = (self.unusable.as_ref())
            .is_none_or(|first| (call_idx, path) < (first.call_idx, &first.path));
        if is_first {
            self.unusable = Some(UnusableValue {
                call_idx,
                path: path.to_owned(),
                kind,
                reader,
            });
        }
    }

    /// Records whether a call has a value at a path, and if not, the reason, such as "missing". The
    /// reason is reported only if some call has a value at the path.
    pub(crate) fn note_followed(
        &mut self,
        call_idx: usize,
        path: &ValuePath,
        (led, lack): (Tri, Option<&'static str>),
        reader: ReadBy,
    ) {
        let lacking = lack.map(|kind| (call_idx, kind));
        let so_far = self
            .followed
            .entry(path)
            .or_insert(Followed { led, lacking });
        so_far.led = led.max(so_far.led);
        so_far.lacking = so_far.lacking.or(lacking);
        if let (Tri::Yes, Some((call_idx, kind))) = (so_far.led, so_far.lacking) {
            self.note_unusable(call_idx, path.as_str(), kind, reader);
        }
    }

    /// Sorts the criterion's first 64 paths into paths at which some call has a value, and paths at
    /// which no call has one.
    pub(crate) fn paths_seen<'p>(&self, paths: impl Iterator<Item = &'p ValuePath>) -> PathsSeen {
        let mut seen = PathsSeen::default();
        if self.followed.is_empty() {
            return seen;
        }
        for (path, at) in paths.zip(0..u64::BITS) {
            let followed = self.followed.get(&std::ptr::from_ref(path));
            match followed.map(|followed| followed.led) {
                Some(Tri::Yes) => seen.somewhere |= 1 << at,
                Some(Tri::No) => seen.nowhere |= 1 << at,
                Some(Tri::Maybe) | None => {}
            }
        }
        seen
    }

    /// Returns the text of a call's result, empty if the call has none; `None` if the result is
    /// unknown.
    pub(crate) fn result(&mut self, call_idx: usize) -> Option<&'a str> {
        let payload = self.known(call_idx, true)?;
        Some(payload.map_or("", |payload| &payload.text))
    }

    /// Returns the values at a path of a call; a cut value yields only the part before the cut.
    /// `None` if nothing is known, if the path names a key of arguments that are no map, or if the
    /// budget is used up. Does not record a cut value as missing: if the answer depends on it, the
    /// caller calls [`Self::note_cut`].
    pub(crate) fn at(&mut self, call_idx: usize, path: &ValuePath) -> Option<PathValues<'a>> {
        let cut = self.missing.cut;
        let known = self.known(call_idx, path.of_result);
        let call = &self.trajectory.tool_calls[call_idx];
        let part = call.part(path.of_result);
        let found = match known {
            Some(Some(payload)) => path.follow(payload.json(), Vec::new()),
            Some(None) => PathValues::of_nothing(),
            None => {
                let is_final = !(self.trajectory.cut_short && part.may_change);
                let is_cut = part.payload.is_some_and(Payload::is_cut) && is_final;
                let found = path.values_in(call).filter(|_| is_cut)?;
                self.missing.cut = cut;
                found
            }
        };
        if found.lacks_map {
            self.missing.no_map.get_or_insert(call_idx);
        }
        let is_known = self.spend_searching(found.n_visited) && !found.lacks_map;
        is_known.then_some(found)
    }

    /// Runs `judge`. Unless the answer is `Maybe`, discards the missing evidence that `judge`
    /// recorded.
    pub(crate) fn forgetting(&mut self, judge: impl FnOnce(&mut Self) -> Tri) -> Tri {
        let missing = self.missing.clone();
        let answer = judge(self);
        if answer != Tri::Maybe {
            self.missing = missing;
        }
        answer
    }

    /// Reads values for an explanation: spends from the budget, but records no missing evidence.
    pub(crate) fn aside<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        let mut aside = Self::within(self.trajectory, self.max_search - self.searched);
        let found = look(&mut aside);
        self.searched += aside.searched;
        found
    }

    /// Returns true if the value is a number among the arguments that an outer span of this call,
    /// which may still arrive, could write differently, such as `1000.0` for `1000`. Then also
    /// calls [`Self::note_cut`].
    pub(crate) fn may_be_respelled(
        &mut self,
        value: &Value,
        call_idx: usize,
        path: &ValuePath,
    ) -> bool {
        let may_fold = self.trajectory.tool_calls[call_idx].uncertainty.may_fold;
        let may_be = self.trajectory.cut_short && may_fold && !path.of_result && value.is_number();
        if may_be {
            self.note_cut(call_idx);
        }
        may_be
    }

    /// Records a call whose answer depends on a value that is cut or may still change.
    pub(crate) fn note_cut(&mut self, call_idx: usize) {
        self.missing.cut = self.missing.cut.or(Some(call_idx));
    }

    /// Returns whether the call failed.
    pub(crate) fn error(&mut self, call_idx: usize) -> Tri {
        let trajectory = self.trajectory;
        let call = &trajectory.tool_calls[call_idx];
        if trajectory.from_messages && call.uncertainty.error {
            self.missing.only_messages = true;
            return Tri::Maybe;
        }
        // The rest of a cut trace may contain the end of this span, or other attempts of this call.
        if trajectory.cut_short && (call.partial || call.uncertainty.error) {
            self.note_cut(call_idx);
            return Tri::Maybe;
        }
        Tri::from(call.error)
    }

    pub(crate) fn trajectory(&self) -> &'a Trajectory {
        self.trajectory
    }

    pub(crate) fn searched(&self) -> u64 {
        self.searched
    }

    /// Returns the arguments or the result of a call, `Some(None)` if the call has none; `None` if
    /// unknown.
    fn known(&mut self, call_idx: usize, of_result: bool) -> Option<Option<&'a Payload>> {
        let calls = &self.trajectory.tool_calls;
        let part = calls[call_idx].part(of_result);
        // The rest of a cut trace may contain the end of this span, another span of this call, or a
        // model message that repeats the call.
        let unfinished = self.trajectory.cut_short && (part.payload.is_none() || part.may_change);
        match part.payload {
            Some(payload) if !payload.is_cut() && !unfinished => return Some(Some(payload)),
            // A message answers every call. Without the message, the result is unknown.
            None if part.is_captured && of_result && self.trajectory.from_messages => {
                self.note_cut(call_idx);
                return None;
            }
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
