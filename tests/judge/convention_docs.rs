//! Compares `docs/conventions.md` with its sources: the doc comments and tables of the conventions,
//! and the introduction in this file. Also compares each section of the page with the attributes
//! that the convention's code reads. Does not prove that a sentence about an attribute is true.

use std::collections::BTreeMap;

use crate::support::doc_line;
use crate::support::pages::{assert_current, read};

const FOLDER: &str = "src/judge/extract/spans/conventions";

const INTRODUCTION: &str = "\
# Conventions

`tests/judge/convention_docs.rs` makes this page from the tables and doc comments of
`src/judge/extract/spans/conventions/`.

A convention is one way of recording tool calls, agent runs and model calls in spans. spanscore
compares a span with the conventions in the order of this page. The first one that recognises a call
names it: the field `convention` of `inspect` and of `/v1/evaluate` is a heading below.
[frameworks.md](frameworks.md) lists the conventions of each framework. If your convention is not
here, define it with `tools.conventions` and `tools.name_attributes` in the
[configuration](../deploy/spanscore.yaml).

Words are compared in any case. If several attributes are listed, the first one that is present
counts. A call failed if it has a mark in the row *Error*, the status ERROR, or one of the shared
marks [at the end](#shared-attributes).
";

/// The rows of a convention's table, and the field that each row shows.
const ROWS: &[(&str, &str)] = &[
    ("tool", "Tool call"),
    ("agent", "Agent run"),
    ("model", "Model call"),
    ("name", "Name"),
    ("args", "Arguments"),
    ("result", "Result"),
    ("call_id", "Call id"),
    ("failed", "Error"),
    ("caller", "Caller"),
    ("agent_name", "Agent"),
];

/// The attribute key of each constant.
struct Keys(BTreeMap<String, String>);

impl Keys {
    fn read() -> Self {
        let source = read("src/judge/extract/spans/keys.rs");
        let rows = source.lines().filter_map(|line| {
            let (name, rest) = line.trim().split_once(" = \"")?;
            let (key, _) = rest.split_once('"')?;
            let is_constant = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
            name.chars().all(is_constant).then_some((name, key))
        });
        let keys: BTreeMap<_, _> = rows
            .map(|(name, key)| (name.to_owned(), key.to_owned()))
            .collect();
        assert!(keys.len() > 100, "the table of keys was not found");
        Self(keys)
    }

    /// Returns the attributes that some code names as `keys::X`, in the order of the code.
    fn named_in(&self, code: &str) -> Vec<&str> {
        let names = code.split("keys::").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        });
        let mut found: Vec<&str> = Vec::new();
        for name in names {
            if let Some(key) = self.0.get(name)
                && !found.contains(&key.as_str())
            {
                found.push(key);
            }
        }
        found
    }
}

struct Section {
    name: String,
    introduction: String,
    /// Rows that the doc comment contains, such as `- Error: …`.
    told: BTreeMap<String, String>,
    /// The convention's constant and its kinds, or the whole file if the constant is no `row(…)`.
    code: String,
    /// The same as `code`, but without the file's tests.
    whole: String,
}

/// Returns the file and the constant of each convention, in the order of precedence.
fn in_order() -> Vec<(String, String)> {
    let table = read(&format!("{FOLDER}/mod.rs"));
    let (_, table) = table
        .split_once("pub(crate) const CONVENTIONS")
        .expect("mod.rs has the table");
    let rows = table.lines().skip(1).take_while(|line| *line != "];");
    rows.filter_map(|line| line.trim().trim_end_matches(',').split_once("::"))
        .map(|(file, constant)| (file.to_owned(), constant.to_owned()))
        .collect()
}

impl Section {
    fn read(file: &str, constant: &str) -> Self {
        let source = read(&format!("{FOLDER}/{file}.rs"));
        let lines: Vec<&str> = source.lines().collect();
        let start = lines
            .iter()
            .position(|line| line.starts_with(&format!("pub(super) const {constant}: Convention")))
            .unwrap_or_else(|| panic!("{file}.rs has no {constant}"));
        let n_doc = lines[..start]
            .iter()
            .rev()
            .take_while(|line| doc_line(line).is_some())
            .count();
        let doc = lines[start - n_doc..start].iter();
        let (introduction, told) = parted(doc.filter_map(|line| doc_line(line)));
        let end = start
            + lines[start..]
                .iter()
                .position(|line| line.starts_with(['}', ')']))
                .unwrap();
        let mut own = lines[start..=end].join("\n");
        let kinds = format!("const {constant}_KINDS: Kinds = Kinds {{");
        if let Some(start) = lines.iter().position(|line| *line == kinds) {
            let kinds = lines[start..].iter().take_while(|line| **line != "};");
            kinds.for_each(|line| own.extend(["\n", line]));
        }
        let is_row = own.contains("row(");
        let (introduction, code) = if is_row {
            (introduction, own.clone())
        } else {
            let header = lines.iter().map_while(|line| line.strip_prefix("//!"));
            let header = header.map(str::trim).collect::<Vec<_>>().join("\n");
            let header = header.trim_start_matches("Pure. ").to_owned();
            let introduction = Some(introduction).filter(|text| !text.is_empty());
            (introduction.unwrap_or(header), source.clone())
        };
        let name = match own.split_once("name: \"") {
            Some((_, rest)) => rest,
            None => own
                .split_once("row(")
                .expect("a row begins with its name")
                .1
                .trim_start_matches([' ', '\n', '"']),
        };
        Self {
            name: name.split('"').next().unwrap_or_default().to_owned(),
            introduction,
            told,
            whole: if is_row {
                own
            } else {
                source
                    .split("#[cfg(test)]")
                    .next()
                    .unwrap_or_default()
                    .to_owned()
            },
            code,
        }
    }

    /// Returns the text of a field in a `Kinds { … }` or `SpanCall { … }` literal.
    fn field(&self, field: &str) -> Option<&str> {
        let start = ["Kinds {", "SpanCall {"].iter().find_map(|literal| {
            let at = self.code.match_indices(literal).find(|(at, _)| {
                let rest = &self.code[*at..];
                rest.contains(&format!(" {field}: ")) && !rest.starts_with("SpanCall {\n    }")
            })?;
            Some(at.0)
        })?;
        let code = &self.code[start..];
        let at = code.find(&format!(" {field}: "))? + field.len() + 3;
        let (mut depth, rest) = (0, &code[at..]);
        let end = rest.find(|c: char| {
            match c {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            depth < 0 || depth == 0 && c == ','
        });
        Some(rest[..end.unwrap_or(rest.len())].trim())
    }

    fn row(&self, field: &str, title: &str, keys: &Keys) -> Option<String> {
        if let Some(text) = self.told.get(title) {
            return Some(text.clone());
        }
        match field {
            "tool" | "agent" | "model" => {
                let words = self.field(field)?;
                let kind = match self.field("kind") {
                    Some(kind) => keys.named_in(kind),
                    None => keys.named_in(self.code.split("Kinds {").next()?),
                };
                let words: Vec<_> = words.split('"').skip(1).step_by(2).map(code).collect();
                (!words.is_empty()).then_some(format!(
                    "{} is {}",
                    code(kind.first()?),
                    words.join(" or ")
                ))
            }
            "caller" => self
                .attributes("caller", keys)
                .or_else(|| self.attributes("agent", keys)),
            "name" => {
                let mut text = self.attributes("name", keys).unwrap_or_default();
                if self.code.contains(" name_in_span: ") {
                    let lead = if text.is_empty() { "" } else { ", else " };
                    text.push_str(&format!("{lead}in the span's name"));
                } else if self.code.contains("poor_name") {
                    let lead = if text.is_empty() { "" } else { ". " };
                    text.push_str(&format!(
                        "{lead}If nothing else names the call, its name is taken from the span's \
                         name"
                    ));
                }
                (!text.is_empty()).then_some(text)
            }
            _ => self.attributes(field, keys),
        }
    }

    fn attributes(&self, field: &str, keys: &Keys) -> Option<String> {
        let mut text = self.field(field)?.to_owned();
        // A list may be defined by a separate constant.
        for constant in self.code.split("\nconst ").skip(1) {
            let (name, rest) = constant.split_once(": &[KeyId] = ").unwrap_or_default();
            if !name.is_empty() && text.contains(name) {
                text.push_str(rest.split(';').next()?);
            }
        }
        let named: Vec<_> = keys.named_in(&text).into_iter().map(code).collect();
        (!named.is_empty()).then(|| named.join(", "))
    }

    fn text(&self, keys: &Keys) -> String {
        let mut text = format!("\n## `{}`\n\n{}\n", self.name, self.introduction);
        let rows = ROWS.iter().filter_map(|(field, title)| {
            let row = self.row(field, title, keys)?;
            Some(format!("| {title} | {row} |\n"))
        });
        let rows: String = rows.collect();
        if !rows.is_empty() {
            text.push_str(&format!("\n| | |\n|---|---|\n{rows}"));
        }
        text
    }
}

/// Splits a doc comment into its paragraphs and its items `- Title: text`.
fn parted<'a>(lines: impl Iterator<Item = &'a str>) -> (String, BTreeMap<String, String>) {
    let (mut paragraphs, mut told) = (Vec::new(), BTreeMap::new());
    let mut title = None;
    for line in lines {
        if let Some(item) = line.strip_prefix("- ") {
            let (head, text) = item.split_once(": ").expect("an item is `Title: text`");
            let is_row = ROWS.iter().any(|(_, title)| *title == head);
            assert!(is_row, "`{head}` is no row of the page");
            told.insert(head.to_owned(), text.to_owned());
            title = Some(head);
        } else if let Some(title) = title {
            let text = told.get_mut(title).expect("was inserted");
            text.push(' ');
            text.push_str(line.trim());
        } else {
            paragraphs.push(line);
        }
    }
    for text in told.values_mut() {
        *text = text.trim_end_matches('.').to_owned();
    }
    (paragraphs.join("\n").trim().to_owned(), told)
}

fn code(text: impl AsRef<str>) -> String {
    format!("`{}`", text.as_ref())
}

/// Returns the section about the attributes that every convention reads, from the lists in
/// `keys.rs`.
fn shared(keys: &Keys) -> String {
    let source = read("src/judge/extract/spans/keys.rs");
    let list = |constant: &str| -> String {
        let (_, rest) = source
            .split_once(&format!("const {constant}: "))
            .unwrap_or_else(|| panic!("keys.rs has no {constant}"));
        let (_, rest) = rest.split_once('=').expect("a constant has a value");
        let list = rest.split(';').next().unwrap_or_default();
        let is_constant = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let mut found = Vec::new();
        for word in list.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if word.chars().all(is_constant)
                && let Some(key) = keys.0.get(word)
                // Exclude our own key for the body of a log record.
                && !key.starts_with("spanscore.")
            {
                found.push(code(key));
            }
        }
        found.join(", ")
    };
    let mut text = "\n## Shared attributes\n\n\
        If a call lacks a part, spanscore reads it from these attributes, whatever the call's \
        convention,\nand then from the messages of the models around it.\n\n| | |\n|---|---|\n"
        .to_owned();
    for (title, constant) in [
        ("Name", "TOOL_NAMES"),
        ("Arguments", "ARGS"),
        ("Result", "RESULTS"),
        ("Call id", "CALL_IDS"),
        ("Agent", "AGENTS"),
        ("Session", "SESSIONS"),
        ("Reply of a model", "REPLIES"),
        ("Tokens that a model read", "INPUT_TOKENS"),
        ("Tokens that it wrote", "OUTPUT_TOKENS"),
        ("Both together, where one is not recorded", "TOTAL_TOKENS"),
        ("Input from a cache", "CACHE_READS"),
        ("Input written to a cache", "CACHE_WRITES"),
    ] {
        text.push_str(&format!("| {title} | {} |\n", list(constant)));
    }
    text.push_str(&format!(
        "| Error | `error.type`, an event `exception`, `tool.success` = `false`, {} |\n",
        failures(&source, keys)
    ));
    text
}

/// Returns the rows `(KEY, "word")` of the shared failure marks.
fn failures(source: &str, keys: &Keys) -> String {
    let (_, rest) = source
        .split_once("const FAILURES: ")
        .expect("keys.rs has FAILURES");
    let rows = rest.split(';').next().unwrap_or_default();
    let rows = rows.lines().filter_map(|line| {
        let (key, word) = line.trim().strip_prefix('(')?.split_once(", \"")?;
        let word = word.split('"').next()?;
        Some(format!("{} = `{word}`", code(keys.0.get(key)?)))
    });
    rows.collect::<Vec<_>>().join(", ")
}

#[test]
fn the_page_is_what_the_tables_and_doc_comments_say() {
    let keys = Keys::read();
    let mut page = INTRODUCTION.to_owned();
    for (file, constant) in in_order() {
        page.push_str(&Section::read(&file, &constant).text(&keys));
    }
    page.push_str(&shared(&keys));
    assert_current("docs/conventions.md", &page);
}

#[test]
fn a_section_names_every_attribute_that_its_code_reads() {
    let keys = Keys::read();
    let mut wrong = Vec::new();
    let mut n_read = 0;
    for (file, constant) in in_order() {
        let section = Section::read(&file, &constant);
        let text = section.text(&keys);
        for key in keys.named_in(&section.whole) {
            // Exclude our own mark for a cut value, which no sender sets.
            if key.starts_with("spanscore.lost.") {
                continue;
            }
            n_read += 1;
            if !text.contains(key) {
                wrong.push(format!(
                    "{file}.rs reads `{key}`: say for what, `- Error: …`"
                ));
            }
        }
    }
    assert!(n_read > 100, "only {n_read} attributes were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_function_that_decides_is_described() {
    let functions = [
        ("is_call: Some", "Tool call"),
        ("agent_run: Some", "Agent run"),
        ("is_model: Some", "Model call"),
        ("failed: Some", "Error"),
    ];
    for (file, constant) in in_order() {
        let section = Section::read(&file, &constant);
        for (function, title) in functions {
            assert!(
                !section.code.contains(&format!("    {function}"))
                    || section.told.contains_key(title),
                "{constant} has a function `{function}…`: describe it as `/// - {title}: …`"
            );
        }
    }
}
