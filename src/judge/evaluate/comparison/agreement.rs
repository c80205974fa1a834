//! Assigns numbers to JSON values so that comparing two values means comparing two numbers.

use hashbrown::HashMap;
use serde_json::Value;
use smallvec::SmallVec;

use crate::extract::equality;

#[derive(Default)]
pub(crate) struct Numbering<'v> {
    by_hash: HashMap<u64, SmallVec<[(&'v Value, u32); 1]>>,
    n_values: u32,
}

impl<'v> Numbering<'v> {
    /// Returns the value's number; a new value gets the next free number.
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

    pub(crate) fn len(&self) -> usize {
        self.n_values as usize
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
}
