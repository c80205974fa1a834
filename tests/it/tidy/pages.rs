//! Checks that links between pages lead to existing files, and that the documentation lists every
//! room and every test module. Does not check the descriptions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{read, walk};

fn pages() -> Vec<PathBuf> {
    let folders = ["docs", "deploy", "tests", "examples", "fuzz", "benches"].map(Path::new);
    let roots = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ];
    let pages = folders.into_iter().flat_map(walk);
    let pages = pages.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.chain(roots.map(PathBuf::from)).collect()
}

/// Returns the paths of the files that a page links to, relative to the page's folder.
fn linked(page: &str) -> impl Iterator<Item = &str> {
    page.match_indices("](").filter_map(|(at, opening)| {
        let target = page[at + opening.len()..].split([')', ' ']).next()?;
        let file = target.split('#').next()?;
        (!file.is_empty() && !file.contains(':')).then_some(file)
    })
}

#[test]
fn links_between_pages_lead_to_files() {
    let mut wrong = Vec::new();
    let mut n_links = 0;
    for page in pages() {
        let folder = page.parent().unwrap_or(Path::new(""));
        for file in linked(&read(&page)) {
            n_links += 1;
            if !folder.join(file).exists() {
                wrong.push(format!("{}: there is no `{file}`", page.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_links > 100, "{n_links}");
}

/// Returns the words in code font in the first cells of a page's tables.
fn rows(page: &str) -> BTreeSet<String> {
    let text = read(Path::new(page));
    let cells = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split('|').next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .map(|word| word.split("::").next().unwrap_or(word).to_owned())
        .collect()
}

#[test]
fn every_room_and_every_test_module_has_a_row() {
    let folders = ["src", "src/judge"].map(|folder| std::fs::read_dir(folder).unwrap());
    let rooms = folders.into_iter().flatten().filter_map(|entry| {
        let path = entry.unwrap().path();
        let is_room = path.is_dir() || path.extension().is_some_and(|extension| extension == "rs");
        let name = path.file_stem()?.to_str()?.to_owned();
        is_room.then_some(name)
    });
    let is_program = |name: &String| ["lib", "main"].contains(&name.as_str());
    let rooms: BTreeSet<String> = rooms.filter(|name| !is_program(name)).collect();
    let in_table = rows("ARCHITECTURE.md");
    let missing: Vec<&String> = rooms.difference(&in_table).collect();
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md has no row of {missing:?}"
    );

    let programs = ["tests/it/main.rs", "tests/judge/main.rs"]
        .map(Path::new)
        .map(read);
    let modules = programs
        .iter()
        .flat_map(|program| program.lines())
        .filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'));
    let modules: BTreeSet<String> = modules
        .filter(|name| *name != "support")
        .map(str::to_owned)
        .collect();
    let in_table = rows("tests/README.md");
    let missing: Vec<&String> = modules.difference(&in_table).collect();
    assert!(
        missing.is_empty(),
        "tests/README.md has no row of {missing:?}"
    );
    assert!(rooms.len() > 20 && modules.len() > 40);
}
