//! Judges rules about two kinds of calls: does a call have a partner, on the side and near enough
//! as the rule requires, before another call gets in between, in every order that the times allow,
//! in some, or in none? Partners before a call are looked for with time running backwards.

use super::activations::{Activation, Breach, Lack, Tally};
use super::keys::{ReadPaths, SharedValues};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::order::{Intervals, Near};
use crate::evaluate::parameters::rule::Overlap;

/// The requirement of a call of one kind on calls of the other kind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PairRequirement {
    /// The kind that asks is `b`, not `a`.
    pub(crate) of_b: bool,
    pub(crate) place: Direction,
    /// A partner is barred, not asked for.
    pub(crate) bars: bool,
    pub(crate) between: Between,
    pub(crate) overlap: Overlap,
}

/// The direction in which a partner is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Anywhere,
    After,
    Before,
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

/// Two kinds of calls, and what they agree on.
pub(crate) struct Pair<'p, 'v> {
    /// Fit of each call to the first kind, and to the second.
    pub(crate) fits: [&'p [Tri]; 2],
    pub(crate) values: &'p ReadPaths<'v>,
    pub(crate) agreement: &'p SharedValues,
    /// `None` where there are no times to compare.
    pub(crate) near: Option<Near>,
    /// By position: has the call ended?
    pub(crate) ended: &'p [Tri],
    /// Calls that have not ended may yet, and then be nearer or farther.
    pub(crate) ends_may_come: bool,
    /// A call `a` may have been made before the trace began.
    pub(crate) may_be_earlier: bool,
}

/// The outcome for the calls that ask.
pub(crate) struct Answers {
    pub(crate) tally: Tally,
    /// There was too much to look at.
    pub(crate) is_exhausted: bool,
    /// An answer is open.
    pub(crate) is_open: bool,
    /// An answer is open because a call may have been made before the trace began.
    pub(crate) wants_earlier: bool,
    /// The answers depend on a call whose time is not known.
    pub(crate) is_unplaced: bool,
}

impl Pair<'_, '_> {
    /// Time runs backwards where partners come before.
    pub(crate) fn ask(
        &self,
        question: PairRequirement,
        intervals: &Intervals,
        captured: &mut CapturedValues<'_>,
    ) -> Answers {
        let has_unplaced = self.has_unplaced(question, intervals);
        let is_doubtful = self.near.is_none()
            || has_unplaced
            || self.agreement.has_unknown
            || self.fits.concat().contains(&Tri::Maybe);
        let asked = |partners: bool, blockers: bool| {
            Asked::new(
                self,
                question,
                intervals,
                [partners, blockers],
                has_unplaced,
            )
        };
        let so_far = asked(false, false);
        // Doubtful partners make a rule less likely to be kept where they are barred.
        let bounds = is_doubtful.then(|| [asked(false, true), asked(true, false)]);
        let n_compared = so_far.partners.len() + so_far.blockers.len();
        let cost = self
            .values
            .cost(self.agreement, n_compared * if is_doubtful { 3 } else { 1 });
        let mut answers = Answers {
            tally: Tally::default(),
            is_exhausted: false,
            is_open: false,
            wants_earlier: false,
            is_unplaced: false,
        };
        for (call, fit) in self.fits[usize::from(question.of_b)].iter().enumerate() {
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
            let is_near_any = self.near == Some(Near::Any);
            if self.ends_may_come && self.ended[call] != Tri::Yes && !is_near_any {
                kept = Tri::Maybe;
            }
            // How near it is to another call is not known, only that there is no such call.
            let has_partner = kept == Tri::from(!question.bars);
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

    /// Returns true if a call whose time is unknown could be a partner, or get in between.
    fn has_unplaced(&self, question: PairRequirement, intervals: &Intervals) -> bool {
        let [a, b] = self.fits;
        let matters =
            |call: usize| question.between == Between::Nothing || a[call].max(b[call]) > Tri::No;
        intervals.has_unplaced()
            && (0..intervals.len()).any(|call| matters(call) && intervals.is_unplaced(call))
    }
}

/// The calls that a call is compared with. A fit or an agreement that is not known counts as one,
/// or as none.
struct Asked<'p, 'v> {
    pair: &'p Pair<'p, 'v>,
    question: PairRequirement,
    intervals: &'p Intervals,
    near: Near,
    /// True if unknown fits count: of partners, of calls that come in between.
    counts_unknown: [bool; 2],
    partners: Vec<usize>,
    is_partner: Vec<bool>,
    blockers: Vec<usize>,
    /// It is not known when all the calls ran that matter.
    has_unplaced: bool,
}

impl<'p, 'v> Asked<'p, 'v> {
    fn new(
        pair: &'p Pair<'p, 'v>,
        question: PairRequirement,
        intervals: &'p Intervals,
        counts_unknown: [bool; 2],
        has_unplaced: bool,
    ) -> Self {
        let [own, other] = if question.of_b { [pair.fits[1], pair.fits[0]] } else { pair.fits };
        let [unknown_partners, unknown_blockers] = counts_unknown;
        // A partner that is asked for has ended. One that is barred need not have, unless its end
        // decides how near it is.
        let counts_partial = question.bars && !(pair.ends_may_come && pair.near != Some(Near::Any));
        let is_partner = |(call, fit): (usize, &Tri)| {
            let may_be_far = match pair.near {
                None => true,
                Some(Near::Any) => false,
                Some(Near::Within(_)) => intervals.is_unplaced(call),
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
        let is_blocker = |call: &usize| match question.between {
            Between::Anything => false,
            Between::NotOwnKind if unknown_blockers => own[*call] > Tri::No,
            Between::NotOwnKind => own[*call] == Tri::Yes,
            Between::Nothing => true,
        };
        Self {
            pair,
            question,
            intervals,
            near: pair.near.unwrap_or(Near::Any),
            counts_unknown,
            partners: (0..other.len()).filter(|call| is_partner[*call]).collect(),
            is_partner,
            blockers: (0..own.len()).filter(is_blocker).collect(),
            has_unplaced,
        }
    }

    /// Says whether call `x` of the kind that asks agrees with another call, of its own kind or of
    /// the other.
    fn agrees(&self, x: usize, other: usize, is_own_kind: bool) -> bool {
        let own_side = usize::from(self.question.of_b);
        let other_side = if is_own_kind { own_side } else { 1 - own_side };
        let values = [(own_side, x), (other_side, other)];
        match self.pair.values.agree(self.pair.agreement, values) {
            Tri::Yes => true,
            Tri::Maybe => self.counts_unknown[usize::from(is_own_kind)],
            Tri::No => false,
        }
    }

    fn are_partners(&self, x: usize, y: usize, near: Near) -> bool {
        self.is_partner[y]
            && y != x
            && self.intervals.are_near(x, y, near)
            && self.agrees(x, y, false)
    }

    fn partners(&self, x: usize, near: Near) -> impl Iterator<Item = usize> {
        let partners = self.partners.iter().copied();
        partners.filter(move |&y| self.are_partners(x, y, near))
    }

    /// The calls that may not come between `x` and a partner.
    fn blockers(&self, x: usize) -> impl Iterator<Item = usize> {
        let is_any = self.question.between == Between::Nothing;
        let blockers = self.blockers.iter().copied();
        blockers.filter(move |&z| z != x && (is_any || self.agrees(x, z, true)))
    }

    /// Of these calls, the one after `x` that ends first.
    fn first_after(&self, x: usize, calls: impl Iterator<Item = usize>) -> Option<usize> {
        let after = calls.filter(|&y| self.intervals.is_before(x, y));
        after.min_by_key(|&y| (self.intervals.end[y], y))
    }

    /// The partner that begins first of those that end after `x` begins.
    fn not_before(&self, x: usize) -> Option<usize> {
        let partners = self.partners(x, self.near);
        let not_before = partners.filter(|&y| !self.intervals.is_before(y, x));
        not_before.min_by_key(|&y| (self.intervals.start[y], y))
    }

    /// The first call that could come between `x` and `y`, the partner after it that ends first,
    /// and is no partner itself.
    fn in_between(&self, x: usize, y: usize) -> Option<usize> {
        let is_between = |z: &usize| {
            !self.intervals.is_before(*z, x)
                && !self.intervals.is_before(y, *z)
                && !self.are_partners(x, *z, self.near)
        };
        let between = self.blockers(x).filter(is_between);
        between.min_by_key(|&z| (self.intervals.start[z], z))
    }

    /// Says whether the call keeps the rule.
    fn kept(&self, x: usize) -> Tri {
        let is_anywhere = self.question.place == Direction::Anywhere;
        let has_partner = if is_anywhere {
            self.partners(x, self.near).next().is_some()
        } else {
            (self.first_after(x, self.partners(x, self.near)))
                .is_some_and(|y| self.in_between(x, y).is_none())
        };
        let may_have_one = || {
            // In every order, of the calls that may not come in between the one that ends first
            // does.
            let limit = self.first_after(x, self.blockers(x));
            let partner = self.not_before(x);
            partner.is_some_and(|y| {
                limit.is_none_or(|z| self.intervals.start[y] <= self.intervals.end[z])
            })
        };
        if has_partner || is_anywhere || !may_have_one() {
            Tri::from(has_partner != self.question.bars)
        } else if self.has_unplaced {
            Tri::Maybe
        } else {
            kept_in_some(self.question.overlap)
        }
    }

    /// Returns true if a call before all others would keep the rule.
    fn wants_earlier(&self, x: usize) -> bool {
        self.question.place == Direction::Before
            && !self.question.bars
            && self.first_after(x, self.blockers(x)).is_none()
            && self.lack(x).is_for_want()
    }

    fn breach(&self, x: usize) -> Breach {
        let of_b = self.question.of_b;
        match (self.question.place, self.question.bars) {
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

    /// The reason why no partner comes after `x` for certain.
    fn lack(&self, x: usize) -> Lack {
        let is_next_only = self.question.between == Between::Nothing;
        if let Some(y) = self.first_after(x, self.partners(x, self.near)) {
            // Where no call at all may come in between, the later partner is not shown.
            let partner = Some(y).filter(|_| !is_next_only);
            let blocker = self.in_between(x, y);
            return blocker.map_or(Lack::Nothing, |z| Lack::InBetween(z, partner));
        }
        if let Some(y) = self.not_before(x) {
            return Lack::Overlap(y);
        }
        if self.near != Near::Any
            && let Some(y) = self.first_after(x, self.partners(x, Near::Any))
        {
            let nanos = self.intervals.gap(x, y);
            return Lack::TooFar(y, nanos.saturating_add(999_999) / 1_000_000);
        }
        let next = self.blockers(x).filter(|_| is_next_only);
        (self.first_after(x, next)).map_or(Lack::Nothing, |z| Lack::InBetween(z, None))
    }
}

/// A rule that is kept in some orders only.
pub(crate) fn kept_in_some(overlap: Overlap) -> Tri {
    match overlap {
        Overlap::Fail => Tri::No,
        Overlap::Pass => Tri::Yes,
        Overlap::NotEvaluated => Tri::Maybe,
    }
}
