//! Checks the number of threads that judge.

use super::Check;
use crate::config::units::Threads;

impl Check<'_> {
    pub(super) fn threads(&mut self) {
        let Threads::Count(n_threads) = self.config.scoring.threads else {
            return;
        };
        if !(1..=Threads::MAX).contains(&n_threads) {
            self.wrong(
                &["scoring.threads"],
                format!("`scoring.threads` is {n_threads}"),
                "expected `auto`, or a number from 1 to 64",
            );
        } else if n_threads > 1 && self.config.journal.directory.is_some() {
            self.doubtful(
                &["scoring.threads", "journal.directory"],
                format!("`scoring.threads` is {n_threads}, but with a journal one thread judges"),
                "leave it out, or the journal",
            );
        }
    }
}
