//! Runs the cases of `tests/corpus/*.yaml` through `judge`. A case has calls, a criterion and the
//! expected answer, and contains only the fields that it tests. Does not prove how spans become
//! calls, or where an error is reported in a file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use judge::evaluate::{
    Criterion, Evaluation, Expectation, Expectations, ExpectedTool, Explain, FromSpans, Names,
    Verdict, WrittenEvaluator,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::support::calls::{Written, judged};

/// Returns the name (without `.yaml`) and the text of each file in a folder of the corpus.
pub(crate) fn yaml_files(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(crate::ROOT).join("tests/corpus").join(folder);
    let mut files: Vec<(String, String)> = fs::read_dir(folder)
        .expect("the corpus is there")
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "yaml")
        })
        .map(|path| {
            let name = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let text = fs::read_to_string(&path).expect("a readable file");
            (name, text)
        })
        .collect();
    files.sort();
    files
}

#[test]
fn every_evaluator_has_a_file() {
    let files = yaml_files("");
    for path in fs::read_dir("evaluate/evaluators").expect("the folder of evaluators") {
        let path = path.expect("a readable folder").path();
        let name = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        assert!(
            name == "mod" || files.iter().any(|(file, _)| *file == name),
            "tests/corpus/{name}.yaml is missing"
        );
    }
}

/// The expectations of one case. The case also contains the trajectory's fields, so the map is
/// split by key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    name: String,
    /// Complete criteria, in addition to the criterion whose fields the case itself contains.
    #[serde(default)]
    criteria: Vec<Value>,
    #[serde(default)]
    explain_values: bool,
    #[serde(default)]
    from_spans: FromSpans,
    /// The entries of the cases file.
    #[serde(default)]
    examples: Vec<Value>,
    /// The expected fields of every evaluation, in order. A single evaluation needs no list.
    #[serde(default)]
    answers: Option<Vec<Map<String, Value>>>,
    /// A text that the error contains if the criterion must be rejected.
    #[serde(default)]
    refused: Option<String>,
    /// A text that each warning contains, in order.
    #[serde(default)]
    warnings: Option<Vec<String>>,
}

const TRAJECTORY: [&str; 13] = [
    "calls",
    "turns",
    "cut_short",
    "from_messages",
    "service",
    "root",
    "agent",
    "attributes",
    "nodes",
    "runs",
    "models",
    "total",
    "others_have_models",
];
const CRITERION: [&str; 5] = ["evaluate", "threshold", "select", "scope", "severity"];
const ANSWER: [&str; 9] = [
    "label",
    "score",
    "explanation",
    "unsaid",
    "details",
    "error",
    "offending",
    "judged",
    "criterion",
];

#[test]
fn every_case_is_answered_as_it_is_written() {
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    for (file, text) in yaml_files("") {
        let cases: Vec<Map<String, Value>> =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"));
        for case in cases {
            n_cases += 1;
            let name = case
                .get("name")
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned();
            if let Err(error) = run(case) {
                wrong.push(format!("{file}: {name}: {error}"));
            }
        }
    }
    assert!(n_cases > 100, "only {n_cases} cases were found");
    assert!(
        wrong.is_empty(),
        "{} of {n_cases} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

fn run(case: Map<String, Value>) -> Result<(), String> {
    let (mut written, mut criterion, mut answer, mut rest) =
        (Map::new(), Map::new(), Map::new(), Map::new());
    for (key, value) in case {
        let part = match key.as_str() {
            key if TRAJECTORY.contains(&key) => &mut written,
            key if CRITERION.contains(&key) => &mut criterion,
            key if ANSWER.contains(&key) => &mut answer,
            _ => &mut rest,
        };
        part.insert(key, value);
    }
    let expected: Expected =
        serde_json::from_value(Value::Object(rest)).map_err(|error| error.to_string())?;
    let written: Written =
        serde_json::from_value(Value::Object(written)).map_err(|error| error.to_string())?;
    let mut criteria = expected.criteria;
    if !criterion.is_empty() {
        criterion.insert("name".to_owned(), json!(expected.name));
        criteria.push(Value::Object(criterion));
    }
    let loaded: Result<Vec<Arc<Criterion>>, String> = criteria
        .into_iter()
        .map(|criterion| serde_json::from_value(criterion).map_err(|error| error.to_string()))
        .collect();
    let loaded = match (loaded, &expected.refused) {
        (Err(error), Some(refused)) => return contains(&error, refused),
        (Ok(_), Some(_)) => return Err("was loaded".to_owned()),
        (loaded, None) => loaded?,
    };
    if let Some(expected) = &expected.warnings {
        let warnings: Vec<String> = loaded
            .iter()
            .flat_map(|criterion| criterion.warnings())
            .collect();
        if warnings.len() != expected.len() {
            return Err(format!("warnings {warnings:?}"));
        }
        warnings
            .iter()
            .zip(expected)
            .try_for_each(|(warning, expected)| contains(warning, expected))?;
    }
    let answers = match expected.answers {
        Some(answers) => answers,
        None if answer.is_empty() => {
            return expected
                .warnings
                .map(|_| ())
                .ok_or_else(|| "expects nothing".to_owned());
        }
        None => vec![answer],
    };
    let explain = Explain {
        values: expected.explain_values,
        ..Explain::default()
    };
    let evaluations = judged(
        &loaded,
        &expectations(expected.from_spans, expected.examples)?,
        &written,
        &explain,
    );
    if evaluations.len() != answers.len() {
        return Err(format!(
            "{} evaluations, {} expected",
            evaluations.len(),
            answers.len()
        ));
    }
    evaluations
        .iter()
        .zip(&answers)
        .try_for_each(|(evaluation, answer)| {
            compare(evaluation, answer)?;
            check_alignment(evaluation)
        })
}

/// Checks that the alignment rows match the verdict and refer only to calls of the trajectory.
fn check_alignment(evaluation: &Evaluation) -> Result<(), String> {
    let rows = evaluation.alignment();
    let n_calls = evaluation.trajectory.tool_calls.len();
    let is_fault = rows.iter().any(|row| row.fault);
    let is_clean_pass = evaluation.verdict == Verdict::Pass && evaluation.value == Some(1.0);
    let expects_something = evaluation.n_expected > 0;
    let is_wrong = rows
        .iter()
        .flat_map(|row| &row.calls)
        .any(|call| *call >= n_calls)
        || is_clean_pass && is_fault
        || evaluation.verdict == Verdict::Fail && expects_something && !is_fault;
    if is_wrong {
        Err(format!(
            "{} with the rows {rows:#?}",
            evaluation.verdict.as_str()
        ))
    } else {
        Ok(())
    }
}

fn expectations(from_spans: FromSpans, entries: Vec<Value>) -> Result<Expectations, String> {
    let cases = entries.into_iter().map(example).collect::<Result<_, _>>()?;
    Ok(Expectations {
        from_spans,
        max_size: 16 << 10,
        cases,
    })
}

/// Parses an entry of an example file. Returns the id of its run and the expectation.
fn example(mut entry: Value) -> Result<(String, Expectation), String> {
    fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        serde_json::from_value(value).map_err(|error| error.to_string())
    }
    let mut field = |key: &str| entry.as_object_mut()?.shift_remove(key);
    let id = field("id").unwrap_or_default();
    let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
    let expectation = if let Some(evaluate) = field("evaluate") {
        let evaluator: WrittenEvaluator = read(evaluate.clone())?;
        let written = evaluate[evaluator.name()].as_object();
        let keys = written.into_iter().flat_map(Map::keys).map(String::as_str);
        Expectation::of_evaluator(Some(id.clone()), &evaluator, keys)
    } else if let Some(output) = field("expected_output") {
        Expectation::of_output(Some(id.clone()), &read::<Names>(output)?)
    } else {
        let tools: Vec<ExpectedTool> = read(field("expected_tools").unwrap_or_default())?;
        Expectation::of_tools(Some(id.clone()), &tools, false)
    };
    Ok((id, expectation))
}

fn compare(evaluation: &Evaluation, answer: &Map<String, Value>) -> Result<(), String> {
    for (key, expected) in answer {
        let found = match key.as_str() {
            "label" => json!(evaluation.verdict.as_str()),
            "score" => json!(evaluation.value),
            "criterion" => json!(evaluation.criterion.name()),
            "offending" => json!(evaluation.offending()),
            "judged" => json!(
                evaluation
                    .trajectory
                    .tool_calls
                    .iter()
                    .map(|call| &*call.name)
                    .collect::<Vec<_>>()
            ),
            "error" => json!(evaluation.error.as_ref().map(|error| error.kind)),
            "explanation" => {
                contains(
                    evaluation.explanation(),
                    expected.as_str().unwrap_or_default(),
                )?;
                continue;
            }
            "unsaid" => {
                let unsaid = expected.as_str().unwrap_or_default();
                match contains(evaluation.explanation(), unsaid) {
                    Ok(()) => return Err(format!("says {}", evaluation.explanation())),
                    Err(_) => continue,
                }
            }
            "details" => {
                let fields = expected.as_object().into_iter().flatten();
                let differing = fields
                    .clone()
                    .find(|(field, value)| evaluation.details().get(field.as_str()) != Some(value));
                match differing {
                    Some((field, _)) => {
                        return Err(format!("details.{field} in {}", evaluation.details()));
                    }
                    None => continue,
                }
            }
            other => return Err(format!("`{other}` cannot be compared")),
        };
        let same = match (found.as_f64(), expected.as_f64()) {
            (Some(found), Some(expected)) => found == expected,
            _ => found == *expected,
        };
        if !same {
            return Err(format!(
                "{key} is {found}, expected {expected} ({}; {})",
                evaluation.verdict.as_str(),
                evaluation.explanation()
            ));
        }
    }
    Ok(())
}

fn contains(text: &str, part: &str) -> Result<(), String> {
    if text.contains(part) {
        Ok(())
    } else {
        Err(format!("`{text}` does not contain `{part}`"))
    }
}
