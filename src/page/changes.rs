//! Changes to the remembered runs, for the list and the streams.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;

use super::memory::{RememberedRun, Totals};
use super::{Page, view};

/// Maximum number of runs in one event of a stream.
const MAX_RUNS: usize = 200;

pub(super) struct Changes {
    runs: Vec<Arc<RememberedRun>>,
    /// Number of requested runs that were omitted.
    n_more: usize,
    n_remembered: usize,
    totals: Totals,
    oldest: u64,
    /// The number of the last change, for the next query.
    pub(super) change: u64,
}

impl Changes {
    pub(super) fn after(page: &Page, since: u64) -> Self {
        Self::read(page, MAX_RUNS, since, |_| true)
    }

    /// Returns the newest runs that changed after `since` and satisfy `wants`.
    pub(super) fn read(
        page: &Page,
        limit: usize,
        since: u64,
        wants: impl Fn(&RememberedRun) -> bool,
    ) -> Self {
        let runs = page.0.runs.lock();
        let (n_remembered, ..) = runs.sizes();
        let totals = runs.totals();
        let oldest = runs.newest_first().last().map_or(0, |run| run.number);
        // A scoring thread may wait for the lock, so copy only pointers under it, and none if
        // nothing has changed.
        let all: Vec<Arc<RememberedRun>> = if totals.n_changes > since {
            let changed = runs.newest_first().filter(|run| run.change > since);
            changed.cloned().collect()
        } else {
            Vec::new()
        };
        drop(runs);
        let mut wanted = all.into_iter().filter(|run| wants(run));
        let runs: Vec<Arc<RememberedRun>> = wanted.by_ref().take(limit).collect();
        Self {
            runs,
            n_more: wanted.count(),
            n_remembered,
            totals,
            oldest,
            change: totals.n_changes,
        }
    }

    /// Returns the changes as JSON. Each run is rendered once for all pages.
    pub(super) fn text(&self) -> String {
        let mut text = String::from("{\"runs\":[");
        for (at, run) in self.runs.iter().enumerate() {
            let summary = run
                .summary
                .get_or_init(|| Bytes::from(view::summary(run).to_string()));
            if at > 0 {
                text.push(',');
            }
            text.push_str(std::str::from_utf8(summary).unwrap_or("null"));
        }
        let state = json!({
            "more": self.n_more,
            "remembered": self.n_remembered,
            "judged": self.totals.n_judged,
            "passed_over": self.totals.n_passed_over,
            "oldest": self.oldest,
            "change": self.change,
        });
        text.push_str("],");
        text.push_str(state.to_string().trim_start_matches('{'));
        text
    }
}
