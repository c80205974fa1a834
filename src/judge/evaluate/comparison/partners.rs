//! Does a call have a partner, after it and before another call gets in between, in every
//! order that the times allow, in some, or in none? Knows no rules. Partners before a call are
//! found by the same questions with time running backwards.

use super::agreement::CallKey;
use super::call_sets::{Asked, CallSet, CallSets, Line, Places};
use super::order::{Concurrency, Intervals, Near};

/// Nodes of trees that may be visited for each call and each of its values, on average. An ordinary
/// question visits about a hundred.
const EFFORT_PER_CALL: u64 = 512;

/// In how many of the possible orders does something hold?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Orders {
    None,
    Some,
    Every,
}

/// The calls that may not come between a call and its partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Between {
    /// Anything may.
    Anything,
    /// No call of the first call's own kind that agrees with it.
    NotOwnKind,
    /// No call at all.
    Nothing,
}

/// One side of a pair: which calls are of a kind, and what they have to agree on.
#[derive(Debug, Clone)]
pub(crate) struct Side<'a> {
    /// By position in the trajectory.
    pub(crate) is_of: Vec<bool>,
    /// By position; `None` where the calls need not agree.
    pub(crate) keys: Option<&'a [CallKey]>,
    /// Does a call whose key is not known agree with every call, or with no call?
    pub(crate) unknown_agrees: bool,
}

impl Side<'_> {
    fn numbers(&self, call: usize) -> &[u32] {
        match self.keys {
            None => &[0],
            Some(keys) => keys[call].numbers(),
        }
    }

    fn is_known(&self, call: usize) -> bool {
        self.keys.is_none_or(|keys| keys[call].is_known())
    }

    /// The numbers of a call of this kind; empty for any other call.
    fn own_numbers(&self, call: usize) -> &[u32] {
        match self.is_of[call] {
            true => self.numbers(call),
            false => &[],
        }
    }

    fn has(&self, call: usize, number: u32) -> bool {
        self.own_numbers(call).binary_search(&number).is_ok()
    }

    /// One more than the greatest number.
    fn n_numbers(&self) -> usize {
        let numbers = |keys: &[CallKey]| keys.iter().flat_map(CallKey::numbers).max().copied();
        match self.keys {
            None => 1,
            Some(keys) => numbers(keys).map_or(0, |most| most as usize + 1),
        }
    }
}

/// Why a call has no partner of its own; calls by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lack {
    /// There was no partner.
    Nothing,
    /// A partner overlaps the call.
    Overlap(usize),
    /// The nearest partner came this many nanoseconds later.
    TooFar(usize, i64),
    /// A call came in between; and the partner after it, if there is one.
    InBetween(usize, Option<usize>),
}

/// Finds partners among the calls of one trajectory.
pub(crate) struct Partners<'a> {
    line: &'a Line,
    intervals: &'a Intervals,
    near: Near,
    between: Between,
    /// The calls that ask for a partner.
    own: Side<'a>,
    /// The calls that could come in between, where their own kind is forbidden there.
    blocking: Side<'a>,
    partner: Side<'a>,
    partners: Buckets,
    blockers: Buckets,
    /// Blockers that are partners under the same number.
    both: CallSets,
    /// Where partners were found last, and calls in between, and those that are both.
    places: [Places; 3],
    /// How many nodes may still be visited.
    effort: u64,
}

/// Calls by the numbers that they share.
struct Buckets {
    by_number: CallSets,
    /// Calls that may agree with any.
    unknown: CallSets,
    /// Every call; made only where nothing is known of some call.
    every: CallSets,
}

impl Buckets {
    fn new(line: &Line, side: &Side<'_>, asked_by_unknown: bool, with_trees: bool) -> Self {
        let only = |is_in: &dyn Fn(usize) -> bool| {
            CallSets::new(line, 1, with_trees, |call| {
                is_in(call).then_some(0).into_iter()
            })
        };
        let is_open = |call: usize| side.is_of[call] && side.unknown_agrees;
        let has_unknown = side.keys.is_some() && side.unknown_agrees;
        Self {
            by_number: CallSets::new(line, side.n_numbers(), with_trees, |call| {
                side.own_numbers(call).iter().copied()
            }),
            unknown: match has_unknown {
                true => only(&|call| is_open(call) && !side.is_known(call)),
                false => CallSets::default(),
            },
            every: match asked_by_unknown {
                true => only(&is_open),
                false => CallSets::default(),
            },
        }
    }

    fn none() -> Self {
        Self {
            by_number: CallSets::default(),
            unknown: CallSets::default(),
            every: CallSets::default(),
        }
    }

    /// The sets of calls that agree with a call, some of them perhaps twice.
    fn agreeing<'b>(
        &'b self,
        side: &'b Side<'_>,
        call: usize,
    ) -> impl Iterator<Item = CallSet<'b>> {
        let others = match side.is_known(call) {
            true => self.unknown.set(0),
            false => self.every.set(0),
        };
        let numbers = side.numbers(call).iter();
        let sets = numbers.map(|number| self.by_number.set(*number));
        sets.chain([others]).filter(|set| set.len() > 0)
    }

    fn has_unknown(&self) -> bool {
        self.unknown.set(0).len() > 0
    }
}

impl<'a> Partners<'a> {
    /// `blocking` is the kind that asks, as it counts for what gets in between.
    pub(crate) fn new(
        line: &'a Line,
        [own, blocking, partner]: [Side<'a>; 3],
        near: Near,
        between: Between,
    ) -> Self {
        let n_calls = line.intervals.len();
        let own_unknown = (own.keys).is_some_and(|keys| !keys.iter().all(CallKey::is_known));
        let is_near = near != Near::Any;
        let n_numbers = |side: &Side<'_>| match side.keys {
            None => 0,
            Some(keys) => keys.iter().map(|key| key.numbers().len()).sum(),
        };
        let n_looked_at = n_calls + n_numbers(&own) + n_numbers(&partner) + 64;
        let (blockers, both) = match between {
            Between::NotOwnKind => (
                Buckets::new(line, &blocking, own_unknown, true),
                CallSets::new(line, blocking.n_numbers(), false, |call| {
                    let numbers = blocking.own_numbers(call).iter().copied();
                    let partner = &partner;
                    numbers.filter(move |number| partner.has(call, *number))
                }),
            ),
            Between::Anything | Between::Nothing => (Buckets::none(), CallSets::default()),
        };
        Self {
            line,
            intervals: &line.intervals,
            near,
            between,
            partners: Buckets::new(line, &partner, own_unknown, is_near),
            own,
            blocking,
            partner,
            blockers,
            both,
            places: Default::default(),
            effort: EFFORT_PER_CALL * n_looked_at as u64,
        }
    }

    /// Was there too much to search? Then the answers since are not known.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.effort == 0
    }

    /// A partner anywhere.
    pub(crate) fn anywhere(&mut self, x: usize) -> Option<usize> {
        self.first_ending_after(x, i64::MIN, self.near)
    }

    /// Does a partner come after `x`, with nothing in between?
    pub(crate) fn after(&mut self, x: usize) -> Orders {
        if let Some(y) = self.first_after(x)
            && !self.is_blocked(x, y)
        {
            return Orders::Every;
        }
        // In every order the blocker that ends first comes in between.
        let limit = self.first_blocker_after(x);
        let limit = limit.map_or(i64::MAX, |z| self.intervals.end[z]);
        let overlapping = self.first_ending_after(x, self.intervals.start[x], self.near);
        match overlapping {
            Some(y) if self.intervals.start[y] <= limit => Orders::Some,
            _ => Orders::None,
        }
    }

    /// Why no partner comes after `x` for certain.
    pub(crate) fn lack(&mut self, x: usize) -> Lack {
        if let Some(y) = self.first_after(x) {
            let z = self.blocker(x, y);
            return z.map_or(Lack::Nothing, |z| Lack::InBetween(z, Some(y)));
        }
        if let Some(y) = self.first_ending_after(x, self.intervals.start[x], self.near) {
            return Lack::Overlap(y);
        }
        if self.near != Near::Any
            && let Some(y) = self.first_after_by(x, Near::Any)
        {
            return Lack::TooFar(y, self.intervals.gap(x, y));
        }
        match self.between {
            Between::Nothing => self
                .first_blocker_after(x)
                .map_or(Lack::Nothing, |z| Lack::InBetween(z, None)),
            _ => Lack::Nothing,
        }
    }

    /// The partner after `x` that ends first.
    pub(crate) fn first_after(&mut self, x: usize) -> Option<usize> {
        self.first_after_by(x, self.near)
    }

    fn first_after_by(&mut self, x: usize, near: Near) -> Option<usize> {
        let end = self.intervals.end[x];
        let asked = Asked::new(self.intervals, i64::MIN, x, near);
        let sets = self.partners.agreeing(&self.own, x);
        let found = sets.filter_map(|set| {
            let place = set.first_to_end(end, asked, &mut self.places[0], &mut self.effort)?;
            Some(set.call(place))
        });
        found.min_by_key(|&y| (self.intervals.end[y], y))
    }

    /// The partner that ends after a moment and begins first.
    fn first_ending_after(&mut self, x: usize, moment: i64, near: Near) -> Option<usize> {
        let asked = Asked::new(self.intervals, moment, x, near);
        let sets = self.partners.agreeing(&self.own, x);
        let found = sets.filter_map(|set| {
            let mut place = set.first(0, asked, &mut self.places[0], &mut self.effort)?;
            if set.call(place) == x {
                place = match near {
                    // It begins no earlier than `x`, so it ends after the moment too.
                    Near::Any => Some(place + 1).filter(|next| *next < set.len()),
                    Near::Within(_) => {
                        set.first(place + 1, asked, &mut self.places[0], &mut self.effort)
                    }
                }?;
            }
            Some(set.call(place))
        });
        found.min_by_key(|&y| (self.intervals.start[y], y))
    }

    /// The call that could come in between: of those after `x`, the one that ends first.
    fn first_blocker_after(&mut self, x: usize) -> Option<usize> {
        let end = self.intervals.end[x];
        let asked = Asked::new(self.intervals, i64::MIN, x, Near::Any);
        let (places, effort) = (&mut self.places[1], &mut self.effort);
        let mut first_of = |set: CallSet<'_>| {
            let place = set.first_to_end(end, asked, places, effort)?;
            Some(set.call(place))
        };
        match self.between {
            Between::Anything => None,
            Between::Nothing => first_of(self.line.all()),
            Between::NotOwnKind => {
                let sets = self.blockers.agreeing(&self.own, x);
                let found = sets.filter_map(first_of);
                found.min_by_key(|&z| (self.intervals.end[z], z))
            }
        }
    }

    /// Could a call come between `x` and `y`, the partner after it that ends first, and is no
    /// partner itself? Such a call neither ends before `x` begins nor begins after `y` has ended.
    fn is_blocked(&mut self, x: usize, y: usize) -> bool {
        if self.between == Between::Anything {
            return false;
        }
        match self.count_blockers(x, y) {
            Some(n_blockers) => n_blockers > 0,
            None => self.blocker(x, y).is_some(),
        }
    }

    /// How many there are, where they can be counted: the calls of one number that are no partners
    /// under it.
    fn count_blockers(&mut self, x: usize, y: usize) -> Option<usize> {
        let counts =
            self.near == Near::Any || self.intervals.concurrency() == Concurrency::Interval;
        let &[number] = self.own.numbers(x) else {
            return None;
        };
        if !counts || self.partners.has_unknown() || self.blockers.has_unknown() {
            return None;
        }
        let (start, end) = (self.intervals.start[x], self.intervals.end[y]);
        let asked = Asked::new(self.intervals, i64::MIN, x, self.near);
        let [_, among_all, among_partners] = &mut self.places;
        let n_in_window = |set: CallSet<'_>, begun_until: Option<i64>, places: &mut Places| {
            set.n_started(end, begun_until, places) - set.n_ended(start, places)
        };
        let until = (self.near != Near::Any).then(|| asked.begun_until());
        let (all, partners) = match self.between {
            Between::Nothing => (self.line.all(), self.partners.by_number.set(number)),
            _ => (self.blockers.by_number.set(number), self.both.set(number)),
        };
        let is_partner = self.partner.has(x, number);
        let is_blocker = self.between == Between::Nothing || self.blocking.is_of[x];
        let n_all = n_in_window(all, None, among_all) - usize::from(is_blocker);
        let n_partners =
            n_in_window(partners, until, among_partners) - usize::from(is_partner && is_blocker);
        Some(n_all - n_partners)
    }

    /// The first of them, by start.
    fn blocker(&mut self, x: usize, y: usize) -> Option<usize> {
        let (start, end) = (self.intervals.start[x], self.intervals.end[y]);
        let asked = Asked::new(self.intervals, start, x, Near::Any);
        let sets: Vec<CallSet<'_>> = match self.between {
            Between::Anything => Vec::new(),
            Between::Nothing => vec![self.line.all()],
            Between::NotOwnKind => self.blockers.agreeing(&self.own, x).collect(),
        };
        let (mut effort, mut places) = (self.effort, self.places[1]);
        let mut first_of = |set: CallSet<'_>, effort: &mut u64| {
            let mut from = 0;
            loop {
                let place = set.first(from, asked, &mut places, effort)?;
                let z = set.call(place);
                if self.intervals.start[z] >= end {
                    return None;
                }
                if z != x && !self.is_partner(x, z) {
                    return Some(z);
                }
                from = place + 1;
            }
        };
        let found = (sets.into_iter())
            .filter_map(|set| first_of(set, &mut effort))
            .min_by_key(|&z| (self.intervals.start[z], z));
        self.effort = effort;
        found
    }

    fn is_partner(&self, x: usize, z: usize) -> bool {
        let agree = match (self.own.keys, self.partner.keys) {
            (Some(own), Some(partner)) => {
                let unknown = !own[x].is_known() || !partner[z].is_known();
                (unknown && self.partner.unknown_agrees) || own[x].shares(&partner[z])
            }
            _ => true,
        };
        self.partner.is_of[z] && agree && self.intervals.are_near(x, z, self.near)
    }
}
