//! Compares generated pages of the documentation with their source. Does not prove that the
//! sentences on the pages are true.

use std::fs;
use std::path::Path;

/// Panics if a page differs from its newly generated text, and prints where the new text is.
pub(crate) fn assert_current(path: &str, page: &str) {
    let checked_in = Path::new(crate::ROOT).join(path);
    if fs::read_to_string(checked_in).unwrap_or_default() == page {
        return;
    }
    let name = Path::new(path).file_name().expect("a path of a file");
    let current = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&current, page).unwrap();
    panic!("{path} is not current: copy {} over it", current.display());
}

pub(crate) fn read(path: &str) -> String {
    fs::read_to_string(Path::new(crate::ROOT).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}
