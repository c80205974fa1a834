//! Pure. Does a call have a partner, after it and before something gets in between, in every order
//! that the times allow, in some, or in none? Knows no rules; what comes before is asked with time
//! running backwards.

use hashbrown::HashMap;

use super::agreement::CallKey;
use super::order::{Asked, CallTree, Concurrency, Intervals, Near};

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
pub(crate) struct Side {
    /// By position in the trajectory.
    pub(crate) is_of: Vec<bool>,
    /// By position; none where nothing has to agree.
    pub(crate) keys: Option<Vec<CallKey>>,
    /// Does a call whose key is not known agree with every call, or with none?
    pub(crate) unknown_agrees: bool,
}

impl Side {
    fn numbers(&self, call: usize) -> &[u32] {
        match &self.keys {
            None => &[0],
            Some(keys) => keys[call].numbers(),
        }
    }

    fn is_known(&self, call: usize) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys[call].is_known())
    }
}

/// Why a call has no partner of its own; calls by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lack {
    /// Nothing came.
    Nothing,
    /// A partner overlaps the call.
    Overlap(usize),
    /// The nearest partner came so many nanoseconds later.
    TooFar(usize, i64),
    /// A call came in between; and the partner after it, if there is one.
    InBetween(usize, Option<usize>),
}

/// Finds partners among the calls of one trajectory.
pub(crate) struct Partners<'a> {
    intervals: &'a Intervals,
    near: Near,
    between: Between,
    /// All calls, by start.
    all: &'a CallTree,
    /// The calls that ask for a partner.
    own: Side,
    /// The calls that could come in between, where their own kind is forbidden there.
    blocking: Side,
    partner: Side,
    partners: Buckets,
    blockers: Buckets,
    /// Blockers that are partners under the same number.
    both: HashMap<u32, CallTree>,
    /// How much may still be looked at.
    effort: u64,
}

/// Calls by the numbers that they share.
struct Buckets {
    by_number: HashMap<u32, CallTree>,
    /// Calls that may agree with any.
    unknown: CallTree,
    /// Every call; only where there is a call of which nothing is known.
    every: Option<CallTree>,
}

impl Buckets {
    fn new(intervals: &Intervals, all: &CallTree, side: &Side, asked_by_unknown: bool) -> Self {
        let mut by_number: HashMap<u32, Vec<u32>> = HashMap::new();
        let (mut unknown, mut every) = (Vec::new(), Vec::new());
        for place in 0..all.len() {
            let call = all.call(place);
            if !side.is_of[call] {
                continue;
            }
            if side.is_known(call) {
                for number in side.numbers(call) {
                    by_number.entry(*number).or_default().push(call as u32);
                }
            } else if side.unknown_agrees {
                unknown.push(call as u32);
            }
            if asked_by_unknown && side.unknown_agrees {
                every.push(call as u32);
            }
        }
        Self {
            by_number: (by_number.into_iter())
                .map(|(number, calls)| (number, CallTree::new(intervals, calls)))
                .collect(),
            unknown: CallTree::new(intervals, unknown),
            every: asked_by_unknown.then(|| CallTree::new(intervals, every)),
        }
    }

    /// The trees that hold the calls which agree with a call, some of them perhaps twice.
    fn agreeing<'b>(&'b self, side: &'b Side, call: usize) -> impl Iterator<Item = &'b CallTree> {
        let is_known = side.is_known(call);
        let every = self.every.as_ref().filter(|_| !is_known);
        let numbers = side.numbers(call).iter();
        let buckets = numbers.filter_map(|number| self.by_number.get(number));
        let unknown = Some(&self.unknown).filter(|tree| is_known && tree.len() > 0);
        buckets.chain(unknown).chain(every)
    }
}

impl<'a> Partners<'a> {
    /// `all` holds every call in these intervals. `blocking` is the kind that asks, as it counts
    /// for what gets in between.
    pub(crate) fn new(
        intervals: &'a Intervals,
        all: &'a CallTree,
        [own, blocking, partner]: [Side; 3],
        near: Near,
        between: Between,
    ) -> Self {
        let n_calls = intervals.len();
        let has_unknown = |side: &Side| (0..n_calls).any(|call| !side.is_known(call));
        let own_unknown = own.keys.is_some() && has_unknown(&own);
        let nobody = Side {
            is_of: Vec::new(),
            keys: None,
            unknown_agrees: false,
        };
        let blockers = match between {
            Between::NotOwnKind => Buckets::new(intervals, all, &blocking, own_unknown),
            Between::Anything | Between::Nothing => Buckets::new(
                intervals,
                &CallTree::new(intervals, Vec::new()),
                &nobody,
                false,
            ),
        };
        let mut both: HashMap<u32, Vec<u32>> = HashMap::new();
        if between == Between::NotOwnKind {
            for place in 0..all.len() {
                let call = all.call(place);
                if blocking.is_of[call] && partner.is_of[call] {
                    let numbers = blocking.numbers(call).iter();
                    for number in numbers.filter(|number| partner.numbers(call).contains(number)) {
                        both.entry(*number).or_default().push(call as u32);
                    }
                }
            }
        }
        let n_numbers = |side: &Side| match &side.keys {
            None => 0,
            Some(keys) => keys.iter().map(|key| key.numbers().len()).sum(),
        };
        let n_looked_at = n_calls + n_numbers(&own) + n_numbers(&partner) + 64;
        Self {
            intervals,
            near,
            between,
            all,
            partners: Buckets::new(intervals, all, &partner, own_unknown),
            own,
            blocking,
            partner,
            blockers,
            both: (both.into_iter())
                .map(|(number, calls)| (number, CallTree::new(intervals, calls)))
                .collect(),
            effort: EFFORT_PER_CALL * n_looked_at as u64,
        }
    }

    /// Was there too much to look at? Then nothing is known of calls asked about since.
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
        let trees = self.partners.agreeing(&self.own, x);
        let found = trees.filter_map(|tree| {
            let place = tree.first_to_end(end, asked, &mut self.effort)?;
            Some(tree.call(place))
        });
        found.min_by_key(|&y| (self.intervals.end[y], y))
    }

    /// The partner that ends after a moment and begins first.
    fn first_ending_after(&mut self, x: usize, moment: i64, near: Near) -> Option<usize> {
        let asked = Asked::new(self.intervals, moment, x, near);
        let trees = self.partners.agreeing(&self.own, x);
        let found = trees.filter_map(|tree| {
            let mut place = tree.first(0, asked, &mut self.effort)?;
            if tree.call(place) == x {
                place = tree.first(place + 1, asked, &mut self.effort)?;
            }
            Some(tree.call(place))
        });
        found.min_by_key(|&y| (self.intervals.start[y], y))
    }

    /// The call that could come in between: of those after `x`, the one that ends first.
    fn first_blocker_after(&mut self, x: usize) -> Option<usize> {
        let end = self.intervals.end[x];
        let asked = Asked::new(self.intervals, i64::MIN, x, Near::Any);
        let first_of = |tree: &CallTree, effort: &mut u64| {
            tree.first_to_end(end, asked, effort)
                .map(|place| tree.call(place))
        };
        match self.between {
            Between::Anything => None,
            Between::Nothing => first_of(self.all, &mut self.effort),
            Between::NotOwnKind => {
                let trees = self.blockers.agreeing(&self.own, x);
                let found = trees.filter_map(|tree| first_of(tree, &mut self.effort));
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
    fn count_blockers(&self, x: usize, y: usize) -> Option<usize> {
        let counts =
            self.near == Near::Any || self.intervals.concurrency() == Concurrency::Interval;
        let &[number] = self.own.numbers(x) else {
            return None;
        };
        let has_unknown = |buckets: &Buckets| buckets.unknown.len() > 0;
        if !counts || has_unknown(&self.partners) || has_unknown(&self.blockers) {
            return None;
        }
        let (start, end) = (self.intervals.start[x], self.intervals.end[y]);
        let asked = Asked::new(self.intervals, i64::MIN, x, self.near);
        let n_in_window = |tree: Option<&CallTree>, begun_until: Option<i64>| {
            tree.map_or(0, |tree| {
                tree.n_started(end, begun_until) - tree.n_ended(start)
            })
        };
        let until = (self.near != Near::Any).then(|| asked.begun_until());
        let (all, partners) = match self.between {
            Between::Nothing => (Some(self.all), self.partners.by_number.get(&number)),
            _ => (self.blockers.by_number.get(&number), self.both.get(&number)),
        };
        let is_partner = self.partner.is_of[x] && self.partner.numbers(x).contains(&number);
        let is_blocker = self.between == Between::Nothing || self.blocking.is_of[x];
        let n_all = n_in_window(all, None) - usize::from(is_blocker);
        let n_partners = n_in_window(partners, until) - usize::from(is_partner && is_blocker);
        Some(n_all - n_partners)
    }

    /// The first of them, by start.
    fn blocker(&mut self, x: usize, y: usize) -> Option<usize> {
        let (start, end) = (self.intervals.start[x], self.intervals.end[y]);
        let asked = Asked::new(self.intervals, start, x, Near::Any);
        let trees: Vec<&CallTree> = match self.between {
            Between::Anything => Vec::new(),
            Between::Nothing => vec![self.all],
            Between::NotOwnKind => self.blockers.agreeing(&self.own, x).collect(),
        };
        let mut effort = self.effort;
        let first_of = |tree: &CallTree, effort: &mut u64| {
            let mut from = 0;
            loop {
                let place = tree.first(from, asked, effort)?;
                let z = tree.call(place);
                if self.intervals.start[z] >= end {
                    return None;
                }
                if z != x && !self.is_partner(x, z) {
                    return Some(z);
                }
                from = place + 1;
            }
        };
        let found = (trees.iter())
            .filter_map(|tree| first_of(tree, &mut effort))
            .min_by_key(|&z| (self.intervals.start[z], z));
        self.effort = effort;
        found
    }

    fn is_partner(&self, x: usize, z: usize) -> bool {
        let agree = match (&self.own.keys, &self.partner.keys) {
            (Some(own), Some(partner)) => {
                let unknown = !own[x].is_known() || !partner[z].is_known();
                (unknown && self.partner.unknown_agrees) || own[x].shares(&partner[z])
            }
            _ => true,
        };
        self.partner.is_of[z] && agree && self.intervals.are_near(x, z, self.near)
    }
}
