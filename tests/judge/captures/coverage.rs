//! The table of `docs/frameworks.md`: one row a framework, with how much of what happened is shown,
//! and why the rest is not. Proves no more than the comparison that it counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::support::pages::{assert_current, read};

const PAGE: &str = "docs/frameworks.md";
const BEGIN: &str = "<!-- sessions -->\n";
const END: &str = "<!-- /sessions -->";

/// The columns of the comparison, and their names on the page.
const COLUMNS: &[(&str, &str)] = &[
    ("found", "calls"),
    ("args", "arguments"),
    ("results", "results"),
    ("errors", "errors"),
    ("agents", "agents"),
    ("session", "sessions"),
    ("call_ids", "call ids"),
    ("steps", "steps"),
];

/// The rows, by framework.
#[derive(Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, Row>);

#[derive(Debug, Default)]
struct Row {
    /// The releases that sessions were recorded with, each once.
    versions: BTreeSet<String>,
    n_scenarios: usize,
    /// By column: how many things happened, and how many of them are shown.
    counts: BTreeMap<&'static str, (usize, usize)>,
}

impl Coverage {
    /// Counts one scenario: for each column how many things happened, and how many are not shown.
    pub(crate) fn add(
        &mut self,
        scenario: &str,
        expected: &Value,
        n_missing: impl Fn(&str) -> usize,
        n_trajectories: usize,
    ) {
        let (framework, _) = scenario.split_once('/').unwrap();
        let calls = expected["tool_calls"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let n_found = calls.len() - n_missing("found");
        let row = self.0.entry(framework.to_owned()).or_default();
        let version = expected["version"].as_str().unwrap_or_default();
        row.versions
            .extend(version.split(',').next().map(str::to_owned));
        row.n_scenarios += 1;
        for (column, _) in COLUMNS {
            let of_found = |n: usize| n.min(n_found);
            let n_there = match *column {
                "found" => calls.len(),
                "results" => of_found(calls.iter().filter(|call| call["error"] != true).count()),
                "errors" => calls.iter().filter(|call| call["error"] == true).count(),
                "session" => {
                    if expected["session_id"].is_string() {
                        n_trajectories
                    } else {
                        0
                    }
                }
                "call_ids" => of_found(
                    calls
                        .iter()
                        .filter(|call| call["call_id"].is_string())
                        .count(),
                ),
                "steps" => of_found(calls.iter().filter(|call| call["step"].is_u64()).count()),
                _ => n_found,
            };
            let (there, shown) = row.counts.entry(column).or_default();
            *there += n_there;
            *shown += n_there - n_missing(column).min(n_there);
        }
    }

    /// Compares the page with the counts, and requires a reason for everything that is missing.
    pub(crate) fn hold_page(&self, exceptions: &Value) {
        let page = read(PAGE);
        let (before, rest) = page
            .split_once(BEGIN)
            .unwrap_or_else(|| panic!("{PAGE} has no line {BEGIN}"));
        let (_, after) = rest
            .split_once(END)
            .unwrap_or_else(|| panic!("{PAGE} has no line {END}"));
        let current = format!("{before}{BEGIN}{}{END}{after}", self.text(exceptions));
        assert_current(PAGE, &current);
    }

    fn text(&self, exceptions: &Value) -> String {
        let mut text = "\n| sessions of | releases | by script |".to_owned();
        for (_, title) in COLUMNS {
            let _ = write!(text, " {title} |");
        }
        let _ = writeln!(text, "\n|---|---|---|{}", "---|".repeat(COLUMNS.len()));
        for (framework, row) in &self.0 {
            let versions: Vec<&str> = row.versions.iter().map(String::as_str).collect();
            let by_script = if has_program(framework) { " yes" } else { "" };
            let _ = write!(
                text,
                "| {framework} | {} |{by_script} |",
                versions.join(", ")
            );
            for (column, _) in COLUMNS {
                let _ = match row.counts[column] {
                    (0, _) => write!(text, " |"),
                    (there, shown) if there == shown => write!(text, " all {there} |"),
                    (there, shown) => write!(text, " {shown} of {there} |"),
                };
            }
            text.push('\n');
        }
        text.push_str("\nWhat is missing, and why:\n\n");
        for (framework, reasons) in reasons(exceptions) {
            for (reason, columns) in reasons {
                let _ = writeln!(text, "- {framework}, {}: {reason}", columns.join(", "));
            }
        }
        text.push('\n');
        text
    }
}

/// Can `tests/captures/record.py` record sessions of it again?
fn has_program(framework: &str) -> bool {
    let agents = Path::new(crate::ROOT).join("tests/captures/agents");
    let mut extensions = ["py", "mjs"].into_iter();
    extensions.any(|extension| agents.join(format!("{framework}.{extension}")).exists())
}

/// The reasons of a framework in their order, each with the columns that it explains.
fn reasons(exceptions: &Value) -> BTreeMap<&str, Vec<(&str, Vec<&'static str>)>> {
    let mut reasons: BTreeMap<&str, Vec<(&str, Vec<&'static str>)>> = BTreeMap::new();
    for entry in exceptions.as_array().into_iter().flatten() {
        let (framework, _) = entry["scenario"]
            .as_str()
            .and_then(|scenario| scenario.split_once('/'))
            .unwrap();
        let reason = entry["reason"].as_str().unwrap();
        let Some((_, title)) = COLUMNS
            .iter()
            .find(|(column, _)| entry["column"] == *column)
        else {
            continue;
        };
        let of_framework = reasons.entry(framework).or_default();
        let at = of_framework
            .iter()
            .position(|(known, _)| *known == reason)
            .unwrap_or_else(|| {
                of_framework.push((reason, Vec::new()));
                of_framework.len() - 1
            });
        if !of_framework[at].1.contains(title) {
            of_framework[at].1.push(title);
        }
    }
    reasons
}
