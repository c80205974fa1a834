//! Checks the structure of the source: which room of the program may import which, module headers,
//! file sizes, evaluator headings, tables. Reads the source as text, so it does not prove that an
//! import is used or that a header is true.

mod circles;
mod pages;
mod proofs;
mod wording;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The import table of the program: each room, and the rooms that it may import. `Cargo.toml`
/// decides what each crate below the program may import. Reasons for some entries: `tls` reads
/// certificate files for both ends of a connection, so neither `listen` nor `transport` can own it.
/// `register` answers with the lines of `export::score_line`. `receive` imports from `transport`
/// the type of a queue's refusal, which the response also uses, and the size of the largest request
/// that a queue accepts. `export::score_*` and `export::writer_*` use the enums and writers of
/// `scores` in `config`, so that each exists once. `listen` accepts connections for both `receive`
/// and `admin`. `page` parses criteria that a person tries, with the parser of `register`. A row
/// such as `export::score` also covers `export::score_line`. Files inside a room may import their
/// own room.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("sync", &[]),
    ("rfc3339", &[]),
    ("config", &[]),
    ("export::score", &["config"]),
    ("export::writer", &["config"]),
    ("register::merge", &["config"]),
    ("register", &["config", "export", "telemetry"]),
    ("page::view", &["config"]),
    ("page::specimens", &["config"]),
    ("page", &["config", "register", "telemetry"]),
    (
        "receive",
        &["config", "fair", "listen", "transport", "telemetry", "heap"],
    ),
    ("heap", &[]),
    ("journal::format", &[]),
    ("journal::recover", &[]),
    ("fair", &["config"]),
    ("journal", &["fair", "telemetry"]),
    ("forward", &["transport", "journal", "config", "telemetry"]),
    ("kafka::placement", &["config"]),
    ("kafka::progress", &[]),
    ("kafka::split", &["config"]),
    ("kafka", &["config", "transport", "journal", "telemetry"]),
    ("export", &["transport", "journal", "config", "telemetry"]),
    (
        "transport",
        &["config", "fair", "tls", "journal", "telemetry"],
    ),
    ("tls", &["config", "telemetry"]),
    ("listen", &["config", "fair", "tls", "telemetry"]),
    ("admin", &["config", "listen", "telemetry"]),
    ("telemetry", &[]),
    ("sidecar", &["*"]),
    ("cli", &["*"]),
];

/// Rooms that every other room may import, because they do not depend on anything in spanscore.
const GROUND: &[&str] = &["sync", "rfc3339"];

/// The crates below the program; each is a folder of `src/`.
const CRATES: &[&str] = &["text", "located", "otlp", "judge"];

/// Words that the translators of the program must not use. The crates below the program cannot use
/// them anyway.
const SHELL_ONLY: &[&str] = &[
    "std::fs",
    "std::net::Tcp",
    "std::env",
    "tokio::",
    "hyper",
    "std::process",
];

#[test]
fn rooms_import_only_what_the_table_allows() {
    let mut wrong = Vec::new();
    for file in program() {
        let room = room_of(&file.module);
        let Some(allowed) = allowed_of(&file.module) else {
            if !matches!(room, "lib" | "main") {
                wrong.push(format!(
                    "{}: `{room}` is no room of the table in tests/it/tidy",
                    file.path.display()
                ));
            }
            continue;
        };
        for (line_no, line) in file.code() {
            // In a room's own file, `super` is the crate root.
            if line.contains("crate::{")
                || line.contains("super::super::super::")
                || (!file.module.contains("::") && line.contains("super::"))
            {
                wrong.push(format!(
                    "{}:{line_no}: name rooms as `crate::room::…`, so that this test can see them",
                    file.path.display()
                ));
            }
            for other in crate_paths(line) {
                if GROUND.contains(&other) && !GROUND.contains(&room) {
                    continue;
                }
                if other != room && !allowed.contains(&other) && !allowed.contains(&"*") {
                    wrong.push(format!(
                        "{}:{line_no}: `{room}` must not import `crate::{other}`",
                        file.path.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_crates_of_the_core_need_no_runtime() {
    for package in ["spanscore-otlp", "spanscore-judge"] {
        let listed = Command::new(env!("CARGO"))
            .args(["tree", "--locked", "--offline", "--edges", "normal"])
            .args(["--prefix", "none", "--package", package])
            .output()
            .expect("cargo runs");
        let tree = String::from_utf8_lossy(&listed.stdout);
        assert!(tree.starts_with(package), "{listed:?}");
        let shell = [
            "tokio",
            "hyper",
            "tonic",
            "rustls",
            "opentelemetry",
            "prost",
        ];
        for name in tree.lines().filter_map(|line| line.split(' ').next()) {
            let is_shell = shell.iter().any(|word| name.starts_with(word));
            assert!(!is_shell, "{package} must not need {name}");
        }
    }
}

#[test]
fn translators_do_no_input_or_output() {
    let translators = [
        "config",
        "journal::format",
        "journal::recover",
        "export::score",
        "export::writer",
        "register::merge",
        "page::view",
        "page::specimens",
    ];
    let mut wrong = Vec::new();
    for file in sources() {
        if !translators.iter().any(|room| {
            file.module == *room
                || file.module.starts_with(&format!("{room}::"))
                || file.module.starts_with(&format!("{room}_"))
        }) {
            continue;
        }
        for (line_no, line) in file.code() {
            for word in SHELL_ONLY.iter().filter(|word| line.contains(**word)) {
                wrong.push(format!(
                    "{}:{line_no}: a translator must not name `{word}`",
                    file.path.display()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// Clippy could forbid detached tasks, but would also forbid them in tests.
#[test]
fn no_task_is_detached() {
    let mut wrong = Vec::new();
    for file in sources() {
        for (line_no, line) in file
            .code()
            .filter(|(_, line)| line.contains("tokio::spawn(") || line.contains("task::spawn("))
        {
            wrong.push(format!(
                "{}:{line_no}: a task belongs to a `JoinSet`: `{}`",
                file.path.display(),
                line.trim()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn code_below_the_line_of_a_test_module_is_read_too() {
    let text = "#[cfg(test)]\nmod tests;\nuse crate::cli;\n#[cfg(test)]\nmod more {\
        \n    use crate::admin;\n\n    fn f() {}\n}\nuse crate::span;\n";
    let source = Source {
        path: PathBuf::new(),
        module: "span".to_owned(),
        text: text.to_owned(),
    };
    assert_eq!(
        source
            .code()
            .map(|(line_no, _)| line_no)
            .collect::<Vec<_>>(),
        [3, 10]
    );
}

#[test]
fn every_module_says_what_it_is() {
    let silent: Vec<_> = sources()
        .into_iter()
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| file.path.display().to_string())
        .collect();
    assert!(
        silent.is_empty(),
        "these files do not open with `//! `: {silent:?}"
    );
}

#[test]
fn no_file_is_longer_than_1000_lines() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|file| file.text.lines().count() > 1000)
        .map(|file| file.path.display().to_string())
        .collect();
    assert!(long.is_empty(), "split these files: {long:?}");
}

#[test]
fn evaluators_are_documented_under_the_same_headings() {
    const HEADINGS: [&str; 5] = [
        "# What it checks",
        "# Why",
        "# Example",
        "# Parameters",
        "# When the trace was cut short",
    ];
    let table = read(Path::new("src/judge/evaluate/evaluators/mod.rs"));
    let mut wrong = Vec::new();
    let mut n_evaluators = 0;
    for file in sources()
        .into_iter()
        .filter(|file| file.module.starts_with("judge::evaluate::evaluators::"))
    {
        n_evaluators += 1;
        for heading in HEADINGS {
            if !file.text.lines().any(|line| {
                line.trim_start()
                    .strip_prefix("///")
                    .is_some_and(|doc| doc.trim() == heading)
            }) {
                wrong.push(format!("{}: no heading `{heading}`", file.path.display()));
            }
        }
        let name = file.module.rsplit("::").next().unwrap_or_default();
        if !table.contains(&format!("mod {name};")) {
            wrong.push(format!(
                "{}: not in the table of judge/evaluate/evaluators/mod.rs",
                file.path.display()
            ));
        }
    }
    assert!(
        n_evaluators > 0,
        "no evaluator was found: this test looks into src/judge/evaluate/evaluators/"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_convention_stands_in_the_table() {
    const FOLDER: &str = "judge::extract::spans::conventions";
    /// A file with conventions that differ only in their vocabulary. Each of its rows is one
    /// convention.
    const ROWS: &str = "look_alikes";
    let table = read(Path::new("src/judge/extract/spans/conventions/mod.rs"));
    let start = table
        .find("const CONVENTIONS")
        .expect("the table CONVENTIONS");
    let table = &table[start..];
    let mut n_conventions = 0;
    let mut wrong = Vec::new();
    for file in sources() {
        let place = file.path.display();
        let declared = file.code().filter_map(|(_, line)| {
            let (before, _) = line.split_once(": Convention =")?;
            before.rsplit(' ').next()
        });
        for constant in declared.filter(|constant| *constant != "NONE") {
            n_conventions += 1;
            let Some(name) = file.module.strip_prefix(FOLDER) else {
                wrong.push(format!("{place}: conventions live in {FOLDER}"));
                continue;
            };
            let name = name.trim_start_matches(':');
            if !table.contains(&format!(" {name}::{constant},")) {
                wrong.push(format!(
                    "{place}: {constant} is not in the table CONVENTIONS"
                ));
            }
            if name != ROWS && !file.text.contains(&format!("name: \"{name}\"")) {
                wrong.push(format!("{place}: a convention is named like its file"));
            }
        }
    }
    assert!(
        n_conventions > 0,
        "no convention was found: this test looks for `: Convention =`"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nothing_refers_to_this_workplace() {
    let mut wrong = Vec::new();
    for path in walk(Path::new(".")) {
        let text = fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default();
        for word in [concat!("/work", "/"), concat!("../", "shared")] {
            if text.contains(word) {
                wrong.push(format!("{}: names `{word}`", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// === reading the source ===

struct Source {
    path: PathBuf,
    /// The module path, such as `export::score_line`; a `mod.rs` has the name of its folder. In a
    /// crate below the program, the path begins with the crate's folder: `judge::pipeline`, or
    /// `judge` for its `lib.rs`.
    module: String,
    text: String,
}

impl Source {
    /// Returns the lines of code with their numbers. Skips comments and test-only code.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut in_test_item = false;
        self.text
            .lines()
            .enumerate()
            .map(|(line_idx, line)| (line_idx + 1, line))
            .filter(move |(_, line)| {
                // An item behind `#[cfg(test)]` ends with its line (`mod tests;`) or with an
                // unindented brace, as rustfmt formats it.
                let is_of_test = in_test_item || line.starts_with("#[cfg(test)]");
                in_test_item = is_of_test && !line.ends_with(';') && !line.starts_with('}')
                    || in_test_item && line.starts_with(' ');
                !is_of_test
            })
            .filter(|(_, line)| !line.trim_start().starts_with("//"))
            .filter(|_| !self.is_test())
    }

    fn is_test(&self) -> bool {
        self.module.split("::").any(|part| part == "tests")
    }
}

fn sources() -> Vec<Source> {
    let mut sources: Vec<Source> = walk(Path::new("src"))
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| {
            let relative = path
                .strip_prefix("src")
                .expect("walked below src")
                .with_extension("");
            let mut parts: Vec<String> = relative
                .iter()
                .map(|part| part.to_string_lossy().into_owned())
                .collect();
            let is_root = parts.len() == 2 && parts[1] == "lib";
            if is_root || parts.last().is_some_and(|last| last == "mod") {
                parts.pop();
            }
            Source {
                module: parts.join("::"),
                text: read(&path),
                path,
            }
        })
        .filter(|file| !is_generated(&file.text))
        .collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 20, "the house has more than 20 files");
    sources
}

fn is_generated(text: &str) -> bool {
    text.starts_with("// @generated")
}

/// Returns the sources of the program without the crates below it.
fn program() -> impl Iterator<Item = Source> {
    sources()
        .into_iter()
        .filter(|file| !CRATES.contains(&room_of(&file.module)))
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // In a git worktree, `.git` is a file.
        if name == "target" || name == ".git" {
            continue;
        }
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn room_of(module: &str) -> &str {
    module.split("::").next().unwrap_or(module)
}

/// Returns the rooms that the module may import: the row with the longest name among the rooms that
/// contain the module. For example, `export::score` contains `export::score_line`.
fn allowed_of(module: &str) -> Option<&'static [&'static str]> {
    let rows: BTreeMap<usize, &'static [&'static str]> = MAY_IMPORT
        .iter()
        .filter(|(room, _)| {
            module == *room
                || module.starts_with(&format!("{room}::"))
                || (room.contains("::") && module.starts_with(&format!("{room}_")))
        })
        .map(|(room, allowed)| (room.len(), *allowed))
        .collect();
    rows.into_values().next_back()
}

/// Returns the rooms of this crate that a line names: `crate::span::Span` names `span`. We do not
/// write `crate::{a, b}`.
fn crate_paths(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").map(|(at, _)| {
        let rest = &line[at + "crate::".len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        &rest[..end]
    })
}
