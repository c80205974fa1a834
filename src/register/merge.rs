//! Criteria from files and from the API in, one immutable set out: who wins, what is shadowed, what
//! has run out. Pure: time is an argument. Does not know where files are, who called, or what a set
//! is swapped into.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::evaluate::Criterion;
use crate::pipeline::Rules;
use crate::text::{hex, rfc3339};

/// Where a criterion was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The configuration file, or one of `criteria_files`.
    File,
    /// The API.
    Api,
}

impl Source {
    /// The word of the API and of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Api => "api",
        }
    }
}

/// A criterion that came by the API.
#[derive(Debug, Clone, PartialEq)]
pub struct Registration {
    /// The criterion.
    pub criterion: Arc<Criterion>,
    /// When it is taken out, Unix nanoseconds; `None` never.
    pub expires_unix_nanos: Option<u64>,
}

/// Every registered criterion, by source. Immutable: each change makes a new one.
#[derive(Debug, Clone, Default)]
pub struct Registered {
    file: Arc<[Arc<Criterion>]>,
    api: BTreeMap<String, Registration>,
}

/// One name of the set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry<'a> {
    /// The criterion in force.
    pub criterion: &'a Arc<Criterion>,
    /// Where it comes from.
    pub source: Source,
    /// When it is taken out, Unix nanoseconds.
    pub expires_unix_nanos: Option<u64>,
    /// The one of the file that it stands in front of.
    pub shadowed: Option<&'a Arc<Criterion>>,
}

/// What two sets differ in, by name, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// In the later set only.
    pub added: Vec<String>,
    /// In both, with another revision.
    pub changed: Vec<String>,
    /// In the earlier set only.
    pub removed: Vec<String>,
}

/// What traces are judged by, given the set. With `previous`, spans taken in under those rules can
/// still be read.
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

impl Registered {
    /// A set of these two.
    pub fn new(file: Vec<Criterion>, api: impl IntoIterator<Item = Registration>) -> Self {
        let api = api
            .into_iter()
            .map(|registration| (registration.criterion.name.clone(), registration))
            .collect();
        Self {
            file: file.into_iter().map(Arc::new).collect(),
            api,
        }
    }

    /// The same with another file.
    pub fn with_file(&self, file: Vec<Criterion>) -> Self {
        Self {
            file: file.into_iter().map(Arc::new).collect(),
            api: self.api.clone(),
        }
    }

    /// The same with one registration more, or another one of its name.
    pub fn with(&self, registration: Registration) -> Self {
        let mut next = self.clone();
        next.api
            .insert(registration.criterion.name.clone(), registration);
        next
    }

    /// The same without the registration of this name.
    pub fn without(&self, name: &str) -> Self {
        let mut next = self.clone();
        next.api.remove(name);
        next
    }

    /// The same with these registrations and no others.
    pub fn with_all(&self, api: impl IntoIterator<Item = Registration>) -> Self {
        let api = api
            .into_iter()
            .map(|registration| (registration.criterion.name.clone(), registration))
            .collect();
        Self {
            file: self.file.clone(),
            api,
        }
    }

    /// The same without what has run out; `None` if nothing has.
    pub fn expired(&self, now_unix_nanos: u64) -> Option<Self> {
        let is_over = |registration: &Registration| {
            registration
                .expires_unix_nanos
                .is_some_and(|expires| expires <= now_unix_nanos)
        };
        self.api.values().any(is_over).then(|| {
            let mut next = self.clone();
            next.api.retain(|_, registration| !is_over(registration));
            next
        })
    }

    /// When the next registration runs out, Unix nanoseconds.
    pub fn next_expiry(&self) -> Option<u64> {
        self.api
            .values()
            .filter_map(|registration| registration.expires_unix_nanos)
            .min()
    }

    /// What came by the API, by name.
    pub fn registrations(&self) -> impl ExactSizeIterator<Item = &Registration> {
        self.api.values()
    }

    /// The criteria to judge by: those of the file in its order, each replaced by the registration
    /// of its name, then the other registrations by name.
    pub fn in_force(&self) -> Vec<&Arc<Criterion>> {
        let of_file = self.file.iter().map(|criterion| {
            self.api
                .get(&criterion.name)
                .map_or(criterion, |own| &own.criterion)
        });
        let further = self
            .api
            .values()
            .map(|registration| &registration.criterion);
        of_file
            .chain(
                further.filter(|criterion| {
                    !self.file.iter().any(|other| other.name == criterion.name)
                }),
            )
            .collect()
    }

    /// What stands under a name.
    pub fn get(&self, name: &str) -> Option<Entry<'_>> {
        let of_file = self.file.iter().find(|criterion| criterion.name == name);
        match self.api.get(name) {
            Some(Registration {
                criterion,
                expires_unix_nanos,
            }) => Some(Entry {
                criterion,
                source: Source::Api,
                expires_unix_nanos: *expires_unix_nanos,
                shadowed: of_file,
            }),
            None => of_file.map(|criterion| Entry {
                criterion,
                source: Source::File,
                expires_unix_nanos: None,
                shadowed: None,
            }),
        }
    }

    /// Every name with what stands under it, sorted.
    pub fn entries(&self) -> BTreeMap<&str, Entry<'_>> {
        let of_file = self.file.iter().map(|criterion| {
            (
                criterion.name.as_str(),
                Entry {
                    criterion,
                    source: Source::File,
                    expires_unix_nanos: None,
                    shadowed: None,
                },
            )
        });
        let mut entries: BTreeMap<&str, Entry<'_>> = of_file.collect();
        for (
            name,
            Registration {
                criterion,
                expires_unix_nanos,
            },
        ) in &self.api
        {
            let shadowed = entries.get(name.as_str()).map(|entry| entry.criterion);
            let entry = Entry {
                criterion,
                source: Source::Api,
                expires_unix_nanos: *expires_unix_nanos,
                shadowed,
            };
            entries.insert(name, entry);
        }
        entries
    }

    /// How many criteria are in force.
    pub fn len(&self) -> usize {
        self.in_force().len()
    }

    /// Is there none?
    pub fn is_empty(&self) -> bool {
        self.file.is_empty() && self.api.is_empty()
    }

    /// The revision of the set: the first 12 hex digits of the SHA-256 of the names and revisions
    /// in force, sorted by name. Where they came from and when they run out is no part of it: the
    /// same criteria judge the same.
    pub fn revision(&self) -> String {
        let mut hash = Sha256::new();
        for (name, entry) in self.entries() {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
            hash.update(entry.criterion.revision());
        }
        hex(&hash.finalize()[..6])
    }

    /// Tells whether anything of the set is another one, for `If-Match`: unlike the revision it
    /// also tells sources and expiries apart.
    pub fn etag(&self) -> String {
        hex(&Sha256::digest(
            self.entries().values().map(Entry::etag).collect::<String>(),
        ))
    }

    /// What the later set has that this one has not, and the other way round.
    pub fn changes_to(&self, later: &Self) -> Changes {
        let (before, after) = (self.entries(), later.entries());
        let mut changes = Changes::default();
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

impl Entry<'_> {
    /// As the API shows it.
    pub fn to_json(&self) -> Value {
        let mut shown = Map::new();
        shown.insert("name".to_owned(), json!(self.criterion.name));
        shown.insert("criterion".to_owned(), json!(self.criterion));
        shown.insert("revision".to_owned(), json!(self.criterion.revision()));
        shown.insert("source".to_owned(), json!(self.source.as_str()));
        if let Some(expires) = self.expires_unix_nanos {
            shown.insert("expires_at".to_owned(), json!(rfc3339(expires)));
        }
        if let Some(shadowed) = self.shadowed {
            shown.insert(
                "shadows".to_owned(),
                json!({ "source": Source::File.as_str(), "revision": shadowed.revision() }),
            );
        }
        let warnings = self.criterion.warnings();
        if !warnings.is_empty() {
            shown.insert("warnings".to_owned(), json!(warnings));
        }
        shown.insert("etag".to_owned(), json!(self.etag()));
        Value::Object(shown)
    }

    /// Tells whether anything that is shown is another one.
    pub fn etag(&self) -> String {
        let Self {
            criterion,
            source,
            expires_unix_nanos,
            shadowed,
        } = self;
        let shadowed = shadowed
            .map(|criterion| criterion.revision())
            .unwrap_or_default();
        let text = format!(
            "{}\0{}\0{}\0{expires_unix_nanos:?}\0{shadowed}",
            criterion.name,
            criterion.revision(),
            source.as_str()
        );
        hex(&Sha256::digest(text)[..6])
    }
}

impl Changes {
    /// Is there no difference?
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

#[cfg(test)]
pub(in crate::register) mod tests;
