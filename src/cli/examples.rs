//! `replay --examples FILE`: judges each run by its own entry of an example file. Knows neither how
//! entries are parsed (`config`) nor how they change criteria (`evaluate`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Streams;
use super::configuration::{Disk, Unusable};
use crate::config::{self, Files};
use crate::evaluate::{self, Evaluation, Expectation, Unfit};
use crate::extract::Trajectory;
use crate::pipeline::Rules;

/// The entries of an example file.
pub(super) struct Examples {
    path: PathBuf,
    entries: Vec<Expectation>,
}

/// Reads the file. If it is invalid, prints every problem and returns nothing.
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
            return unusable
                .print(streams.err, streams.err_colour)
                .map(|()| None);
        }
    };
    let examples = Examples {
        path: path.to_owned(),
        entries,
    };
    match examples.check(rules) {
        Ok(warnings) => {
            for warning in warnings {
                writeln!(streams.err, "warning: {warning}")?;
            }
            Ok(Some(examples))
        }
        Err(message) => streams.complain(&message).map(|()| None),
    }
}

impl Examples {
    /// Judges every run by its entry.
    ///
    /// # Errors
    /// A run has no entry of its own.
    pub(super) fn judge(
        &self,
        trajectories: &[Arc<Trajectory>],
        rules: &Rules,
    ) -> Result<Vec<Evaluation>, String> {
        let paired = evaluate::pair(&self.entries, trajectories)
            .map_err(|message| format!("{}: {message}", self.path.display()))?;
        let mut evaluations = Vec::new();
        for (trajectory, at) in trajectories.iter().zip(paired) {
            let (
                case,
                Rules {
                    criteria,
                    expectations,
                    explain,
                    ..
                },
            ) = (&self.entries[at], rules);
            evaluations.extend(evaluate::judge_run(
                criteria,
                expectations,
                Some(case),
                trajectory,
                explain,
            ));
        }
        Ok(evaluations)
    }

    /// Compares every entry with the criteria before any recording is read, and reports likely
    /// mistakes.
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
