//! Reads criteria and other documents that a caller of the API sends, and reports every mistake in
//! them. Their format is that of a criteria file, but `${env:…}` is not replaced: a caller must not
//! read our environment.

use std::collections::BTreeMap;

use judge::evaluate::{Criterion, FieldError, PatternCompiler, PatternLimits};
use located::{
    Extent, Kind, MapEntry, Node, NodeValue, Place, Problem, Problems, Scalar, TextBounds,
    TextKind, Texts, parse_within,
};
use serde::de::DeserializeOwned;

use super::hints::{read_compiled, read_criterion};

/// The name of the document in messages.
const NAME: &str = "body";

/// Reads one criterion. `name` comes from the URL path: it is the default of the document's `name`,
/// which must be equal if given.
///
/// # Errors
/// Returns all mistakes in the document, not only the first.
pub fn criterion(
    text: &str,
    name: Option<&str>,
    limits: PatternLimits,
) -> Result<Criterion, Problems> {
    let mut document = Document::parse(text, "a criterion", "write `name: …` and `evaluate: …`")?;
    if let Some(name) = name {
        document.put_name(name);
    }
    let mut compiler = PatternCompiler::new(limits);
    match document.criterion(&[], &mut compiler) {
        Some(criterion) => document.done(criterion),
        None => Err(document.problems.sorted()),
    }
}

/// Reads a set of criteria: a map with only `criteria:`, as in a criteria file.
///
/// # Errors
/// Returns all mistakes in the document, not only the first.
pub fn criteria(text: &str, limits: PatternLimits) -> Result<Vec<Criterion>, Problems> {
    let mut document = Document::parse(
        text,
        "a set of criteria",
        "write `criteria:` above a list of criteria",
    )?;
    let Document {
        root,
        texts,
        problems,
        ..
    } = &mut document;
    let NodeValue::Map(map) = &mut root.value else {
        return Ok(Vec::new());
    };
    map.retain(|entry| {
        let is_known = entry.key == "criteria";
        if !is_known {
            let problem = Problem::new(
                format!("unknown key `{}`", entry.key),
                Some(texts.spot(entry.key_place)),
            );
            problems.push(
                problem
                    .at(format!(
                        "/{}",
                        entry.key.replace('~', "~0").replace('/', "~1")
                    ))
                    .label("a set contains `criteria:` only"),
            );
        }
        is_known
    });
    let n_items = match map.entries.first().map(|entry| &entry.value) {
        Some(Node {
            value: NodeValue::List(items),
            ..
        }) => items.len(),
        Some(node) => {
            let problem = Problem::new("`criteria` is not a list", Some(texts.spot(node.place)));
            problems.push(
                problem
                    .at("/criteria".to_owned())
                    .label("expected a list of criteria; an empty one is `[]`"),
            );
            0
        }
        None if problems.is_empty() => {
            let problem = Problem::new("`criteria` is missing", Some(texts.spot(root.place)));
            problems.push(
                problem.label("write `criteria:` above a list of criteria; an empty one is `[]`"),
            );
            0
        }
        None => 0,
    };
    let mut criteria: Vec<Criterion> = Vec::with_capacity(n_items);
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    let mut compiler = PatternCompiler::new(limits);
    for item_idx in 0..n_items {
        let Some(criterion) = document.criterion(&[0, item_idx], &mut compiler) else {
            continue;
        };
        if let Some(first) = numbers.get(&criterion.name) {
            let (node, ..) = document.root.follow(&[0, item_idx]);
            let problem = Problem::new(
                format!("a second criterion is named `{}`", criterion.name),
                Some(document.texts.spot(node.place)),
            );
            document.problems.push(
                problem
                    .at(format!("/criteria/{item_idx}/name"))
                    .label(format!("the first is number {first}")),
            );
        }
        numbers
            .entry(criterion.name.clone())
            .or_insert(item_idx + 1);
        criteria.push(criterion);
    }
    document.done(criteria)
}

/// Reads any other document, as strictly as a criterion. `what` names the document in messages, and
/// `remedy` tells how to write one.
///
/// # Errors
/// Returns all mistakes in the document, not only the first.
pub fn document<T: DeserializeOwned>(text: &str, what: &str, remedy: &str) -> Result<T, Problems> {
    document_compiled(text, what, remedy, Ok::<T, _>)
}

/// Like [`document`], for a source whose patterns are compiled after parsing.
///
/// # Errors
/// Returns all mistakes in the document, not only the first.
pub fn document_compiled<S: DeserializeOwned, T>(
    text: &str,
    what: &str,
    remedy: &str,
    compile: impl FnMut(S) -> Result<T, Vec<FieldError>>,
) -> Result<T, Problems> {
    let mut document = Document::parse(text, what, remedy)?;
    let Document {
        root,
        texts,
        problems,
        ..
    } = &mut document;
    match read_compiled(root, &[], Extent::All, texts, problems, compile) {
        Some(value) => document.done(value),
        None => Err(document.problems.sorted()),
    }
}

struct Document {
    root: Node,
    texts: Texts,
    source: usize,
    problems: Problems,
}

impl Document {
    fn parse(text: &str, what: &str, remedy: &str) -> Result<Self, Problems> {
        let mut texts = Texts::default();
        let mut problems = Problems::default();
        let source = texts.add(NAME, text, TextKind::File);
        match parse_within(&texts, source, TextBounds::NETWORK, &mut problems) {
            Some(root) if matches!(root.value, NodeValue::Map(_)) => Ok(Self {
                root,
                texts,
                source,
                problems,
            }),
            Some(root) => {
                problems.push(
                    Problem::new(
                        format!("{what} must be a map"),
                        Some(texts.spot(root.place)),
                    )
                    .label(remedy),
                );
                Err(problems)
            }
            None => Err(problems),
        }
    }

    fn put_name(&mut self, name: &str) {
        let Self {
            root,
            texts,
            source,
            problems,
        } = self;
        let NodeValue::Map(map) = &mut root.value else {
            return;
        };
        match map
            .entries
            .iter()
            .find(|entry| entry.key == "name")
            .map(|entry| &entry.value)
        {
            Some(Node {
                value: NodeValue::Scalar(Scalar { text, .. }),
                place,
            }) if text != name => {
                let problem = Problem::new(
                    format!("the criterion is named `{text}`, but the URL path names `{name}`"),
                    Some(texts.spot(*place)),
                );
                problems.push(
                    problem
                        .at("/name".to_owned())
                        .label("remove the name here, or use the name of the URL path"),
                );
            }
            Some(_) => {}
            None => {
                let place = Place {
                    source: *source,
                    start: 0,
                    end: 0,
                };
                let value = NodeValue::Scalar(Scalar {
                    text: name.to_owned(),
                    kind: Kind::Text,
                    substituted: false,
                });
                map.entries.push(MapEntry {
                    key: "name".to_owned(),
                    key_place: place,
                    value: Node { place, value },
                });
            }
        }
    }

    fn criterion(&mut self, path: &[usize], compiler: &mut PatternCompiler) -> Option<Criterion> {
        let Self {
            root,
            texts,
            problems,
            ..
        } = self;
        read_criterion(root, path, Extent::All, texts, problems, compiler)
    }

    fn done<T>(self, value: T) -> Result<T, Problems> {
        if self.problems.is_empty() { Ok(value) } else { Err(self.problems.sorted()) }
    }
}
