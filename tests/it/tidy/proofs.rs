//! Checks the table of attacks in `tests/hostile/README.md`: every row names a proof, every test
//! and case that it names exists, and it names every case that needs no special setup. A test is a
//! function, or a case of `tests/corpus`.

use std::path::Path;

use super::{read, walk};

/// Returns the texts between pairs of a mark.
fn between(text: &str, mark: char) -> impl Iterator<Item = &str> {
    text.split(mark).skip(1).step_by(2)
}

#[test]
fn what_the_table_of_attacks_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = read(&root.join("tests/hostile/README.md"));
    let attacks = read(&root.join("tests/hostile/attacks.rs"));
    let code: String = ["src", "tests"]
        .iter()
        .flat_map(|folder| walk(&root.join(folder)))
        .filter(|path| {
            let extension = path.extension().unwrap_or_default();
            extension == "rs" || extension == "yaml"
        })
        .map(|path| read(&path))
        .collect();
    let mut n_tests = 0;
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, what, cases, tests, _] = cells[..] else {
            panic!("three columns: {row}");
        };
        let proofs = between(cases, '"').count() + between(tests, '`').count();
        assert!(
            proofs > 0 || what.starts_with("What") || what.starts_with('-'),
            "no proof: {what}"
        );
        for case in between(cases, '"') {
            assert!(attacks.contains(&format!("\"{case}\"")), "no case {case}");
        }
        for test in between(tests, '`') {
            let texts = [format!("fn {test}("), format!("- name: {test}\n")];
            let exists = texts.iter().any(|text| code.contains(text));
            assert!(exists, "no test {test}");
            n_tests += 1;
        }
    }
    assert!(n_tests > 20);
    for line in attacks.lines().filter(|line| line.starts_with("    (\"")) {
        let case = between(line, '"').next().unwrap_or_default();
        let is_named = table.contains(&format!("\"{case}\""));
        assert!(is_named || case == "nothing", "not in the table: {case}");
    }
}
