//! Checks the order of the house: which room may import which, what the core may name, module
//! headers, file sizes, evaluator headings, tables. It reads the source as text, so it proves
//! neither that an import is used nor that a header is true.

mod circles;
mod pages;
mod proofs;
mod wording;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The import table of the house: a room, and the rooms that it may import. Reasons for entries
/// that were added: `tls` reads certificate files for both ends of a connection, so neither
/// `listen` nor `transport` can own it. `register` judges what a caller sends as a recording is
/// judged, with `receive`'s scan and transcoder and `assemble`'s settings, and answers with the
/// lines of `export::score_line`. `receive` imports `transport` for the refusal of its queue, which
/// is one type from the queue to the answer, and for the largest request that the queue accepts.
/// `export::score_*` and `export::writer_*` use `config`'s enums and writers of `scores`, so that
/// none is written twice. `listen` accepts connections for both `receive` and `admin`. `page` reads
/// the criteria that a person tries as `register` reads those of its callers. A row such
/// as `receive::scan` also covers `receive::scan_logs`, and files inside a room import their own
/// room freely.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("span", &[]),
    ("assemble", &["span"]),
    ("extract", &["span", "assemble"]),
    ("evaluate", &["span", "assemble", "extract"]),
    ("pipeline", &["span", "assemble", "extract", "evaluate"]),
    ("learn", &["extract", "evaluate"]),
    ("text", &[]),
    ("decimal", &[]),
    ("sync", &[]),
    ("rarely", &[]),
    ("holders", &[]),
    ("located", &["text"]),
    (
        "config",
        &["located", "assemble", "extract", "evaluate", "learn"],
    ),
    ("receive::scan", &["wire", "span"]),
    ("receive::json", &["wire", "span"]),
    (
        "export::score",
        &["wire", "span", "config", "extract", "evaluate"],
    ),
    ("export::writer", &["span", "config", "extract", "evaluate"]),
    ("register::merge", &["config", "evaluate", "pipeline"]),
    (
        "register",
        &[
            "span",
            "config",
            "assemble",
            "receive",
            "pipeline",
            "evaluate",
            "extract",
            "export",
            "telemetry",
        ],
    ),
    ("page::view", &["span", "config", "extract", "evaluate"]),
    ("page::specimens", &["wire", "span", "config", "extract"]),
    (
        "page",
        &[
            "span",
            "config",
            "extract",
            "evaluate",
            "pipeline",
            "register",
            "telemetry",
        ],
    ),
    (
        "receive",
        &["span", "config", "listen", "transport", "telemetry", "heap"],
    ),
    ("heap", &[]),
    ("journal::format", &[]),
    ("journal::recover", &[]),
    ("journal", &["telemetry"]),
    ("forward", &["transport", "journal", "config", "telemetry"]),
    ("kafka::placement", &["span", "config"]),
    ("kafka::progress", &["pipeline"]),
    ("kafka::split", &["wire", "span", "config"]),
    (
        "kafka",
        &["span", "config", "transport", "journal", "telemetry"],
    ),
    (
        "export",
        &[
            "span",
            "extract",
            "evaluate",
            "transport",
            "journal",
            "config",
            "telemetry",
        ],
    ),
    (
        "transport",
        &["wire", "config", "tls", "journal", "telemetry"],
    ),
    ("tls", &["config", "telemetry"]),
    ("listen", &["config", "tls", "telemetry"]),
    ("admin", &["config", "listen", "telemetry"]),
    ("telemetry", &[]),
    ("sidecar", &["*"]),
    ("cli", &["*"]),
];

/// Ground rooms that every room may import, since they know nothing of spanscore: text and its
/// truncation, decimal numbers (read by configuration, spans and comparison), a mutex, sorting for
/// code that runs rarely, and how a queue or a log is shared among its senders. (`located` is one
/// too, but only `config` reads documents.)
const GROUND: &[&str] = &["text", "decimal", "sync", "rarely", "holders"];

/// Rooms of the core, and crates that may be named there. `wire` is ground below the core, and just
/// as pure; only rooms that read or write protobuf import it.
const CORE: &[&str] = &[
    "wire", "span", "assemble", "extract", "evaluate", "pipeline", "learn",
];
const CORE_CRATES: &[&str] = &[
    "std",
    "core",
    "alloc",
    "crate",
    "self",
    "super",
    "serde",
    "serde_json",
    "schemars",
    "regex",
    "regex_syntax",
    "hashbrown",
    "foldhash",
    "smallvec",
    "memchr",
    "simdutf8",
    "sha2",
];

/// A translator has no sockets, files, clocks or environment variables, either.
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
    for file in sources() {
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
            // In the file of a room itself, `super` is the crate root.
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

/// The floors of a room, from the ground up: a floor imports those listed before it, never those
/// after it. Floors name each other as `crate::room::floor::…`, so that this test sees it.
const FLOORS: &[(&str, &[&str])] = &[(
    "evaluate",
    &[
        "comparison",
        "parameters",
        "rules",
        "evaluators",
        "criterion",
        "judge",
    ],
)];

#[test]
fn floors_import_only_those_below() {
    let mut wrong = Vec::new();
    for file in sources() {
        for (room, floors) in FLOORS {
            let Some(inside) = file.module.strip_prefix(&format!("{room}::")) else {
                continue;
            };
            let Some(own) = floors.iter().position(|floor| *floor == room_of(inside)) else {
                wrong.push(format!(
                    "{}: `{}` is no floor of `{room}` in tests/it/tidy/mod.rs",
                    file.path.display(),
                    room_of(inside)
                ));
                continue;
            };
            let is_top = !inside.contains("::");
            for (line_no, line) in file.code() {
                let leaves_floor =
                    line.contains("super::super::") || (is_top && line.contains("super::"));
                let above = floors[own + 1..]
                    .iter()
                    .find(|floor| line.contains(&format!("crate::{room}::{floor}::")));
                let skips_floors = line.split(&format!("crate::{room}::")).skip(1).any(|rest| {
                    !floors
                        .iter()
                        .any(|floor| rest.starts_with(&format!("{floor}::")))
                });
                if leaves_floor || skips_floors || above.is_some() {
                    wrong.push(format!(
                        "{}:{line_no}: a floor of `{room}` imports only the floors below, by \
                         `crate::{room}::floor::…`: {}",
                        file.path.display(),
                        line.trim()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// State outside of arguments makes a result depend on more than its input. A table that is computed
// once (`static … LazyLock`) is no such state: every caller sees the same one. Neither is a part of
// a value that is written once (`OnceLock` in the fields of `WRITTEN_ONCE`): the parsed or rendered
// form that the value keeps, and the text that spans share.
#[test]
fn the_core_has_no_ambient_state() {
    const WORDS: [&str; 7] = [
        "thread_local!",
        "static mut",
        "Cell<",
        "Mutex<",
        "RwLock<",
        "Atomic",
        "OnceLock",
    ];
    const WRITTEN_ONCE: [&str; 4] = [
        "evaluate::judge::evaluation",
        "extract::tool_call",
        "span::arena",
        "span::shared_text",
    ];
    let mut wrong = Vec::new();
    for file in sources()
        .into_iter()
        .filter(|file| CORE.contains(&room_of(&file.module)))
    {
        let is_allowed = |line: &str, word: &str| {
            let is_static = line.trim_start().contains("static ");
            word == "OnceLock" && !is_static && WRITTEN_ONCE.contains(&file.module.as_str())
        };
        for (line_no, line) in file.code() {
            if WORDS
                .iter()
                .any(|word| line.contains(word) && !is_allowed(line, word))
            {
                wrong.push(format!(
                    "{}:{line_no}: state belongs in an argument: `{}`",
                    file.path.display(),
                    line.trim()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_is_pure() {
    let mut wrong = Vec::new();
    for file in sources()
        .into_iter()
        .filter(|file| CORE.contains(&room_of(&file.module)))
    {
        for (line_no, line) in file.code() {
            let named = line
                .trim_start()
                .strip_prefix("use ")
                .or_else(|| line.trim_start().strip_prefix("pub use "));
            if let Some(first) = named.and_then(|path| path.split([':', ';', ' ']).next())
                && !CORE_CRATES.contains(&first)
                && !is_submodule(&file, first)
            {
                wrong.push(format!(
                    "{}:{line_no}: the core must not name `{first}`",
                    file.path.display()
                ));
            }
            for word in [
                "tokio::",
                "tonic::",
                "prost::",
                "tracing::",
                "opentelemetry",
                "std::fs",
                "std::net",
                "std::env",
                "Instant::now",
                "SystemTime",
            ] {
                if line.contains(word) {
                    wrong.push(format!(
                        "{}:{line_no}: the core must not name `{word}`",
                        file.path.display()
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn translators_do_no_input_or_output() {
    let translators = [
        "located",
        "config",
        "receive::scan",
        "receive::json",
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

// Clippy can forbid it, but not only outside tests.
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
fn pure_modules_say_so() {
    let wrong: Vec<_> = sources()
        .into_iter()
        .filter(|file| CORE.contains(&room_of(&file.module)) && !file.is_test())
        .filter(|file| !header(file).any(|line| line.contains("Pure.")))
        .map(|file| file.path.display().to_string())
        .collect();
    assert!(
        wrong.is_empty(),
        "the headers of these core modules do not say `Pure.`: {wrong:?}"
    );
}

#[test]
fn no_file_is_longer_than_600_lines() {
    let long: Vec<_> = sources()
        .into_iter()
        .filter(|file| file.text.lines().count() > 600)
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
    let table = read(Path::new("src/evaluate/evaluators/mod.rs"));
    let mut wrong = Vec::new();
    let mut n_evaluators = 0;
    for file in sources()
        .into_iter()
        .filter(|file| file.module.starts_with("evaluate::evaluators::"))
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
                "{}: not in the table of evaluate/evaluators/mod.rs",
                file.path.display()
            ));
        }
    }
    assert!(
        n_evaluators > 0,
        "no evaluator was found: this test looks into src/evaluate/evaluators/"
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_convention_stands_in_the_table() {
    const FOLDER: &str = "extract::spans::conventions";
    /// Conventions that differ only in their vocabulary: rows of one file.
    const ROWS: &str = "look_alikes";
    let table = read(Path::new("src/extract/spans/conventions/mod.rs"));
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

fn header(file: &Source) -> impl Iterator<Item = &str> {
    file.text.lines().take_while(|line| line.starts_with("//!"))
}

struct Source {
    path: PathBuf,
    /// `receive::scan_logs`; a `mod.rs` has its folder's name.
    module: String,
    text: String,
}

impl Source {
    /// Lines of code with their numbers, without comments and test-only code.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut in_test_item = false;
        self.text
            .lines()
            .enumerate()
            .map(|(line_idx, line)| (line_idx + 1, line))
            .filter(move |(_, line)| {
                // An item behind `#[cfg(test)]` ends with its line (`mod tests;`) or with a brace
                // at the margin, where rustfmt puts it.
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
            if parts.last().is_some_and(|last| last == "mod") {
                parts.pop();
            }
            Source {
                module: parts.join("::"),
                text: read(&path),
                path,
            }
        })
        .collect();
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(sources.len() > 20, "the house has more than 20 files");
    sources
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        // In a git worktree `.git` is a file.
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

/// The row with the longest room name that contains the module: `receive::scan_logs` belongs to
/// `receive::scan`.
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

/// Our rooms that a line names: `crate::span::Span` names `span`; `crate::{a, b}` is not our style.
fn crate_paths(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").map(|(at, _)| {
        let rest = &line[at + "crate::".len()..];
        let end = rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        &rest[..end]
    })
}

fn is_submodule(file: &Source, name: &str) -> bool {
    file.text.contains(&format!("mod {name};"))
}
