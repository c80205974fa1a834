//! Metrics of the runs that criteria select, and the log line about a criterion that does not fit
//! the runs.

use super::{MetricKind, MetricsPage};

events! {
    /// A criterion does not fit the trajectories so far: for example, it selected none of them, or
    /// requires a tool that none of them calls.
    CoverageProblem<'a> {
        criterion: &'a str,
        problem: &'a str,
        n_seen: u64,
        n_matched: u64,
        n_others: usize,
    } () {
        tracing::warn!(
            criterion,
            problem,
            n_seen,
            n_matched,
            n_others,
            "a criterion does not fit the runs that are seen; GET /v1/status lists all criteria"
        );
    }
}

/// Writes the number of trajectories that each criterion saw and selected: name, seen, selected.
pub fn write_coverage(criteria: &[(&str, u64, u64)], page: &mut MetricsPage) {
    if criteria.is_empty() {
        return;
    }
    let name = "spanscore_criterion_trajectories_seen";
    let help = "Trajectories judged while the criterion was in force, by criterion";
    page.metric(name, MetricKind::Counter, help);
    for (criterion, n_seen, _) in criteria {
        page.total(name, [("criterion", *criterion)], n_seen);
    }
    let name = "spanscore_criterion_trajectories_matched";
    let help = "Trajectories that the criterion selected, by criterion";
    page.metric(name, MetricKind::Counter, help);
    for (criterion, _, n_matched) in criteria {
        page.total(name, [("criterion", *criterion)], n_matched);
    }
}
