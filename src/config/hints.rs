//! Helps people whose configuration has keys or words of another format, or keys at the wrong
//! place. Knows the schema and the formats that people paste; knows nothing of how messages look.

use serde::de::DeserializeOwned;

use super::{foreign_formats, keys};
use crate::evaluate::{attempt, stands_for};
use crate::located::{self, Extent, Hints, Node, Problems, Reader, Rewrite, Texts};

struct Known;

impl Hints for Known {
    fn document(&self) -> &'static str {
        "the configuration"
    }

    fn rewrite_key(&self, key: &str, value: Option<&Node>, siblings: &Node) -> Option<Rewrite> {
        foreign_formats::rewrite_key(key, value, siblings)
    }

    fn rewrite_word(&self, word: &str) -> Option<String> {
        foreign_formats::rewrite_word(word)
    }

    fn replaces(&self, refused: &str, missing: &str) -> bool {
        foreign_formats::is_wrapper(refused) || stands_for(refused, missing)
    }

    fn paths_of(&self, key: &str) -> Vec<String> {
        keys::known()
            .iter()
            .map(|known| known.path.join("."))
            .filter(|path| path == key || path.rsplit('.').next() == Some(key))
            .collect()
    }
}

/// Reads the node at the end of a path and reports every mistake in it; see [`located::read`].
pub(super) fn read<T: DeserializeOwned>(
    root: &mut Node,
    path: &[usize],
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<T> {
    let deserialize = |reader: Reader<'_>| attempt(|| T::deserialize(reader));
    located::read(root, path, extent, &Known, deserialize, texts, problems)
}

/// Reads a whole configuration, in which a section with nothing behind its key is empty.
pub(super) fn read_sections<T: DeserializeOwned>(
    root: &mut Node,
    extent: Extent,
    texts: &Texts,
    problems: &mut Problems,
) -> Option<T> {
    let deserialize = |reader: Reader<'_>| T::deserialize(reader.allowing_empty_sections());
    located::read(root, &[], extent, &Known, deserialize, texts, problems)
}
