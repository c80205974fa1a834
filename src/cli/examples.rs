//! `replay --examples FILE`: judges each run by its own entry of an example file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use judge::evaluate::{self, Evaluation, Expectation, Paired, Unfit};
use judge::extract::Trajectory;
use judge::pipeline::Rules;
use text::counted;

use super::Streams;
use super::configuration::{Disk, Unusable};
use crate::config::{self, Files};

/// The entries of an example file.
pub(super) struct Examples {
    path: PathBuf,
    entries: Vec<Expectation>,
}

/// The evaluations of the runs, and notes for the reader.
#[derive(Default)]
pub(super) struct JudgedByExamples {
    pub(super) evaluations: Vec<Evaluation>,
    pub(super) notes: Vec<String>,
}

/// Reads the file. If it is invalid or does not fit the criteria, prints the problems and returns
/// `None`.
pub(super) fn read(
    path: &Path,
    exact_match: bool,
    rules: &Rules,
    streams: &mut Streams<'_>,
) -> io::Result<Option<Examples>> {
    let unreadable = |error| Unusable::Unreadable {
        path: path.display().to_string(),
        error,
    };
    let text = Disk.read(path).map_err(unreadable);
    let entries =
        text.and_then(|text| config::examples(path, &text, exact_match).map_err(Unusable::Wrong));
    let entries = match entries {
        Ok(entries) => entries,
        Err(unusable) => {
            return unusable.print(streams.err, streams.err_look).map(|()| None);
        }
    };
    let examples = Examples {
        path: path.to_owned(),
        entries,
    };
    match examples.check(rules) {
        Ok(warnings) => {
            for warning in warnings {
                streams.tell(&format!("warning: {warning}"))?;
            }
            Ok(Some(examples))
        }
        Err(message) => streams.complain(&message).map(|()| None),
    }
}

impl Examples {
    /// Judges every run by its entry. Runs without an entry are judged by the criteria alone.
    ///
    /// # Errors
    /// Returns an error if entries cannot be matched with runs.
    pub(super) fn judge(
        &self,
        trajectories: &[Arc<Trajectory>],
        rules: &Rules,
    ) -> Result<JudgedByExamples, String> {
        let Paired { runs, without_run } = evaluate::pair(&self.entries, trajectories)
            .map_err(|message| format!("{}: {message}", self.path.display()))?;
        let Rules {
            criteria,
            expectations,
            explain,
            ..
        } = rules;
        let mut judged = JudgedByExamples::default();
        for (trajectory, at) in trajectories.iter().zip(&runs) {
            let case = at.map(|at| &self.entries[at]);
            evaluate::judge_run(
                criteria,
                expectations,
                case,
                trajectory,
                explain,
                &mut |evaluation| judged.evaluations.push(evaluation),
            );
        }
        let n_without_entry = runs.iter().filter(|at| at.is_none()).count();
        if n_without_entry > 0 {
            judged.notes.push(format!(
                "{} of {} belong to no example and are judged by the criteria alone",
                n_without_entry,
                counted(runs.len(), "run", "runs")
            ));
        }
        if let Some(first) = without_run.first() {
            judged.notes.push(format!(
                "{} of {} have no run in the recordings, the first is `{}`",
                without_run.len(),
                counted(self.entries.len(), "example", "examples"),
                self.entries[*first].id.as_deref().unwrap_or_default()
            ));
        }
        Ok(judged)
    }

    /// Compares every entry with the criteria, before any recording is read. Returns warnings about
    /// likely mistakes, or an error for the first entry that does not fit.
    fn check(&self, rules: &Rules) -> Result<Vec<String>, String> {
        let mut warnings = Vec::new();
        for (at, entry) in self.entries.iter().enumerate() {
            let found = entry
                .check(&rules.criteria)
                .map_err(|unfit| self.in_words(at, &unfit))?;
            let in_words = |(criterion, warning)| {
                format!("{}, criterion `{criterion}`: {warning}", self.place(at))
            };
            warnings.extend(found.into_iter().map(in_words));
        }
        Ok(warnings)
    }

    fn in_words(&self, at: usize, unfit: &Unfit) -> String {
        format!(
            "{} does not fit criterion `{}`: {}",
            self.place(at),
            unfit.criterion,
            unfit.message
        )
    }

    fn place(&self, at: usize) -> String {
        match &self.entries[at].id {
            Some(id) => format!("{}, example `{id}`", self.path.display()),
            None => format!("{}, example {}", self.path.display(), at + 1),
        }
    }
}
