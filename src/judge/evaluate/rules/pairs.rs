//! Judges rules about two kinds of calls: which kind requires the other, on which side, on
//! which values they agree, and what follows where that is not known. Knows no template by name.

use super::activations::{Activation, Breach, Tally};
use super::keys::PairKeys;
use crate::evaluate::comparison::call_sets::Line;
use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::comparison::order::{Intervals, Near};
use crate::evaluate::comparison::partners::{Between, Lack, Orders, Partners, Side};
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

/// Where the partner is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Anywhere,
    After,
    Before,
}

/// Two kinds of calls, and what they agree on.
pub(crate) struct Pair<'p> {
    pub(crate) a: &'p [Tri],
    pub(crate) b: &'p [Tri],
    pub(crate) keys: &'p PairKeys,
    /// `None` where there are no times to compare.
    pub(crate) near: Option<Near>,
    /// By position: has the call ended?
    pub(crate) ended: &'p [Tri],
    /// Calls that have not ended may yet, and then be nearer or farther.
    pub(crate) ends_may_come: bool,
}

/// The outcome for the calls that ask.
pub(crate) struct Answers {
    pub(crate) tally: Tally,
    /// There was too much to look at.
    pub(crate) is_exhausted: bool,
    /// An answer is open.
    pub(crate) is_open: bool,
    /// The answers depend on a call whose time is not known.
    pub(crate) is_unplaced: bool,
}

/// Whether a fit or an agreement that is not known counts as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UnknownCounts {
    AsNo,
    AsYes,
}

impl Pair<'_> {
    /// `line` runs backwards where partners come before.
    pub(crate) fn ask(&self, question: PairRequirement, line: &Line) -> Answers {
        let has_unplaced = self.has_unplaced(question, &line.intervals);
        let is_doubtful = self.near.is_none()
            || has_unplaced
            || self.keys.has_unknown()
            || self.a.iter().chain(self.b).any(|fit| *fit == Tri::Maybe);
        // Doubtful partners make a rule less likely to be kept where they are barred.
        let asked = |partners: UnknownCounts, blockers: UnknownCounts| Asked {
            partners: self.partners(question, line, (partners, blockers)),
            has_unplaced,
        };
        let mut so_far = asked(UnknownCounts::AsNo, UnknownCounts::AsNo);
        let mut bounds = is_doubtful.then(|| {
            [
                asked(UnknownCounts::AsNo, UnknownCounts::AsYes),
                asked(UnknownCounts::AsYes, UnknownCounts::AsNo),
            ]
        });
        let asking = if question.of_b { self.b } else { self.a };
        let mut tally = Tally::default();
        let mut is_open = false;
        for (call, fit) in asking.iter().enumerate() {
            if *fit == Tri::No {
                continue;
            }
            let now = so_far.kept(call, question);
            let mut kept = match &mut bounds {
                None => now,
                Some(bounds) => {
                    let [one, other] = bounds;
                    let (one, other) = (one.kept(call, question), other.kept(call, question));
                    if one == other { one } else { Tri::Maybe }
                }
            };
            let is_near_any = self.near == Some(Near::Any);
            if self.ends_may_come && self.ended[call] != Tri::Yes && !is_near_any {
                kept = Tri::Maybe;
            }
            // How near it is to another call is not known, only that there is no such call.
            let has_partner = kept == Tri::from(!question.bars);
            if !is_near_any && has_partner && line.intervals.is_unplaced(call) {
                kept = Tri::Maybe;
            }
            is_open |= kept == Tri::Maybe;
            let activation = Activation {
                is_certain: *fit == Tri::Yes,
                kept,
                kept_so_far: now == Tri::Yes,
                call: Some(call),
            };
            tally.add(activation, || so_far.breach(call, question));
        }
        let exhausted = |asked: &Asked<'_>| asked.partners.is_exhausted();
        let is_exhausted = exhausted(&so_far) || bounds.iter().flatten().any(exhausted);
        Answers {
            tally,
            is_exhausted,
            is_open,
            is_unplaced: has_unplaced && is_open,
        }
    }

    /// Could a call whose time is not known be a partner, or get in between?
    fn has_unplaced(&self, question: PairRequirement, intervals: &Intervals) -> bool {
        let matters = |call: usize| {
            question.between == Between::Nothing || self.a[call].max(self.b[call]) > Tri::No
        };
        intervals.has_unplaced()
            && (0..intervals.len()).any(|call| matters(call) && intervals.is_unplaced(call))
    }

    fn partners<'l>(
        &'l self,
        question: PairRequirement,
        line: &'l Line,
        (partners, blockers): (UnknownCounts, UnknownCounts),
    ) -> Partners<'l> {
        let (own, other) = match question.of_b {
            false => ((self.a, 0), (self.b, 1)),
            true => ((self.b, 1), (self.a, 0)),
        };
        // A partner that is asked for has ended. One that is barred need not have, unless its end
        // decides how near it is.
        let counts_partial = question.bars && !(self.ends_may_come && self.near != Some(Near::Any));
        let is_partner = |call: usize, fit: Tri| {
            let fits = fit == Tri::Yes || (fit == Tri::Maybe && partners == UnknownCounts::AsYes);
            let is_far = match self.near {
                None => true,
                Some(Near::Any) => false,
                Some(Near::Within(_)) => line.intervals.is_unplaced(call),
            };
            let may_be_far = is_far && partners == UnknownCounts::AsNo;
            let has_ended = match partners {
                UnknownCounts::AsNo => self.ended[call] == Tri::Yes,
                UnknownCounts::AsYes => self.ended[call] > Tri::No,
            };
            fits && !may_be_far && (counts_partial || has_ended)
        };
        let is_blocker =
            |fit: Tri| fit == Tri::Yes || (fit == Tri::Maybe && blockers == UnknownCounts::AsYes);
        let nothing_agrees = blockers == UnknownCounts::AsNo && self.keys.agree_on_nothing();
        let keys_of = |side: usize| self.keys.of_side(side, partners == UnknownCounts::AsYes);
        let side = |is_of: Vec<bool>, side: usize, unknown: UnknownCounts| Side {
            is_of,
            keys: keys_of(side),
            unknown_agrees: unknown == UnknownCounts::AsYes,
        };
        let own_side = side(
            own.0.iter().map(|fit| *fit > Tri::No).collect(),
            own.1,
            partners,
        );
        let blocking = side(
            own.0
                .iter()
                .map(|fit| !nothing_agrees && is_blocker(*fit))
                .collect(),
            own.1,
            blockers,
        );
        let partner = side(
            (other.0.iter().enumerate())
                .map(|(call, fit)| is_partner(call, *fit))
                .collect(),
            other.1,
            partners,
        );
        Partners::new(
            line,
            [own_side, blocking, partner],
            self.near.unwrap_or(Near::Any),
            question.between,
        )
    }
}

/// Partners, with unknown fits counted in one of the two ways.
struct Asked<'l> {
    partners: Partners<'l>,
    /// It is not known when all the calls ran that matter.
    has_unplaced: bool,
}

impl Asked<'_> {
    /// Does the call keep the rule?
    fn kept(&mut self, call: usize, question: PairRequirement) -> Tri {
        let orders = match question.place {
            Direction::Anywhere => match self.partners.anywhere(call) {
                Some(_) => Orders::Every,
                None => Orders::None,
            },
            Direction::After | Direction::Before => self.partners.after(call),
        };
        if self.partners.is_exhausted() {
            return Tri::Maybe;
        }
        match (orders, question.bars) {
            (Orders::Every, false) | (Orders::None, true) => Tri::Yes,
            (Orders::None, false) | (Orders::Every, true) => Tri::No,
            (Orders::Some, _) if self.has_unplaced => Tri::Maybe,
            (Orders::Some, _) => kept_in_some(question.overlap),
        }
    }

    fn breach(&mut self, call: usize, question: PairRequirement) -> Breach {
        let partners = &mut self.partners;
        let alone = Breach::Alone {
            of_b: question.of_b,
        };
        match (question.place, question.bars) {
            (Direction::Anywhere, false) => alone,
            (Direction::Anywhere, true) => partners.anywhere(call).map_or(alone, Breach::Together),
            (_, true) => match partners.lack(call) {
                Lack::Overlap(other) => Breach::BarredBeside(other),
                _ => match partners.first_after(call) {
                    Some(other) => Breach::Barred(other),
                    None => alone,
                },
            },
            (Direction::After, false) => Breach::After(as_shown(partners.lack(call), question)),
            (Direction::Before, false) => Breach::Before(as_shown(partners.lack(call), question)),
        }
    }
}

/// Where no call at all may come in between, the later partner is not shown.
fn as_shown(lack: Lack, question: PairRequirement) -> Lack {
    match lack {
        Lack::InBetween(call, _) if question.between == Between::Nothing => {
            Lack::InBetween(call, None)
        }
        // Rounded up, so that it is not shown as equal to the limit that it exceeds.
        Lack::TooFar(call, nanos) => Lack::TooFar(call, nanos.saturating_add(999_999) / 1_000_000),
        lack => lack,
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
