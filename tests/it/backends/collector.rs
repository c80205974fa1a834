//! Tests the OpenTelemetry Collector. Its debug exporter prints every field of the three kinds of
//! scores as the Collector decoded it.

use std::path::Path;
use std::process::Command;

use super::run::{Backend, score, until};

const CONFIGURATION: &str = r#"
receivers: { otlp: { protocols: { grpc: { endpoint: "127.0.0.1:4317" } } } }
exporters: { debug: { verbosity: detailed, use_internal_logger: false } }
service:
  telemetry: { metrics: { level: none } }
  pipelines:
    traces: { receivers: [otlp], exporters: [debug] }
    logs: { receivers: [otlp], exporters: [debug] }
    metrics: { receivers: [otlp], exporters: [debug] }
"#;

pub(crate) fn reads_every_field(folder: &Path) {
    let own = tempfile::tempdir().unwrap();
    std::fs::write(own.path().join("collector.yaml"), CONFIGURATION).unwrap();
    let mut command = Command::new(folder.join("otelcol"));
    command.args(["--config", "collector.yaml"]);
    let collector = Backend::start(own, command, "127.0.0.1:4317");
    score(
        collector.folder.path(),
        "forward: { endpoint: \"http://127.0.0.1:4317\" }\n",
    );

    let text =
        until(|| Some(collector.log()).filter(|text| text.contains("spanscore.time_to_verdict")));
    insta::assert_snapshot!(
        "span",
        block(
            &text,
            "Span #",
            "Name           : evaluation charge-exactly-once"
        )
    );
    insta::assert_snapshot!(
        "event",
        block(
            &text,
            "LogRecord #",
            "gen_ai.evaluation.name: Str(charge-exactly-once)"
        )
    );
    let counter = block(&text, "Metric #", "Name: spanscore.evaluations");
    let failed = [
        "criterion: Str(charge-exactly-once)",
        "evaluator: Str(tool_call_count)",
        "label: Str(fail)",
        "service: Str(pydantic-ai-demo)",
    ];
    assert!(
        counter.contains(&failed.map(|label| format!("     -> {label}\n")).concat()),
        "{counter}"
    );
    assert!(
        counter.contains("IsMonotonic: true")
            && counter.contains("AggregationTemporality: Cumulative"),
        "{counter}"
    );
    let score = block(&text, "Metric #", "Name: spanscore.evaluation.score");
    assert!(
        score.contains("DataType: Histogram") && score.contains("ExplicitBounds #10: 1.000000"),
        "{score}"
    );
    assert!(
        text.contains("-> telemetry.distro.name: Str(spanscore)"),
        "the score's own mark on the agent's resource"
    );
    assert!(
        text.matches("InstrumentationScope spanscore ").count() >= 3,
        "the scope of every shape"
    );
}

/// Returns the first item that begins with `head` and contains `says`, without the line of `head`
/// and the line `ObservedTimestamp`, whose time differs in every run.
fn block(text: &str, head: &str, says: &str) -> String {
    let ends = [
        "Span #",
        "LogRecord #",
        "Metric #",
        "ResourceSpans #",
        "ResourceLog #",
        "ResourceMetrics #",
    ];
    let mut items = text.match_indices(head).map(|(at, _)| {
        let inside = &text[at + head.len()..];
        &inside[..ends
            .iter()
            .filter_map(|end| inside.find(&format!("\n{end}")))
            .min()
            .unwrap_or(inside.len())]
    });
    let item = items
        .find(|item| item.contains(says))
        .unwrap_or_else(|| panic!("no `{says}` in:\n{text}"));
    let stays = |line: &&str| !line.starts_with("ObservedTimestamp");
    item.lines()
        .skip(1)
        .filter(stays)
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}
