//! Handles each judgement on the thread that judged: exports it, counts the selected trajectories,
//! and passes it to the page and the observer.

use std::sync::Arc;

use judge::evaluate::Coverage;
use judge::pipeline::Judged;

use super::scoring::Judge;
use super::{Observer, now};
use crate::export::Exporter;
use crate::page::Page;
use crate::sync::Mutex;
use crate::telemetry::{CoverageProblem, MetricsSource, write_coverage};

/// Returns the function that handles the judgements of one judging thread.
pub(super) fn judge(
    exporter: Exporter,
    coverage: Arc<Mutex<Coverage>>,
    page: Option<Page>,
    observer: Option<Arc<Mutex<Observer>>>,
) -> Judge {
    Box::new(move |judged, rules| {
        let Judged {
            evaluations,
            alarms,
            trajectories,
            ..
        } = judged;
        if !evaluations.is_empty() || !alarms.is_empty() || !trajectories.is_empty() {
            let mut coverage = coverage.lock();
            coverage.note(trajectories, evaluations);
            coverage.note(&[], alarms);
            let due = coverage.due();
            // Log one line for any number of problems, because `/v1/status` lists all of them.
            if let Some(first) = due.first() {
                CoverageProblem {
                    criterion: first.criterion,
                    problem: first.problem.as_deref().unwrap_or_default(),
                    n_seen: first.n_seen,
                    n_matched: first.n_matched,
                    n_others: due.len() - 1,
                }
                .emit();
            }
        }
        exporter.export(judged, &rules.explain, now().unix_nanos);
        if let Some(page) = &page {
            page.note(judged, rules, now().unix_nanos);
        }
        if let Some(observer) = &observer {
            (observer.lock())(judged, rules);
        }
    })
}

pub(super) fn coverage_metrics(coverage: Arc<Mutex<Coverage>>) -> MetricsSource {
    Arc::new(move |page| {
        let coverage = coverage.lock();
        let counts = coverage.counts();
        write_coverage(&counts.collect::<Vec<_>>(), page);
    })
}
