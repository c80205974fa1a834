//! Builds one configuration from texts, variables and flags, or reports every mistake in them.
//! Reads files only through [`Files`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use judge::evaluate::{Criterion, PatternCompiler, PatternLimits};
use located::{
    Extent, Files, Interpolation, Map, MapEntry, Node, NodeValue, Place, Problem, Problems, Reader,
    TextKind, Texts, parse,
};
use serde::Deserialize;

use super::Config;
use super::check;
use super::expectations::read_cases;
use super::hints::{read_criterion, read_sections};
use super::secrets::{SECRETS, read_key_files};
use super::variables;

/// Sources of a configuration. Precedence, highest first: flag, `SPANSCORE_…`, file, `OTEL_…`,
/// default.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// The main file: its path, for messages and as the base of relative paths, and its text.
    pub file: Option<(&'a Path, &'a str)>,
    /// The whole environment.
    pub environment: &'a BTreeMap<String, String>,
    /// `--set key=value`, in order: the dotted key and the value.
    pub flags: &'a [(String, String)],
    /// Reads all other files.
    pub files: &'a dyn Files,
}

/// A valid configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Settings that are valid but probably a mistake.
    pub warnings: Problems,
    /// The other files that were read: criteria files, the cases file and secrets.
    pub files: Vec<PathBuf>,
}

/// The source of each given value, by dotted key, and the file of each criterion from a file, by
/// name.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    values: BTreeMap<String, Origin>,
    criteria: Arc<BTreeMap<String, Arc<str>>>,
}

#[derive(Debug, Clone)]
struct Origin {
    name: String,
    is_file: bool,
}

impl Config {
    /// Builds a configuration from its sources.
    ///
    /// # Errors
    /// Returns all mistakes in all sources, not only the first. Values that contradict each other
    /// are found once all values can be read.
    pub fn load(sources: &Sources<'_>) -> Result<Loaded, Problems> {
        Self::load_parts(sources, Parts::All)
    }

    /// Builds a configuration from the valid parts. Leaves out criteria and sections that do not
    /// parse, and the whole main file if its other parts have mistakes, such as values that
    /// contradict each other.
    ///
    /// # Errors
    /// Returns all mistakes in the variables and flags.
    pub fn load_sound(sources: &Sources<'_>) -> Result<Loaded, Problems> {
        Self::load_parts(sources, Parts::Sound).or_else(|_| {
            Self::load(&Sources {
                file: None,
                ..*sources
            })
        })
    }

    fn load_parts(sources: &Sources<'_>, parts: Parts) -> Result<Loaded, Problems> {
        let mut texts = Texts::default();
        let mut problems = Problems::default();
        let folder = sources
            .file
            .and_then(|(path, _)| path.parent())
            .unwrap_or(Path::new(""))
            .to_owned();
        let mut interpolation = Interpolation {
            environment: sources.environment,
            files: sources.files,
            folder: &folder,
            secrets: SECRETS,
            read: Vec::new(),
        };

        let mut root = Node::empty_map(Place::default());
        if let Some((path, text)) = sources.file {
            let source = texts.add(path.display().to_string(), text, TextKind::File);
            root = parse(&texts, source, &mut problems)
                .filter(|node| !node.is_null())
                .unwrap_or(root);
            drop_extensions(&mut root);
            interpolation.apply(&mut root, &mut texts, &mut problems);
            read_key_files(&mut root, &mut interpolation, &texts, &mut problems);
            // A wrong value in the file is a mistake even if a variable overrides it.
            read_config(&mut root.clone(), Extent::Part, &texts, &mut problems);
        } else {
            texts.add("defaults", "", TextKind::Variable);
        }
        if matches!(root.value, NodeValue::Map(_)) {
            empty_section(&mut root, "forward");
            variables::put_otel(&mut root, sources.environment, &mut texts, &mut problems);
            variables::put_own(&mut root, sources.environment, &mut texts, &mut problems);
            variables::put_flags(&mut root, sources.flags, &mut texts, &mut problems);
            CriteriaFiles {
                folder: &folder,
                files: sources.files,
                texts: &mut texts,
                problems: &mut problems,
            }
            .append(&mut root, &mut interpolation);
        }

        if parts == Parts::Sound {
            problems = Problems::default();
            drop_unsound(&mut root, &texts);
        }
        let config = read_config(&mut root, Extent::All, &texts, &mut problems);
        let mut warnings = Problems::default();
        if let Some(mut config) = config {
            check::check(&config, &root, &texts, &mut problems, &mut warnings);
            let cases = read_cases(
                &mut config,
                &root,
                &folder,
                sources.files,
                &mut texts,
                &mut problems,
                &mut warnings,
            );
            interpolation.read.extend(cases);
            variables::mention_unread(&config, sources.environment, &mut warnings);
            if problems.is_empty() {
                config.origins = Origins::of(&config.criteria, &root, &texts);
                return Ok(Loaded {
                    config,
                    warnings: warnings.sorted(),
                    files: interpolation.read,
                });
            }
        }
        problems.extend(warnings);
        Err(problems.sorted())
    }

    /// Returns the source of a value, for messages: the variable's name, `forward.endpoint
    /// (spanscore.yaml:12)`, or the key alone.
    pub fn origin_of(&self, key: &str) -> String {
        match self.origins.values.get(key) {
            Some(Origin {
                name,
                is_file: false,
            }) => name.clone(),
            Some(Origin {
                name,
                is_file: true,
            }) => format!("{key} ({name})"),
            None => key.to_owned(),
        }
    }

    /// Returns the file of each criterion that came from a file, by name.
    pub fn criterion_files(&self) -> &Arc<BTreeMap<String, Arc<str>>> {
        &self.origins.criteria
    }

    /// Returns the source of a value without its key: `spanscore.yaml:12`; `None` for a default.
    pub(super) fn source_of(&self, key: &str) -> Option<&str> {
        self.origins
            .values
            .get(key)
            .map(|origin| origin.name.as_str())
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// All parts; every mistake is an error.
    All,
    /// Skips criteria and sections that do not parse.
    Sound,
}

/// Removes the criteria and sections that do not parse on their own.
fn drop_unsound(root: &mut Node, texts: &Texts) {
    let place = root.place;
    let alone = |entry: MapEntry| Node {
        place,
        value: NodeValue::Map(Map {
            entries: vec![entry],
            ..Map::default()
        }),
    };
    let is_sound = |mut part: Node| {
        let mut problems = Problems::default();
        read_config(&mut part, Extent::Part, texts, &mut problems).is_some() && problems.is_empty()
    };
    let NodeValue::Map(map) = &mut root.value else {
        return;
    };
    for entry in &mut map.entries {
        let (key, key_place) = (entry.key.clone(), entry.key_place);
        if let NodeValue::List(items) = &mut entry.value.value
            && key == "criteria"
        {
            items.retain(|item| {
                let value = Node {
                    place: item.place,
                    value: NodeValue::List(vec![item.clone()]),
                };
                is_sound(alone(MapEntry {
                    key: key.clone(),
                    key_place,
                    value,
                }))
            });
        }
    }
    map.entries.retain(|entry| is_sound(alone(entry.clone())));
}

/// Reads the whole configuration. If that fails, first parses each criterion alone, so that only
/// the wrong ones among thousands of criteria are parsed repeatedly.
fn read_config(
    root: &mut Node,
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<Config> {
    if let Ok(config) = Config::deserialize(Reader::new(root).allowing_empty_sections()) {
        return Some(config);
    }
    if let NodeValue::Map(map) = &root.value
        && let Some(entry_idx) = map.entries.iter().position(|entry| entry.key == "criteria")
        && let NodeValue::List(items) = &map.entries[entry_idx].value.value
    {
        let mut compiler = PatternCompiler::new(PatternLimits::FILE);
        for item_idx in 0..items.len() {
            let path = [entry_idx, item_idx];
            read_criterion(root, &path, extent, texts, problems, &mut compiler);
        }
    }
    read_sections(root, extent, texts, problems)
}

/// Turns a section whose keys are all commented out from `null` into an empty map.
fn empty_section(root: &mut Node, key: &str) {
    if let NodeValue::Map(map) = &mut root.value
        && let Some(entry) = map
            .entries
            .iter_mut()
            .find(|entry| entry.key == key && entry.value.is_null())
    {
        entry.value.value = NodeValue::Map(Map::default());
    }
}

impl Origins {
    fn of(criteria: &[Criterion], root: &Node, texts: &Texts) -> Self {
        let mut origins = Self::default();
        origins.walk(root, "", texts);
        let items = match root.find(&["criteria"]).map(|node| &node.value) {
            Some(NodeValue::List(items)) => &items[..],
            _ => &[],
        };
        let mut files: BTreeMap<usize, Arc<str>> = BTreeMap::new();
        let written = criteria.iter().zip(check::written(items));
        let written = written.filter(|(_, item)| texts.is_file(item.place.source));
        let file_of = |(criterion, item): (&Criterion, &Node)| {
            let source = item.place.source;
            let file = files
                .entry(source)
                .or_insert_with(|| texts.name(source).into());
            (criterion.name.clone(), Arc::clone(file))
        };
        origins.criteria = Arc::new(written.map(file_of).collect());
        origins
    }

    /// Returns the origins of these values and of the criteria of `others`.
    pub(super) fn with_criteria_of(&self, others: &Self) -> Self {
        Self {
            values: self.values.clone(),
            criteria: Arc::clone(&others.criteria),
        }
    }

    fn walk(&mut self, node: &Node, path: &str, texts: &Texts) {
        let NodeValue::Map(map) = &node.value else {
            return;
        };
        for MapEntry {
            key,
            key_place,
            value,
        } in &map.entries
        {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            self.walk(value, &path, texts);
            if !matches!(&value.value, NodeValue::Map(map) if !map.entries.is_empty()) {
                self.values.insert(
                    path,
                    Origin {
                        name: texts.short(*key_place),
                        is_file: texts.is_file(key_place.source),
                    },
                );
            }
        }
    }
}

// === criteria files ===

struct CriteriaFiles<'a> {
    folder: &'a Path,
    files: &'a dyn Files,
    texts: &'a mut Texts,
    problems: &'a mut Problems,
}

impl CriteriaFiles<'_> {
    fn append(&mut self, root: &mut Node, interpolation: &mut Interpolation<'_>) {
        let Some(Node {
            value: NodeValue::List(globs),
            ..
        }) = root.find(&["criteria_files"])
        else {
            return;
        };
        let globs: Vec<(String, Place)> = globs
            .iter()
            .filter_map(|glob| match &glob.value {
                NodeValue::Scalar(scalar) => Some((scalar.text.clone(), glob.place)),
                _ => None,
            })
            .collect();
        for (glob, place) in globs {
            match self.files.list(self.folder, &glob) {
                Ok(paths) if paths.is_empty() => {
                    let problem = Problem::new(
                        format!("`{glob}` matches no file"),
                        Some(self.texts.spot(place)),
                    );
                    self.problems.push(problem.label(format!(
                        "looked for `{}`",
                        self.folder.join(&glob).display()
                    )));
                }
                Ok(paths) => paths
                    .iter()
                    .for_each(|path| self.append_file(root, path, place, interpolation)),
                Err(error) => {
                    self.problems.push(
                        Problem::new(
                            format!("`{glob}` is not a glob"),
                            Some(self.texts.spot(place)),
                        )
                        .label(error),
                    );
                }
            }
        }
    }

    fn append_file(
        &mut self,
        root: &mut Node,
        path: &Path,
        place: Place,
        interpolation: &mut Interpolation<'_>,
    ) {
        let text = match self.files.read(path) {
            Ok(text) => text,
            Err(error) => {
                let problem = Problem::new(
                    format!("cannot read `{}`: {error}", path.display()),
                    Some(self.texts.spot(place)),
                );
                return self.problems.push(problem.label("named here"));
            }
        };
        interpolation.read.push(path.to_owned());
        let source = self
            .texts
            .add(path.display().to_string(), &text, TextKind::File);
        let Some(mut file) = parse(self.texts, source, self.problems) else {
            return;
        };
        interpolation.apply(&mut file, self.texts, self.problems);
        let map = match file.value {
            NodeValue::Map(map) => map,
            _ if file.is_null() => return,
            _ => {
                let problem = Problem::new(
                    "a criteria file must be a map",
                    Some(self.texts.spot(file.place)),
                );
                return self
                    .problems
                    .push(problem.label("write `criteria:` above the list"));
            }
        };
        for MapEntry {
            key,
            key_place,
            value,
        } in map.entries
        {
            match value {
                Node {
                    value: NodeValue::List(items),
                    ..
                } if key == "criteria" => append_to(root, "criteria", items),
                value if key == "criteria" && value.is_null() => {}
                value if key == "criteria" => {
                    self.problems.push(
                        Problem::new(
                            "`criteria` is not a list",
                            Some(self.texts.spot(value.place)),
                        )
                        .label("expected a list: write `- ` before each criterion"),
                    );
                }
                _ => {
                    let problem = Problem::new(
                        format!("unknown key `{key}` in a criteria file"),
                        Some(self.texts.spot(key_place)),
                    );
                    self.problems.push(problem.label(
                        "a criteria file contains `criteria:` only; the rest belongs in the main \
                         file",
                    ));
                }
            }
        }
    }
}

/// Appends items to a list, which is created if it is missing. A value that is not a list is
/// reported elsewhere.
fn append_to(root: &mut Node, key: &str, items: Vec<Node>) {
    let place = root.place;
    let NodeValue::Map(map) = &mut root.value else {
        return;
    };
    let entry_idx = map
        .entries
        .iter()
        .position(|entry| entry.key == key)
        .unwrap_or_else(|| {
            map.entries.push(MapEntry {
                key: key.to_owned(),
                key_place: place,
                value: Node {
                    place,
                    value: NodeValue::List(Vec::new()),
                },
            });
            map.entries.len() - 1
        });
    let value = &mut map.entries[entry_idx].value;
    if value.is_null() {
        value.value = NodeValue::List(Vec::new());
    }
    if let NodeValue::List(list) = &mut value.value {
        list.extend(items);
    }
}

/// Removes top-level keys with the prefix `x-`. As in Compose files, their values define YAML
/// anchors.
fn drop_extensions(root: &mut Node) {
    if let NodeValue::Map(map) = &mut root.value {
        map.entries.retain(|entry| !entry.key.starts_with("x-"));
    }
}
