//! Counts the activations of a rule and the violations among them, and stores some violations as
//! evidence. An activation is one check of a rule, on a call or on the whole run.

use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::parameters::rule::Rule;

/// Maximum number of violations that are stored with their calls.
pub(crate) const MAX_LISTED: usize = 100;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Activation {
    /// True if the rule certainly checks the call, false if that depends on missing evidence.
    pub(crate) is_certain: bool,
    /// `Yes` if the activation satisfies the rule; `Maybe` if that depends on missing evidence.
    pub(crate) kept: Tri,
    /// True if the activation satisfies the rule, counting unknown evidence as no match.
    pub(crate) kept_so_far: bool,
    /// The checked call; `None` for the whole run.
    pub(crate) call: Option<usize>,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// The certain activations, with unknown evidence counted as no match; the activations that
    /// give the lowest possible share (an uncertain activation counts only if it lowers the share);
    /// and the activations that give the highest possible share.
    counts: [Kept; 3],
    n_violations: usize,
    n_open: usize,
    /// The calls that violate the rule. A call that has to meet two requirements may occur twice.
    violating: Vec<u32>,
    /// The first violations of each requirement, with their calls; `None` for the whole run.
    listed: Vec<(Option<usize>, Breach)>,
    /// True if further values may lower a sum, because some value was negative.
    pub(crate) may_shrink: bool,
    /// True if no call has a value to add up.
    pub(crate) lacks_values: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    n: usize,
    n_kept: usize,
}

/// The reason why a call has no partner. Calls are indices in the trajectory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lack {
    /// No call can be a partner.
    Nothing,
    /// A partner overlaps the call.
    Overlap(usize),
    /// The nearest partner is this many milliseconds away. The number is rounded up, so that it
    /// never equals the exceeded limit.
    TooFar(usize, i64),
    /// Another call lies between the call and its partner. The second field is the partner; `None`
    /// if there is no partner, or if only the next call could be one.
    InBetween(usize, Option<usize>),
}

impl Lack {
    /// Returns true if the reason is neither the distance of a partner nor another call in between.
    pub(crate) fn is_for_want(self) -> bool {
        matches!(self, Self::Nothing | Self::Overlap(_))
    }
}

/// The way in which a rule is violated. Calls are indices in the trajectory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// The call has no partner after it.
    After(Lack),
    /// The call has no partner before it. The flag is true if a partner before all other calls
    /// would satisfy the rule.
    Before(Lack, bool),
    /// The call has no partner anywhere.
    Alone { of_b: bool },
    /// A forbidden partner comes before the call.
    Barred(usize),
    /// A forbidden partner overlaps the call.
    BarredBeside(usize),
    /// A forbidden partner exists.
    Together(usize),
    /// The number of calls made and of calls that ended, and some calls beyond the maximum.
    Count {
        n_made: usize,
        n_ended: usize,
        beyond: Vec<usize>,
    },
    /// The values of `n_calls` calls add up to `sum`.
    Total { n_calls: usize, sum: String },
    /// The first or last calls do not satisfy the rule: calls of another kind, calls that have not
    /// ended, and a matching call that overlaps them.
    Edge {
        misfits: Vec<usize>,
        unended: Vec<usize>,
        beside: Option<usize>,
    },
}

impl Breach {
    /// Returns the kind of the violating call (`None` if it may be of either kind), and the kind of
    /// the missing call (`None` if none is missing). `Some(true)` means `b`, `Some(false)` means
    /// `a`.
    pub(crate) fn kinds(&self) -> (Option<bool>, Option<bool>) {
        match self {
            Self::After(Lack::Nothing) => (Some(false), Some(true)),
            Self::Before(Lack::Nothing, _) => (Some(true), Some(false)),
            Self::Alone { of_b } => (Some(*of_b), Some(!of_b)),
            Self::After(_) | Self::Total { .. } => (Some(false), None),
            Self::Before(..) | Self::Barred(_) | Self::BarredBeside(_) => (Some(true), None),
            Self::Together(_) => (None, None),
            Self::Count { beyond, .. } => (Some(false), beyond.is_empty().then_some(false)),
            Self::Edge { .. } => (Some(false), Some(false)),
        }
    }

    /// Returns true if the missing partner could have been made at the position of `call`.
    pub(crate) fn is_beside(&self, violating: Option<usize>, call: usize) -> bool {
        match (self, violating) {
            (Self::Before(..), Some(violating)) => call < violating,
            (Self::After(_), Some(violating)) => call > violating,
            (Self::Edge { misfits, .. }, _) => misfits.contains(&call),
            _ => violating != Some(call),
        }
    }

    fn because(&self) -> Vec<usize> {
        match self {
            Self::After(lack) | Self::Before(lack, _) => match lack {
                Lack::Overlap(call) | Lack::InBetween(call, _) => vec![*call],
                Lack::Nothing | Lack::TooFar(..) => Vec::new(),
            },
            Self::Alone { .. } | Self::Total { .. } => Vec::new(),
            Self::Barred(call) | Self::BarredBeside(call) | Self::Together(call) => vec![*call],
            Self::Count { beyond, .. } => beyond.clone(),
            Self::Edge {
                misfits, unended, ..
            } => {
                let mut calls = [misfits.as_slice(), unended].concat();
                calls.sort_unstable();
                calls
            }
        }
    }
}

/// The part of a rule's result that outputs show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct RuleFound {
    pub(crate) n_activations: usize,
    pub(crate) n_violations: usize,
    pub(crate) n_open: usize,
    /// The first calls that violate the rule, without duplicates, in order.
    pub(crate) violated: Vec<usize>,
    /// The calls that caused the violations of each call in `violated`, or of the whole run.
    pub(crate) because: Vec<Vec<usize>>,
    /// The first violation, and its call; `None` for the whole run.
    pub(crate) first: Option<(Option<usize>, Breach)>,
    /// The number of violating calls that the text about the first violation does not name.
    pub(crate) n_others: usize,
    /// The call that is most similar to the partner that the first violation lacks.
    pub(crate) nearest: Option<NearMiss>,
    /// True if further values may be negative and thereby satisfy the rule.
    pub(crate) may_shrink: bool,
    /// The number of earlier turns of the session that also lack the call whose absence is the
    /// first violation.
    pub(crate) n_earlier_turns: usize,
}

/// A call that would be the missing partner if some of its values were different.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum NearMiss {
    /// The calls have different values at these entries of `same`.
    Differs { call: usize, same: Vec<usize> },
    /// The call's name matches a pattern of the partner's kind, but the call does not satisfy the
    /// pattern's conditions.
    ByName { call: usize, pattern: usize },
}

impl RuleFound {
    pub(crate) fn is_satisfied(&self) -> Option<bool> {
        match (self.n_violations, self.n_open) {
            (0, 0) => Some(true),
            (0, _) => None,
            _ => Some(false),
        }
    }

    pub(crate) fn new(mut tally: Tally) -> Self {
        tally.listed.sort_by_key(|(call, _)| *call);
        tally.violating.sort_unstable();
        tally.violating.dedup();
        let mut found = Self {
            n_activations: tally.counts[0].n,
            n_violations: tally.n_violations,
            n_open: tally.n_open,
            violated: Vec::new(),
            because: Vec::new(),
            first: tally.listed.first().cloned(),
            n_others: tally.n_beside_first(),
            nearest: None,
            may_shrink: tally.may_shrink,
            n_earlier_turns: 0,
        };
        for (call, breach) in &tally.listed {
            let mut because = breach.because();
            because.truncate(MAX_LISTED);
            // A call that violates two requirements is listed once.
            let is_shown = call.is_some() && call.as_ref() == found.violated.last();
            if is_shown && let Some(last) = found.because.last_mut() {
                last.extend(because);
                last.sort_unstable();
                last.dedup();
            } else if found.because.len() < MAX_LISTED {
                found.violated.extend(*call);
                found.because.push(because);
            }
        }
        found
    }

    /// Returns true if the only cause of the first violation is that no matching call was made
    /// earlier.
    pub(crate) fn wants_earlier(&self, rule: &Rule) -> bool {
        match &self.first {
            Some((_, Breach::Before(_, wants_earlier))) => *wants_earlier,
            Some((
                _,
                Breach::Edge {
                    unended, beside, ..
                },
            )) => matches!(rule, Rule::Init(_)) && unended.is_empty() && beside.is_none(),
            _ => false,
        }
    }

    pub(crate) fn offending(&self) -> impl Iterator<Item = usize> {
        let because = self.because.iter().flatten().copied();
        self.violated.iter().copied().chain(because)
    }
}

impl Tally {
    /// Counts an activation. Calls `breach` only if the violation is stored.
    pub(crate) fn add(&mut self, activation: Activation, breach: impl FnOnce() -> Breach) {
        let Activation {
            is_certain,
            kept,
            kept_so_far,
            call,
        } = activation;
        let counted = [
            (is_certain, kept_so_far),
            (is_certain || kept != Tri::Yes, kept == Tri::Yes),
            (is_certain || kept != Tri::No, kept != Tri::No),
        ];
        for (count, (counts, is_kept)) in self.counts.iter_mut().zip(counted) {
            count.n += usize::from(counts);
            count.n_kept += usize::from(counts && is_kept);
        }
        self.n_open += usize::from(if is_certain { kept == Tri::Maybe } else { kept != Tri::Yes });
        if is_certain && kept == Tri::No {
            self.n_violations += 1;
            self.violating.extend(call.map(|call| call as u32));
            if self.listed.len() < MAX_LISTED {
                self.listed.push((call, breach()));
            }
        }
    }

    /// Returns the share of satisfied activations, or 1 if there are none, and the bounds within
    /// which missing evidence could move it.
    pub(crate) fn shares(&self) -> [f64; 3] {
        self.counts.map(|Kept { n, n_kept }| match n {
            0 => 1.0,
            n => n_kept as f64 / n as f64,
        })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.n_open > 0
    }

    /// Adds the activations of another requirement of the same rule.
    pub(crate) fn extend(&mut self, other: Self) {
        for (count, other) in self.counts.iter_mut().zip(other.counts) {
            count.n += other.n;
            count.n_kept += other.n_kept;
        }
        self.n_violations += other.n_violations;
        self.n_open += other.n_open;
        self.violating.extend(other.violating);
        self.listed.extend(other.listed);
    }

    /// Returns the number of violating calls that the first stored violation does not name.
    fn n_beside_first(&self) -> usize {
        let Some((Some(_), breach)) = self.listed.first() else {
            return 0;
        };
        let names_two = match breach {
            Breach::Together(other) => self.violating.binary_search(&(*other as u32)).is_ok(),
            _ => false,
        };
        self.violating.len() - 1 - usize::from(names_two)
    }
}
