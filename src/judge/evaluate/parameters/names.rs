//! A list of tool names. Parsing interns the names so that judging compares small integers.

use std::fmt;

use hashbrown::HashMap;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::evaluate::comparison::lcs::UNEXPECTED;

/// Expected names, in order.
#[derive(Clone, Default)]
pub struct Names {
    names: Vec<String>,
    ids: Vec<u32>,
    index: HashMap<String, u32>,
}

/// Expected names, at least one.
#[derive(Debug, Clone, PartialEq)]
pub struct NonEmptyNames(Names);

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

impl PartialEq for Names {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.names.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<String>::deserialize(deserializer).map(Self::from)
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names.serialize(serializer)
    }
}

impl JsonSchema for Names {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Names".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Vec::<String>::json_schema(generator)
    }
}

// === impl NonEmptyNames ===

impl NonEmptyNames {
    pub fn names(&self) -> &Names {
        &self.0
    }
}

impl<'de> Deserialize<'de> for NonEmptyNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Names::deserialize(deserializer)?;
        if names.as_slice().is_empty() {
            return Err(D::Error::custom(
                "an order needs at least one name; to expect that nothing is called, use \
                 `execution_order: { expected_output: [], should_exact_match: true }`",
            ));
        }
        Ok(Self(names))
    }
}

impl Serialize for NonEmptyNames {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl JsonSchema for NonEmptyNames {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NonEmptyNames".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Vec::<String>::json_schema(generator);
        schema.insert("minItems".to_owned(), 1.into());
        schema
    }
}
