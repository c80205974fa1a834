//! Follows the worked examples of CONTRIBUTING.md literally, and writes the resulting source tree
//! to `target/tmp/contributing`. `.ci/extended` builds that tree and runs the tests of the
//! examples. This test proves only that every file and line named in the examples exists.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const PAGE: &str = include_str!("../../CONTRIBUTING.md");

/// One block of code and where it belongs.
struct Step<'a> {
    file: &'a str,
    place: Place<'a>,
    code: String,
}

enum Place<'a> {
    NewFile,
    Before(&'a str),
    After(&'a str),
}

fn steps() -> Vec<Step<'static>> {
    let steps: Vec<Step<'_>> = PAGE
        .split("<!-- ")
        .skip(1)
        .map(|block| {
            let (instruction, rest) = block.split_once(" -->\n").expect("a whole comment");
            let code = rest
                .split_once('\n')
                .and_then(|(_, code)| code.split_once("\n```\n"))
                .map(|(code, _)| format!("{code}\n"))
                .expect("a block of code follows");
            let (verb, target) = instruction
                .split_once(": ")
                .expect("`create:` or `insert:`");
            let (file, place) = match (verb, target.split_once(", ")) {
                ("create", None) => (target, Place::NewFile),
                ("insert", Some((file, place))) => match place.split_once(": ") {
                    Some(("before", line)) => (file, Place::Before(line)),
                    Some(("after", line)) => (file, Place::After(line)),
                    _ => panic!("`before:` or `after:` a line: {place}"),
                },
                _ => panic!("`create:` or `insert:`: {instruction}"),
            };
            Step { file, place, code }
        })
        .collect();
    assert!(steps.len() >= 10, "the examples have steps");
    steps
}

/// Inserts the code before or after the only line with this text.
fn insert(text: &str, line: &str, code: &str, after: bool) -> Result<String, String> {
    let found: Vec<usize> = text
        .split_inclusive('\n')
        .scan(0, |start, candidate| {
            let at = *start;
            *start += candidate.len();
            Some((at, candidate.trim_end_matches('\n')))
        })
        .filter(|(_, candidate)| *candidate == line)
        .map(|(at, _)| at)
        .collect();
    let [at] = found[..] else {
        return Err(format!("{} lines read `{line}`, expected one", found.len()));
    };
    let at = if after { at + line.len() + 1 } else { at };
    Ok(format!("{}{code}{}", &text[..at], &text[at..]))
}

fn copy_of_the_repository() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("contributing");
    let _ = fs::remove_dir_all(&copy);
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .expect("git lists the files of the repository");
    assert!(listed.status.success(), "git ls-files");
    for file in String::from_utf8_lossy(&listed.stdout).lines() {
        let (from, to) = (root.join(file), copy.join(file));
        if from.is_file() {
            fs::create_dir_all(to.parent().expect("below the copy")).unwrap();
            fs::copy(from, to).unwrap();
        }
    }
    copy
}

#[test]
fn every_step_of_the_examples_can_be_taken() {
    let copy = copy_of_the_repository();
    let mut wrong = Vec::new();
    for Step { file, place, code } in steps() {
        let path = copy.join(file);
        let written = match place {
            Place::NewFile if path.exists() => Err("exists already".to_owned()),
            Place::NewFile => Ok(code),
            Place::Before(line) => insert(
                &fs::read_to_string(&path).unwrap_or_default(),
                line,
                &code,
                false,
            ),
            Place::After(line) => insert(
                &fs::read_to_string(&path).unwrap_or_default(),
                line,
                &code,
                true,
            ),
        };
        match written {
            Ok(text) => fs::write(&path, text).unwrap(),
            Err(reason) => wrong.push(format!("{file}: {reason}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
