//! The `expectations` section: the expectations of single runs, and the cases file that contains
//! them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use judge::evaluate::{self, Expectation, FromSpans};
use located::{Files, Node, Problem, Problems, TextKind, Texts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Config;
use super::examples::{self, Example};
use super::units::ByteSize;

/// The `expectations` section.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RunExpectations {
    /// Extent to which a run may choose its own judgement, by attributes on or above its evaluated
    /// span: not at all; by naming registered criteria (`spanscore.criteria`); or also by its own
    /// `evaluate` block (`spanscore.expect`). A run can only add criteria.
    pub from_spans: FromSpans,
    /// Maximum bytes of `spanscore.criteria` and `spanscore.expect` on one span, at least 1; if
    /// they are longer, the run's expectation gets the label `error`.
    pub max_size: ByteSize,
    /// Example file, relative to this file, in the format of `replay --examples`. Each entry is the
    /// expectation for the runs with its `test.case.id`.
    pub cases_file: Option<PathBuf>,
    /// The entries of the cases file.
    #[serde(skip)]
    pub cases: Vec<Expectation>,
}

impl Default for RunExpectations {
    fn default() -> Self {
        Self {
            from_spans: FromSpans::default(),
            max_size: ByteSize(16 << 10),
            cases_file: None,
            cases: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the expectations of single runs in the form that judging needs.
    pub fn expectations(&self) -> evaluate::Expectations {
        let RunExpectations {
            from_spans,
            max_size,
            cases,
            cases_file: _,
        } = &self.expectations;
        let cases = cases
            .iter()
            .filter_map(|case| Some((case.id.clone()?, case.clone())))
            .collect();
        evaluate::Expectations {
            from_spans: *from_spans,
            max_size: max_size.0,
            cases,
        }
    }
}

/// Reads the cases file of a configuration, and checks each case against the criteria. Returns the
/// path of the file, if it was read.
pub(super) fn read_cases(
    config: &mut Config,
    root: &Node,
    folder: &Path,
    files: &dyn Files,
    texts: &mut Texts,
    problems: &mut Problems,
    warnings: &mut Problems,
) -> Option<PathBuf> {
    let path = folder.join(config.expectations.cases_file.as_ref()?);
    let text = match files.read(&path) {
        Ok(text) => text,
        Err(error) => {
            let spot = root
                .find(&["expectations", "cases_file"])
                .map(|node| texts.spot(node.place));
            problems.push(
                Problem::new(format!("cannot read `{}`: {error}", path.display()), spot)
                    .label("named here"),
            );
            return None;
        }
    };
    let source = texts.add(path.display().to_string(), &text, TextKind::File);
    let criteria: Vec<_> = config.criteria.iter().cloned().map(Arc::new).collect();
    for Example { expectation, place } in examples::read_all(texts, source, false, problems) {
        let spot = Some(texts.spot(place));
        let Some(id) = &expectation.id else {
            let problem = Problem::new("this example has no `id`", spot);
            problems.push(problem.label(
                "entries for live runs need an id: add `id: …` with the `test.case.id` of the run",
            ));
            continue;
        };
        match expectation.check(&criteria) {
            Ok(found) => {
                for (criterion, warning) in found {
                    warnings.push(Problem::warning(
                        format!("example `{id}`, criterion `{criterion}`: {warning}"),
                        spot.clone(),
                    ));
                }
            }
            Err(unfit) => {
                let title = format!(
                    "example `{id}` does not fit criterion `{}`",
                    unfit.criterion
                );
                problems.push(Problem::new(title, spot).label(unfit.message));
            }
        }
        config.expectations.cases.push(expectation);
    }
    Some(path)
}
