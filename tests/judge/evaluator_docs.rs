//! Compares `docs/evaluators.md` and the descriptions in the schema with their sources: the doc
//! comments of the evaluators and, for the page, the introduction in this file. Does not prove that
//! the comments are true; `corpus` tests the evaluators themselves.

use std::fs;

use judge::evaluate::Criterion;
use serde_json::Value;

use crate::support::doc_line;
use crate::support::pages::{assert_current, read};

const INTRODUCTION: &str = "\
# Evaluators

Read this page if you write a criterion. (`tests/judge/evaluator_docs.rs` generates it.)

A criterion has one of these evaluators under `evaluate`. The score is between 0 and 1; the label is
`pass` if the score reaches the criterion's `threshold` (default 1.0), else `fail`. Two more labels
say that the run neither passed nor failed:

- `not_evaluated`: for example, the trace was cut short and its missing part could change the
  verdict, or arguments or results that the criterion reads were not captured.
- `error`: the criterion cannot be applied to a call that was made, or the run has an expectation
  that cannot be used ([expectations](expectations.md)).

*Details* are a field of a score in [JSON](design.md#machine-readable-lines).

The outcome of a check is *open* if it is unknown. If an open outcome could change the label, the
label is `not_evaluated`. Some evaluators reproduce an evaluator of another tool
([conformance](../tests/conformance/README.md)).

If a call is recorded without arguments, either it had none or they were not captured. spanscore
decides by the other calls of the run from the same instrumentation: if one of those has arguments,
the call had none; else the value is unknown. The same applies to results. Two calls are from the
same instrumentation if they have the same convention and service, and for `gen_ai`, `openinference`
and `mcp` the same instrumentation scope.

Explanations show names, counts and positions. Values of arguments and results appear only with
`explain.values: true`. A value in parentheses after a parameter's name is its default.

A trace was *cut short* if its
[completeness](reading-scores.md#completeness-did-spanscore-see-the-whole-run) says so. It gets a
verdict only if its missing part cannot change that verdict. Below, each evaluator says
what further calls can change. A late span can also show that two calls are one (reported by
client and server), that a call is a hand-off or had other arguments, that two clocks differ, or
that another span is the evaluated span. Therefore, in such a trace:

- The order of two calls is certain only if both lie below the same root, or below the same missing
  parent that OTLP flags mark as local.
- If all calls below a missing parent have the same name, the parent may be a wrapper that reports
  the same call. Below such parents, all calls of one name count as one call, or as none if another
  call of that name is certain. The one call's position and result are unknown; so are its
  arguments, unless they are a map. A call without a reliable name (none, or only a span's name
  that may be a class name) counts as unseen; so does `transfer_to_X` if no agent X was seen yet.
- Absent arguments and results may still arrive; arguments that are not a map may change.
- A criterion that selects by `agent`, `root` or `attributes` gives no verdict until the root is
  present and is an agent run that has ended. A criterion that selects by `service` gives no verdict
  while a parent that is not marked as local is missing. With `scope: agent`, an agent run gets no
  verdict while an agent run that encloses it could be missing.
";

fn names() -> Vec<String> {
    let source = read("src/judge/evaluate/evaluators/mod.rs");
    let (_, list) = source
        .split_once("\nevaluators! {")
        .expect("the list of evaluators");
    let lines = list
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with('}'));
    lines
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|line| !line.starts_with("///"))
        .map(snake_case)
        .collect()
}

fn snake_case(variant: &str) -> String {
    let mut name = String::new();
    for c in variant.chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}

/// Returns the doc comment of the evaluator's struct, which contains the headings.
fn doc_of(name: &str) -> Vec<String> {
    let source = read(&format!("src/judge/evaluate/evaluators/{name}.rs"));
    let mut doc = Vec::new();
    for line in source.lines() {
        match doc_line(line) {
            Some(text) => doc.push(text.to_owned()),
            None if doc.iter().any(|line| line == "# What it checks") => return doc,
            None => doc.clear(),
        }
    }
    panic!("src/judge/evaluate/evaluators/{name}.rs: no doc comment with the headings");
}

/// Returns the doc comment of the conditions under `where`.
fn doc_of_values() -> String {
    let source = read("src/judge/evaluate/parameters/condition.rs");
    let (before, _) = source
        .split_once(
            "\n#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize, JsonSchema)]",
        )
        .unwrap();
    let mut doc: Vec<_> = before.lines().rev().map_while(doc_line).collect();
    doc.reverse();
    doc.join("\n")
}

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for name in names() {
        page.push_str(&format!("\n## `{name}`\n\n"));
        for line in doc_of(&name) {
            let heading = if line.starts_with("# ") { "##" } else { "" };
            page.push_str(&format!("{heading}{line}\n"));
        }
    }
    page.push_str(&format!("\n## Values\n\n{}\n", doc_of_values()));
    page
}

#[test]
fn the_page_is_what_the_doc_comments_say() {
    let page = page();
    let n_files = fs::read_dir("evaluate/evaluators").unwrap().count();
    assert_eq!(
        names().len(),
        n_files - 1,
        "one file per evaluator, and mod.rs"
    );
    assert_current("docs/evaluators.md", &page);
}

#[test]
fn the_schema_describes_every_evaluator_with_its_doc_comment() {
    let schema = schemars::schema_for!(Criterion).to_value();
    let definitions = schema["$defs"].as_object().unwrap();
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for name in names() {
        let of_name = definitions
            .iter()
            .find(|(definition, _)| snake_case(definition) == name);
        let description = of_name
            .and_then(|(_, definition)| definition["description"].as_str())
            .unwrap_or_default();
        assert_eq!(flat(description), flat(&doc_of(&name).join("\n")), "{name}");
    }
}

#[test]
fn the_schema_accepts_what_an_evaluator_is_written_as() {
    let schema = schemars::schema_for!(Criterion).to_value();
    let properties = |definition: &str| -> Vec<String> {
        let fields = schema["$defs"][definition]["properties"]
            .as_object()
            .unwrap_or_else(|| panic!("{definition}: {schema:#}"));
        fields.keys().cloned().collect()
    };
    assert_eq!(properties("ToolCallOrder"), ["tool_calls_order", "strict"]);
    assert_eq!(properties("ToolOrder"), ["expected_tools", "exact_match"]);
    assert_eq!(properties("RequiredCall").len(), 11);
    assert_eq!(
        schema["$defs"]["ToolCallArgs"]["additionalProperties"],
        Value::Bool(false)
    );
    assert_eq!(schema["required"], serde_json::json!(["name", "evaluate"]));
}
