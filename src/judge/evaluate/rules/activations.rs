//! What became of the calls that a rule asks something of, as far as that is known, and which
//! part of it is kept as evidence.

use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::parameters::rule::Rule;

/// Most violations whose calls are listed.
pub(crate) const MAX_TOLD: usize = 100;

/// Something that a rule asks, of a call or of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Activation {
    /// Does the rule ask it for certain?
    pub(crate) is_certain: bool,
    /// Is the rule kept?
    pub(crate) kept: Tri,
    /// Is it kept if everything that is not known does not match?
    pub(crate) kept_so_far: bool,
    /// The call; none for the run.
    pub(crate) call: Option<usize>,
}

/// The activations of a rule, counted.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Activations that are asked for certain; of these, the ones that are kept if everything that
    /// is not known does not match.
    so_far: Kept,
    /// Activations that are perhaps not asked at all count where that makes the share worse, or
    /// better.
    at_worst: Kept,
    at_best: Kept,
    n_violations: usize,
    n_open: usize,
    /// The calls that violate the rule; a call that asks on both sides may be listed twice.
    violating: Vec<u32>,
    /// The first violations: of a call, or of the run.
    told: Vec<(Option<usize>, Breach)>,
    /// A sum may shrink, since a negative value was seen.
    pub(crate) may_shrink: bool,
    /// No call has a value to add up.
    pub(crate) lacks_values: bool,
}

/// Activations, and those of them that are kept.
#[derive(Debug, Clone, Copy, Default)]
struct Kept {
    n: usize,
    n_kept: usize,
}

/// Why a call has no partner of its own; calls by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lack {
    /// There was no partner.
    Nothing,
    /// A partner overlaps the call.
    Overlap(usize),
    /// The nearest partner came this many milliseconds later, rounded up, so that it is not shown
    /// as equal to the limit that it exceeds.
    TooFar(usize, i64),
    /// A call came in between; and the partner after it, if there is one and it matters.
    InBetween(usize, Option<usize>),
}

impl Lack {
    /// Would a further partner do?
    pub(crate) fn is_for_want(self) -> bool {
        matches!(self, Self::Nothing | Self::Overlap(_))
    }
}

/// How a rule is broken; calls by position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// No partner comes after the call.
    After(Lack),
    /// No partner came before it; would one before all other calls do?
    Before(Lack, bool),
    /// There is no partner at all.
    Alone { of_b: bool },
    /// A call that bars it came before.
    Barred(usize),
    /// A call that bars it ran at the same time.
    BarredBeside(usize),
    /// There is a call that excludes it.
    Together(usize),
    /// The calls that were made, and those of them that ended; the calls beyond the bound are at
    /// fault.
    Count {
        n_made: usize,
        n_ended: usize,
        beyond: Vec<usize>,
    },
    /// The values of so many calls add up to this sum.
    Total { n_calls: usize, sum: String },
    /// Of the calls that came first, or last: those of another kind, those that have not ended, and
    /// one at the same time that is as required.
    Edge {
        misfits: Vec<usize>,
        unended: Vec<usize>,
        beside: Option<usize>,
    },
}

impl Breach {
    /// The calls that broke the rule.
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

/// The visible part of the result of one rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::evaluate) struct RuleFound {
    pub(crate) n_activations: usize,
    pub(crate) n_violations: usize,
    pub(crate) n_open: usize,
    /// The first calls that violate it, each once, rising.
    pub(crate) violated: Vec<usize>,
    /// For each of them, or for the run, the calls that broke the rule.
    pub(crate) because: Vec<Vec<usize>>,
    /// The first violation: of a call, or of the run.
    pub(crate) first: Option<(Option<usize>, Breach)>,
    /// How many calls violate it beside those that the first violation is about.
    pub(crate) n_others: usize,
    /// Further values may be negative, and repair the rule.
    pub(crate) may_shrink: bool,
    /// Earlier turns of the session that did not make the call either whose want is the first
    /// violation.
    pub(crate) n_earlier_turns: usize,
}

/// A share of kept activations, and how far missing evidence could still move it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) value: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl RuleFound {
    /// Is the rule kept? `None` where that is open.
    pub(crate) fn is_satisfied(&self) -> Option<bool> {
        match (self.n_violations, self.n_open) {
            (0, 0) => Some(true),
            (0, _) => None,
            _ => Some(false),
        }
    }

    pub(crate) fn new(mut tally: Tally) -> Self {
        tally.told.sort_by_key(|(call, _)| *call);
        tally.violating.sort_unstable();
        tally.violating.dedup();
        let mut found = Self {
            n_activations: tally.so_far.n,
            n_violations: tally.n_violations,
            n_open: tally.n_open,
            violated: Vec::new(),
            because: Vec::new(),
            first: tally.told.first().cloned(),
            n_others: tally.n_beside_first(),
            may_shrink: tally.may_shrink,
            n_earlier_turns: 0,
        };
        for (call, breach) in &tally.told {
            let mut because = breach.because();
            because.truncate(MAX_TOLD);
            // A call that asks on both sides is listed once.
            let is_shown = call.is_some() && call.as_ref() == found.violated.last();
            if is_shown && let Some(last) = found.because.last_mut() {
                last.extend(because);
                last.sort_unstable();
                last.dedup();
            } else if found.because.len() < MAX_TOLD {
                found.violated.extend(*call);
                found.because.push(because);
            }
        }
        found
    }

    /// Is the first violation only that no such call came before all others?
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

    /// The calls to blame.
    pub(crate) fn offending(&self) -> impl Iterator<Item = usize> {
        let because = self.because.iter().flatten().copied();
        self.violated.iter().copied().chain(because)
    }
}

impl Share {
    /// 1 without activations.
    pub(crate) fn new(tally: &Tally) -> Self {
        Self {
            value: tally.so_far.share(),
            least: tally.at_worst.share(),
            most: tally.at_best.share(),
        }
    }

    pub(crate) fn of_all(&self) -> [f64; 3] {
        [self.value, self.least, self.most]
    }
}

impl Kept {
    fn add(&mut self, counts: bool, is_kept: bool) {
        self.n += usize::from(counts);
        self.n_kept += usize::from(counts && is_kept);
    }

    fn with(self, other: Self) -> Self {
        Self {
            n: self.n + other.n,
            n_kept: self.n_kept + other.n_kept,
        }
    }

    fn share(self) -> f64 {
        match self.n {
            0 => 1.0,
            n => self.n_kept as f64 / n as f64,
        }
    }
}

impl Tally {
    /// Counts an activation. `breach` is called only for a violation that is listed.
    pub(crate) fn add(&mut self, activation: Activation, breach: impl FnOnce() -> Breach) {
        let Activation {
            is_certain,
            kept,
            kept_so_far,
            call,
        } = activation;
        self.so_far.add(is_certain, kept_so_far);
        self.at_worst
            .add(is_certain || kept != Tri::Yes, kept == Tri::Yes);
        self.at_best
            .add(is_certain || kept != Tri::No, kept != Tri::No);
        self.n_open += usize::from(if is_certain { kept == Tri::Maybe } else { kept != Tri::Yes });
        if is_certain && kept == Tri::No {
            self.n_violations += 1;
            self.violating.extend(call.map(|call| call as u32));
            if self.told.len() < MAX_TOLD {
                self.told.push((call, breach()));
            }
        }
    }

    /// Is it not known of some activation whether it is kept?
    pub(crate) fn is_open(&self) -> bool {
        self.n_open > 0
    }

    /// Adds the activations of another question of the same rule.
    pub(crate) fn extend(&mut self, other: Self) {
        self.so_far = self.so_far.with(other.so_far);
        self.at_worst = self.at_worst.with(other.at_worst);
        self.at_best = self.at_best.with(other.at_best);
        self.n_violations += other.n_violations;
        self.n_open += other.n_open;
        self.violating.extend(other.violating);
        self.told.extend(other.told);
    }

    /// The calls that violate the rule, sorted, without those of the first violation that is
    /// listed.
    fn n_beside_first(&self) -> usize {
        let Some((Some(_), breach)) = self.told.first() else {
            return 0;
        };
        let names_two = match breach {
            Breach::Together(other) => self.violating.binary_search(&(*other as u32)).is_ok(),
            _ => false,
        };
        self.violating.len() - 1 - usize::from(names_two)
    }
}
