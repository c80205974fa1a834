//! Which calls agree on values: each value gets a number, equal for values that are equal as
//! JSON, so that calls are compared by numbers. Knows neither paths nor rules.

use hashbrown::HashMap;
use serde_json::Value;
use smallvec::SmallVec;

use crate::extract::equality;

/// Most combinations of values of one call: two lists of a hundred ids each stay below it.
const MAX_COMBINATIONS: usize = 10_000;
/// Most values of all calls together that are compared on one path, and most combinations.
pub(crate) const MAX_NUMBERS: usize = 1 << 18;

/// The values that a call must agree on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallKey {
    /// The numbers of its values, rising; it agrees with a call that shares one.
    Known(SmallVec<[u32; 1]>),
    /// Its values are not known: it may agree with any call.
    Unknown,
}

impl CallKey {
    /// Agrees with every call that has such a key.
    pub(crate) fn any() -> Self {
        Self::Known(SmallVec::from_buf([0]))
    }

    /// Agrees with no call.
    pub(crate) fn none() -> Self {
        Self::Known(SmallVec::new())
    }

    /// The numbers of its values; none if they are not known.
    pub(crate) fn numbers(&self) -> &[u32] {
        match self {
            Self::Known(numbers) => numbers,
            Self::Unknown => &[],
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    /// Do the two share a number?
    pub(crate) fn shares(&self, other: &Self) -> bool {
        let (mut a, mut b) = (self.numbers(), other.numbers());
        while let (Some(first), Some(second)) = (a.first(), b.first()) {
            match first.cmp(second) {
                std::cmp::Ordering::Equal => return true,
                std::cmp::Ordering::Less => a = &a[1..],
                std::cmp::Ordering::Greater => b = &b[1..],
            }
        }
        false
    }
}

/// Gives each distinct value a number.
#[derive(Default)]
pub(crate) struct Numbering<'v> {
    by_hash: HashMap<u64, SmallVec<[(&'v Value, u32); 1]>>,
    n_values: u32,
}

impl<'v> Numbering<'v> {
    /// The number of a value.
    pub(crate) fn of_value(&mut self, value: &'v Value) -> u32 {
        let same_hash = self.by_hash.entry(equality::hash(value)).or_default();
        if let Some((_, number)) = same_hash
            .iter()
            .find(|(known, _)| equality::equal(known, value) == Some(true))
        {
            return *number;
        }
        let number = self.n_values;
        self.n_values += 1;
        same_hash.push((value, number));
        number
    }

    /// How many distinct values there are.
    pub(crate) fn len(&self) -> usize {
        self.n_values as usize
    }
}

/// Numbers combinations of values, where calls must agree on several paths.
pub(crate) struct Combinations {
    numbers: HashMap<SmallVec<[u32; 4]>, u32>,
    /// How many numbers may still be given to calls.
    n_left: usize,
}

impl Default for Combinations {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            n_left: MAX_NUMBERS,
        }
    }
}

impl Combinations {
    /// The key of a call with these numbers of values, one list a path: it has to agree on every
    /// path. Unknown where there are too many combinations to compare.
    pub(crate) fn key(&mut self, paths: &[&[u32]]) -> CallKey {
        match paths {
            [] => return CallKey::any(),
            [one] => return CallKey::Known(SmallVec::from_slice(one)),
            _ => {}
        }
        let n_combinations = paths.iter().try_fold(1_usize, |n, numbers| {
            n.checked_mul(numbers.len())
                .filter(|n| *n <= MAX_COMBINATIONS.min(self.n_left))
        });
        let Some(n_combinations) = n_combinations else {
            return CallKey::Unknown;
        };
        self.n_left -= n_combinations;
        let mut rows: Vec<SmallVec<[u32; 4]>> = vec![SmallVec::new()];
        for numbers in paths {
            let longer = rows.iter().flat_map(|row| {
                numbers.iter().map(move |number| {
                    let mut row = row.clone();
                    row.push(*number);
                    row
                })
            });
            rows = longer.collect();
        }
        let number_of = |row| {
            let next = self.numbers.len() as u32;
            *self.numbers.entry(row).or_insert(next)
        };
        let mut numbers: SmallVec<[u32; 1]> = rows.into_iter().map(number_of).collect();
        numbers.sort_unstable();
        CallKey::Known(numbers)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_values_have_one_number() {
        let values = [json!(1), json!(1.0), json!(2), json!(true), json!("1")];
        let mut numbering = Numbering::default();
        let numbers: Vec<u32> = values
            .iter()
            .map(|value| numbering.of_value(value))
            .collect();
        assert_eq!((numbers, numbering.len()), (vec![0, 0, 1, 2, 3], 4));
    }

    #[test]
    fn calls_agree_if_they_share_a_value_on_every_path() {
        let (one, two, yes) = (0, 1, 2);
        let mut combinations = Combinations::default();
        let mut key = |paths: &[&[u32]]| combinations.key(paths);
        let a = key(&[&[one, two], &[yes]]);
        assert!(a.shares(&key(&[&[one], &[yes]])));
        assert!(!a.shares(&key(&[&[yes], &[yes]])));
        assert!(!a.shares(&key(&[&[two], &[one]])));
        assert!(!a.shares(&key(&[&[two], &[]])));
        assert!(
            CallKey::any().shares(&CallKey::any()) && !CallKey::Unknown.shares(&CallKey::any())
        );
    }

    #[test]
    fn too_many_combinations_are_not_compared() {
        let path: Vec<u32> = (0..200).collect();
        let mut combinations = Combinations::default();
        assert!(!combinations.key(&[&path, &path]).is_known());
        assert!(combinations.key(&[&path]).is_known());
        // Nor of all calls together.
        let half = &path[..100];
        let n_known = (0..100)
            .filter(|_| combinations.key(&[half, half]).is_known())
            .count();
        assert_eq!(n_known, MAX_NUMBERS / 10_000);
    }
}
