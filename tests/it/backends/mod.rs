//! Sends a captured agent run through a real `spanscore run` to real backends, and reads the scores
//! through each backend's query API (of the Collector, from its output).
//! `tests/backends/install.sh` installs the backends. If a backend is missing, its test is skipped,
//! with the reason on standard error. Each backend runs in a separate network namespace: nobody can
//! reach it from outside (Phoenix listens on all interfaces), it cannot reach the network, and the
//! usual ports are free. Does not test other versions, or how a page looks.

mod collector;
mod isolated;
mod jaeger;
mod mlflow;
mod phoenix;
mod prometheus;
mod run;

/// Defines the tests: a name, the file that the test needs from the backends' folder, and its
/// function.
macro_rules! tests {
    ($($name:ident: $needs:literal, $check:path;)*) => {$(
        #[test]
        fn $name() {
            isolated::isolated(stringify!($name), $needs, $check);
        }
    )*};
}

tests! {
    the_collector_reads_every_field_of_the_three_shapes: "otelcol", collector::reads_every_field;
    jaeger_finds_failing_runs_by_tag: "jaeger", jaeger::finds_failing_runs;
    prometheus_scrapes_and_receives_the_same_metrics_and_loads_the_rules:
        "prometheus", prometheus::has_the_metrics_both_ways;
    prometheus_rules_pass_their_own_tests: "promtool", prometheus::rules_pass;
    prometheus_reads_every_query_of_the_grafana_board: "promtool", prometheus::board_queries_parse;
    phoenix_shows_spans_and_annotations_that_are_written_once:
        "arize-phoenix/bin/phoenix", phoenix::has_annotations;
    mlflow_shows_spans_and_assessments_that_are_written_once:
        "mlflow/bin/mlflow", mlflow::has_assessments;
}
