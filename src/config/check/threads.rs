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
        }
    }
}
