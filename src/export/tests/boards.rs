//! Tests that the boards, rules and documentation that we ship name only metrics and labels that
//! exist. The tests do not prove that the queries are meaningful: `promtool` tests the rules, where
//! it is installed (tests/it/backends).

use std::collections::BTreeSet;

use judge::evaluate::{Evaluation, Stage, Verdict};

use super::fixture::{fail, pass, previous};
use super::metrics::counted;
use crate::telemetry;

const FILES: [(&str, &str); 4] = [
    (
        "deploy/grafana/spanscore.json",
        include_str!("../../../deploy/grafana/spanscore.json"),
    ),
    (
        "deploy/prometheus/rules.yaml",
        include_str!("../../../deploy/prometheus/rules.yaml"),
    ),
    (
        "deploy/prometheus/rules_test.yaml",
        include_str!("../../../deploy/prometheus/rules_test.yaml"),
    ),
    (
        "docs/dashboards.md",
        include_str!("../../../docs/dashboards.md"),
    ),
];

/// Pages that name metrics, but no recorded series.
const PAGES: [(&str, &str); 4] = [
    (
        "docs/kubernetes.md",
        include_str!("../../../docs/kubernetes.md"),
    ),
    (
        "docs/criteria-api.md",
        include_str!("../../../docs/criteria-api.md"),
    ),
    (
        "docs/performance.md",
        include_str!("../../../docs/performance.md"),
    ),
    ("docs/scale.md", include_str!("../../../docs/scale.md")),
];

/// The code that writes the gauges of Kafka, which is not compiled without that feature.
const KAFKA: &str = include_str!("../../sidecar/topic_judges/status.rs");

/// Returns the name of every exported metric: scores and the sidecar's own telemetry.
fn exported() -> BTreeSet<String> {
    let revised = Evaluation {
        revision: 1,
        previous: previous(Verdict::Fail, 0),
        ..pass()
    };
    let alarm = Evaluation {
        stage: Stage::Alarm,
        ..fail()
    };
    let (_, page) = counted(&[fail(), revised, alarm]);
    let of_kafka = KAFKA
        .split('"')
        .filter(|text| text.starts_with("spanscore_kafka_"));
    let of_page = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(['{', ' ']).next().unwrap().to_owned());
    of_page
        .chain(telemetry::metric_names())
        .chain(of_kafka.map(str::to_owned))
        .collect()
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

/// Returns the names of metrics in a text, without the series that our own rules record, whose
/// names contain colons.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c| !is_word(c))
        .filter(|word| word.starts_with("spanscore_") || word.starts_with("process_"))
        .filter(|word| !word.contains(':'))
}

#[test]
fn boards_rules_and_documentation_name_metrics_that_exist() {
    let exported = exported();
    let mut n_named = 0;
    for (file, text) in FILES.into_iter().chain(PAGES) {
        let unknown: BTreeSet<&str> = named(text)
            .inspect(|_| n_named += 1)
            .filter(|name| !exported.contains(*name))
            .collect();
        assert!(
            unknown.is_empty(),
            "{file} names {unknown:?}, of all there is: {exported:#?}"
        );
    }
    assert!(n_named > 80, "{n_named}");
}

/// Neither kustomize nor Helm reads files outside its own folder.
#[test]
fn the_copies_in_kustomize_folders_and_chart_are_current() {
    const REMEDY: &str = "run deploy/copy-boards.sh";
    let board = FILES[0].1;
    assert!(
        board
            == include_str!("../../../deploy/kustomize/components/monitoring/spanscore-board.json"),
        "{REMEDY}"
    );
    assert!(
        board == include_str!("../../../deploy/helm/spanscore/files/spanscore-board.json"),
        "{REMEDY}"
    );
    let policy = include_str!("../../../deploy/kustomize/inject/v1beta1/policy.yaml");
    assert!(
        policy == include_str!("../../../deploy/helm/spanscore/files/inject.yaml"),
        "{REMEDY}"
    );
    assert!(
        policy.replace("k8s.io/v1beta1", "k8s.io/v1")
            == include_str!("../../../deploy/kustomize/inject/v1/policy.yaml"),
        "{REMEDY}"
    );
    let rules = FILES[1].1;
    assert!(
        rules == include_str!("../../../deploy/helm/spanscore/files/rules.yaml"),
        "{REMEDY}"
    );
    let resource =
        include_str!("../../../deploy/kustomize/components/monitoring/prometheusrule.yaml");
    let (_, spec) = resource.split_once("\nspec:\n").unwrap();
    let spec: Vec<_> = spec
        .lines()
        .map(|line| line.strip_prefix("  ").unwrap_or(line))
        .collect();
    assert!(spec == rules.lines().collect::<Vec<_>>(), "{REMEDY}");
}

#[test]
fn boards_name_only_recorded_series_that_the_rules_record() {
    let rules = FILES[1].1;
    let recorded: BTreeSet<&str> = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- record: "))
        .collect();
    assert!(recorded.len() > 4);
    for (file, text) in FILES {
        let of_file = text
            .split(|c| !is_word(c))
            .filter(|word| word.starts_with("spanscore:") && word.len() > "spanscore:".len());
        let unknown: BTreeSet<&str> = of_file.filter(|name| !recorded.contains(name)).collect();
        assert!(unknown.is_empty(), "{file} names {unknown:?}");
    }
}

#[test]
fn boards_and_rules_group_by_labels_that_exist() {
    const LABELS: [&str; 23] = [
        "criterion",
        "evaluator",
        "label",
        "service",
        "agent",
        "from",
        "to",
        "completeness",
        "queue",
        "shape",
        "reason",
        "le",
        "job",
        "namespace",
        "pod",
        "instance",
        "signal",
        "version",
        "log",
        "state",
        "partition",
        "kind",
        "client",
    ];
    let mut n_groups = 0;
    for (file, text) in FILES {
        for (at, _) in text.match_indices(" by (") {
            let inside = &text[at + " by (".len()..];
            let inside = &inside[..inside.find(')').unwrap()];
            // TraceQL groups by attributes.
            if inside.contains("span.") {
                continue;
            }
            n_groups += 1;
            assert!(
                inside.split(", ").all(|label| LABELS.contains(&label)),
                "{file}: by ({inside})"
            );
        }
    }
    assert!(n_groups > 20, "{n_groups}");
}

#[test]
fn the_grafana_board_is_json_whose_panels_have_queries() {
    let board: serde_json::Value = serde_json::from_str(FILES[0].1).unwrap();
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()));
        let has_query = panel["targets"]
            .as_array()
            .is_some_and(|targets| targets.iter().all(|target| target["expr"].is_string()));
        assert!(panel["type"] == "row" || has_query, "{panel}");
    }
}
