//! A list of tool names. Parsing interns the names so that judging compares small integers.

use hashbrown::HashMap;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error};

use crate::evaluate::comparison::lcs::UNEXPECTED;

/// Expected names, in order.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
#[schemars(inline)]
pub struct Names {
    names: Vec<String>,
    ids: Vec<u32>,
    index: HashMap<String, u32>,
}

// === impl Names ===

impl Names {
    /// Returns the names as they were written.
    pub fn as_slice(&self) -> &[String] {
        &self.names
    }

    pub(crate) fn to_strs(&self) -> Vec<&str> {
        self.names.iter().map(String::as_str).collect()
    }

    /// Returns one small integer per name; equal names have equal integers.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Returns the number of distinct names. Every id is smaller than this number.
    pub(crate) fn n_distinct(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn ids_of<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
        names.into_iter().map(|name| self.id_of(name)).collect()
    }

    /// Returns the id of the name; `UNEXPECTED` if the name is not in the list.
    pub(crate) fn id_of(&self, name: &str) -> u32 {
        self.index.get(name).copied().unwrap_or(UNEXPECTED)
    }
}

impl From<Vec<String>> for Names {
    fn from(names: Vec<String>) -> Self {
        let mut index: HashMap<String, u32> = HashMap::new();
        let mut ids = Vec::with_capacity(names.len());
        for name in &names {
            let next = index.len() as u32;
            ids.push(*index.entry_ref(name.as_str()).or_insert(next));
        }
        Self { names, ids, index }
    }
}

impl From<Names> for Vec<String> {
    fn from(names: Names) -> Self {
        names.names
    }
}

/// Parses an order, which needs at least one name.
pub(crate) fn at_least_one_name<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Names, D::Error> {
    let names = Names::deserialize(deserializer)?;
    if names.as_slice().is_empty() {
        return Err(D::Error::custom(
            "an order needs at least one name; to expect that nothing is called, use \
             `execution_order: { expected_output: [], should_exact_match: true }`",
        ));
    }
    Ok(names)
}
