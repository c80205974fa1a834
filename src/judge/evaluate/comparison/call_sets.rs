//! Calls by the numbers that they share, arranged so that the first call with a property is
//! found without looking at each call. Knows neither rules nor the meaning of the numbers.

use super::order::{Intervals, Near};

/// The calls of a trajectory as a line, forwards or backwards.
pub(crate) struct Line {
    pub(crate) intervals: Intervals,
    /// Positions, by start.
    pub(crate) by_start: Vec<u32>,
    /// Positions, by end.
    by_end: Vec<u32>,
    /// Every call; made when a question first needs it.
    all: Option<CallSets>,
}

/// Sets of calls, one for each number.
pub(crate) struct CallSets {
    /// By number, the place of its first call; one more at the end. The calls of a number follow
    /// each other, by start, and the vectors below are by place.
    first_places: Vec<u32>,
    calls: Vec<u32>,
    starts: Vec<i64>,
    begun: Vec<i64>,
    /// The ends of the number's calls, sorted.
    ends: Vec<i64>,
    /// The latest end of the number's calls up to this one.
    latest_end: Vec<i64>,
    /// The place, within its number, of the call that ends first among this one and those after it.
    first_to_end: Vec<u32>,
    /// By number, a tree over its calls; empty where none was asked for.
    trees: Vec<Vec<Extremes>>,
}

/// The calls of one number, by start.
#[derive(Clone, Copy)]
pub(crate) struct CallSet<'s> {
    calls: &'s [u32],
    starts: &'s [i64],
    begun: &'s [i64],
    ends: &'s [i64],
    latest_end: &'s [i64],
    first_to_end: &'s [u32],
    tree: &'s [Extremes],
}

/// The places that were found last, by kind of search. Calls are asked about in the order of their
/// starts, so the next place is near.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places {
    started: usize,
    begun: usize,
    ended: usize,
    latest: usize,
    after: usize,
}

/// The first place whose moment is not before what is looked for, in steps that double from the
/// place that was found last.
fn place_near(last: &mut usize, moments: &[i64], is_before: impl Fn(&i64) -> bool) -> usize {
    let mut low = (*last).min(moments.len());
    let (mut high, mut step) = (low, 1);
    while low > 0 && !is_before(&moments[low - 1]) {
        high = low - 1;
        low = low.saturating_sub(step);
        step *= 2;
    }
    while high < moments.len() && is_before(&moments[high]) {
        low = high + 1;
        high = (high + step).min(moments.len());
        step *= 2;
    }
    *last = low + moments[low..high].partition_point(is_before);
    *last
}

/// A summary of the calls beneath a node.
#[derive(Debug, Clone, Copy)]
struct Extremes {
    latest_end: i64,
    earliest_end: i64,
    earliest_begun: i64,
    latest_done: i64,
}

const NOTHING: Extremes = Extremes {
    latest_end: i64::MIN,
    earliest_end: i64::MAX,
    earliest_begun: i64::MAX,
    latest_done: i64::MIN,
};

impl Extremes {
    fn with(self, other: Self) -> Self {
        Self {
            latest_end: self.latest_end.max(other.latest_end),
            earliest_end: self.earliest_end.min(other.earliest_end),
            earliest_begun: self.earliest_begun.min(other.earliest_begun),
            latest_done: self.latest_done.max(other.latest_done),
        }
    }
}

/// A query for a call: its own times near those of another, and an end after some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    end_after: i64,
    begun_until: i64,
    done_from: i64,
    near: Near,
}

impl Asked {
    /// A call that ends after a moment, near a call.
    pub(crate) fn new(intervals: &Intervals, end_after: i64, x: usize, near: Near) -> Self {
        let (done_from, begun_until) = match near {
            Near::Any => (i64::MIN, i64::MAX),
            Near::Within(nanos) => intervals.reach(x, nanos),
        };
        Self {
            end_after,
            begun_until,
            done_from,
            near,
        }
    }

    /// The latest moment, on the calls' own clock, at which such a call begins.
    pub(crate) fn begun_until(self) -> i64 {
        self.begun_until
    }

    fn may_hold(self, of: Extremes) -> bool {
        of.latest_end > self.end_after
            && of.earliest_begun <= self.begun_until
            && of.latest_done >= self.done_from
    }
}

// === impl Line ===

impl Line {
    pub(crate) fn new(intervals: Intervals) -> Self {
        let mut by_start: Vec<u32> = (0..intervals.len() as u32).collect();
        let mut by_end = by_start.clone();
        by_start.sort_by_key(|&call| intervals.by_start(call as usize));
        by_end.sort_by_key(|&call| intervals.end[call as usize]);
        Self {
            intervals,
            by_start,
            by_end,
            all: None,
        }
    }

    /// Arranges every call, for questions that may let nothing come in between.
    pub(crate) fn arrange_all(&mut self) {
        if self.all.is_none() {
            let all = CallSets::new(self, 1, true, |_| std::iter::once(0));
            self.all = Some(all);
        }
    }

    /// Every call.
    pub(crate) fn all(&self) -> CallSet<'_> {
        let all = self.all.as_ref();
        all.expect("a question that lets nothing come in between is asked of all calls")
            .set(0)
    }
}

// === impl CallSets ===

impl Default for CallSets {
    fn default() -> Self {
        Self {
            first_places: vec![0],
            calls: Vec::new(),
            starts: Vec::new(),
            begun: Vec::new(),
            ends: Vec::new(),
            latest_end: Vec::new(),
            first_to_end: Vec::new(),
            trees: Vec::new(),
        }
    }
}

impl CallSets {
    /// `numbers_of` gives each call's numbers, all below `n_numbers`. A tree is needed to find
    /// calls near another, and calls after the first that is found.
    pub(crate) fn new<I: Iterator<Item = u32>>(
        line: &Line,
        n_numbers: usize,
        with_trees: bool,
        numbers_of: impl Fn(usize) -> I,
    ) -> Self {
        let intervals = &line.intervals;
        let mut first_places = vec![0_u32; n_numbers + 1];
        for &call in &line.by_start {
            for number in numbers_of(call as usize) {
                first_places[number as usize + 1] += 1;
            }
        }
        for number in 0..n_numbers {
            first_places[number + 1] += first_places[number];
        }
        let n_places = first_places[n_numbers] as usize;
        let mut sets = Self {
            first_places,
            calls: vec![0; n_places],
            ends: vec![0; n_places],
            first_to_end: vec![0; n_places],
            starts: Vec::new(),
            begun: Vec::new(),
            latest_end: Vec::new(),
            trees: Vec::new(),
        };
        sets.fill(&line.by_start, &numbers_of, |sets, place, call| {
            sets.calls[place] = call;
        });
        sets.fill(&line.by_end, &numbers_of, |sets, place, call| {
            sets.ends[place] = intervals.end[call as usize];
        });
        let times = |of: &[i64]| -> Vec<i64> {
            (sets.calls.iter()).map(|call| of[*call as usize]).collect()
        };
        (sets.starts, sets.begun) = (times(&intervals.start), times(intervals.begun()));
        sets.latest_end = times(&intervals.end);
        for number in 0..n_numbers {
            sets.arrange(number);
            if with_trees {
                let calls = &sets.calls[sets.places(number)];
                let tree = tree(intervals, calls);
                sets.trees.push(tree);
            }
        }
        sets
    }

    /// Goes through calls, and counts the places of each number up.
    fn fill<I: Iterator<Item = u32>>(
        &mut self,
        calls: &[u32],
        numbers_of: impl Fn(usize) -> I,
        put: impl Fn(&mut Self, usize, u32),
    ) {
        let mut next = self.first_places.clone();
        for &call in calls {
            for number in numbers_of(call as usize) {
                let place = next[number as usize];
                next[number as usize] += 1;
                put(self, place as usize, call);
            }
        }
    }

    /// Finds what each place of a number has before and after it; `latest_end` holds the ends.
    fn arrange(&mut self, number: usize) {
        let places = self.places(number);
        let ends = &mut self.latest_end[places.clone()];
        let first_to_end = &mut self.first_to_end[places];
        let mut first = ends.len().saturating_sub(1);
        for place in (0..ends.len()).rev() {
            if ends[place] <= ends[first] {
                first = place;
            }
            first_to_end[place] = first as u32;
        }
        for place in 1..ends.len() {
            ends[place] = ends[place].max(ends[place - 1]);
        }
    }

    fn places(&self, number: usize) -> std::ops::Range<usize> {
        self.first_places[number] as usize..self.first_places[number + 1] as usize
    }

    /// The calls of a number; of one that no call has, none.
    pub(crate) fn set(&self, number: u32) -> CallSet<'_> {
        let number = number as usize;
        let places = match number + 1 < self.first_places.len() {
            true => self.places(number),
            false => 0..0,
        };
        CallSet {
            calls: &self.calls[places.clone()],
            starts: &self.starts[places.clone()],
            begun: &self.begun[places.clone()],
            ends: &self.ends[places.clone()],
            latest_end: &self.latest_end[places.clone()],
            first_to_end: &self.first_to_end[places],
            tree: self.trees.get(number).map_or(&[], Vec::as_slice),
        }
    }
}

/// A node at place `at` has its children at `2 * at` and `2 * at + 1`; the root is at 1.
fn tree(intervals: &Intervals, calls: &[u32]) -> Vec<Extremes> {
    let n_leaves = calls.len().next_power_of_two();
    let mut nodes = vec![NOTHING; n_leaves * 2];
    for (leaf, &call) in nodes[n_leaves..].iter_mut().zip(calls) {
        let call = call as usize;
        *leaf = Extremes {
            latest_end: intervals.end[call],
            earliest_end: intervals.end[call],
            earliest_begun: intervals.begun()[call],
            latest_done: intervals.done()[call],
        };
    }
    for node in (1..n_leaves).rev() {
        nodes[node] = nodes[node * 2].with(nodes[node * 2 + 1]);
    }
    nodes
}

// === impl CallSet ===

impl CallSet<'_> {
    pub(crate) fn len(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn call(&self, place: usize) -> usize {
        self.calls[place] as usize
    }

    /// How many calls begin before a moment, and on their own clock until another; those are the
    /// first places if both orders agree.
    pub(crate) fn n_started(
        &self,
        before: i64,
        begun_until: Option<i64>,
        places: &mut Places,
    ) -> usize {
        let n_started = place_near(&mut places.started, self.starts, |start| *start < before);
        match begun_until {
            Some(until) => {
                let is_begun = |begun: &i64| *begun <= until;
                n_started.min(place_near(&mut places.begun, self.begun, is_begun))
            }
            None => n_started,
        }
    }

    /// How many calls end before a moment.
    pub(crate) fn n_ended(&self, before: i64, places: &mut Places) -> usize {
        place_near(&mut places.ended, self.ends, |end| *end < before)
    }

    /// Does a call begin after a moment?
    pub(crate) fn any_starts_after(&self, moment: i64) -> bool {
        self.starts.last().is_some_and(|start| *start > moment)
    }

    /// The first place, at or after one, of a call as asked. `effort` counts down, and at 0 nothing
    /// more is found.
    pub(crate) fn first(
        &self,
        from: usize,
        asked: Asked,
        places: &mut Places,
        effort: &mut u64,
    ) -> Option<usize> {
        *effort = effort.saturating_sub(1);
        let is_over = |latest: &i64| *latest <= asked.end_after;
        let place = place_near(&mut places.latest, self.latest_end, is_over);
        if place == self.len() || *effort == 0 {
            return None;
        }
        // It is the first that ends after the moment.
        if from <= place && self.is_as_asked(place, asked) {
            return Some(place);
        }
        self.first_beneath(1, 0, self.tree.len() / 2, from, asked, effort)
    }

    /// Is a call that ends after the moment also near? Only trees know that.
    fn is_as_asked(&self, place: usize, asked: Asked) -> bool {
        asked.near == Near::Any || asked.may_hold(self.tree[self.tree.len() / 2 + place])
    }

    fn first_beneath(
        &self,
        node: usize,
        first: usize,
        len: usize,
        from: usize,
        asked: Asked,
        effort: &mut u64,
    ) -> Option<usize> {
        *effort = effort.saturating_sub(1);
        let is_past = first + len <= from || len == 0 || *effort == 0;
        if is_past || !asked.may_hold(self.tree[node]) {
            return None;
        }
        if len == 1 {
            return Some(first);
        }
        let half = len / 2;
        self.first_beneath(node * 2, first, half, from, asked, effort)
            .or_else(|| self.first_beneath(node * 2 + 1, first + half, half, from, asked, effort))
    }

    /// The place of the call as asked that begins after a moment and ends first; `asked` names no
    /// moment itself.
    pub(crate) fn first_to_end(
        &self,
        start_after: i64,
        asked: Asked,
        places: &mut Places,
        effort: &mut u64,
    ) -> Option<usize> {
        *effort = effort.saturating_sub(1);
        if !self.any_starts_after(start_after) || *effort == 0 {
            return None;
        }
        let is_past = |start: &i64| *start <= start_after;
        let from = place_near(&mut places.after, self.starts, is_past);
        let earliest = self.first_to_end[from] as usize;
        if self.is_as_asked(earliest, asked) {
            return Some(earliest);
        }
        let mut best = (i64::MAX, None);
        let walk = Walk {
            set: self,
            from,
            asked,
        };
        walk.first_to_end(1, 0, self.tree.len() / 2, &mut best, effort);
        best.1
    }
}

/// A walk down a tree in search of the call that ends first.
struct Walk<'w, 's> {
    set: &'w CallSet<'s>,
    from: usize,
    asked: Asked,
}

impl Walk<'_, '_> {
    fn first_to_end(
        &self,
        node: usize,
        first: usize,
        len: usize,
        best: &mut (i64, Option<usize>),
        effort: &mut u64,
    ) {
        *effort = effort.saturating_sub(1);
        let is_past = first + len <= self.from || len == 0 || *effort == 0;
        if is_past {
            return;
        }
        let of_node = self.set.tree[node];
        if of_node.earliest_end >= best.0 || !self.asked.may_hold(of_node) {
            return;
        }
        if len == 1 {
            *best = (of_node.earliest_end, Some(first));
            return;
        }
        let half = len / 2;
        self.first_to_end(node * 2, first, half, best, effort);
        self.first_to_end(node * 2 + 1, first + half, half, best, effort);
    }
}
