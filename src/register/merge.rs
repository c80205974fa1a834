//! Merges the criteria of the files and of the API into one immutable set: registrations replace
//! criteria of the files by name until they are deleted or expire.

use std::collections::BTreeMap;
use std::sync::Arc;

use judge::evaluate::Criterion;
use judge::pipeline::Rules;
use sha2::{Digest, Sha256};
use text::hex;

use crate::config::Config;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CriterionSource {
    /// The configuration file, or one of `criteria_files`.
    File,
    Api,
}

impl CriterionSource {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    pub criterion: Arc<Criterion>,
    /// Time of expiry in Unix nanoseconds; `None` for never.
    pub expires_unix_nanos: Option<u64>,
}

/// All criteria, by source. Immutable: each change creates a new set.
#[derive(Debug, Clone, Default)]
pub struct CriteriaSet {
    file: Arc<[Arc<Criterion>]>,
    /// For each criterion of the files, the path of its file, by the criterion's name.
    paths: Arc<BTreeMap<String, Arc<str>>>,
    api: BTreeMap<String, Registration>,
}

/// The active criterion of one name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ActiveEntry<'a> {
    pub criterion: &'a Arc<Criterion>,
    pub source: CriterionSource,
    pub expires_unix_nanos: Option<u64>,
    /// The file with a criterion of this name, if there is one.
    pub file: Option<&'a Arc<str>>,
    /// The file's criterion that a registration replaces.
    pub shadowed: Option<&'a Arc<Criterion>>,
}

/// The differences between two sets, as sorted names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetChanges {
    pub added: Vec<String>,
    /// Names in both sets, with different revisions.
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

/// Returns the rules by which traces are judged. Spans that were scanned under `previous` remain
/// readable.
pub fn rules(config: &Config, criteria: Vec<Criterion>, previous: Option<&Rules>) -> Rules {
    Rules::following(
        previous,
        criteria,
        &config.tools,
        config.explain,
        &config.scores.copy_attributes,
    )
    .expecting(config.expectations())
}

impl CriteriaSet {
    pub fn new(file: Vec<Criterion>, api: impl IntoIterator<Item = Registration>) -> Self {
        Self::default().with_file(file).with_all(api)
    }

    pub fn with_file(&self, file: Vec<Criterion>) -> Self {
        Self {
            file: file.into_iter().map(Arc::new).collect(),
            ..self.clone()
        }
    }

    /// Returns this set with the path of the file of each criterion.
    pub fn read_from(self, paths: &Arc<BTreeMap<String, Arc<str>>>) -> Self {
        Self {
            paths: Arc::clone(paths),
            ..self
        }
    }

    pub fn with(&self, registration: Registration) -> Self {
        let mut next = self.clone();
        next.api
            .insert(registration.criterion.name.clone(), registration);
        next
    }

    pub fn without(&self, name: &str) -> Self {
        let mut next = self.clone();
        next.api.remove(name);
        next
    }

    pub fn with_all(&self, api: impl IntoIterator<Item = Registration>) -> Self {
        let api = api
            .into_iter()
            .map(|registration| (registration.criterion.name.clone(), registration))
            .collect();
        Self {
            api,
            ..self.clone()
        }
    }

    /// Returns the names of the files' criteria that registrations replace, sorted.
    pub fn shadowing(&self) -> Vec<&str> {
        let names = self.file.iter().map(|criterion| criterion.name.as_str());
        let mut shadowed: Vec<&str> = names.filter(|name| self.api.contains_key(*name)).collect();
        shadowed.sort_unstable();
        shadowed
    }

    /// Returns `None` if no registration has expired.
    pub fn expired(&self, now_unix_nanos: u64) -> Option<Self> {
        let is_expired = |registration: &Registration| {
            registration
                .expires_unix_nanos
                .is_some_and(|expires| expires <= now_unix_nanos)
        };
        self.api.values().any(is_expired).then(|| {
            let mut next = self.clone();
            next.api.retain(|_, registration| !is_expired(registration));
            next
        })
    }

    pub fn next_expiry(&self) -> Option<u64> {
        self.api
            .values()
            .filter_map(|registration| registration.expires_unix_nanos)
            .min()
    }

    pub fn registrations(&self) -> impl ExactSizeIterator<Item = &Registration> {
        self.api.values()
    }

    /// Returns the active criteria: the criteria of the files in their order, each replaced by the
    /// registration of its name, then the remaining registrations by name.
    pub fn active(&self) -> Vec<&Arc<Criterion>> {
        let from_file = self.file.iter().map(|criterion| {
            self.api
                .get(&criterion.name)
                .map_or(criterion, |registration| &registration.criterion)
        });
        let is_in_file = |criterion: &Criterion| {
            self.file
                .iter()
                .any(|from_file| from_file.name == criterion.name)
        };
        let only_api = self
            .api
            .values()
            .map(|registration| &registration.criterion)
            .filter(|criterion| !is_in_file(criterion));
        from_file.chain(only_api).collect()
    }

    pub fn get(&self, name: &str) -> Option<ActiveEntry<'_>> {
        let from_file = self.file.iter().find(|criterion| criterion.name == name);
        match self.api.get(name) {
            Some(Registration {
                criterion,
                expires_unix_nanos,
            }) => Some(ActiveEntry {
                criterion,
                source: CriterionSource::Api,
                expires_unix_nanos: *expires_unix_nanos,
                file: self.paths.get(name),
                shadowed: from_file,
            }),
            None => from_file.map(|criterion| ActiveEntry {
                criterion,
                source: CriterionSource::File,
                expires_unix_nanos: None,
                file: self.paths.get(name),
                shadowed: None,
            }),
        }
    }

    pub fn entries(&self) -> BTreeMap<&str, ActiveEntry<'_>> {
        let from_file = self.file.iter().map(|criterion| {
            (
                criterion.name.as_str(),
                ActiveEntry {
                    criterion,
                    source: CriterionSource::File,
                    expires_unix_nanos: None,
                    file: self.paths.get(&criterion.name),
                    shadowed: None,
                },
            )
        });
        let mut entries: BTreeMap<&str, ActiveEntry<'_>> = from_file.collect();
        for (
            name,
            Registration {
                criterion,
                expires_unix_nanos,
            },
        ) in &self.api
        {
            let shadowed = entries.get(name.as_str()).map(|entry| entry.criterion);
            let entry = ActiveEntry {
                criterion,
                source: CriterionSource::Api,
                expires_unix_nanos: *expires_unix_nanos,
                file: self.paths.get(name),
                shadowed,
            };
            entries.insert(name, entry);
        }
        entries
    }

    pub fn len(&self) -> usize {
        self.active().len()
    }

    pub fn is_empty(&self) -> bool {
        self.file.is_empty() && self.api.is_empty()
    }

    /// Returns the revision of the set: the first 12 hex digits of the SHA-256 of the names and
    /// revisions of the active criteria, sorted by name. Sources and expiries are excluded, because
    /// they do not change any judgement.
    pub fn revision(&self) -> String {
        let mut hash = Sha256::new();
        for (name, entry) in self.entries() {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
            hash.update(entry.criterion.revision());
        }
        hex(&hash.finalize()[..6])
    }

    /// Returns a tag for `If-Match` that changes whenever anything in the set changes. Unlike the
    /// revision, the tag includes sources and expiries.
    pub fn etag(&self) -> String {
        hex(&Sha256::digest(
            self.entries()
                .values()
                .map(ActiveEntry::etag)
                .collect::<String>(),
        ))
    }

    pub fn changes_to(&self, later: &Self) -> SetChanges {
        let (before, after) = (self.entries(), later.entries());
        let mut changes = SetChanges::default();
        for (name, entry) in &after {
            match before.get(name) {
                None => changes.added.push((*name).to_owned()),
                Some(old) if old.criterion.revision() != entry.criterion.revision() => {
                    changes.changed.push((*name).to_owned())
                }
                Some(_) => {}
            }
        }
        changes.removed = before
            .keys()
            .filter(|name| !after.contains_key(*name))
            .map(|name| (*name).to_owned())
            .collect();
        changes
    }
}

impl ActiveEntry<'_> {
    /// Returns a tag that changes whenever anything that the API shows changes.
    pub fn etag(&self) -> String {
        let Self {
            criterion,
            source,
            expires_unix_nanos,
            file,
            shadowed,
        } = self;
        let shadowed = shadowed
            .map(|criterion| criterion.revision())
            .unwrap_or_default();
        let text = format!(
            "{}\0{}\0{}\0{expires_unix_nanos:?}\0{shadowed}\0{}",
            criterion.name,
            criterion.revision(),
            source.as_str(),
            file.map_or("", |file| &**file),
        );
        hex(&Sha256::digest(text)[..6])
    }
}

impl SetChanges {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

#[cfg(test)]
pub(in crate::register) mod tests;
