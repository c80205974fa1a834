//! Limits the number of metric series that the labels of evaluations create.
//!
//! Agents choose their names freely, so names are truncated, and services and agents beyond a limit
//! share the name `_other`.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};
use text::truncated;

use crate::config::MetricScores;

/// The name of all services and agents beyond a limit.
pub(super) const OTHER: &str = "_other";
/// Maximum length of a name in a label, in characters.
pub(super) const MAX_NAME_LENGTH: usize = 64;
/// Maximum number of label combinations, including folded ones. Each has a series for every
/// verdict.
pub(super) const MAX_COMBINATIONS: usize = 1_000;
/// Number of combinations that are reserved for labels with folded service and agent: both are
/// folded after 750 combinations.
const KEPT_FOR_CRITERIA: usize = 218;
/// Number of combinations that are reserved for labels in which the criterion is folded, too, after
/// 968 combinations. Then only the evaluator differs, so 32 are enough.
const KEPT_FOR_REST: usize = 32;

/// The labels of one evaluation without its verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Labels<S> {
    pub(super) criterion: S,
    pub(super) evaluator: S,
    pub(super) service: S,
    pub(super) agent: S,
    /// The severity; empty if the criterion has none.
    pub(super) severity: S,
}

/// A limit that was exceeded for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folded {
    /// A service beyond `scores.metrics.max_services`.
    Services,
    /// An agent beyond `scores.metrics.max_agents`.
    Agents,
    /// A combination of labels after the first 750, whose service and agent are folded.
    Series,
}

/// All combinations, each with a value of type `T`.
#[derive(Debug)]
pub(super) struct SeriesTable<T> {
    max_services: usize,
    max_agents: usize,
    hasher: DefaultHashBuilder,
    services: HashSet<Box<str>>,
    agents: HashSet<Box<str>>,
    series: HashTable<(Labels<Box<str>>, T)>,
    /// True for each limit whose first excess was reported.
    warned: [bool; 3],
}

impl<S: AsRef<str>> Labels<S> {
    fn map<'a, T>(&'a self, each: impl Fn(&'a str) -> T) -> Labels<T> {
        Labels {
            criterion: each(self.criterion.as_ref()),
            evaluator: each(self.evaluator.as_ref()),
            service: each(self.service.as_ref()),
            agent: each(self.agent.as_ref()),
            severity: each(self.severity.as_ref()),
        }
    }
}

impl<T> SeriesTable<T> {
    pub(super) fn new(settings: &MetricScores) -> Self {
        Self {
            max_services: settings.max_services,
            max_agents: settings.max_agents,
            hasher: DefaultHashBuilder::default(),
            services: HashSet::new(),
            agents: HashSet::new(),
            series: HashTable::new(),
            warned: [false; 3],
        }
    }

    /// Folds the labels if a limit requires it, and returns their value, which `make` creates if
    /// the labels are new. Also returns the limit, if it is exceeded for the first time.
    pub(super) fn get(
        &mut self,
        labels: Labels<&str>,
        make: impl FnOnce(Labels<&str>) -> T,
    ) -> (&mut T, Option<Folded>) {
        let mut folded = None;
        let service = bounded(
            &mut self.services,
            truncated(labels.service, MAX_NAME_LENGTH),
            self.max_services,
        );
        if service.is_none() {
            folded = Some(Folded::Services);
        }
        let agent = bounded(
            &mut self.agents,
            truncated(labels.agent, MAX_NAME_LENGTH),
            self.max_agents,
        );
        if agent.is_none() {
            folded = folded.or(Some(Folded::Agents));
        }
        let mut labels = Labels {
            criterion: truncated(labels.criterion, MAX_NAME_LENGTH),
            evaluator: truncated(labels.evaluator, MAX_NAME_LENGTH),
            service: service.unwrap_or(OTHER),
            agent: agent.unwrap_or(OTHER),
            severity: labels.severity,
        };
        let n_unfolded = MAX_COMBINATIONS - KEPT_FOR_REST - KEPT_FOR_CRITERIA;
        if self.find(labels).is_none() && self.series.len() >= n_unfolded {
            labels = Labels {
                service: OTHER,
                agent: OTHER,
                ..labels
            };
            folded = folded.or(Some(Folded::Series));
        }
        if self.find(labels).is_none() && self.series.len() >= MAX_COMBINATIONS - KEPT_FOR_REST {
            labels = Labels {
                criterion: OTHER,
                severity: "",
                ..labels
            };
        }
        let first =
            folded.filter(|folded| !std::mem::replace(&mut self.warned[*folded as usize], true));
        let Self { hasher, series, .. } = self;
        let entry = series
            .entry(
                hasher.hash_one(labels),
                |(own, _)| own.map(|name| name) == labels,
                |(own, _)| hasher.hash_one(own),
            )
            .or_insert_with(|| (labels.map(Box::from), make(labels)));
        (&mut entry.into_mut().1, first)
    }

    /// Returns the value of labels that are already folded.
    pub(super) fn find(&self, labels: Labels<&str>) -> Option<&T> {
        let hash = self.hasher.hash_one(labels);
        let is_same = |(own, _): &(Labels<Box<str>>, T)| own.map(|name| name) == labels;
        self.series.find(hash, is_same).map(|(_, kept)| kept)
    }
}

/// Returns the name if it is, or becomes, one of the first `max`; else `None`. An empty name counts
/// like any other name.
fn bounded<'a>(names: &mut HashSet<Box<str>>, name: &'a str, max: usize) -> Option<&'a str> {
    if names.contains(name) {
        return Some(name);
    }
    if names.len() >= max {
        return None;
    }
    names.insert(name.into());
    Some(name)
}
