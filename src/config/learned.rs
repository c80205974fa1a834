//! Writes a criteria file from learned rules, with the support of each rule as a comment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use judge::extract::Trajectory;
use judge::learn::{GroupKey, LearnedRule};
use located::{flow, to_yaml};
use serde_json::{Map, Value, json};
use text::counted;

use super::starter::{self, named, select, slug, unused};

const HEAD: &str = "\
# Learned by `spanscore learn` from runs that are assumed to be good. The comment behind a rule
# counts the runs that kept it. Whether it ought to hold is for a person to decide: delete a rule
# that is an accident of these runs.
# Use it with `criteria_files: [learned.yaml]` in spanscore.yaml, or with `replay --config`.
criteria:
";

/// The rules learned from the runs with one root and agent.
#[derive(Debug, Clone)]
pub struct LearnedGroup {
    /// Root and agent, as globs.
    pub key: GroupKey,
    /// Number of runs.
    pub n_runs: usize,
    /// The learned rules.
    pub rules: Vec<LearnedRule>,
    /// The limits of `efficiency`, by key.
    pub limits: Vec<(&'static str, u64)>,
}

/// Returns the file: at most two criteria for each group, and no values of arguments or results.
/// `all` has the keys of all recorded runs, including runs from which nothing was learned.
pub fn learned_criteria(groups: &[LearnedGroup], all: &BTreeSet<GroupKey>) -> String {
    let mut text = HEAD.to_owned();
    let mut taken = BTreeMap::new();
    for group in groups {
        let GroupKey { root, agent } = &group.key;
        let select = select(&group.key, all);
        let slug = slug(agent.as_deref().unwrap_or(root));
        let runs = counted(group.n_runs, "run", "runs");
        let mut head = |about: &str, description: String| {
            json!([{
                "name": unused(&named(&slug, about), &mut taken),
                "description": description,
                "select": select,
            }])
        };
        if !group.rules.is_empty() {
            text.push_str(&indented(&to_yaml(&head(
                "rules",
                format!("rules that {runs} kept"),
            ))));
            text.push_str("    evaluate:\n      constraints:\n        rules:\n");
            for rule in &group.rules {
                let entry = flow(&json!({ rule.template.as_str(): fields(rule) }));
                let entry = entry
                    .strip_prefix("{ ")
                    .and_then(|entry| entry.strip_suffix(" }"))
                    .unwrap_or(&entry);
                let _ = writeln!(
                    text,
                    "          - {entry}  # {}",
                    support(rule, group.n_runs)
                );
            }
        }
        if !group.limits.is_empty() {
            let limits: Map<String, Value> = group
                .limits
                .iter()
                .map(|(key, limit)| ((*key).to_owned(), (*limit).into()))
                .collect();
            text.push_str(&indented(&to_yaml(&head(
                "effort",
                format!("the greatest effort of any of {runs}"),
            ))));
            let _ = writeln!(
                text,
                "    evaluate:\n      efficiency: {}",
                flow(&Value::Object(limits))
            );
        }
    }
    text
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn fields(rule: &LearnedRule) -> Value {
    let pattern = |name: &str| format!("^{}$", regex::escape(name));
    let mut fields = Map::new();
    fields.insert("a".to_owned(), pattern(&rule.a).into());
    if let Some(b) = &rule.b {
        fields.insert("b".to_owned(), pattern(b).into());
    }
    if let Some((key, number)) = rule.template.number_key().zip(rule.number) {
        fields.insert(key.to_owned(), number.into());
    }
    if !rule.same.is_empty() {
        fields.insert("same".to_owned(), rule.same.clone().into());
    }
    Value::Object(fields)
}

fn support(rule: &LearnedRule, n_runs: usize) -> String {
    let mut text = format!("{} of {n_runs} runs", rule.n_kept);
    if rule.n_broken > 0 {
        let _ = write!(text, ", broken in {}", rule.n_broken);
    }
    text
}

/// Returns the group of a run: its root and agent, as a proposed criterion would select them.
pub fn group_of_run(run: &Trajectory) -> GroupKey {
    starter::key(run)
}

/// Describes a group in words.
pub fn group_text(key: &GroupKey) -> String {
    match (&key.agent, key.root.as_str()) {
        (Some(agent), "") => format!("agent `{agent}`"),
        // The conventions name the span of a run after its agent.
        (Some(agent), root) if root.strip_prefix("invoke_agent ") == Some(agent.as_str()) => {
            format!("agent `{agent}`")
        }
        (Some(agent), root) => format!("agent `{agent}` under root `{root}`"),
        (None, "") => "runs without an agent or a root".to_owned(),
        (None, root) => format!("root `{root}`"),
    }
}
