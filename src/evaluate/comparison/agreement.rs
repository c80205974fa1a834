//! Pure. Which calls agree on values: each value gets a number, equal for values that are equal as
//! JSON, so that calls are compared by numbers. Knows neither paths nor rules.

use hashbrown::HashMap;
use serde_json::Value;
use smallvec::SmallVec;

use crate::extract::equality;

/// Most combinations of values of one call: two lists of a hundred ids each stay below it.
const MAX_COMBINATIONS: usize = 10_000;

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
    combinations: HashMap<Vec<u32>, u32>,
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

    /// The key of a call with these values, one list a path: it has to agree on every path. `None`
    /// where there are too many combinations to compare.
    pub(crate) fn key(&mut self, paths: &[Vec<&'v Value>]) -> Option<CallKey> {
        let n_combinations = paths.iter().try_fold(1_usize, |n, values| {
            n.checked_mul(values.len())
                .filter(|n| *n <= MAX_COMBINATIONS)
        })?;
        if n_combinations == 0 {
            return Some(CallKey::none());
        }
        let mut numbered: Vec<Vec<u32>> = Vec::with_capacity(paths.len());
        for values in paths {
            let mut numbers: Vec<u32> = values.iter().map(|value| self.of_value(value)).collect();
            numbers.sort_unstable();
            numbers.dedup();
            numbered.push(numbers);
        }
        let mut numbers: SmallVec<[u32; 1]> = match numbered.as_slice() {
            [] => return Some(CallKey::any()),
            [one] => one.iter().copied().collect(),
            _ => self.combined(&numbered),
        };
        numbers.sort_unstable();
        Some(CallKey::Known(numbers))
    }

    fn combined(&mut self, numbered: &[Vec<u32>]) -> SmallVec<[u32; 1]> {
        let mut rows: Vec<Vec<u32>> = vec![Vec::new()];
        for numbers in numbered {
            let longer = rows.iter().flat_map(|row| {
                numbers.iter().map(move |number| {
                    let mut row = row.clone();
                    row.push(*number);
                    row
                })
            });
            rows = longer.collect();
        }
        let mut number_of = |row: Vec<u32>| {
            let next = self.combinations.len() as u32;
            *self.combinations.entry(row).or_insert(next)
        };
        rows.into_iter().map(&mut number_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_agree_if_they_share_a_value_on_every_path() {
        let (one, one_float, two, yes) = (json!(1), json!(1.0), json!(2), json!(true));
        let mut numbering = Numbering::default();
        let mut key = |paths: &[Vec<&'static Value>]| numbering.key(paths).unwrap();
        let leak = |value: Value| -> &'static Value { Box::leak(Box::new(value)) };
        let (one, one_float, two, yes) = (leak(one), leak(one_float), leak(two), leak(yes));
        let a = key(&[vec![one, two], vec![yes]]);
        assert!(a.shares(&key(&[vec![one_float], vec![yes]])));
        assert!(!a.shares(&key(&[vec![yes], vec![yes]])));
        assert!(!a.shares(&key(&[vec![two], vec![one]])));
        assert!(!a.shares(&key(&[vec![two], vec![]])));
        assert!(
            CallKey::any().shares(&CallKey::any()) && !CallKey::Unknown.shares(&CallKey::any())
        );
    }

    #[test]
    fn too_many_combinations_are_not_compared() {
        let values: Vec<Value> = (0..200).map(Value::from).collect();
        let path: Vec<&Value> = values.iter().collect();
        let mut numbering = Numbering::default();
        assert!(numbering.key(&[path.clone(), path.clone()]).is_none());
        assert!(numbering.key(&[path]).is_some());
    }
}
