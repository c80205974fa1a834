//! Checks that imports inside a room form no cycle: at every level, the children of a module import
//! each other in one direction only. An import by a descendant of a child counts as the child's
//! import. An item that a module re-exports counts as an item of the module that defines it. A
//! child may import from its parent module, and the parent from its children.

use std::collections::{BTreeMap, BTreeSet};

use super::{CRATES, Source, sources};

#[test]
fn no_import_runs_in_a_circle_inside_a_room() {
    let imports = Imports::read(&sources());
    let mut wrong = Vec::new();
    for (parent, siblings) in imports.by_parent() {
        if let Some(circle) = circle(&siblings) {
            wrong.push(format!("{parent}: {}", circle.join(" -> ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_circle_is_found_through_a_face_and_between_folders() {
    let source = |module: &str, text: &str| Source {
        path: module.replace("::", "/").into(),
        module: module.to_owned(),
        text: text.to_owned(),
    };
    // Neither a path into another crate nor a path in an expression is a re-export.
    let room = "mod low;\nmod high;\nuse std::fmt;\npub use high::Tall;\nfn f() { low::Tall(); }\n";
    let sources = [
        source("room", room),
        source("room::low", ""),
        source("room::low::deep", "use super::super::{Tall, other};\n"),
        source("room::high", "use crate::room::low;\n"),
    ];
    let imports = Imports::read(&sources);
    let siblings = &imports.by_parent()["room"];
    assert_eq!(
        circle(siblings),
        Some(vec!["high".to_owned(), "low".to_owned(), "high".to_owned()])
    );
}

/// The modules that each module imports from, as full paths without `crate`.
struct Imports(BTreeMap<String, BTreeSet<String>>);

impl Imports {
    fn read(sources: &[Source]) -> Self {
        let modules: BTreeSet<&str> = sources
            .iter()
            .filter(|source| !source.is_test())
            .map(|source| source.module.as_str())
            .collect();
        let mut handed_on = BTreeMap::new();
        let mut named = BTreeMap::new();
        for source in sources.iter().filter(|source| !source.is_test()) {
            let code: String = source.code().flat_map(|(_, line)| [line, "\n"]).collect();
            let paths = paths(&code);
            let absolute = paths.iter().filter_map(|path| {
                let segments = absolute(&source.module, &path.segments, &modules)?;
                Some((segments, path.is_use))
            });
            for (path, is_use) in absolute {
                if is_use && let Some(name) = path.last() {
                    handed_on.insert((source.module.clone(), name.clone()), path.clone());
                }
                named
                    .entry(source.module.clone())
                    .or_insert_with(Vec::new)
                    .push(path);
            }
        }
        let resolve = |mut path: Vec<String>| {
            // Chains of re-exports are short. The limit stops a name that re-exports itself.
            for _ in 0..8 {
                let len = (1..=path.len())
                    .rev()
                    .find(|len| modules.contains(path[..*len].join("::").as_str()))?;
                let module = path[..len].join("::");
                let next = path
                    .get(len)
                    .and_then(|name| handed_on.get(&(module.clone(), name.clone())));
                match next {
                    Some(next) if !next.starts_with(&path[..=len]) => {
                        path = next.iter().chain(&path[len + 1..]).cloned().collect();
                    }
                    _ => return Some(module),
                }
            }
            None
        };
        let resolved = named.into_iter().map(|(module, paths)| {
            let targets = paths.into_iter().filter_map(&resolve).collect();
            (module, targets)
        });
        Self(resolved.collect())
    }

    /// Returns, for each module with children, the siblings that each child imports.
    fn by_parent(&self) -> BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> {
        let mut by_parent: BTreeMap<&str, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (module, targets) in &self.0 {
            for (at, _) in module.match_indices("::") {
                let parent = &module[..at];
                let child = |module: &str| {
                    let below = module.strip_prefix(parent)?.strip_prefix("::")?;
                    below.split("::").next().map(str::to_owned)
                };
                let Some(from) = child(module) else { continue };
                let siblings = targets
                    .iter()
                    .filter_map(|target| child(target))
                    .filter(|to| *to != from);
                by_parent
                    .entry(parent)
                    .or_default()
                    .entry(from.clone())
                    .or_default()
                    .extend(siblings);
            }
        }
        by_parent
    }
}

struct Named {
    segments: Vec<String>,
    is_use: bool,
}

/// Returns every path in the code: paths in `use`, with braces expanded, and paths in expressions
/// and types.
fn paths(code: &str) -> Vec<Named> {
    let mut paths = Vec::new();
    let mut import = String::new();
    for line in code.lines() {
        let item = line.trim_start();
        let item = item
            .strip_prefix("pub")
            .map_or(item, |rest| rest.trim_start_matches(|c| c != ' ').trim());
        if !import.is_empty() || item.starts_with("use ") {
            import.push_str(item.strip_prefix("use ").unwrap_or(item));
            import.push(' ');
            if line.ends_with(';') {
                let tree = import.trim_end_matches(['\u{20}', ';']);
                paths.extend(expand(tree).iter().map(|path| Named {
                    segments: segments(path.split(" as ").next().unwrap_or_default()),
                    is_use: true,
                }));
                import.clear();
            }
            continue;
        }
        let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let words = line.split(|c| !is_path(c));
        paths.extend(words.filter(|word| word.contains("::")).map(|word| Named {
            segments: segments(word),
            is_use: false,
        }));
    }
    paths
}

fn segments(path: &str) -> Vec<String> {
    path.split("::")
        .map(|segment| segment.trim().to_owned())
        .filter(|segment| !segment.is_empty())
        .collect()
}

/// Expands `a::{b, c::{d, e}}` to `a::b`, `a::c::d` and `a::c::e`.
fn expand(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else {
        return vec![tree.to_owned()];
    };
    let close = tree.rfind('}').unwrap_or(tree.len());
    let (mut depth, mut start, inner) = (0, 0, &tree[open + 1..close]);
    let mut branches = Vec::new();
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&inner[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&inner[start..]);
    branches
        .into_iter()
        .map(str::trim)
        .filter(|branch| !branch.is_empty())
        .flat_map(|branch| expand(&format!("{}{branch}", &tree[..open])))
        .collect()
}

/// Returns the path from the folder `src`; `None` for a path into another crate.
fn absolute(module: &str, path: &[String], modules: &BTreeSet<&str>) -> Option<Vec<String>> {
    let mut base: Vec<String> = module.split("::").map(str::to_owned).collect();
    let mut path = path;
    match path.first()?.as_str() {
        "crate" => {
            base.truncate(usize::from(CRATES.contains(&base[0].as_str())));
            path = &path[1..];
        }
        "self" => path = &path[1..],
        "super" => {
            while path.first().is_some_and(|segment| segment == "super") {
                base.pop();
                path = &path[1..];
            }
        }
        child => {
            base.push(child.to_owned());
            if !modules.contains(base.join("::").as_str()) {
                return None;
            }
            base.pop();
        }
    }
    base.extend(path.iter().filter(|segment| *segment != "self").cloned());
    Some(base)
}

/// Returns a path from a module back to itself; `None` if there is none.
fn circle(imports: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn walk<'a>(
        imports: &'a BTreeMap<String, BTreeSet<String>>,
        from: &'a str,
        way: &mut Vec<&'a str>,
        done: &mut BTreeSet<&'a str>,
    ) -> Option<Vec<String>> {
        if let Some(at) = way.iter().position(|module| *module == from) {
            let around = way[at..].iter().chain([&from]);
            return Some(around.map(|module| (*module).to_owned()).collect());
        }
        if !done.insert(from) {
            return None;
        }
        way.push(from);
        let found = imports
            .get(from)
            .into_iter()
            .flatten()
            .find_map(|to| walk(imports, to, way, done));
        way.pop();
        found
    }
    let mut done = BTreeSet::new();
    imports
        .keys()
        .find_map(|from| walk(imports, from, &mut Vec::new(), &mut done))
}
