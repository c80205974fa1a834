//! The expectation of one run from an example file: the run's id, and the fields that it changes in
//! the criteria for that run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use text::counted;

use super::{Applied, Criterion, EXAMPLE, InvalidCriterion};
use crate::evaluate::comparison::score::EvaluationError;
use crate::evaluate::evaluators::{
    Efficiency, Evaluate, Evaluator, ExecutionOrder, ExpectedTool, ToolOrder, WrittenEvaluator,
};
use crate::evaluate::parameters::names::Names;
use crate::evaluate::parameters::pattern::{FieldError, PatternCompiler, PatternLimits};
use crate::extract::{CASE_ID, Trajectory};

/// The expectation of one run: fields that replace those of criteria with the same evaluator. All
/// other fields retain the criterion's values.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The [`CASE_ID`] of the run; without an id, the run is found by position.
    pub id: Option<String>,
    evaluator: &'static str,
    /// Fields in canonical form. `None` sets the field to its empty value, which the canonical form
    /// omits.
    fields: BTreeMap<String, Option<Value>>,
}

/// A criterion's rejection of the fields of an expectation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfit {
    /// The criterion's name.
    pub criterion: String,
    /// The mistake and, for most mistakes, its remedy.
    pub message: String,
}

impl Expectation {
    /// Creates an expectation for `tool_order` from `expected_tools`. `exact_match` forbids other
    /// calls even if the criterion allows them.
    pub fn of_tools(
        id: Option<String>,
        expected_tools: &[ExpectedTool],
        exact_match: bool,
    ) -> Self {
        let mut fields = vec![("expected_tools", json!(expected_tools))];
        if exact_match {
            fields.push(("exact_match", json!(true)));
        }
        Self::new(id, ToolOrder::NAME, fields)
    }

    /// Creates an expectation for `execution_order` from `expected_output`.
    pub fn of_output(id: Option<String>, expected_output: &Names) -> Self {
        let fields = vec![("expected_output", json!(expected_output))];
        Self::new(id, ExecutionOrder::NAME, fields)
    }

    fn new(id: Option<String>, evaluator: &'static str, fields: Vec<(&str, Value)>) -> Self {
        let fields = fields.into_iter();
        Self {
            id,
            evaluator,
            fields: fields
                .map(|(field, value)| (field.to_owned(), Some(value)))
                .collect(),
        }
    }

    /// Creates an expectation for any evaluator from `evaluate`. Only the fields named by `written`
    /// replace those of a criterion.
    pub fn of_evaluator<'a>(
        id: Option<String>,
        evaluator: &WrittenEvaluator,
        written: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let canonical = serde_json::to_value(evaluator).unwrap_or_default();
        let fields = &canonical[evaluator.name()];
        let fields = written
            .into_iter()
            .map(|field| (field.to_owned(), fields.get(field).cloned()))
            .collect();
        Self {
            id,
            evaluator: evaluator.name(),
            fields,
        }
    }

    /// Checks the expectation's fields against all criteria with the same evaluator or, if there
    /// are none, on their own (as [`EXAMPLE`]). Returns the warnings that the criteria did not have
    /// before, each with a criterion's name.
    ///
    /// # Errors
    /// Returns an error for the first criterion that rejects the fields.
    pub fn check(&self, criteria: &[Arc<Criterion>]) -> Result<Vec<(String, String)>, Unfit> {
        let mut replaced = Vec::new();
        for criterion in criteria.iter().filter(|criterion| self.is_for(criterion)) {
            replaced
                .push(criterion.with(self.evaluator(Some(&criterion.evaluate), &criterion.name)?));
        }
        if replaced.is_empty() {
            replaced.push(Criterion::of_all(
                EXAMPLE,
                self.evaluator(None, EXAMPLE)?,
                None,
            ));
        }
        let known: BTreeSet<String> = criteria
            .iter()
            .flat_map(|criterion| criterion.warnings())
            .collect();
        let warnings = replaced.iter().flat_map(|criterion| {
            criterion
                .warnings()
                .into_iter()
                .map(|warning| (criterion.name.clone(), warning))
        });
        Ok(warnings
            .filter(|(_, warning)| !known.contains(warning))
            .collect())
    }

    pub fn evaluator_name(&self) -> &'static str {
        self.evaluator
    }

    /// Returns true if the expectation's evaluator can limit model tokens.
    pub(crate) fn may_read_usage(&self) -> bool {
        self.evaluator == Efficiency::NAME
    }

    pub(crate) fn is_for(&self, criterion: &Criterion) -> bool {
        criterion.evaluate.name() == self.evaluator
    }

    /// Returns the criteria for this run. A criterion with the expectation's evaluator gets the
    /// expectation's fields; all other criteria remain unchanged. A criterion that rejects the
    /// fields becomes an error, which can happen if it was registered after the example was read.
    pub fn replace(&self, criteria: &[Arc<Criterion>]) -> Vec<Applied> {
        let replaced = |criterion: &Arc<Criterion>| {
            if !self.is_for(criterion) {
                return Ok(Arc::clone(criterion));
            }
            match self.evaluator(Some(&criterion.evaluate), &criterion.name) {
                Ok(evaluator) => Ok(Arc::new(criterion.with(evaluator))),
                Err(unfit) => Err(Arc::new(InvalidCriterion::in_place_of(
                    criterion,
                    self.evaluator,
                    self.id_text(),
                    self.error(&unfit),
                ))),
            }
        };
        criteria.iter().map(replaced).collect()
    }

    /// Returns the criterion [`EXAMPLE`], or its error. The criterion judges the run if no selected
    /// criterion has the expectation's evaluator.
    pub(crate) fn on_its_own(&self) -> Applied {
        match self.evaluator(None, EXAMPLE) {
            Ok(evaluator) => Ok(Arc::new(Criterion::of_all(EXAMPLE, evaluator, None))),
            Err(unfit) => Err(Arc::new(InvalidCriterion::new(
                EXAMPLE,
                self.evaluator,
                self.id_text(),
                self.error(&unfit),
            ))),
        }
    }

    fn id_text(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    fn error(&self, unfit: &Unfit) -> EvaluationError {
        let Unfit { criterion, message } = unfit;
        EvaluationError {
            kind: "unfit_example",
            message: format!(
                "the example `{}` does not fit criterion `{criterion}`: {message}",
                self.id_text()
            ),
        }
    }

    fn evaluator(&self, default: Option<&Evaluator>, criterion: &str) -> Result<Evaluator, Unfit> {
        let mut canonical = default
            .and_then(|default| serde_json::to_value(default).ok())
            .unwrap_or_else(|| json!({ self.evaluator: {} }));
        if let Some(fields) = canonical[self.evaluator].as_object_mut() {
            for (field, value) in &self.fields {
                match value {
                    Some(value) => fields.insert(field.clone(), value.clone()),
                    None => fields.shift_remove(field),
                };
            }
        }
        let unfit = |message: String| Unfit {
            criterion: criterion.to_owned(),
            message,
        };
        let source: WrittenEvaluator =
            serde_json::from_value(canonical).map_err(|error| unfit(error.to_string()))?;
        source
            .compile(&mut PatternCompiler::new(PatternLimits::FILE))
            .map_err(|errors| unfit(FieldError::join(&errors)))
    }
}

/// Runs paired with their expectations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Paired {
    /// The index of each run's expectation; `None` if it has none.
    pub runs: Vec<Option<usize>>,
    /// Indices of expectations whose id no run has.
    pub without_run: Vec<usize>,
}

/// Finds the expectation of each trajectory. An expectation with an id applies to all runs whose
/// evaluated span (or a span above it) has that id, so it can apply to several runs or to none. The
/// expectations without an id are assigned to the remaining runs in order, one to each run.
///
/// # Errors
/// Returns the reason why pairing failed, and the remedy.
pub fn pair(
    expectations: &[Expectation],
    trajectories: &[Arc<Trajectory>],
) -> Result<Paired, String> {
    let mut by_id: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, expectation) in expectations.iter().enumerate() {
        if let Some(id) = &expectation.id
            && by_id.insert(id, at).is_some()
        {
            return Err(format!(
                "two entries have the id `{id}`: keep one of them; it applies to all runs of this \
                 case"
            ));
        }
    }
    let id_of = |trajectory: &Arc<Trajectory>| {
        let id = trajectory.expectation_attributes.case_id.as_deref()?;
        by_id.get(id).copied()
    };
    let mut runs: Vec<Option<usize>> = trajectories.iter().map(id_of).collect();
    let has_run: BTreeSet<usize> = runs.iter().flatten().copied().collect();
    let mut without_run: Vec<usize> = by_id
        .into_values()
        .filter(|at| !has_run.contains(at))
        .collect();
    without_run.sort_unstable();
    if !without_run.is_empty() && has_run.is_empty() {
        let id = expectations[without_run[0]]
            .id
            .as_deref()
            .unwrap_or_default();
        return Err(format!(
            "no run has `{CASE_ID}` = `{id}`, or the id of any other entry, on its evaluated span \
             or above it: leave `id` out to judge runs in their order"
        ));
    }
    let by_position: Vec<usize> = (0..expectations.len())
        .filter(|at| expectations[*at].id.is_none())
        .collect();
    if by_position.is_empty() {
        return Ok(Paired { runs, without_run });
    }
    let others: Vec<usize> = (0..runs.len()).filter(|run| runs[*run].is_none()).collect();
    if others.len() != by_position.len() {
        let (n_runs, n_entries) = (
            counted(others.len(), "run", "runs"),
            counted(by_position.len(), "entry", "entries"),
        );
        return Err(format!(
            "the recordings have {n_runs} (traces with a tool call or an agent run) without an \
             entry by `{CASE_ID}`, the example file has {n_entries} without an `id`; these are \
             matched by position: write one entry for each such run, or give the entries ids"
        ));
    }
    for (run, at) in others.into_iter().zip(by_position) {
        runs[run] = Some(at);
    }
    Ok(Paired { runs, without_run })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn criterion(evaluate: Value) -> Arc<Criterion> {
        Arc::new(
            serde_json::from_value(
                json!({ "name": "registered", "threshold": 0.7, "evaluate": evaluate }),
            )
            .unwrap(),
        )
    }

    fn replaced(expectation: &Expectation, evaluate: Value) -> Value {
        let before = criterion(evaluate);
        let replaced = expectation.replace(std::slice::from_ref(&before)).remove(0);
        let after = replaced.unwrap();
        assert_eq!((&after.name, after.scope), (&before.name, before.scope));
        assert_eq!(
            after.revision() == before.revision(),
            after == before,
            "the revision is that of what is expected"
        );
        serde_json::to_value(&*after).unwrap()
    }

    fn of(evaluate: &Value) -> Expectation {
        let evaluator: WrittenEvaluator = serde_json::from_value(evaluate.clone()).unwrap();
        let fields = evaluate[evaluator.name()].as_object().unwrap();
        Expectation::of_evaluator(None, &evaluator, fields.keys().map(String::as_str))
    }

    #[test]
    fn what_an_entry_gives_replaces_and_what_it_does_not_stays() {
        let expectation = of(&json!({"tool_call_order": {"tool_calls_order": ["b"]}}));
        let after = replaced(
            &expectation,
            json!({"tool_call_order": {"tool_calls_order": ["a"], "strict": true}}),
        );
        assert_eq!(
            after["evaluate"],
            json!({"tool_call_order": {"tool_calls_order": ["b"], "strict": true}})
        );
        assert_eq!(after["threshold"], json!(0.7));
        let other = json!({"tool_call_output": {"tool_outputs": [{"name": "a", "output": "x"}]}});
        assert_eq!(
            replaced(&expectation, other)
                .pointer("/evaluate/tool_call_output/tool_outputs/0/name")
                .unwrap(),
            "a",
            "another evaluator"
        );
    }

    #[test]
    fn an_empty_list_is_a_field_too() {
        let expectation = of(&json!({"tool_calls": {"required": [], "disallowed": ["b"]}}));
        let after = replaced(
            &expectation,
            json!({"tool_calls": {"required": ["a"], "sequence": ["c"]}}),
        );
        let names = |list: &str| {
            after["evaluate"]["tool_calls"]
                .get(list)
                .map(|list| list[0]["name"].clone())
        };
        assert_eq!(
            [names("required"), names("disallowed"), names("sequence")],
            [None, Some(json!("b")), Some(json!("c"))]
        );
    }

    #[test]
    fn exact_match_of_the_command_line_is_added_to_what_the_criterion_says() {
        let tools = [ExpectedTool {
            tool_name: "b".to_owned(),
            ..ExpectedTool::default()
        }];
        for (flag, own, expected) in [
            (false, false, false),
            (true, false, true),
            (false, true, true),
        ] {
            let own =
                json!({"tool_order": {"expected_tools": [{"tool_name": "a"}], "exact_match": own}});
            let after = replaced(&Expectation::of_tools(None, &tools, flag), own);
            assert_eq!(
                after["evaluate"]["tool_order"],
                json!({"expected_tools": [{"tool_name": "b"}], "exact_match": expected})
            );
        }
    }

    #[test]
    fn an_entry_that_a_criterion_cannot_take_says_so() {
        let nothing = Expectation::of_output(None, &Names::default());
        let set = json!({"execution_order": {"expected_output": ["a"]}});
        let unfit = nothing.check(&[criterion(set)]).unwrap_err();
        assert_eq!(unfit.criterion, "registered");
        assert!(
            unfit.message.starts_with(
                "`expected_output` is empty: name what is expected, or set \
                `should_exact_match: true`"
            ),
            "{unfit:?}"
        );
        let exact =
            json!({"execution_order": {"expected_output": ["a"], "should_exact_match": true}});
        assert_eq!(
            replaced(&nothing, exact)["evaluate"]["execution_order"]["expected_output"],
            json!([])
        );
    }

    #[test]
    fn strict_mode_raises_the_threshold_here_as_everywhere() {
        let strict =
            of(&json!({"execution_order": {"expected_output": ["b"], "strict_mode": true}}));
        assert_eq!(
            replaced(
                &strict,
                json!({"execution_order": {"expected_output": ["a"]}})
            )["threshold"],
            json!(1.0)
        );
    }
}
