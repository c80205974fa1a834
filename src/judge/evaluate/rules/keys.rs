//! Reads the values on which two kinds of calls must agree. Caches the values by path, because
//! rules often share paths.

use hashbrown::HashMap;
use serde_json::Value;
use smallvec::SmallVec;

use crate::evaluate::comparison::agreement::Numbering;
use crate::evaluate::comparison::captured::{CapturedValues, Tri};
use crate::evaluate::comparison::copies::{Copied, Source, TextLeaves};
use crate::evaluate::comparison::score::ReadBy;
use crate::evaluate::comparison::value_path::ValuePath;
use crate::evaluate::parameters::same::Same;
use crate::extract::equality;

/// Maximum number of paths that are cached between rules.
const MAX_PATHS: usize = 16;
/// Maximum number of pairs of calls that are compared for copies at one pair of paths.
const MAX_PAIRS: usize = 1 << 18;
/// Maximum number of values that are read at one path, over all calls.
const MAX_VALUES: usize = 1 << 18;

#[derive(Default)]
pub(crate) struct ReadPaths<'a> {
    numbering: Numbering<'a>,
    paths: Vec<ReadPath>,
}

struct ReadPath {
    path: ValuePath,
    /// The values of each call; `None` if no rule has read the call.
    found: Vec<Option<Found>>,
    /// The number of values that may still be read at this path.
    n_left: usize,
    too_many: bool,
}

enum Found {
    Unknown,
    /// The numbers of the values in ascending order, and a text such as "missing" if a value is
    /// missing.
    Known(SmallVec<[u32; 1]>, Option<&'static str>),
}

/// The values on which two kinds of calls must agree.
#[derive(Default)]
pub(crate) struct SharedValues {
    /// One entry for each entry of `same`.
    places: Vec<Place>,
    /// True if it is unknown whether some calls agree.
    pub(crate) has_unknown: bool,
    /// True if there were too many values to compare.
    pub(crate) too_many: bool,
}

/// The values of the calls at one entry of `same`.
struct Place {
    /// The indices of the cached paths of `a` and `b`; `None` if only copies are compared.
    read: Option<[usize; 2]>,
    /// For each pair of calls, whether one contains a copy of the other's text; `None` if only
    /// values are compared.
    copies: Option<HashMap<[usize; 2], Tri>>,
}

impl<'a> ReadPaths<'a> {
    /// Reads the values at both paths of each `same` entry, for the calls that match. For an entry
    /// that requires a copy, instead searches for copies between the calls `a` and the calls `b`.
    /// With `own_kind`, also reads the values of an entry that requires a copy, because two calls
    /// of one kind are compared by value.
    pub(crate) fn agreement(
        &mut self,
        same: &[Same],
        fits: [&[Tri]; 2],
        own_kind: bool,
        captured: &mut CapturedValues<'a>,
    ) -> SharedValues {
        if self.paths.len() > MAX_PATHS || self.numbering.len() > MAX_VALUES {
            *self = Self::default();
        }
        let mut agreement = SharedValues::default();
        for same in same {
            let copies =
                (same.copied()).map(|copied| copies(same, copied, fits, &mut agreement, captured));
            if copies.is_some() && !own_kind {
                agreement.places.push(Place { read: None, copies });
                continue;
            }
            let places = [(&same.a, fits[0]), (&same.b, fits[1])].map(|(path, fits)| {
                let at = self.read(path, fits, captured);
                let read = &self.paths[at];
                agreement.too_many |= read.too_many;
                for (call, found) in read.found.iter().enumerate() {
                    if fits[call] == Tri::No {
                        continue;
                    }
                    let led = match found {
                        Some(Found::Known(numbers, lack)) => {
                            (Tri::from(!numbers.is_empty()), *lack)
                        }
                        _ => (Tri::Maybe, None),
                    };
                    agreement.has_unknown |= led.0 == Tri::Maybe;
                    if copies.is_none() {
                        captured.note_followed(call, path, led, ReadBy::Key);
                    }
                }
                at
            });
            let read = Some(places);
            agreement.places.push(Place { read, copies });
        }
        agreement
    }

    /// Returns whether two calls agree on every path. `of` contains, for each call, its kind (0 for
    /// `a`, 1 for `b`) and its index.
    pub(crate) fn agree(&self, agreement: &SharedValues, of: [(usize, usize); 2]) -> Tri {
        let on_path = |place: &Place| {
            let [(side, call), (_, other)] = of;
            if let Some(copies) = place.copies.as_ref().filter(|_| side != of[1].0) {
                let pair = if side == 0 { [call, other] } else { [other, call] };
                return copies.get(&pair).copied().unwrap_or(Tri::Maybe);
            }
            let found =
                |(side, call): (usize, usize)| self.paths[place.read?[side]].found[call].as_ref();
            match of.map(found) {
                [Some(Found::Known(one, _)), Some(Found::Known(other, _))] => {
                    Tri::from(share(one, other))
                }
                [Some(Found::Known(none, _)), _] | [_, Some(Found::Known(none, _))]
                    if none.is_empty() =>
                {
                    Tri::No
                }
                _ => Tri::Maybe,
            }
        };
        agreement
            .places
            .iter()
            .map(on_path)
            .min()
            .unwrap_or(Tri::Yes)
    }

    /// Returns the cost of comparing one call with `n_calls` calls: one unit for each call and for
    /// each value read at the paths.
    pub(crate) fn cost(&self, agreement: &SharedValues, n_calls: usize) -> u64 {
        let n_values = |place: usize| MAX_VALUES - self.paths[place].n_left;
        let places = agreement
            .places
            .iter()
            .filter_map(|place| place.read)
            .flatten();
        (n_calls + places.map(n_values).sum::<usize>()) as u64
    }

    /// Reads a path in the calls that match. Returns the index of the path in `paths`.
    fn read(&mut self, path: &ValuePath, fits: &[Tri], captured: &mut CapturedValues<'a>) -> usize {
        let known = self.paths.iter().position(|read| read.path == *path);
        let at = known.unwrap_or_else(|| {
            self.paths.push(ReadPath {
                path: path.clone(),
                found: fits.iter().map(|_| None).collect(),
                n_left: MAX_VALUES,
                too_many: false,
            });
            self.paths.len() - 1
        });
        let read = &mut self.paths[at];
        for (call_idx, fit) in fits.iter().enumerate() {
            if *fit > Tri::No && read.found[call_idx].is_none() {
                read.found[call_idx] = Some(read.of_call(call_idx, &mut self.numbering, captured));
            }
        }
        at
    }
}

impl ReadPath {
    fn of_call<'a>(
        &mut self,
        call_idx: usize,
        numbering: &mut Numbering<'a>,
        captured: &mut CapturedValues<'a>,
    ) -> Found {
        let Some(found) = captured.at(call_idx, &self.path) else {
            return Found::Unknown;
        };
        if found.is_cut() {
            captured.note_cut(call_idx);
            return Found::Unknown;
        }
        let (values, lack): (SmallVec<[&Value; 1]>, _) =
            (found.present().collect(), found.lack(false));
        if !values.iter().copied().all(equality::is_comparable) {
            captured.missing.incomparable.get_or_insert(call_idx);
            return Found::Unknown;
        }
        if values.len() > self.n_left {
            self.too_many = true;
            return Found::Unknown;
        }
        self.n_left -= values.len();
        let numbers = values.into_iter().map(|value| numbering.of_value(value));
        let mut numbers: SmallVec<[u32; 1]> = numbers.collect();
        numbers.sort_unstable();
        numbers.dedup();
        Found::Known(numbers, lack)
    }
}

/// Searches for copies between all pairs of calls of two kinds, at the paths of one `same` entry.
fn copies(
    same: &Same,
    copied: Copied,
    fits: [&[Tri]; 2],
    agreement: &mut SharedValues,
    captured: &mut CapturedValues<'_>,
) -> HashMap<[usize; 2], Tri> {
    let mut read = |path: &ValuePath, fits: &[Tri]| {
        let mut read = Vec::new();
        for call in (0..fits.len()).filter(|call| fits[*call] > Tri::No) {
            let found = captured.at(call, path);
            let texts = found.as_ref().map(TextLeaves::new);
            let led = texts
                .as_ref()
                .map_or(Tri::Maybe, |texts| Tri::from(!texts.is_empty()));
            let lack = found.and_then(|found| found.lack(false));
            captured.note_followed(call, path, (led, lack), ReadBy::Key);
            read.push((call, texts));
        }
        read
    };
    let (a, b) = (read(&same.a, fits[0]), read(&same.b, fits[1]));
    let mut copies = HashMap::new();
    agreement.too_many |= a.len().saturating_mul(b.len()) > MAX_PAIRS;
    agreement.has_unknown |= agreement.too_many;
    if agreement.too_many {
        return copies;
    }
    for (call, texts) in &a {
        let source = texts
            .as_ref()
            .map(|texts| Source::new(copied, texts, &mut |cost| captured.spend_searching(cost)));
        for (other, others) in &b {
            let is_copied = match (&source, others) {
                (Some(source), Some(others)) => {
                    let spend = &mut |cost| captured.spend_searching(cost);
                    let Some((is_copied, _)) = source.copy_in(others, spend) else {
                        agreement.has_unknown = true;
                        return copies;
                    };
                    is_copied
                }
                (None, Some(none)) if none.is_empty() => Tri::No,
                (Some(_), None) if texts.as_ref().is_some_and(TextLeaves::is_empty) => Tri::No,
                _ => Tri::Maybe,
            };
            if is_copied == Tri::Maybe && call != other {
                agreement.has_unknown = true;
                for (call, texts) in [(call, texts), (other, others)] {
                    if texts.as_ref().is_some_and(TextLeaves::is_cut) {
                        captured.note_cut(*call);
                    }
                }
            }
            copies.insert([*call, *other], is_copied);
        }
    }
    copies
}

/// Returns true if two ascending lists have a number in common.
fn share(mut one: &[u32], mut other: &[u32]) -> bool {
    while let (Some(first), Some(second)) = (one.first(), other.first()) {
        match first.cmp(second) {
            std::cmp::Ordering::Equal => return true,
            std::cmp::Ordering::Less => one = &one[1..],
            std::cmp::Ordering::Greater => other = &other[1..],
        }
    }
    false
}
