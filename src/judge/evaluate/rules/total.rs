//! Judges a rule about a sum. For each call, computes bounds of the sum over this call and the
//! calls before it.

use serde_json::Value;
use text::decimal::{Decimal, Sum};

use super::activations::{Activation, Breach, Tally};
use super::keys::{ReadPaths, SharedValues};
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::order::Intervals;
use crate::evaluate::comparison::score::ReadBy;
use crate::evaluate::parameters::condition::number_of;
use crate::evaluate::parameters::rule::TotalOf;

pub(crate) struct Total<'t, 'v> {
    pub(crate) rule: &'t TotalOf,
    /// True if there are no times to compare.
    pub(crate) is_untimed: bool,
    pub(crate) fits: &'t [Tri],
    pub(crate) values: &'t ReadPaths<'v>,
    pub(crate) agreement: &'t SharedValues,
    pub(crate) intervals: &'t Intervals,
}

#[derive(Debug, Clone, Copy, Default)]
struct Addends {
    /// The sum of the non-negative values, and the sum of the negative values.
    sums: [Sum; 2],
    n_values: usize,
    has_negative: bool,
    /// True if a value is unknown or not a number, or was skipped because the sum would get too
    /// many digits.
    is_open: bool,
}

impl Total<'_, '_> {
    pub(crate) fn tally(&self, captured: &mut CapturedValues<'_>) -> Tally {
        let mut tally = Tally::default();
        captured.forgetting(|captured| {
            self.count(&mut tally, captured);
            if tally.is_open() { Tri::Maybe } else { Tri::Yes }
        });
        tally
    }

    fn count(&self, tally: &mut Tally, captured: &mut CapturedValues<'_>) {
        let TotalOf { of, max, .. } = self.rule;
        let calls: Vec<usize> = (0..self.fits.len())
            .filter(|call| self.fits[*call] > Tri::No)
            .collect();
        let addends: Vec<Addends> = calls
            .iter()
            .map(|call| self.addends(*call, captured))
            .collect();
        let lacks_value = |addends: &Addends| addends.n_values == 0 && !addends.is_open;
        let has_none = addends.iter().all(lacks_value);
        let has_negative = addends.iter().any(|addends| addends.has_negative);
        let max = max.number();
        for &x in &calls {
            let is_left = captured.spend_searching(self.values.cost(self.agreement, calls.len()));
            let mut sums = Sums::default();
            for (&y, addends) in calls.iter().zip(&addends).filter(|_| is_left) {
                if !sums.add(self.counts(x, y), addends) {
                    captured.note_long_sum(x, of);
                }
            }
            let bounds = sums.bounds();
            if bounds.contains(&None) {
                captured.note_long_sum(x, of);
            }
            let is_known = is_left && !has_none;
            let activation = Activation {
                is_certain: self.fits[x] == Tri::Yes,
                kept: if is_known { sums.kept(bounds, &max, has_negative) } else { Tri::Maybe },
                kept_so_far: !sums.certain.is_above(&max),
                call: Some(x),
            };
            tally.add(activation, || Breach::Total {
                n_calls: sums.n_calls,
                sum: sums.certain.to_string(),
            });
        }
        tally.may_shrink = has_negative;
        tally.lacks_values = has_none && !calls.is_empty();
    }

    /// Returns whether call `y` counts towards the sum at call `x`.
    fn counts(&self, x: usize, y: usize) -> Tri {
        if x == y {
            return Tri::Yes;
        }
        let since = self.intervals.since(x, y);
        let in_window = match self.rule.within {
            _ if self.intervals.is_unplaced(x) || self.intervals.is_unplaced(y) => Tri::Maybe,
            _ if since < 0 => return Tri::No,
            None => Tri::Yes,
            Some(_) if self.is_untimed => Tri::Maybe,
            Some(within) if since > within.nanos() => return Tri::No,
            Some(_) => Tri::Yes,
        };
        let agrees = self.values.agree(self.agreement, [(0, x), (1, y)]);
        in_window.min(agrees).min(self.fits[y])
    }

    fn addends(&self, call: usize, captured: &mut CapturedValues<'_>) -> Addends {
        let of = &self.rule.of;
        let unknown = Addends {
            is_open: true,
            ..Addends::default()
        };
        let Some(found) = captured.at(call, of) else {
            captured.note_followed(call, of, (Tri::Maybe, None), ReadBy::Addend);
            return unknown;
        };
        let led = (Tri::from(found.led(false)), found.lack(false));
        captured.note_followed(call, of, led, ReadBy::Addend);
        let n_digits = |value: &Value| match value {
            Value::Number(number) => number.as_str().len(),
            Value::String(text) => text.len(),
            _ => 0,
        };
        let cost: usize = found.present().map(n_digits).sum();
        if !captured.spend_searching(cost as u64) {
            return unknown;
        }
        if found.is_cut() {
            captured.note_cut(call);
        }
        let mut addends = Addends {
            is_open: found.is_open,
            ..Addends::default()
        };
        for value in found.present() {
            addends.n_values += 1;
            let is_cut = found.is_incomplete(value);
            let Some(number) = number_of(value).filter(|_| !is_cut) else {
                addends.is_open = true;
                if !is_cut {
                    captured.note_no_number(call, of);
                }
                continue;
            };
            addends.has_negative |= number.is_negative();
            let sum = &mut addends.sums[usize::from(number.is_negative())];
            if !Sum::of(&number).is_some_and(|addend| sum.add(addend)) {
                addends.is_open = true;
                captured.note_long_sum(call, of);
            }
        }
        addends
    }
}

/// Bounds of the sum over one call and the calls before it.
#[derive(Default)]
struct Sums {
    certain: Sum,
    /// The sum of the uncertain non-negative values, and the sum of the uncertain negative values.
    possible: [Sum; 2],
    /// True if a value is unknown, or was skipped because the sum would get too many digits.
    is_open: bool,
    n_calls: usize,
}

impl Sums {
    /// Returns `false` if a sum has too many digits.
    fn add(&mut self, counts: Tri, addends: &Addends) -> bool {
        let [plus, minus] = addends.sums;
        let [most, least] = &mut self.possible;
        let fits = match counts {
            Tri::No => return true,
            Tri::Maybe => most.add(plus) & least.add(minus),
            Tri::Yes => {
                self.n_calls += usize::from(addends.n_values > 0);
                self.certain.add(plus) & self.certain.add(minus)
            }
        };
        self.is_open |= addends.is_open || !fits;
        fits
    }

    /// Returns the highest and the lowest possible sum; `None` for a sum with too many digits.
    fn bounds(&self) -> [Option<Sum>; 2] {
        self.possible.map(|possible| {
            let mut sum = self.certain;
            sum.add(possible).then_some(sum)
        })
    }

    fn kept(&self, [most, least]: [Option<Sum>; 2], max: &Decimal<'_>, has_negative: bool) -> Tri {
        let is_exceeded = least.is_some_and(|least| least.is_above(max));
        let may_be_exceeded = most.is_none_or(|most| most.is_above(max));
        if is_exceeded && !(self.is_open && has_negative) {
            Tri::No
        } else if !may_be_exceeded && !self.is_open {
            Tri::Yes
        } else {
            Tri::Maybe
        }
    }
}
