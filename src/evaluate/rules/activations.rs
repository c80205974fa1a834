//! Pure. What became of the calls that a rule asks something of, as far as that is known, and what
//! is kept of it as evidence. Knows no template.

use crate::evaluate::comparison::captured::Tri;
use crate::evaluate::comparison::partners::Lack;

/// Most violations whose calls are told.
const MAX_TOLD: usize = 100;

/// Something that a rule asks, of a call or of the run.
#[derive(Debug, Clone)]
pub(crate) struct Activation {
    /// Does the rule ask it for certain?
    pub(crate) is_certain: bool,
    /// Is the rule kept?
    pub(crate) kept: Tri,
    /// Is it kept if what is not known does not match?
    pub(crate) kept_so_far: bool,
    /// The call; none for the run.
    pub(crate) call: Option<usize>,
    /// How it is broken, if it is.
    pub(crate) breach: Option<Breach>,
}

/// How a rule is broken; calls by position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Breach {
    /// No partner comes after the call.
    After(Lack),
    /// No partner came before it.
    Before(Lack),
    /// There is no partner at all.
    Alone,
    /// A call that bars it came before.
    Barred(usize),
    /// A call that bars it ran at the same time.
    BarredBeside(usize),
    /// There is a call that excludes it.
    Together(usize),
    /// So many calls were made; those are at fault, or nearest to it.
    Count(usize, Vec<usize>),
    /// These calls came first, or last.
    Edge(Vec<usize>),
}

impl Breach {
    /// The calls that broke the rule.
    fn because(&self) -> Vec<usize> {
        match self {
            Self::After(lack) | Self::Before(lack) => match lack {
                Lack::Overlap(call) | Lack::InBetween(call, _) => vec![*call],
                Lack::Nothing | Lack::TooFar(..) => Vec::new(),
            },
            Self::Alone => Vec::new(),
            Self::Barred(call) | Self::BarredBeside(call) | Self::Together(call) => vec![*call],
            Self::Count(_, calls) | Self::Edge(calls) => calls.clone(),
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
}

/// A share of kept activations, and how far what is not known could still move it.
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

    /// The calls come in any order.
    pub(crate) fn new(mut activations: Vec<Activation>) -> Self {
        activations.sort_by_key(|activation| activation.call);
        let certain = || {
            activations
                .iter()
                .filter(|activation| activation.is_certain)
        };
        let is_open = |activation: &&Activation| match activation.is_certain {
            true => activation.kept == Tri::Maybe,
            false => activation.kept != Tri::Yes,
        };
        let mut found = Self {
            n_activations: certain().count(),
            n_violations: certain()
                .filter(|activation| activation.kept == Tri::No)
                .count(),
            n_open: activations.iter().filter(is_open).count(),
            violated: Vec::new(),
            because: Vec::new(),
            first: None,
        };
        for activation in certain().filter(|activation| activation.kept == Tri::No) {
            let Some(breach) = &activation.breach else {
                continue;
            };
            let mut because = breach.because();
            because.truncate(MAX_TOLD);
            if found.first.is_none() {
                found.first = Some((activation.call, breach.clone()));
            }
            // A call that asks on both sides is told once.
            let is_told =
                activation.call.is_some() && activation.call.as_ref() == found.violated.last();
            if is_told && let Some(last) = found.because.last_mut() {
                last.extend(because);
                last.sort_unstable();
                last.dedup();
            } else if found.because.len() < MAX_TOLD {
                found.violated.extend(activation.call);
                found.because.push(because);
            }
        }
        found
    }

    /// The calls to blame.
    pub(crate) fn offending(&self) -> impl Iterator<Item = usize> {
        let because = self.because.iter().flatten().copied();
        self.violated.iter().copied().chain(because)
    }
}

impl Share {
    /// 1 without activations. What may not be asked at all counts where that is worse, or better.
    pub(crate) fn new(activations: &[Activation]) -> Self {
        let share = |kept: &dyn Fn(&Activation) -> bool, counts: &dyn Fn(&Activation) -> bool| {
            let counted = activations.iter().filter(|activation| counts(activation));
            let (n, n_kept) = counted.fold((0_usize, 0_usize), |(n, n_kept), activation| {
                (n + 1, n_kept + usize::from(kept(activation)))
            });
            if n == 0 {
                1.0
            } else {
                n_kept as f64 / n as f64
            }
        };
        Self {
            value: share(&|of| of.kept_so_far, &|of| of.is_certain),
            least: share(&|of| of.kept == Tri::Yes, &|of| {
                of.is_certain || of.kept != Tri::Yes
            }),
            most: share(&|of| of.kept != Tri::No, &|of| {
                of.is_certain || of.kept != Tri::No
            }),
        }
    }

    pub(crate) fn of_all(&self) -> [f64; 3] {
        [self.value, self.least, self.most]
    }
}

/// How many violations need their breach: the rest is only counted.
pub(crate) fn is_told(n_told: usize) -> bool {
    n_told < MAX_TOLD
}
