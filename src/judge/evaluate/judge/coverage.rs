//! Counts the trajectories that each criterion saw and those that it selected. Finds out why a
//! criterion selects none, and which of its tools no run calls.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use hashbrown::HashSet;
use text::{abbreviated, counted, nearest};

use super::evaluation::{Evaluation, Stage};
use crate::evaluate::comparison::score::PathsSeen;
use crate::evaluate::criterion::{Criterion, Glob, Scope};
use crate::extract::Trajectory;

/// Maximum number of names of each kind. Names can come from the network, so their number and size
/// are limited; together they use at most 170 KiB.
const MAX_NAMES: usize = 128;
/// Maximum bytes of a name.
const MAX_NAME_SIZE: usize = 128;
/// Maximum number of attributes whose values are stored.
const MAX_ATTRIBUTES: usize = 16;
/// Maximum number of values that are stored for one attribute.
const MAX_VALUES: usize = 32;
/// Maximum characters in the sentence about a value that a criterion could not use.
const MAX_UNUSABLE: usize = 400;
/// Maximum number of names in a message.
const MAX_SHOWN: usize = 5;
/// A criterion's problem is reported after this number of trajectories, and then after ten times as
/// many as at the last check.
const FIRST_REPORT: u64 = 100;

/// Counts the trajectories that each active criterion saw and those that it selected. Stores the
/// names of their services, roots, agents and tools, for messages.
#[derive(Debug, Default)]
pub struct Coverage {
    criteria: Vec<Tally>,
    names: NamesSeen,
    /// The number of pipelines that judge the counted trajectories; 0 counts as one.
    n_pipelines: usize,
}

/// The coverage of a criterion since it became active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriterionCoverage<'a> {
    /// The criterion's name.
    pub criterion: &'a str,
    /// The number of trajectories judged while the criterion was active, selected or not; with
    /// `scope: session`, the number of sessions that it selected.
    pub n_seen: u64,
    /// The number of trajectories that the criterion selected.
    pub n_matched: u64,
    /// The number of evaluations without a verdict because of an earlier turn of the session.
    pub n_earlier_turns: u64,
    /// The number of alarms.
    pub n_alarms: u64,
    /// The time at which the criterion became active, in Unix nanoseconds.
    pub since_unix_nanos: Option<u64>,
    /// The probable mistake in the criterion: it selects no trajectory, names tools that no run
    /// calls, reads a value that is missing or not text, or has a path without values.
    pub problem: Option<String>,
}

#[derive(Debug)]
struct Tally {
    criterion: Arc<Criterion>,
    since_unix_nanos: Option<u64>,
    n_seen: u64,
    n_matched: u64,
    n_earlier_turns: u64,
    n_alarms: u64,
    /// The number of evaluations in which the criterion could not use a value.
    n_unusable: usize,
    /// The description of the first value that the criterion could not use.
    unusable: Option<String>,
    /// The criterion's paths at which some call, or no call, has a value, in all evaluations.
    paths: PathsSeen,
    /// The last counted trajectory of each pipeline. With `scope: agent`, a trajectory can have
    /// many evaluations but counts once, even if evaluations of two pipelines alternate.
    last_matched: Vec<Option<u64>>,
    next_report: u64,
}

#[derive(Debug, Default)]
struct NamesSeen {
    services: NameSet,
    roots: NameSet,
    /// The agents of evaluated spans.
    agents: NameSet,
    /// The agents of all runs.
    run_agents: NameSet,
    tools: NameSet,
    attributes: BTreeMap<Arc<str>, NameSet>,
}

#[derive(Debug, Default)]
struct NameSet {
    names: HashSet<Arc<str>>,
    /// True if a name was dropped because it was too long, or because the set was full.
    is_full: bool,
}

// === impl Coverage ===

impl Coverage {
    /// Creates a coverage for trajectories from several pipelines.
    pub fn of_pipelines(n_pipelines: usize) -> Self {
        Self {
            n_pipelines,
            ..Self::default()
        }
    }

    /// Counts new trajectories, and their first evaluations by the active criteria.
    pub fn note(&mut self, trajectories: &[Arc<Trajectory>], evaluations: &[Evaluation]) {
        for tally in &mut self.criteria {
            // `trajectories` contains no sessions. A session counts when a criterion selects it.
            if tally.criterion.scope != Scope::Session {
                tally.n_seen += trajectories.len() as u64;
            }
        }
        if !self.criteria.is_empty() {
            for trajectory in trajectories {
                self.names.note(trajectory);
            }
        }
        // The evaluations of a trajectory are in the order of the criteria.
        let (n_criteria, mut next) = (self.criteria.len(), 0);
        let n_pipelines = self.n_pipelines.max(1);
        for evaluation in evaluations
            .iter()
            .filter(|evaluation| evaluation.revision == 0)
        {
            let name = evaluation.criterion.name();
            let found = (next..n_criteria)
                .chain(0..next)
                .find(|idx| self.criteria[*idx].criterion.name == name);
            if let Some(idx) = found {
                next = idx + 1;
                self.criteria[idx].count(evaluation, n_pipelines);
            }
        }
    }

    /// Returns the coverage of each active criterion, in order.
    pub fn criteria(&self) -> impl Iterator<Item = CriterionCoverage<'_>> {
        self.criteria
            .iter()
            .map(|tally| tally.coverage(&self.names))
    }

    /// Returns for each active criterion its name, and the fields `n_seen` and `n_matched` of
    /// [`CriterionCoverage`].
    pub fn counts(&self) -> impl Iterator<Item = (&str, u64, u64)> {
        let tallies = self.criteria.iter();
        tallies.map(|tally| (&*tally.criterion.name, tally.n_seen, tally.n_matched))
    }

    /// Returns the criteria whose problem has to be reported: after [`FIRST_REPORT`] trajectories,
    /// and then after ten times as many as at the last check.
    pub fn due(&mut self) -> Vec<CriterionCoverage<'_>> {
        let mut due = Vec::new();
        for (idx, tally) in self.criteria.iter_mut().enumerate() {
            if tally.n_problematic() >= tally.next_report {
                tally.next_report = tally.n_problematic().saturating_mul(10);
                due.push(idx);
            }
        }
        let due = due.into_iter();
        due.map(|idx| self.criteria[idx].coverage(&self.names))
            .filter(|coverage| coverage.problem.is_some())
            .collect()
    }

    /// Replaces the counted criteria. An unchanged criterion retains its counts.
    pub fn follow(&mut self, criteria: &[Arc<Criterion>], now_unix_nanos: Option<u64>) {
        let is_same = |(tally, criterion): (&Tally, &Arc<Criterion>)| {
            Arc::ptr_eq(&tally.criterion, criterion)
        };
        if self.criteria.len() == criteria.len() && self.criteria.iter().zip(criteria).all(is_same)
        {
            return;
        }
        let mut before = mem::take(&mut self.criteria);
        let tally = |criterion: &Arc<Criterion>| {
            let known = before.iter().position(|tally| {
                tally.criterion.name == criterion.name
                    && tally.criterion.revision() == criterion.revision()
            });
            match known {
                Some(idx) => Tally {
                    criterion: criterion.clone(),
                    ..before.swap_remove(idx)
                },
                None => Tally::new(criterion.clone(), now_unix_nanos),
            }
        };
        self.criteria = criteria.iter().map(tally).collect();
    }
}

// === impl Tally ===

impl Tally {
    fn new(criterion: Arc<Criterion>, since_unix_nanos: Option<u64>) -> Self {
        Self {
            criterion,
            since_unix_nanos,
            n_seen: 0,
            n_matched: 0,
            n_earlier_turns: 0,
            n_alarms: 0,
            n_unusable: 0,
            unusable: None,
            paths: PathsSeen::default(),
            last_matched: Vec::new(),
            next_report: FIRST_REPORT,
        }
    }

    fn count(&mut self, evaluation: &Evaluation, n_pipelines: usize) {
        if evaluation.stage != Stage::Final {
            self.n_alarms += u64::from(evaluation.stage == Stage::Alarm);
            return;
        }
        self.n_earlier_turns += u64::from(evaluation.awaits_session());
        if let Some(unusable) = evaluation.unusable() {
            self.n_unusable += 1;
            let shown = || abbreviated(&unusable, MAX_UNUSABLE).into_owned();
            self.unusable.get_or_insert_with(shown);
        }
        let paths = evaluation.paths();
        self.paths.somewhere |= paths.somewhere;
        self.paths.nowhere |= paths.nowhere;
        let arrival = evaluation.trajectory.arrival;
        self.last_matched.resize(n_pipelines, None);
        // Trajectories are numbered by arrival. The remainder of the number identifies the
        // pipeline.
        let last_matched = &mut self.last_matched[arrival as usize % n_pipelines];
        if *last_matched != Some(arrival) {
            *last_matched = Some(arrival);
            self.n_matched += 1;
            // Late spans can turn a trace into a trajectory, or can make a criterion select it.
            self.n_seen = self.n_seen.max(self.n_matched);
        }
    }

    fn n_problematic(&self) -> u64 {
        match self.n_matched {
            0 => self.n_seen,
            n_matched => n_matched,
        }
    }

    fn coverage(&self, names: &NamesSeen) -> CriterionCoverage<'_> {
        let problem = match (self.n_seen, self.n_matched) {
            (0, _) => None,
            (_, 0) => Some(names.why_unselected(&self.criterion)),
            _ => {
                let unusable = self.unusable.as_ref().map(|unusable| {
                    let times = counted(self.n_unusable, "evaluation", "evaluations");
                    format!("in {times}, such as: {unusable}")
                });
                // An argument may be optional, so a path is a problem only if no call has a value.
                let nowhere = self.paths.nowhere & !self.paths.somewhere;
                let nowhere = self.criterion.evaluate.nowhere(nowhere);
                let problems = [names.uncalled(&self.criterion), unusable];
                let problems: Vec<String> = problems.into_iter().flatten().chain(nowhere).collect();
                (!problems.is_empty()).then(|| problems.join("; "))
            }
        };
        CriterionCoverage {
            criterion: &self.criterion.name,
            n_seen: self.n_seen,
            n_matched: self.n_matched,
            n_earlier_turns: self.n_earlier_turns,
            n_alarms: self.n_alarms,
            since_unix_nanos: self.since_unix_nanos,
            problem,
        }
    }
}

// === impl NamesSeen ===

impl NamesSeen {
    fn note(&mut self, trajectory: &Trajectory) {
        self.services.note(&trajectory.service, MAX_NAMES);
        self.roots.note(&trajectory.root, MAX_NAMES);
        if let Some(agent) = &trajectory.agent {
            self.agents.note(agent, MAX_NAMES);
        }
        for run in trajectory.agent_runs.iter() {
            self.run_agents.note(&run.name, MAX_NAMES);
        }
        for call in &trajectory.tool_calls {
            self.tools.note(&call.name, MAX_NAMES);
        }
        let attributes = trajectory
            .subject
            .iter()
            .flat_map(|subject| &subject.attributes);
        for (key, value) in attributes {
            if let Some(values) = self.attributes.get_mut(key) {
                values.note(value, MAX_VALUES);
            } else if self.attributes.len() < MAX_ATTRIBUTES && key.len() <= MAX_NAME_SIZE {
                let values = self.attributes.entry(key.clone()).or_default();
                values.note(value, MAX_VALUES);
            }
        }
    }

    /// Explains why a criterion selected no trajectory: names the first of its globs that no name
    /// matches, and the names seen.
    fn why_unselected(&self, criterion: &Criterion) -> String {
        let select = &criterion.select;
        let agents = match criterion.scope {
            Scope::Trace | Scope::Session => &self.agents,
            Scope::Agent => &self.run_agents,
        };
        let fields = [
            ("of service", &select.service, &self.services),
            ("with root", &select.root, &self.roots),
            ("of agent", &select.agent, agents),
            ("with a call of", &select.calls, &self.tools),
        ];
        let fields = fields
            .into_iter()
            .filter_map(|(words, glob, seen)| Some((words.to_owned(), glob.as_ref()?, Some(seen))));
        let attributes = select.attributes.iter().map(|(key, glob)| {
            let words = format!("with attribute `{key}` =");
            (words, glob, self.attributes.get(key.as_str()))
        });
        let fields: Vec<(String, &Glob, Option<&NameSet>)> = fields.chain(attributes).collect();
        for (words, glob, seen) in &fields {
            let glob_text = glob.as_str();
            if seen.is_some_and(|seen| seen.is_full || seen.any(|name| glob.matches(name))) {
                continue;
            }
            if words == "of agent" && self.run_agents.any(|name| glob.matches(name)) {
                return format!(
                    "no trajectory {words} `{glob_text}`: it runs below {}; `scope: agent` judges \
                     each agent's own run",
                    self.agents.listed(&[])
                );
            }
            let seen = seen.map_or_else(|| "nothing".to_owned(), |seen| seen.near(&[glob_text]));
            return format!("no trajectory {words} `{glob_text}`; seen: {seen}");
        }
        let selector: Vec<String> = fields
            .iter()
            .map(|(words, glob, _)| format!("{words} `{}`", glob.as_str()))
            .collect();
        match (criterion.scope, selector.is_empty()) {
            (Scope::Agent, true) => {
                "no trajectory has an agent run; `scope: trace` judges the whole trace".to_owned()
            }
            (_, true) => "no trajectory was judged by it".to_owned(),
            (_, false) => format!("no trajectory {}", selector.join(" and ")),
        }
    }

    /// Returns a sentence with the criterion's tools that no run called, and the tools that runs
    /// called. A tool whose calls are not expected is included only if another spelling of its name
    /// was seen. `None` if there is nothing to report, or if the list of called tools is
    /// incomplete.
    fn uncalled(&self, criterion: &Criterion) -> Option<String> {
        if self.tools.is_full {
            return None;
        }
        let mut uncalled: Vec<&str> = Vec::new();
        for (name, is_expected) in criterion.evaluate.named_tools() {
            if self.tools.any(|tool| name.matches(tool)) {
                continue;
            }
            let word = name.word();
            if (is_expected || self.tools.any(|tool| is_same_tool(word, tool)))
                && !uncalled.contains(&word)
            {
                uncalled.push(word);
            }
        }
        if uncalled.is_empty() {
            return None;
        }
        let quoted: Vec<String> = uncalled
            .iter()
            .take(MAX_SHOWN)
            .map(|word| format!("`{word}`"))
            .collect();
        let more = match uncalled.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let seen = self.tools.near(&uncalled);
        Some(format!(
            "no run calls {}{more}; seen: {seen}",
            quoted.join(", ")
        ))
    }
}

// === impl NameSet ===

impl NameSet {
    /// Adds a name unless the set has `capacity` names.
    fn note(&mut self, name: &Arc<str>, capacity: usize) {
        if self.is_full && self.names.len() == capacity || self.names.contains(name) {
            return;
        }
        if self.names.len() == capacity || name.len() > MAX_NAME_SIZE {
            self.is_full = true;
        } else {
            self.names.insert(name.clone());
        }
    }

    fn any(&self, is: impl Fn(&str) -> bool) -> bool {
        self.sorted().into_iter().any(is)
    }

    fn sorted(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.names.iter().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// Lists the names; names that `words` probably meant come first.
    fn near(&self, words: &[&str]) -> String {
        let names = self.sorted();
        let mut first: Vec<&str> = Vec::new();
        for word in words {
            let word = word.trim_matches('*');
            let found = names.iter().copied().find(|name| is_same_tool(word, name));
            let found = found.or_else(|| nearest(word, names.iter().copied()));
            first.extend(found.filter(|name| !first.contains(name)));
        }
        self.listed(&first)
    }

    /// Lists some of the names: the names in `first`, then others in alphabetical order.
    fn listed(&self, first: &[&str]) -> String {
        let others = self.sorted().into_iter();
        let others = others.filter(|name| !first.contains(name));
        let names: Vec<String> = first
            .iter()
            .copied()
            .chain(others)
            .map(|name| format!("`{name}`"))
            .collect();
        match names.len() {
            0 => "nothing".to_owned(),
            n if n > MAX_SHOWN => {
                let shown = names[..MAX_SHOWN].join(", ");
                format!("{shown} and {} more", n - MAX_SHOWN)
            }
            _ => names.join(", "),
        }
    }
}

/// Returns true if both names mean the same tool, spelled differently or with a namespace
/// (`Shop-refund`, `mcp__shop__refund`).
fn is_same_tool(one: &str, other: &str) -> bool {
    let letters = |name: &str| -> String {
        let letters = name.chars().filter(|c| c.is_alphanumeric());
        letters.flat_map(char::to_lowercase).collect()
    };
    let ends_with = |whole: &str, end: &str| {
        let before = whole.to_lowercase();
        let before = before.strip_suffix(&end.to_lowercase()).map(str::to_owned);
        before
            .is_some_and(|before| before.ends_with(['-', '.', '/', ':']) || before.ends_with("__"))
    };
    let is_name = !one.is_empty() && !other.is_empty();
    is_name && (letters(one) == letters(other) || ends_with(one, other) || ends_with(other, one))
}
