//! Tests Prometheus 3: scrapes and OTLP give the same metrics under the same names, a first failure
//! is visible as an increase, and the alerting and recording rules load and pass their tests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::run::{Backend, get, send_recording, sidecar, until};

const WEB: &str = "127.0.0.1:9090";

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus")
}

pub(crate) fn has_the_metrics_both_ways(folder: &Path) {
    let own = tempfile::tempdir().unwrap();
    let mut scored = sidecar(
        own.path(),
        &format!(
            "scores: {{ metrics: {{ endpoint: \"http://{WEB}/api/v1/otlp\", interval: 1s }} }}\n"
        ),
    );
    let [otlp, admin] = scored.addresses();
    let configuration = format!(
        "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [\"{}\"]\
         \nscrape_configs:\n  - job_name: spanscore\
         \n    static_configs: [{{ targets: [\"{admin}\"] }}]\n",
        rules().join("rules.yaml").display()
    );
    std::fs::write(own.path().join("prometheus.yaml"), configuration).unwrap();
    let mut command = Command::new(folder.join("prometheus"));
    command.args([
        "--config.file=prometheus.yaml",
        "--storage.tsdb.path=data",
        "--web.enable-otlp-receiver",
        "--enable-feature=created-timestamp-zero-ingestion",
    ]);
    command.arg(format!("--web.listen-address={WEB}"));
    let prometheus = Backend::start(own, command, WEB);
    send_recording(&otlp);

    let failed = "spanscore_evaluations_total{label=\"fail\",criterion=\"charge-exactly-once\"}";
    let both = until(|| query(failed).filter(|series| series.len() == 2));
    let mut jobs: Vec<&str> = both
        .iter()
        .map(|series| series["metric"]["job"].as_str().unwrap())
        .collect();
    jobs.sort_unstable();
    assert_eq!(
        jobs,
        ["spanscore", "spanscore"],
        "the scrape job, and the service name of our own resource"
    );
    assert!(
        both.iter().all(|series| series["value"][1] == "1"),
        "{both:?}"
    );
    // The first failure must be visible as an increase, although the first sample already has the
    // value 1.
    let increases = until(|| {
        query(&format!("increase({failed}[5m]) > 0.5")).filter(|series| series.len() == 2)
    });
    assert_eq!(increases.len(), 2);
    let recorded = until(|| {
        query(
            "spanscore:evaluations:increase_5m\
             {label=\"fail\",criterion=\"charge-exactly-once\"} == 2",
        )
        .filter(|series| !series.is_empty())
    });
    assert_eq!(recorded.len(), 1, "both ways together: {recorded:?}");
    for metric in [
        "spanscore_evaluation_score_bucket",
        "spanscore_time_to_verdict_seconds_count",
    ] {
        let by_instance = until(|| {
            query(&format!("count by (instance) ({metric})")).filter(|series| series.len() == 2)
        });
        assert_eq!(
            by_instance[0]["value"][1], by_instance[1]["value"][1],
            "{metric} by scrape and by OTLP"
        );
    }
    let groups = until(|| {
        let groups = get(WEB, "/api/v1/rules")?["data"]["groups"]
            .as_array()?
            .clone();
        let mut rules = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().unwrap());
        (!groups.is_empty() && rules.all(|rule| rule["health"] == "ok")).then_some(groups)
    });
    assert!(
        groups
            .iter()
            .map(|group| group["rules"].as_array().unwrap().len())
            .sum::<usize>()
            > 5
    );
    let ratio = until(|| {
        query("spanscore:evaluations:fail_ratio_5m{criterion=\"charge-exactly-once\"}")
            .filter(|series| !series.is_empty())
    });
    assert!(!ratio.is_empty());
    drop(prometheus);
    // Prometheus has stopped, so this sidecar cannot deliver its last metrics. Kill it instead of
    // waiting for the delivery.
    drop(scored);
}

pub(crate) fn rules_pass(folder: &Path) {
    for arguments in [
        ["check", "rules", "rules.yaml"],
        ["test", "rules", "rules_test.yaml"],
    ] {
        let output = Command::new(folder.join("promtool"))
            .args(arguments)
            .current_dir(rules())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Checks that promtool can parse the queries of the Grafana dashboard, converted to rules.
pub(crate) fn board_queries_parse(folder: &Path) {
    let board = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/grafana/spanscore.json");
    let board: Value = serde_json::from_slice(&std::fs::read(board).unwrap()).unwrap();
    let targets = board["panels"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(idx, target)| {
            let expr = target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "5m")
                .replace("$__range", "1h");
            json!({ "record": format!("board:query_{idx}"), "expr": expr })
        })
        .collect();
    assert!(rules.len() > 20);
    let own = tempfile::tempdir().unwrap();
    std::fs::write(
        own.path().join("board.yaml"),
        json!({ "groups": [{ "name": "board", "rules": rules }] }).to_string(),
    )
    .unwrap();
    let output = Command::new(folder.join("promtool"))
        .args(["check", "rules", "board.yaml"])
        .current_dir(own.path())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn query(promql: &str) -> Option<Vec<Value>> {
    let escaped: String = promql
        .bytes()
        .map(|b| {
            if b.is_ascii_alphanumeric() {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect();
    Some(
        get(WEB, &format!("/api/v1/query?query={escaped}"))?["data"]["result"]
            .as_array()?
            .clone(),
    )
}
