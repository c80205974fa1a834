//! Judges a rule about a sum: at each call, what the values of the calls before it add up to, at
//! least and at most. Knows one rule.

use serde_json::Value;
use text::decimal::{Decimal, Sum};

use super::activations::{Activation, Breach, Tally};
use super::keys::{ReadPaths, SharedValues};
use crate::evaluate::comparison::captured::{CapturedValues, Read, Tri};
use crate::evaluate::comparison::order::Intervals;
use crate::evaluate::comparison::value_path::{ValuePath, is_one_of};
use crate::evaluate::parameters::condition::{DecimalBound, number_of};

/// A sum over calls of one kind.
pub(crate) struct Total<'t, 'v> {
    pub(crate) of: &'t ValuePath,
    pub(crate) max: &'t DecimalBound,
    /// Nanoseconds; `Some(None)` where there are no times to compare.
    pub(crate) within: Option<Option<i64>>,
    pub(crate) fits: &'t [Tri],
    pub(crate) values: &'t ReadPaths<'v>,
    pub(crate) agreement: &'t SharedValues,
    pub(crate) intervals: &'t Intervals,
}

/// The values of a call, added up.
#[derive(Debug, Clone, Copy, Default)]
struct Addends {
    /// Of those that are not negative, and of the others.
    sums: [Sum; 2],
    n_values: usize,
    has_negative: bool,
    /// A value is no number, not known, or left out since a sum had too many digits with it.
    is_open: bool,
}

impl Total<'_, '_> {
    pub(crate) fn tally(&self, captured: &mut CapturedValues<'_>) -> Tally {
        let mut tally = Tally::default();
        let calls: Vec<usize> = (0..self.fits.len())
            .filter(|call| self.fits[*call] > Tri::No)
            .collect();
        let addends: Vec<Addends> = calls
            .iter()
            .map(|call| self.addends(*call, captured))
            .collect();
        let has_negative = addends.iter().any(|addends| addends.has_negative);
        let max = self.max.number();
        let has_none = addends
            .iter()
            .all(|addends| addends.n_values == 0 && !addends.is_open);
        for &x in &calls {
            let is_left = captured.spend_searching(self.values.cost(self.agreement, calls.len()));
            let mut sums = Sums::default();
            for (&y, addends) in calls.iter().zip(addends.iter().filter(|_| is_left)) {
                if !sums.add(self.counts(x, y), addends) {
                    captured.note_long_sum(x, self.of);
                }
            }
            let kept =
                if is_left && !has_none { sums.kept(&max, has_negative) } else { Tri::Maybe };
            let activation = Activation {
                is_certain: self.fits[x] == Tri::Yes,
                kept,
                kept_so_far: !sums.seen.is_above(&max),
                call: Some(x),
            };
            tally.add(activation, || Breach::Total {
                n_calls: sums.n_calls,
                sum: sums.seen.to_string(),
            });
        }
        tally.may_shrink = has_negative;
        tally.lacks_values = has_none && !calls.is_empty();
        tally
    }

    /// Does call `y` count where the sum is taken at call `x`?
    fn counts(&self, x: usize, y: usize) -> Tri {
        if x == y {
            return Tri::Yes;
        }
        let is_placed = [x, y].iter().all(|call| !self.intervals.is_unplaced(*call));
        let since = self.intervals.since(x, y);
        let in_window = match self.within {
            _ if !is_placed => Tri::Maybe,
            _ if since < 0 => Tri::No,
            None => Tri::Yes,
            Some(None) => Tri::Maybe,
            Some(Some(within)) => Tri::from(since <= within),
        };
        let agrees = match in_window {
            Tri::No => Tri::No,
            _ => self.values.agree(self.agreement, [(0, x), (1, y)]),
        };
        in_window.min(agrees).min(self.fits[y])
    }

    fn addends(&self, call: usize, captured: &mut CapturedValues<'_>) -> Addends {
        let unknown = Addends {
            is_open: true,
            ..Addends::default()
        };
        let read = captured.read(call, self.of.of_result);
        let (found, incomplete) = match &read {
            Read::Whole(value) => (self.of.follow(value, &[]), Vec::new()),
            Read::Beginning(beginning) => {
                let incomplete = beginning.incomplete();
                (self.of.follow(beginning.json(), &incomplete), incomplete)
            }
            Read::None => return Addends::default(),
            Read::Unknown => return unknown,
        };
        let n_digits = |value: &&Value| match value {
            Value::Number(number) => number.as_str().len(),
            Value::String(text) => text.len(),
            _ => 0,
        };
        let cost = found.n_visited + found.values.iter().map(n_digits).sum::<usize>() as u64;
        if !captured.spend_searching(cost) {
            return unknown;
        }
        let mut addends = Addends {
            is_open: found.is_open,
            ..Addends::default()
        };
        for value in found.values.iter().filter(|value| !value.is_null()) {
            let is_cut = is_one_of(value, &incomplete);
            addends.n_values += 1;
            match number_of(value).filter(|_| !is_cut) {
                Some(number) => {
                    addends.has_negative |= number.is_negative();
                    let sum = &mut addends.sums[usize::from(number.is_negative())];
                    if !try_add(sum, Sum::of(&number)) {
                        addends.is_open = true;
                        captured.note_long_sum(call, self.of);
                    }
                }
                None => {
                    addends.is_open = true;
                    if !is_cut {
                        captured.note_no_number(call, self.of);
                    }
                }
            }
        }
        if found.is_open || !incomplete.is_empty() && addends.is_open {
            captured.note_cut(call);
        }
        addends
    }
}

/// What the calls before a call, and itself, add up to.
#[derive(Default)]
struct Sums {
    /// What is certain, but for negative values that may count; what may count, but for negative
    /// values that may not; and what is certain.
    least: Sum,
    most: Sum,
    seen: Sum,
    /// A value is not known, or left out since a sum had too many digits with it.
    is_open: bool,
    n_calls: usize,
}

impl Sums {
    /// `false` if a sum has too many digits.
    fn add(&mut self, counts: Tri, addends: &Addends) -> bool {
        if counts == Tri::No {
            return true;
        }
        let mut fits = true;
        let mut add = |sum: &mut Sum, which: [bool; 2]| {
            for (addend, _) in addends.sums.into_iter().zip(which).filter(|(_, is)| *is) {
                fits &= try_add(sum, Some(addend));
            }
        };
        let is_certain = counts == Tri::Yes;
        add(&mut self.least, [is_certain, true]);
        add(&mut self.most, [true, is_certain]);
        add(&mut self.seen, [is_certain; 2]);
        self.is_open |= addends.is_open || !fits;
        self.n_calls += usize::from(is_certain && addends.n_values > 0);
        fits
    }

    fn kept(&self, max: &Decimal<'_>, has_negative: bool) -> Tri {
        if self.least.is_above(max) && !(self.is_open && has_negative) {
            Tri::No
        } else if !self.most.is_above(max) && !self.is_open {
            Tri::Yes
        } else {
            Tri::Maybe
        }
    }
}

/// Adds to a sum, unless that has too many digits.
fn try_add(sum: &mut Sum, addend: Option<Sum>) -> bool {
    let total = addend.and_then(|addend| sum.plus(addend));
    *sum = total.unwrap_or(*sum);
    total.is_some()
}
