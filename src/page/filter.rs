//! Selects remembered runs for callers of the API.

use judge::evaluate::{Evaluation, Verdict};
use judge::extract::glob_matches;
use text::truncated;

use super::memory::RememberedRun;
use crate::register::{ApiError, Query};

/// Maximum length of a value in bytes: in the worst case, matching a glob takes time proportional
/// to pattern × text.
const MAX_VALUE: usize = 256;

pub(super) const PARAMETERS: [&str; 5] = ["label", "criterion", "agent", "service", "text"];

/// Selects runs: all given parameters must match. `criterion`, `agent` and `service` are globs.
/// `label` applies to the verdicts by `criterion`: `pass` requires that all of them have this
/// label, and another label that at least one has it.
#[derive(Debug, Default)]
pub(super) struct RunFilter {
    label: Option<Verdict>,
    criterion: Option<String>,
    agent: Option<String>,
    service: Option<String>,
    text: Option<String>,
}

impl RunFilter {
    pub(super) fn take(query: &mut Query) -> Result<Self, ApiError> {
        let mut value = |name: &'static str| match query.take(name).filter(|text| !text.is_empty())
        {
            Some(text) if text.len() > MAX_VALUE => Err(ApiError::Argument {
                name,
                detail: format!("longer than {MAX_VALUE} bytes"),
            }),
            value => Ok(value),
        };
        let [label, criterion, agent, service, text] = PARAMETERS.map(&mut value);
        Ok(Self {
            label: label?.as_deref().map(label_named).transpose()?,
            criterion: criterion?,
            agent: agent?,
            service: service?,
            text: text?.map(|text| text.to_lowercase()),
        })
    }

    pub(super) fn wants(&self, run: &RememberedRun) -> bool {
        let trajectory = &run.trajectory;
        let globbed = |glob: &Option<String>, text: &str| {
            glob.as_ref().is_none_or(|glob| glob_matches(glob, text))
        };
        let asked = |found: &&Evaluation| globbed(&self.criterion, found.criterion.name());
        let mut judged = run.evaluations.iter().filter(asked).peekable();
        let needs_judgement = self.label.is_some() || self.criterion.is_some();
        let is_judged_so = judged.peek().is_some()
            && match self.label {
                None => true,
                Some(Verdict::Pass) => judged.all(|found| found.verdict == Verdict::Pass),
                Some(label) => judged.any(|found| found.verdict == label),
            };
        (!needs_judgement || is_judged_so)
            && globbed(&self.service, &trajectory.service)
            && globbed(&self.agent, trajectory.agent.as_deref().unwrap_or_default())
            && self.text.as_ref().is_none_or(|text| contains(run, text))
    }
}

fn contains(run: &RememberedRun, text: &str) -> bool {
    let trajectory = &run.trajectory;
    let names = [
        Some(&trajectory.root),
        Some(&trajectory.service),
        trajectory.agent.as_ref(),
        trajectory.session.as_ref(),
        trajectory.expectation_attributes.case_id.as_ref(),
    ];
    let calls = trajectory.tool_calls.iter().map(|call| &call.name);
    names
        .into_iter()
        .flatten()
        .chain(calls)
        .any(|name| name.to_lowercase().contains(text))
        || trajectory.trace_id.to_string().contains(text)
}

fn label_named(word: &str) -> Result<Verdict, ApiError> {
    Verdict::named(word).ok_or_else(|| ApiError::Argument {
        name: "label",
        detail: format!(
            "`{}` is none of `pass`, `fail`, `not_evaluated`, `error`",
            truncated(word, 60)
        ),
    })
}
