//! Reads example files, whose entries are expectations of single runs.

use std::collections::BTreeMap;
use std::path::Path;

use judge::evaluate::{
    Expectation, ExpectedTool, FieldError, Names, PatternCompiler, PatternLimits, WrittenEvaluator,
};
use located::{
    Extent, Map, Node, NodeValue, Place, Problem, Problems, TextKind, Texts, parse, start_of,
};
use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer};

use super::hints::read_compiled;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    examples: Vec<Entry>,
}

impl File {
    /// Checks all patterns. They are compiled again later, each with the criterion that its
    /// expectation changes.
    fn checked(self) -> Result<Self, Vec<FieldError>> {
        let mut compiler = PatternCompiler::new(PatternLimits::FILE);
        let mut errors = Vec::new();
        for (at, entry) in self.examples.iter().enumerate() {
            let compiled = entry
                .evaluate
                .clone()
                .map(|source| source.compile(&mut compiler));
            if let Some(Err(found)) = compiled {
                let keys = ["examples", &at.to_string(), "evaluate"];
                errors.extend(found.into_iter().map(|error| error.below(&keys)));
            }
        }
        if errors.is_empty() { Ok(self) } else { Err(errors) }
    }
}

#[derive(Deserialize)]
#[serde(remote = "Self", deny_unknown_fields)]
struct Entry {
    /// The `test.case.id` of the run.
    id: Option<String>,
    /// The question to the agent. Only the program that runs the agent reads it.
    #[serde(rename = "input")]
    _input: Option<IgnoredAny>,
    expected_tools: Option<Vec<ExpectedTool>>,
    expected_output: Option<Names>,
    evaluate: Option<WrittenEvaluator>,
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entry = Entry::deserialize(deserializer)?;
        let n_expected = [
            entry.expected_tools.is_some(),
            entry.expected_output.is_some(),
            entry.evaluate.is_some(),
        ];
        match n_expected.into_iter().filter(|is_there| *is_there).count() {
            1 => Ok(entry),
            0 => Err(D::Error::custom(
                "an example expects nothing: give it `expected_tools`, `expected_output` or \
                 `evaluate`",
            )),
            _ => Err(D::Error::custom(
                "an example expects several things: keep one of `expected_tools`, \
                 `expected_output` and `evaluate`",
            )),
        }
    }
}

/// Reads an example file, YAML or JSON. `exact_match` applies to every `expected_tools`.
///
/// # Errors
/// Returns all mistakes in the file, not only the first.
pub fn examples(path: &Path, text: &str, exact_match: bool) -> Result<Vec<Expectation>, Problems> {
    let mut texts = Texts::default();
    let mut problems = Problems::default();
    let source = texts.add(path.display().to_string(), text, TextKind::File);
    let examples = read_all(&texts, source, exact_match, &mut problems);
    if !problems.is_empty() {
        return Err(problems.sorted());
    }
    Ok(examples
        .into_iter()
        .map(|example| example.expectation)
        .collect())
}

/// An entry and its position: the position of its id, else its beginning.
pub(super) struct Example {
    pub(super) expectation: Expectation,
    pub(super) place: Place,
}

/// Reads the examples in the text `source`; none if the text has any mistake.
pub(super) fn read_all(
    texts: &Texts,
    source: usize,
    exact_match: bool,
    problems: &mut Problems,
) -> Vec<Example> {
    let n_before = problems.len();
    let Some(mut root) =
        parse(texts, source, problems).and_then(|root| only_examples(root, texts, problems))
    else {
        return Vec::new();
    };
    let file = read_compiled(&mut root, &[], Extent::All, texts, problems, File::checked);
    let entries = file.map(|file| file.examples).unwrap_or_default();
    unique_ids(&root, texts, problems);
    if problems.len() == n_before && entries.is_empty() {
        let problem = Problem::new(
            "there is no example in this file",
            Some(texts.spot(Place {
                source,
                ..Place::default()
            })),
        );
        problems.push(problem.label("write a list below `examples:`, an entry for each run"));
    }
    if problems.len() > n_before {
        return Vec::new();
    }
    let example = |(entry, node): (Entry, &Node)| {
        let place = node
            .find(&["id"])
            .map_or_else(|| start_of(node), |id| id.place);
        Example {
            expectation: expectation(entry, node, exact_match),
            place,
        }
    };
    entries.into_iter().zip(items(&root)).map(example).collect()
}

/// Returns the root with only `examples`. Reports other keys without hints, because hints name keys
/// of a configuration.
fn only_examples(mut root: Node, texts: &Texts, problems: &mut Problems) -> Option<Node> {
    if root.is_null() {
        root = Node::empty_map(root.place);
    }
    match &mut root.value {
        NodeValue::Map(map) => map.retain(|entry| {
            let is_known = entry.key == "examples";
            if !is_known {
                let title = format!("unknown key `{}` in an example file", entry.key);
                problems.push(
                    Problem::new(title, Some(texts.spot(entry.key_place)))
                        .label("an example file contains only `examples:`"),
                );
            }
            is_known
        }),
        _ => {
            let problem = Problem::new(
                "an example file must be a map",
                Some(texts.spot(root.place)),
            );
            problems.push(problem.label("write `examples:` above a list of entries"));
            return None;
        }
    }
    Some(root)
}

fn items(root: &Node) -> &[Node] {
    match root.find(&["examples"]).map(|node| &node.value) {
        Some(NodeValue::List(items)) => items,
        _ => &[],
    }
}

fn unique_ids(root: &Node, texts: &Texts, problems: &mut Problems) {
    let mut seen: BTreeMap<&str, Place> = BTreeMap::new();
    for node in items(root).iter().filter_map(|item| item.find(&["id"])) {
        let NodeValue::Scalar(scalar) = &node.value else {
            continue;
        };
        if let Some(first) = seen.get(scalar.text.as_str()) {
            let problem = Problem::new(
                format!("a second example has the id `{}`", scalar.text),
                Some(texts.spot(node.place)),
            );
            problems.push(problem.label(format!(
                "the first is at {}; one entry covers all runs with this id, remove the other",
                texts.short(*first)
            )));
        } else if !node.is_null() {
            seen.insert(&scalar.text, node.place);
        }
    }
}

fn expectation(entry: Entry, node: &Node, exact_match: bool) -> Expectation {
    let Entry {
        id,
        expected_tools,
        expected_output,
        evaluate,
        ..
    } = entry;
    match (evaluate, expected_output) {
        (Some(evaluator), _) => {
            let fields = match node
                .find(&["evaluate", evaluator.name()])
                .map(|node| &node.value)
            {
                Some(NodeValue::Map(Map { entries, .. })) => entries.as_slice(),
                _ => &[],
            };
            Expectation::of_evaluator(
                id,
                &evaluator,
                fields.iter().map(|entry| entry.key.as_str()),
            )
        }
        (None, Some(expected_output)) => Expectation::of_output(id, &expected_output),
        (None, None) => Expectation::of_tools(id, &expected_tools.unwrap_or_default(), exact_match),
    }
}
