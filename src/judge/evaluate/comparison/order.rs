//! Orders calls by time. A call is an interval. By default, two overlapping calls have no order.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::extract::{ToolCall, Trajectory};

/// The calls that count as concurrent; neither of two concurrent calls is before the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Concurrency {
    /// Calls that overlap in time.
    #[default]
    Interval,
    /// Calls that overlap in time, and calls that one model reply requested even if they ran one by
    /// one.
    Reply,
    /// No calls: the order is the order of the starts.
    None,
}

impl Concurrency {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The end of a call that has not ended. It lies in the year 2116, later than any real time, and is
/// small enough that the difference of two times does not overflow.
const NEVER: i64 = i64::MAX / 2;

/// The calls as intervals, by index. Starts and ends are ranks in one order: `x` is before `y` if
/// and only if `end[x] < start[y]`.
#[derive(Debug, Clone)]
pub(crate) struct Intervals {
    pub(crate) start: Vec<i64>,
    pub(crate) end: Vec<i64>,
    /// The start of each call in Unix nanoseconds, even if its group counts as one interval;
    /// `-NEVER` for an unplaced call.
    begun: Vec<i64>,
    /// The end of each call in Unix nanoseconds, even if its group counts as one interval;
    /// [`NEVER`] for a call that has not ended, and for an unplaced call.
    done: Vec<i64>,
    /// True for calls whose times are unknown.
    untimed: Vec<bool>,
    has_untimed: bool,
    concurrency: Concurrency,
}

/// A distance, in nanoseconds, that every two calls keep.
pub(crate) const ANY_DISTANCE: i64 = i64::MAX;

impl Intervals {
    /// Ranks the starts and ends. At the same instant, calls retain their order in the list, and
    /// each call starts before it ends. Calls read from model messages have no times; with
    /// `Interval`, calls of one reply count as concurrent, as with `Reply`. A call without a known
    /// time overlaps all calls and is near to each of them.
    pub(crate) fn new(trajectory: &Trajectory, concurrency: Concurrency) -> Self {
        let concurrency = match (trajectory.from_messages, concurrency) {
            (true, Concurrency::Interval) => Concurrency::Reply,
            (_, concurrency) => concurrency,
        };
        let calls = &trajectory.tool_calls;
        let nanos = |nanos: u64| i64::try_from(nanos).map_or(NEVER, |nanos| nanos.min(NEVER));
        let begun = calls.iter().map(|call| nanos(call.start_unix_nanos));
        let done = calls.iter().map(|call| {
            if call.partial {
                NEVER
            } else {
                nanos(call.end_unix_nanos.max(call.start_unix_nanos))
            }
        });
        let (begun, done): (Vec<i64>, Vec<i64>) = (begun.collect(), done.collect());
        let untimed = (calls.iter().zip(&begun).zip(&done))
            .map(|((call, begun), done)| {
                let is_beyond = *begun == NEVER || (*done == NEVER && !call.partial);
                call.untimed || is_beyond
            })
            .collect::<Vec<bool>>();
        let mut intervals = Self {
            start: Vec::new(),
            end: Vec::new(),
            begun,
            done,
            has_untimed: untimed.contains(&true),
            untimed,
            concurrency,
        };
        intervals.rank(calls);
        if intervals.has_untimed {
            for call in (0..calls.len())
                .filter(|call| intervals.is_unplaced(*call))
                .collect::<Vec<_>>()
            {
                (intervals.start[call], intervals.end[call]) = (-NEVER, NEVER);
                (intervals.begun[call], intervals.done[call]) = (-NEVER, NEVER);
            }
        }
        intervals
    }

    fn rank(&mut self, calls: &[ToolCall]) {
        let n_calls = calls.len();
        if self.concurrency == Concurrency::None {
            self.start = (0..n_calls as i64).map(|at| at * 2).collect();
            self.end = self.start.iter().map(|start| start + 1).collect();
        } else {
            let mut starts: Vec<(i64, usize)> = self.begun.iter().copied().zip(0..).collect();
            let mut ends: Vec<(i64, usize)> = self.done.iter().copied().zip(0..).collect();
            if self.concurrency == Concurrency::Reply {
                span_groups(calls, &mut starts, &mut ends);
            }
            let mut moments: Vec<((i64, usize), bool, usize)> = Vec::with_capacity(n_calls * 2);
            moments.extend(
                starts
                    .into_iter()
                    .zip(0..)
                    .map(|(key, at)| (key, false, at)),
            );
            moments.extend(ends.into_iter().zip(0..).map(|(key, at)| (key, true, at)));
            // The starts are sorted already, which makes a stable sort fast.
            moments.sort();
            (self.start, self.end) = (vec![0; n_calls], vec![0; n_calls]);
            // Equal moments of one kind share a rank: calls of one reply begin and end together.
            let mut rank = 0;
            for at in 0..moments.len() {
                let (key, is_end, call_idx) = moments[at];
                rank +=
                    i64::from(at > 0 && (moments[at - 1].0, moments[at - 1].1) != (key, is_end));
                if is_end { self.end[call_idx] = rank } else { self.start[call_idx] = rank }
            }
        }
        // A call that has not ended, and its group, end after all other moments.
        for (end, done) in self.end.iter_mut().zip(&self.done) {
            if *done == NEVER {
                *end = NEVER;
            }
        }
        if self.concurrency == Concurrency::Reply {
            let mut open: Vec<u32> = (calls.iter().filter(|call| call.partial))
                .filter_map(|call| call.parallel_group)
                .collect();
            open.sort_unstable();
            for (call, end) in calls.iter().zip(&mut self.end) {
                let group = call.parallel_group;
                if group.is_some_and(|group| open.binary_search(&group).is_ok()) {
                    *end = NEVER;
                }
            }
        }
    }

    /// Returns the intervals with time reversed: "before" becomes "after".
    pub(crate) fn mirrored(&self) -> Self {
        let negated = |times: &[i64]| times.iter().map(|time| -time).collect::<Vec<_>>();
        Self {
            start: negated(&self.end),
            end: negated(&self.start),
            begun: negated(&self.done),
            done: negated(&self.begun),
            untimed: self.untimed.clone(),
            ..*self
        }
    }

    /// Returns the intervals of these calls, with new indices.
    pub(crate) fn only(&self, calls: &[usize]) -> Self {
        let of = |times: &[i64]| calls.iter().map(|call| times[*call]).collect::<Vec<_>>();
        Self {
            start: of(&self.start),
            end: of(&self.end),
            begun: of(&self.begun),
            done: of(&self.done),
            untimed: calls.iter().map(|call| self.untimed[*call]).collect(),
            ..*self
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len()
    }

    pub(crate) fn concurrency(&self) -> Concurrency {
        self.concurrency
    }

    /// Returns true if the call may have any position in the order. With [`Concurrency::Reply`],
    /// times decide which calls one reply requested, so a single call without a time makes every
    /// position uncertain.
    pub(crate) fn is_unplaced(&self, call: usize) -> bool {
        self.untimed[call] || (self.has_untimed && self.concurrency == Concurrency::Reply)
    }

    pub(crate) fn has_unplaced(&self) -> bool {
        self.has_untimed
    }

    /// Returns the first of the given calls whose time is unknown, or else the first of all calls
    /// whose time is unknown.
    pub(crate) fn first_untimed(&self, of_these: impl Fn(usize) -> bool) -> Option<usize> {
        let mut untimed = (0..self.len()).filter(|call| self.untimed[*call]);
        untimed
            .clone()
            .find(|call| of_these(*call))
            .or_else(|| untimed.next())
    }

    /// Returns the nanoseconds from the start of `y` to the start of `x`; negative if `y` started
    /// later.
    pub(crate) fn since(&self, x: usize, y: usize) -> i64 {
        self.begun[x].saturating_sub(self.begun[y])
    }

    /// Returns a sort key: the rank of the start, then the call's own start, then its index.
    pub(crate) fn by_start(&self, call: usize) -> (i64, i64, usize) {
        (self.start[call], self.begun[call], call)
    }

    pub(crate) fn is_before(&self, x: usize, y: usize) -> bool {
        self.end[x] < self.start[y]
    }

    pub(crate) fn are_near(&self, x: usize, y: usize, nanos: i64) -> bool {
        nanos == ANY_DISTANCE || self.gap(x, y) <= nanos
    }

    /// Returns the nanoseconds between the end of the earlier and the start of the later call; 0 if
    /// they overlap.
    pub(crate) fn gap(&self, x: usize, y: usize) -> i64 {
        let later_start = self.begun[x].max(self.begun[y]);
        let earlier_end = self.done[x].min(self.done[y]);
        (later_start - earlier_end).max(0)
    }
}

/// Extends each call of a group to the group's earliest start and latest end, and to the group's
/// lowest and highest index.
fn span_groups(calls: &[ToolCall], starts: &mut [(i64, usize)], ends: &mut [(i64, usize)]) {
    let mut by_group: Vec<(u32, usize)> = (calls.iter().zip(0..))
        .filter_map(|(call, at)| Some((call.parallel_group?, at)))
        .collect();
    by_group.sort_unstable();
    for group in by_group.chunk_by(|a, b| a.0 == b.0) {
        let of_group = || group.iter().map(|&(_, at)| at);
        let start = of_group().map(|at| starts[at].0).min().unwrap_or_default();
        let end = of_group().map(|at| ends[at].0).max().unwrap_or_default();
        let (first, last) = (group[0].1, group[group.len() - 1].1);
        for at in of_group() {
            starts[at] = (start, first);
            ends[at] = (end, last);
        }
    }
}

/// Pairs each needle with the first match in the hay after the previous pair. Stops at the first
/// needle without a match. The earliest match is never worse than a later one.
pub(crate) fn earliest(
    n_needles: usize,
    n_hay: usize,
    mut fits: impl FnMut(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let mut from = 0;
    for needle in 0..n_needles {
        let Some(found) = (from..n_hay).find(|&hay| fits(needle, hay)) else {
            break;
        };
        pairs.push((needle, found));
        from = found + 1;
    }
    pairs
}
