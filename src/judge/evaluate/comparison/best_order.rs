//! Pairs as many expected calls as possible with calls that were made: in the best order that the
//! calls' times allow, in the order of the list, or in any order.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::bipartite::Bipartite;
use super::lcs;
use super::order::Intervals;

/// Maximum number of states in the search for the best order. If a search exceeds a limit, the
/// order in which the calls started counts.
const MAX_STATES: usize = 100_000;
/// Maximum number of candidate calls that the search for the best order examines.
const MAX_LOOKS: usize = 20_000_000;
/// Maximum number of cells in a table of expected calls × calls; a cell is one byte.
const MAX_CELLS: usize = 1 << 24;

/// Pairs of indices (expected call, call), in the order of the expected calls.
pub(crate) type Pairs = Vec<(usize, usize)>;

/// The calls that match each expected call. If no expected call has arguments, equal names share a
/// kind; else each expected call has its own.
pub(crate) struct Fits {
    /// The kind of each expected call.
    pub(crate) kinds: Vec<u32>,
    /// The matching calls by kind, in ascending order.
    pub(crate) calls: Vec<Vec<u32>>,
    pub(crate) n_calls: usize,
    /// For each call, the only kind that it can match, or `UNEXPECTED`. `None` if an expected call
    /// has arguments, because a call can then match several kinds.
    pub(crate) only_kind: Option<Vec<u32>>,
}

impl Fits {
    pub(crate) fn fit(&self, expected: usize, call: usize) -> bool {
        match &self.only_kind {
            Some(kinds) => kinds[call] == self.kinds[expected],
            None => self.calls[self.kinds[expected] as usize]
                .binary_search(&(call as u32))
                .is_ok(),
        }
    }

    /// Pairs as many calls as possible, in any order.
    pub(crate) fn in_any_order(&self) -> Pairs {
        let n_expected = self.kinds.len();
        if self.only_kind.is_some() {
            let mut next = vec![0; self.calls.len()];
            let pair = |(expected, kind): (usize, &u32)| {
                let next = &mut next[*kind as usize];
                let call = *self.calls[*kind as usize].get(*next)?;
                *next += 1;
                Some((expected, call as usize))
            };
            return self.kinds.iter().enumerate().filter_map(pair).collect();
        }
        let matching = Bipartite::new(n_expected, self.n_calls, |expected, call| {
            self.fit(expected, call)
        })
        .matching();
        let pairs = matching.into_iter().enumerate();
        pairs
            .filter_map(|(expected, call)| Some((expected, call?)))
            .collect()
    }

    /// Pairs as many calls as possible in the order of the list; `None` if the table is too large.
    pub(crate) fn in_list_order(&self) -> Option<Pairs> {
        if let Some(actual) = &self.only_kind {
            let pairs = lcs::common_subsequence(actual, &self.kinds)?;
            let pairs = pairs.into_iter().map(|(call, expected)| (expected, call));
            return Some(pairs.collect());
        }
        Some(self.by_table(false)?.0)
    }

    /// Finds the fewest changes that turn the calls into the expected calls. Returns matching pairs
    /// and substituted pairs; `None` if the table is too large.
    pub(crate) fn by_edits(&self) -> Option<(Pairs, Pairs)> {
        self.by_table(true)
    }

    /// Returns the matching pairs and, with `substitutes`, the substituted pairs.
    fn by_table(&self, substitutes: bool) -> Option<(Pairs, Pairs)> {
        let (n_expected, n_calls) = (self.kinds.len(), self.n_calls);
        let width = n_calls + 1;
        let n_cells = width
            .checked_mul(n_expected + 1)
            .filter(|n| *n <= MAX_CELLS)?;
        let mut steps = vec![Step::Call; n_cells];
        // Edit distances between the expected calls of the rows so far and each prefix of the
        // calls.
        let mut row: Vec<u32> = (0..width as u32).collect();
        for expected in 0..n_expected {
            let mut diagonal = row[0];
            row[0] += 1;
            steps[(expected + 1) * width] = Step::Expected;
            for call in 0..n_calls {
                let (above, left) = (row[call + 1], row[call]);
                let (cost, step) = if self.fit(expected, call) {
                    (diagonal, Step::Pair)
                } else if substitutes && diagonal <= above.min(left) {
                    (diagonal + 1, Step::Pair)
                } else if above < left {
                    (above + 1, Step::Expected)
                } else {
                    (left + 1, Step::Call)
                };
                diagonal = above;
                row[call + 1] = cost;
                steps[(expected + 1) * width + call + 1] = step;
            }
        }
        let (mut expected, mut call) = (n_expected, n_calls);
        let (mut fitting, mut others) = (Vec::new(), Vec::new());
        while expected > 0 && call > 0 {
            match steps[expected * width + call] {
                Step::Expected => expected -= 1,
                Step::Call => call -= 1,
                Step::Pair => {
                    (expected, call) = (expected - 1, call - 1);
                    if self.fit(expected, call) {
                        fitting.push((expected, call))
                    } else {
                        others.push((expected, call))
                    }
                }
            }
        }
        fitting.reverse();
        others.reverse();
        Some((fitting, others))
    }

    /// Pairs as many calls as possible in an order that the times allow: no call runs before a call
    /// that is paired with an earlier expected call. `None` if the search or the table exceeds its
    /// limits.
    pub(crate) fn in_best_order(&self, intervals: &Intervals) -> Option<Pairs> {
        if self.is_line(intervals) {
            return self.in_list_order();
        }
        Search::new(self, intervals).pairs()
    }

    /// Returns true if the matching calls have only one possible order.
    fn is_line(&self, intervals: &Intervals) -> bool {
        let mut fitting: Vec<u32> = self.calls.iter().flatten().copied().collect();
        fitting.sort_unstable();
        fitting.dedup();
        fitting
            .windows(2)
            .all(|two| intervals.is_before(two[0] as usize, two[1] as usize))
    }
}

/// The last step of the cheapest way to reach a cell of the table.
#[derive(Clone, Copy)]
enum Step {
    Pair,
    Expected,
    Call,
}

// === Search ===

/// Searches layer by layer, one layer per expected call. Each paired call gets a moment at which it
/// runs; the moments never decrease from layer to layer. A state consists of the latest moment so
/// far, and the paired calls that a later layer could otherwise pair again.
struct Search<'a> {
    fits: &'a Fits,
    intervals: &'a Intervals,
    /// For each kind, the matching calls in the order of their starts.
    candidates: Vec<Vec<u32>>,
    /// For each kind and candidate, the latest end among the candidates up to this one.
    latest_ends: Vec<Vec<i64>>,
    /// The class of each call; all calls of a class match the same expected calls.
    class: Vec<u32>,
    /// For each call, the index of the last expected call that it matches.
    last_wanted: Vec<u32>,
    n_looks: usize,
}

type State = (i64, SmallVec<[u32; 4]>);

/// A state that the search reached. `from` is the index of its predecessor in the previous layer.
struct Reached {
    n_pairs: u32,
    from: u32,
    call: Option<u32>,
}

impl<'a> Search<'a> {
    fn new(fits: &'a Fits, intervals: &'a Intervals) -> Self {
        let mut kinds_of: Vec<SmallVec<[u32; 2]>> = vec![SmallVec::new(); fits.n_calls];
        for (kind, calls) in fits.calls.iter().enumerate() {
            for call in calls {
                kinds_of[*call as usize].push(kind as u32);
            }
        }
        let mut last_of_kind = vec![0; fits.calls.len()];
        for (expected, kind) in fits.kinds.iter().enumerate() {
            last_of_kind[*kind as usize] = expected as u32;
        }
        let last_wanted = kinds_of.iter().map(|kinds| {
            let last = kinds.iter().map(|kind| last_of_kind[*kind as usize]).max();
            last.unwrap_or(0)
        });
        let last_wanted = last_wanted.collect();
        let mut classes: HashMap<SmallVec<[u32; 2]>, u32> = HashMap::new();
        let class_of = |kinds: SmallVec<[u32; 2]>| {
            let next = classes.len() as u32;
            *classes.entry(kinds).or_insert(next)
        };
        let class = kinds_of.into_iter().map(class_of).collect();
        let mut candidates = fits.calls.clone();
        for calls in &mut candidates {
            calls.sort_by_key(|call| {
                let call = *call as usize;
                (intervals.start[call], intervals.end[call], call)
            });
        }
        let latest_ends = candidates.iter().map(|calls| {
            let ends = calls.iter().scan(i64::MIN, |latest, call| {
                *latest = (*latest).max(intervals.end[*call as usize]);
                Some(*latest)
            });
            ends.collect()
        });
        Self {
            latest_ends: latest_ends.collect(),
            candidates,
            fits,
            intervals,
            class,
            last_wanted,
            n_looks: 0,
        }
    }

    fn pairs(mut self) -> Option<Pairs> {
        let n_expected = self.fits.kinds.len();
        let mut layers: Vec<Vec<Reached>> = Vec::with_capacity(n_expected + 1);
        let mut states: Vec<State> = vec![(i64::MIN, SmallVec::new())];
        layers.push(vec![Reached {
            n_pairs: 0,
            from: 0,
            call: None,
        }]);
        let mut n_states = 1;
        for expected in 0..n_expected {
            let mut numbers: HashMap<State, u32> = HashMap::new();
            let (mut reached, mut next_states): (Vec<Reached>, Vec<State>) = Default::default();
            for (from, state) in states.iter().enumerate() {
                let n_pairs = layers[expected][from].n_pairs;
                let candidates = self.candidates(expected, state)?;
                let raises = |call: &u32| self.intervals.start[*call as usize] > state.0;
                let skip = candidates.iter().all(raises).then_some(None);
                for call in candidates.iter().copied().map(Some).chain(skip) {
                    let next = self.next(expected, state, call);
                    let way = Reached {
                        n_pairs: n_pairs + u32::from(call.is_some()),
                        from: from as u32,
                        call,
                    };
                    match numbers.get(&next) {
                        Some(&known) => {
                            let known = &mut reached[known as usize];
                            if known.n_pairs < way.n_pairs {
                                *known = way;
                            }
                        }
                        None => {
                            numbers.insert(next.clone(), reached.len() as u32);
                            reached.push(way);
                            next_states.push(next);
                        }
                    }
                }
            }
            n_states += reached.len();
            if n_states > MAX_STATES {
                return None;
            }
            layers.push(reached);
            states = next_states;
        }
        let last = layers.last()?;
        let most = last.iter().map(|reached| reached.n_pairs).max()?;
        let mut at = last.iter().position(|reached| reached.n_pairs == most)?;
        let mut pairs = Vec::with_capacity(most as usize);
        for expected in (0..n_expected).rev() {
            let reached = &layers[expected + 1][at];
            pairs.extend(reached.call.map(|call| (expected, call as usize)));
            at = reached.from as usize;
        }
        pairs.reverse();
        Some(pairs)
    }

    /// Returns the calls that an expected call can use. Skips a call if another call of its class
    /// begins and ends no later. `None` if the search exceeds its limit.
    fn candidates(
        &mut self,
        expected: usize,
        (moment, used): &State,
    ) -> Option<SmallVec<[u32; 8]>> {
        let kind = self.fits.kinds[expected] as usize;
        let first = self.latest_ends[kind].partition_point(|end| end <= moment);
        let mut best: SmallVec<[(u32, i64); 4]> = SmallVec::new();
        let mut found = SmallVec::new();
        for call in &self.candidates[kind][first..] {
            self.n_looks += 1;
            let (start, end) = (
                self.intervals.start[*call as usize],
                self.intervals.end[*call as usize],
            );
            if self.fits.only_kind.is_some() && best.iter().any(|(_, best)| start > *best) {
                break;
            }
            if end <= *moment || used.contains(call) {
                continue;
            }
            let class = self.class[*call as usize];
            match best.iter_mut().find(|(known, _)| *known == class) {
                Some((_, best)) if *best <= end => continue,
                Some((_, best)) => *best = end,
                None => best.push((class, end)),
            }
            found.push(*call);
        }
        (self.n_looks <= MAX_LOOKS).then_some(found)
    }

    fn next(&self, expected: usize, (moment, used): &State, call: Option<u32>) -> State {
        let start = call.map_or(i64::MIN, |call| self.intervals.start[call as usize]);
        let moment = (*moment).max(start);
        let still_matters = |call: &u32| {
            self.intervals.end[*call as usize] > moment
                && self.last_wanted[*call as usize] as usize > expected
        };
        let mut used: SmallVec<[u32; 4]> = used
            .iter()
            .copied()
            .chain(call)
            .filter(still_matters)
            .collect();
        used.sort_unstable();
        (moment, used)
    }
}
