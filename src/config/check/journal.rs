//! Checks the settings that concern the journal.

use super::Check;
use crate::config::Config;
use crate::config::runtime::AtStop;

impl Check<'_> {
    pub(super) fn journal(&mut self) {
        let Config {
            journal,
            receivers,
            shutdown,
            ..
        } = self.config;
        if shutdown.open_traces == AtStop::Keep && journal.directory.is_none() {
            self.wrong(
                &["shutdown.open_traces"],
                "`shutdown.open_traces: keep` needs a journal".to_owned(),
                "set `journal.directory`, or write `judge`",
            );
        }
        if journal.has_small_scores() {
            self.wrong(
                &["journal.max_scores_size"],
                format!("`journal.max_scores_size` is {}", journal.max_scores_size),
                "expected 16MiB or more",
            );
        }
        let (largest, request) = (journal.largest_request(), receivers.otlp.max_request_size);
        if journal.directory.is_some() && largest < request.0 {
            self.doubtful(
                &["journal.max_size", "receivers.otlp.max_request_size"],
                format!(
                    "`journal.max_size` is less than twice `receivers.otlp.max_request_size` \
                     ({request})"
                ),
                format!("requests of more than {largest} bytes will be refused as too large"),
            );
        }
    }
}
