//! Judges rules about two kinds of calls. For each call, searches for a partner: a call on the
//! required side, near enough, with no forbidden call in between. The times may allow several
//! orders of the calls; the answer says whether all, some or none of them satisfy the rule. To find
//! a partner before a call, the search runs on mirrored intervals.

use super::activations::{Activation, Breach, Lack, Tally};
use super::keys::{ReadPaths, SharedValues};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::order::{ANY_DISTANCE, Intervals};
use crate::evaluate::parameters::rule::Overlap;

/// The requirement that a rule has on the calls of one kind: each needs a partner of the other
/// kind, or must not have one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairRequirement {
    /// True if the requirement applies to calls `b`, false for calls `a`.
    pub(crate) of_b: bool,
    pub(crate) place: Direction,
    /// True if a partner is forbidden, false if one is required.
    pub(crate) is_forbidden: bool,
    pub(crate) between: Between,
    pub(crate) overlap: Overlap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Anywhere,
    After,
    Before,
}

/// The calls that are forbidden between a call and its partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Between {
    Anything,
    /// No call of the first call's kind may come in between, unless that call and the first call
    /// disagree on `same`.
    NotOwnKind,
    Nothing,
}

/// Two kinds of calls, and the values on which they must agree.
pub(crate) struct Pair<'p, 'v> {
    /// For each kind, whether each call matches.
    pub(crate) fits: [&'p [Tri]; 2],
    pub(crate) values: &'p ReadPaths<'v>,
    pub(crate) agreement: &'p SharedValues,
    /// The longest distance of a partner, in nanoseconds; `None` if there are no times to compare.
    pub(crate) near: Option<i64>,
    /// For each call, whether it has ended.
    pub(crate) ended: &'p [Tri],
    /// True if unfinished calls may still end, which can change the distance between two calls.
    pub(crate) ends_may_come: bool,
    /// True if a call `a` may have been made before the trace began.
    pub(crate) may_be_earlier: bool,
}

/// The result for all calls to which a requirement applies.
#[derive(Default)]
pub(crate) struct Answers {
    pub(crate) tally: Tally,
    /// True if the search budget ran out.
    pub(crate) is_exhausted: bool,
    /// True if an answer is unknown.
    pub(crate) is_open: bool,
    /// True if an answer is unknown because a call may have been made before the trace began.
    pub(crate) wants_earlier: bool,
    /// True if the answers depend on a call whose time is unknown.
    pub(crate) is_unplaced: bool,
}

impl Pair<'_, '_> {
    /// Judges a requirement. If the partner must come before the call, the caller passes mirrored
    /// intervals.
    pub(crate) fn judge(
        &self,
        requirement: PairRequirement,
        intervals: &Intervals,
        captured: &mut CapturedValues<'_>,
    ) -> Answers {
        let has_unplaced = self.has_unplaced(requirement, intervals);
        let is_doubtful = self.near.is_none()
            || has_unplaced
            || self.agreement.has_unknown
            || self.fits.concat().contains(&Tri::Maybe);
        let compared = |partners: bool, blockers: bool| {
            Comparison::new(
                self,
                requirement,
                intervals,
                [partners, blockers],
                has_unplaced,
            )
        };
        let so_far = compared(false, false);
        // The comparisons with the fewest and with the most possible partners. If both give the
        // same answer, the uncertain calls do not matter.
        let bounds = is_doubtful.then(|| [compared(false, true), compared(true, false)]);
        let n_compared = so_far.partners.len() + so_far.blockers.len();
        let cost = self
            .values
            .cost(self.agreement, n_compared * if is_doubtful { 3 } else { 1 });
        let mut answers = Answers::default();
        for (call, fit) in self.fits[usize::from(requirement.of_b)].iter().enumerate() {
            if *fit == Tri::No {
                continue;
            }
            let is_left = captured.spend(cost);
            answers.is_exhausted |= !is_left;
            let now = if is_left { so_far.kept(call) } else { Tri::Maybe };
            let mut kept = match &bounds {
                Some([one, other]) if is_left => match (one.kept(call), other.kept(call)) {
                    (one, other) if one == other => one,
                    _ => Tri::Maybe,
                },
                _ => now,
            };
            let is_near_any = self.near == Some(ANY_DISTANCE);
            if self.ends_may_come && self.ended[call] != Tri::Yes && !is_near_any {
                kept = Tri::Maybe;
            }
            // The distance to a call without a time is unknown, so the partner may be too far away.
            let has_partner = kept == Tri::from(!requirement.is_forbidden);
            if !is_near_any && has_partner && intervals.is_unplaced(call) {
                kept = Tri::Maybe;
            }
            if self.may_be_earlier && kept == Tri::No && so_far.wants_earlier(call) {
                kept = Tri::Maybe;
                answers.wants_earlier = true;
            }
            answers.is_open |= kept == Tri::Maybe;
            let activation = Activation {
                is_certain: *fit == Tri::Yes,
                kept,
                kept_so_far: now == Tri::Yes,
                call: Some(call),
            };
            answers.tally.add(activation, || so_far.breach(call));
        }
        answers.is_unplaced = has_unplaced && answers.is_open;
        answers
    }

    /// Returns true if the time of a call that matters is unknown. Calls of either kind matter; if
    /// nothing may come in between, all calls matter.
    fn has_unplaced(&self, requirement: PairRequirement, intervals: &Intervals) -> bool {
        let [a, b] = self.fits;
        let matters =
            |call: usize| requirement.between == Between::Nothing || a[call].max(b[call]) > Tri::No;
        intervals.has_unplaced()
            && (0..intervals.len()).any(|call| matters(call) && intervals.is_unplaced(call))
    }
}

/// The calls with which a call is compared.
struct Comparison<'p, 'v> {
    pair: &'p Pair<'p, 'v>,
    requirement: PairRequirement,
    intervals: &'p Intervals,
    near: i64,
    /// True if uncertain matches count: first for partners, then for calls in between.
    counts_unknown: [bool; 2],
    partners: Vec<usize>,
    is_partner: Vec<bool>,
    blockers: Vec<usize>,
    /// The result of [`Pair::has_unplaced`].
    has_unplaced: bool,
}

impl<'p, 'v> Comparison<'p, 'v> {
    fn new(
        pair: &'p Pair<'p, 'v>,
        requirement: PairRequirement,
        intervals: &'p Intervals,
        counts_unknown: [bool; 2],
        has_unplaced: bool,
    ) -> Self {
        let [own, other] = if requirement.of_b { [pair.fits[1], pair.fits[0]] } else { pair.fits };
        let [unknown_partners, unknown_blockers] = counts_unknown;
        // A required partner must have ended. A forbidden partner counts even before its end,
        // unless the end may still arrive and decides whether the partner is near.
        let counts_partial =
            requirement.is_forbidden && !(pair.ends_may_come && pair.near != Some(ANY_DISTANCE));
        let is_partner = |(call, fit): (usize, &Tri)| {
            let may_be_far = match pair.near {
                None => true,
                Some(nanos) => nanos != ANY_DISTANCE && intervals.is_unplaced(call),
            };
            let (fits, has_ended) = if unknown_partners {
                (*fit > Tri::No, pair.ended[call] > Tri::No)
            } else {
                (
                    *fit == Tri::Yes && !may_be_far,
                    pair.ended[call] == Tri::Yes,
                )
            };
            fits && (counts_partial || has_ended)
        };
        let is_partner: Vec<bool> = other.iter().enumerate().map(is_partner).collect();
        let is_blocker = |call: &usize| match requirement.between {
            Between::Anything => false,
            Between::NotOwnKind if unknown_blockers => own[*call] > Tri::No,
            Between::NotOwnKind => own[*call] == Tri::Yes,
            Between::Nothing => true,
        };
        Self {
            pair,
            requirement,
            intervals,
            near: pair.near.unwrap_or(ANY_DISTANCE),
            counts_unknown,
            partners: (0..other.len()).filter(|call| is_partner[*call]).collect(),
            is_partner,
            blockers: (0..own.len()).filter(is_blocker).collect(),
            has_unplaced,
        }
    }

    /// Returns true if call `x` agrees with another call, of its own kind or of the other kind.
    fn agrees(&self, x: usize, other: usize, is_own_kind: bool) -> bool {
        let own_side = usize::from(self.requirement.of_b);
        let other_side = if is_own_kind { own_side } else { 1 - own_side };
        let values = [(own_side, x), (other_side, other)];
        match self.pair.values.agree(self.pair.agreement, values) {
            Tri::Yes => true,
            Tri::Maybe => self.counts_unknown[usize::from(is_own_kind)],
            Tri::No => false,
        }
    }

    fn are_partners(&self, x: usize, y: usize, near: i64) -> bool {
        self.is_partner[y]
            && y != x
            && self.intervals.are_near(x, y, near)
            && self.agrees(x, y, false)
    }

    fn partners(&self, x: usize, near: i64) -> impl Iterator<Item = usize> {
        let partners = self.partners.iter().copied();
        partners.filter(move |&y| self.are_partners(x, y, near))
    }

    /// Returns the calls that are forbidden between `x` and its partner.
    fn blockers(&self, x: usize) -> impl Iterator<Item = usize> {
        let is_any = self.requirement.between == Between::Nothing;
        let blockers = self.blockers.iter().copied();
        blockers.filter(move |&z| z != x && (is_any || self.agrees(x, z, true)))
    }

    /// Returns, among the given calls after `x`, the one that ends first.
    fn first_after(&self, x: usize, calls: impl Iterator<Item = usize>) -> Option<usize> {
        let after = calls.filter(|&y| self.intervals.is_before(x, y));
        after.min_by_key(|&y| (self.intervals.end[y], y))
    }

    /// Returns the partner with the earliest start among the partners that end after `x` begins.
    fn not_before(&self, x: usize) -> Option<usize> {
        let partners = self.partners(x, self.near);
        let not_before = partners.filter(|&y| !self.intervals.is_before(y, x));
        not_before.min_by_key(|&y| (self.intervals.start[y], y))
    }

    /// Returns the first forbidden call that may lie between `x` and `y` and is not itself a
    /// partner of `x`. `y` is the partner after `x` that ends first.
    fn in_between(&self, x: usize, y: usize) -> Option<usize> {
        let is_between = |z: &usize| {
            !self.intervals.is_before(*z, x)
                && !self.intervals.is_before(y, *z)
                && !self.are_partners(x, *z, self.near)
        };
        let between = self.blockers(x).filter(is_between);
        between.min_by_key(|&z| (self.intervals.start[z], z))
    }

    fn kept(&self, x: usize) -> Tri {
        let is_anywhere = self.requirement.place == Direction::Anywhere;
        let has_partner = if is_anywhere {
            self.partners(x, self.near).next().is_some()
        } else {
            (self.first_after(x, self.partners(x, self.near)))
                .is_some_and(|y| self.in_between(x, y).is_none())
        };
        let may_have_one = || {
            // In every possible order, a partner must precede the forbidden call that ends first.
            let limit = self.first_after(x, self.blockers(x));
            let partner = self.not_before(x);
            partner.is_some_and(|y| {
                limit.is_none_or(|z| self.intervals.start[y] <= self.intervals.end[z])
            })
        };
        if has_partner || is_anywhere || !may_have_one() {
            Tri::from(has_partner != self.requirement.is_forbidden)
        } else if self.has_unplaced {
            Tri::Maybe
        } else {
            kept_in_some(self.requirement.overlap)
        }
    }

    fn wants_earlier(&self, x: usize) -> bool {
        self.requirement.place == Direction::Before
            && !self.requirement.is_forbidden
            && self.first_after(x, self.blockers(x)).is_none()
            && self.lack(x).is_for_want()
    }

    fn breach(&self, x: usize) -> Breach {
        let of_b = self.requirement.of_b;
        match (self.requirement.place, self.requirement.is_forbidden) {
            (Direction::Anywhere, false) => Breach::Alone { of_b },
            (Direction::Anywhere, true) => {
                let partners = self.partners(x, self.near);
                let first = partners.min_by_key(|&y| self.intervals.by_start(y));
                first.map_or(Breach::Alone { of_b }, Breach::Together)
            }
            (_, true) => match self.lack(x) {
                Lack::Overlap(other) => Breach::BarredBeside(other),
                _ => match self.first_after(x, self.partners(x, self.near)) {
                    Some(other) => Breach::Barred(other),
                    None => Breach::Alone { of_b },
                },
            },
            (Direction::After, false) => Breach::After(self.lack(x)),
            (Direction::Before, false) => Breach::Before(self.lack(x), self.wants_earlier(x)),
        }
    }

    /// Returns the reason why it is not certain that `x` has a partner after it (on mirrored
    /// intervals: before it).
    fn lack(&self, x: usize) -> Lack {
        let is_next_only = self.requirement.between == Between::Nothing;
        if let Some(y) = self.first_after(x, self.partners(x, self.near)) {
            // If the partner must be the next call, a later partner is useless, so the text does
            // not mention it.
            let partner = Some(y).filter(|_| !is_next_only);
            let blocker = self.in_between(x, y);
            return blocker.map_or(Lack::Nothing, |z| Lack::InBetween(z, partner));
        }
        if let Some(y) = self.not_before(x) {
            return Lack::Overlap(y);
        }
        if self.near != ANY_DISTANCE
            && let Some(y) = self.first_after(x, self.partners(x, ANY_DISTANCE))
        {
            let nanos = self.intervals.gap(x, y);
            return Lack::TooFar(y, nanos.saturating_add(999_999) / 1_000_000);
        }
        let next = self.blockers(x).filter(|_| is_next_only);
        (self.first_after(x, next)).map_or(Lack::Nothing, |z| Lack::InBetween(z, None))
    }
}

/// Returns the answer if only some orders satisfy the rule.
pub(crate) fn kept_in_some(overlap: Overlap) -> Tri {
    match overlap {
        Overlap::Fail => Tri::No,
        Overlap::Pass => Tri::Yes,
        Overlap::NotEvaluated => Tri::Maybe,
    }
}
