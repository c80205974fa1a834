//! Hints for configurations that contain keys or values of another format, or keys in the wrong
//! section.

use judge::evaluate::{
    Criterion, FieldError, PatternCompiler, WrittenCriterion, WrittenEvaluator, is_misspelling_of,
};
use located::{self, DeError, Extent, Hints, Node, NodeValue, Problems, Reader, Rewrite, Texts};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::{foreign_formats, keys, refused_keys};

struct Known;

impl Hints for Known {
    fn document(&self) -> &'static str {
        "the configuration"
    }

    fn rewrite_key(&self, key: &str, value: Option<&Node>, siblings: &Node) -> Option<Rewrite> {
        foreign_formats::rewrite_key(key, value, siblings)
    }

    fn rewrite_word(&self, word: &str) -> Option<String> {
        let mechanism = refused_keys::remedy_of_mechanism(word).map(str::to_owned);
        mechanism.or_else(|| foreign_formats::rewrite_word(word))
    }

    fn remedy_of_refused(&self, path: &str) -> Option<&'static str> {
        refused_keys::remedy_of(path)
    }

    fn replaces(&self, refused: &str, missing: &str) -> bool {
        foreign_formats::is_wrapper(refused) || is_misspelling_of(refused, missing)
    }

    fn paths_of(&self, key: &str) -> Vec<String> {
        keys::known()
            .iter()
            .map(|known| known.path.join("."))
            .filter(|path| path == key || path.rsplit('.').next() == Some(key))
            .collect()
    }
}

/// Reads the node at the end of a path, compiles its patterns after parsing, and reports every
/// mistake in it; see [`located::read`].
pub(super) fn read_compiled<S: DeserializeOwned, T>(
    root: &mut Node,
    path: &[usize],
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
    mut compile: impl FnMut(S) -> Result<T, Vec<FieldError>>,
) -> Option<T> {
    let read_once = |reader: Reader<'_>| {
        let source = S::deserialize(reader).map_err(|error| vec![error])?;
        compile(source).map_err(|errors| {
            let errors = errors.into_iter();
            errors
                .map(|error| DeError::at(reader.node(), &error.path, error.message, error.at_key))
                .collect::<Vec<_>>()
        })
    };
    located::read(root, path, extent, &Known, read_once, texts, problems)
}

pub(super) fn read_criterion(
    root: &mut Node,
    path: &[usize],
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
    compiler: &mut PatternCompiler,
) -> Option<Criterion> {
    let node = root.follow(path).0;
    if WrittenCriterion::deserialize(Reader::new(node)).is_err()
        && let NodeValue::Map(map) = &node.value
        && let Some(at) = map.entries.iter().position(|entry| entry.key == "evaluate")
    {
        // Mistakes elsewhere in the criterion must not hide mistakes in its patterns.
        let mut compiler = compiler.clone();
        let compile = |source: WrittenEvaluator| source.compile(&mut compiler);
        read_compiled(
            root,
            &[path, &[at]].concat(),
            extent,
            texts,
            problems,
            compile,
        );
    }
    let compile = |source: WrittenCriterion| source.compile(compiler);
    read_compiled(root, path, extent, texts, problems, compile)
}

/// Reads a whole configuration. A section without a value counts as an empty section.
pub(super) fn read_sections<T: DeserializeOwned>(
    root: &mut Node,
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<T> {
    let read_once = |reader: Reader<'_>| {
        T::deserialize(reader.allowing_empty_sections()).map_err(|error| vec![error])
    };
    located::read(root, &[], extent, &Known, read_once, texts, problems)
}
