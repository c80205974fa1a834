//! Checks comments, names and lines: headers and doc comments avoid a few unclear phrases, no
//! public type name is used twice except a few, no line exceeds 100 columns, every linked heading
//! exists, and no algorithm names a framework. Cannot check that a sentence is good English.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Source, is_generated, read, room_of, sources, walk};

/// Names of frameworks and their instrumentations. In the core, they belong only in the files of
/// `judge/extract/spans/conventions` and in the table of `judge/extract/spans/keys.rs`.
const FRAMEWORKS: &[&str] = &[
    "AutoGen",
    "Claude Code",
    "Codex",
    "CrewAI",
    "Genkit",
    "Haystack",
    "LangGraph",
    "LangSmith",
    "LlamaIndex",
    "Mastra",
    "OpenInference",
    "OpenLLMetry",
    "Pydantic",
    "smolagents",
    "Strands",
    "Traceloop",
    "Vercel",
    "VoltAgent",
];

#[test]
fn headers_and_doc_comments_say_what_they_mean() {
    let mut wrong = Vec::new();
    for file in sources() {
        let header = file.text.lines().next().unwrap_or_default();
        if header.contains(" in, ") && header.ends_with("out")
            || header.contains(" out.") && header.contains(" in, ")
        {
            wrong.push(format!(
                "{}:1: say what the module does, not `… in, … out`",
                file.path.display()
            ));
        }
        for (line, number) in file.text.lines().zip(1..) {
            if line.trim_start().starts_with("/// The same") {
                wrong.push(format!(
                    "{}:{number}: name what it is the same as",
                    file.path.display()
                ));
            }
            if line.contains(concat!("DESIGN", " ")) || line.contains(concat!("PERFORMANCE", ",")) {
                wrong.push(format!(
                    "{}:{number}: link to a heading of docs/design.md",
                    file.path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_line_is_wider_than_100_columns() {
    let mut wrong = Vec::new();
    let folders = ["src", "tests", "fuzz", "benches"].map(Path::new);
    for path in folders.into_iter().flat_map(walk) {
        let is_data = path.iter().any(|part| part == "snapshots");
        if is_data || path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = read(&path);
        if is_generated(&text) {
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            if line.chars().count() > 100 {
                wrong.push(format!(
                    "{}:{number}: {} columns",
                    path.display(),
                    line.chars().count()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_public_type_name_is_used_once() {
    let mut found: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for file in sources() {
        for (_, line) in file.code() {
            // In a macro, the declaration has no name; each row of the macro's table has one.
            if let Some(name) = public_type(line).filter(|name| !name.is_empty()) {
                found
                    .entry(name.to_owned())
                    .or_default()
                    .insert(file.path.clone());
            }
        }
    }
    let wrong: Vec<_> = found
        .iter()
        .filter(|(name, files)| {
            files.len() > 1 && !["Settings", "Error", "State"].contains(&name.as_str())
        })
        .map(|(name, files)| format!("{name}: {files:?}"))
        .collect();
    assert!(
        wrong.is_empty(),
        "rename all but one of these:\n{}",
        wrong.join("\n")
    );
}

/// Returns the name in a declaration such as `pub struct Name` or `pub(super) enum Name<T>`.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = rest
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .map_or(rest, |(_, rest)| rest);
    let (kind, name) = rest.trim_start().split_once(' ')?;
    let end = name
        .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .unwrap_or(name.len());
    ["struct", "enum", "trait", "type"]
        .contains(&kind)
        .then_some(&name[..end])
}

#[test]
fn the_core_names_no_framework_outside_its_convention() {
    let mut wrong = Vec::new();
    let is_of_core = |file: &Source| {
        ["otlp", "judge"].contains(&room_of(&file.module))
            && !file.is_test()
            && !file.module.starts_with("judge::extract::spans::conventions")
            // This module's table spells names as the frameworks do.
            && file.module != "judge::extract::spans::keys"
    };
    for file in sources().iter().filter(|file| is_of_core(file)) {
        let path = file.path.display().to_string();
        for (line, number) in file.text.lines().zip(1..) {
            for name in FRAMEWORKS.iter().filter(|name| line.contains(**name)) {
                wrong.push(format!(
                    "{path}:{number}: `{name}` belongs in its convention's file"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_to_headings_of_the_documentation_resolve() {
    let pages: BTreeMap<String, BTreeSet<String>> = walk(Path::new("docs"))
        .into_iter()
        .chain([PathBuf::from("README.md"), PathBuf::from("ARCHITECTURE.md")])
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| {
            let name = path
                .file_name()
                .map_or_else(Default::default, |name| name.to_string_lossy().into_owned());
            (name, anchors(&read(&path)))
        })
        .collect();
    let mut wrong = Vec::new();
    let texts = ["src", "tests", "fuzz", "benches", "docs", "deploy"].map(Path::new);
    let roots = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Cargo.toml",
    ];
    let roots = roots
        .map(PathBuf::from)
        .into_iter()
        .filter(|path| path.exists());
    for path in texts.into_iter().flat_map(walk).chain(roots) {
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let own = is_page.then(|| anchors(&text));
        for (line, number) in text.lines().zip(1..) {
            for (at, mark) in line.match_indices("](#") {
                let anchor = &line[at + mark.len()..];
                let anchor = &anchor[..anchor.find(')').unwrap_or(anchor.len())];
                if own
                    .as_ref()
                    .is_some_and(|anchors| !anchors.contains(anchor))
                {
                    wrong.push(format!(
                        "{}:{number}: no heading `#{anchor}` on this page",
                        path.display()
                    ));
                }
            }
            for (at, _) in line.match_indices(".md#") {
                let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                let start = line[..at]
                    .rfind(|c| !is_of_name(c))
                    .map_or(0, |before| before + 1);
                let page = format!("{}.md", &line[start..at]);
                let anchor = &line[at + ".md#".len()..];
                let anchor = &anchor[..anchor.find(|c| !is_of_name(c)).unwrap_or(anchor.len())];
                // The test cannot check pages outside the project.
                if pages
                    .get(&page)
                    .is_some_and(|anchors| !anchors.contains(anchor))
                {
                    wrong.push(format!(
                        "{}:{number}: {page} has no heading `#{anchor}`",
                        path.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the anchors of a page's headings, as GitHub generates them.
fn anchors(page: &str) -> BTreeSet<String> {
    page.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            line.trim_start_matches('#')
                .trim()
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() })
                .collect()
        })
        .collect()
}
