//! Counts how much of each framework's recorded sessions is extracted, for the table in
//! `tests/captures/README.md` and the list of gaps in `docs/frameworks.md`. The counts come from
//! the comparison in `captures`. Proves nothing beyond that comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use serde_json::Value;

use crate::support::pages::{assert_current, read};

const COUNTS: &str = "tests/captures/README.md";
const MISSING: &str = "docs/frameworks.md";
const BEGIN: &str = "<!-- sessions -->\n";
const END: &str = "<!-- /sessions -->";

/// The columns of the table, and their names on the page.
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

/// One row per framework.
#[derive(Debug, Default)]
pub(crate) struct Coverage(BTreeMap<String, Row>);

#[derive(Debug, Default)]
struct Row {
    versions: BTreeSet<String>,
    n_scenarios: usize,
    /// For each column: the number of expected items, and how many of them are extracted.
    counts: BTreeMap<&'static str, (usize, usize)>,
}

impl Coverage {
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

    pub(crate) fn assert_pages_current(&self, exceptions: &Value) {
        assert_part_current(COUNTS, &self.table());
        assert_part_current(MISSING, &missing(exceptions));
    }

    fn table(&self) -> String {
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
        text.push('\n');
        text
    }
}

fn assert_part_current(path: &str, part: &str) {
    let page = read(path);
    let (before, rest) = page
        .split_once(BEGIN)
        .unwrap_or_else(|| panic!("{path} has no line {BEGIN}"));
    let (_, after) = rest
        .split_once(END)
        .unwrap_or_else(|| panic!("{path} has no line {END}"));
    assert_current(path, &format!("{before}{BEGIN}{part}{END}{after}"));
}

/// Returns the list of missing items. Frameworks with the same reason for the same columns share an
/// entry.
fn missing(exceptions: &Value) -> String {
    let mut frameworks: Vec<(String, &str, Vec<&str>)> = Vec::new();
    for (framework, reasons) in reasons(exceptions) {
        for (reason, columns) in reasons {
            let columns = columns.join(", ");
            let has_same =
                |known: &&mut (String, &str, Vec<&str>)| known.0 == columns && known.1 == reason;
            match frameworks.iter_mut().find(has_same) {
                Some((_, _, known)) => known.push(framework),
                None => frameworks.push((columns, reason, vec![framework])),
            }
        }
    }
    let mut text = "\n".to_owned();
    for (columns, reason, frameworks) in frameworks {
        let _ = writeln!(
            text,
            "- {}: not all {columns}. {reason}",
            frameworks.join(", ")
        );
    }
    text.push('\n');
    text
}

/// Returns true if `tests/captures/record.py` can record sessions of the framework again.
fn has_program(framework: &str) -> bool {
    let agents = Path::new(crate::ROOT).join("tests/captures/agents");
    let mut extensions = ["py", "mjs"].into_iter();
    extensions.any(|extension| agents.join(format!("{framework}.{extension}")).exists())
}

/// Returns each framework's reasons in the order of the file, each with the columns that it
/// explains.
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
