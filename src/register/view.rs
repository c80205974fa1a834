//! The API's view of a set and of changes to it. REST sends these structs as JSON; gRPC converts
//! them to messages.

use std::sync::Arc;

use judge::evaluate::Criterion;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::merge::{ActiveEntry, CriteriaSet, CriterionSource, SetChanges};

use crate::rfc3339::rfc3339;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct RegistrationView {
    pub(super) name: String,
    pub(super) criterion: Arc<Criterion>,
    pub(super) revision: String,
    pub(super) source: &'static str,
    /// The file with a criterion of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_rfc3339")]
    pub(super) expires_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) shadows: Option<ShadowedView>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) warnings: Vec<String>,
    pub(super) etag: String,
}

/// The file's criterion that a registration replaces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct ShadowedView {
    pub(super) source: &'static str,
    pub(super) revision: String,
}

#[derive(Debug, Serialize)]
pub(super) struct ListView {
    pub(super) criteria: Vec<RegistrationView>,
    pub(super) revision: String,
    pub(super) etag: String,
}

#[derive(Debug, Serialize)]
pub(super) struct DeletedView {
    pub(super) revision: String,
    /// The file's criterion that is active again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) uncovered: Option<RegistrationView>,
}

#[derive(Debug, Serialize)]
pub(super) struct ReplacedView {
    pub(super) revision: String,
    pub(super) etag: String,
    pub(super) added: Vec<String>,
    pub(super) changed: Vec<String>,
    pub(super) removed: Vec<String>,
}

/// Each evaluation has the fields of its jsonl line.
#[derive(Debug, Serialize)]
pub(super) struct EvaluationsView {
    pub(super) evaluations: Vec<Map<String, Value>>,
}

impl From<ActiveEntry<'_>> for RegistrationView {
    fn from(entry: ActiveEntry<'_>) -> Self {
        Self {
            name: entry.criterion.name.clone(),
            criterion: Arc::clone(entry.criterion),
            revision: entry.criterion.revision().to_owned(),
            source: entry.source.as_str(),
            file: entry.file.cloned(),
            expires_at: entry.expires_unix_nanos,
            shadows: entry.shadowed.map(|shadowed| ShadowedView {
                source: CriterionSource::File.as_str(),
                revision: shadowed.revision().to_owned(),
            }),
            warnings: entry.criterion.warnings(),
            etag: entry.etag(),
        }
    }
}

impl ListView {
    pub(super) fn new(registered: &CriteriaSet) -> Self {
        let entries = registered.entries().into_values();
        Self {
            criteria: entries.map(RegistrationView::from).collect(),
            revision: registered.revision(),
            etag: registered.etag(),
        }
    }
}

impl DeletedView {
    pub(super) fn new(registered: &CriteriaSet, name: &str) -> Self {
        Self {
            revision: registered.revision(),
            uncovered: registered.get(name).map(RegistrationView::from),
        }
    }
}

impl ReplacedView {
    pub(super) fn new(registered: &CriteriaSet, changes: SetChanges) -> Self {
        let SetChanges {
            added,
            changed,
            removed,
        } = changes;
        Self {
            revision: registered.revision(),
            etag: registered.etag(),
            added,
            changed,
            removed,
        }
    }
}

fn as_rfc3339<S: Serializer>(unix_nanos: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    unix_nanos.map(rfc3339).serialize(serializer)
}
