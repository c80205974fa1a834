//! Tests metrics, decoded with prost and read as OpenMetrics text: instruments, labels, bounds,
//! temporality. The tests do not prove that the SDK counts correctly under contention; that is the
//! SDK's responsibility.

use judge::evaluate::{Evaluation, Stage, Verdict};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Histogram, Metric, Sum};
use prost::Message;

use super::fixture::{END, criterion, fail, pass, previous, with};
use crate::config::{MetricScores, Temporality};
use crate::export::metrics_page;
use crate::export::score_metrics::{MAX_SERIES, ScoreMetrics};
use crate::export::score_series::Folded;
use crate::telemetry::MetricsPage;

/// Five and a half seconds after the judged span ended.
const NOW: u64 = END + 5_500_000_000;

/// Maximum numbers of services and of agents.
const LIMITS: [usize; 2] = [200, 500];

fn metrics(temporality: Temporality, limits: [usize; 2]) -> ScoreMetrics {
    let [max_services, max_agents] = limits;
    let settings = MetricScores {
        temporality,
        max_services,
        max_agents,
        ..MetricScores::default()
    };
    ScoreMetrics::new(&settings, "5f1c".to_owned())
}

/// Returns the metrics of these evaluations as an OTLP request and as the text of `/metrics`.
pub(super) fn counted(evaluations: &[Evaluation]) -> (Vec<u8>, String) {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    for evaluation in evaluations {
        if evaluation.stage == Stage::Alarm {
            metrics.record_alarm(evaluation, NOW, NOW);
        } else {
            metrics.record(evaluation, NOW);
        }
    }
    let page = scraped(&metrics);
    (metrics.request().unwrap().0, page)
}

fn scraped(metrics: &ScoreMetrics) -> String {
    let mut page = MetricsPage::new(END);
    metrics_page::write(&metrics.collect(), &mut page);
    page.finish()
}

fn request(metrics: &ScoreMetrics) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest::decode(metrics.request().unwrap().0.as_slice()).unwrap()
}

fn find<'a>(request: &'a ExportMetricsServiceRequest, name: &str) -> &'a Metric {
    request.resource_metrics[0].scope_metrics[0]
        .metrics
        .iter()
        .find(|metric| metric.name == name)
        .unwrap()
}

fn sum(request: &ExportMetricsServiceRequest, name: &str) -> Sum {
    match find(request, name).data.clone() {
        Some(Data::Sum(sum)) => sum,
        other => panic!("{name} is {other:?}"),
    }
}

fn histogram(request: &ExportMetricsServiceRequest) -> Histogram {
    match find(request, "spanscore.evaluation.score").data.clone() {
        Some(Data::Histogram(histogram)) => histogram,
        other => panic!("score is {other:?}"),
    }
}

fn labels(attributes: &[KeyValue]) -> String {
    let mut pairs: Vec<_> = attributes
        .iter()
        .map(|pair| {
            (
                pair.key.as_str(),
                pair.value.as_ref().unwrap().value.as_ref().unwrap(),
            )
        })
        .collect();
    pairs.sort_by_key(|(key, _)| *key);
    let text = |value: &any_value::Value| match value {
        any_value::Value::StringValue(text) => text.clone(),
        other => format!("{other:?}"),
    };
    pairs
        .iter()
        .map(|(key, value)| format!("{key}={} ", text(value)))
        .collect::<String>()
        .trim_end()
        .to_owned()
}

/// Returns the labels and the value of each point that is not zero, in order.
fn counts(sum: &Sum) -> Vec<(String, i64)> {
    let mut counts = points(sum);
    counts.retain(|(_, n)| *n != 0);
    counts
}

/// Returns the labels and the value of each point, in order.
fn points(sum: &Sum) -> Vec<(String, i64)> {
    use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
    let mut counts: Vec<_> = sum
        .data_points
        .iter()
        .map(|point| match point.value {
            Some(Value::AsInt(n)) => (labels(&point.attributes), n),
            other => panic!("{other:?}"),
        })
        .collect();
    counts.sort();
    counts
}

fn of(evaluation: Evaluation, service: &str, agent: &str) -> Evaluation {
    with(evaluation, |trajectory| {
        trajectory.service = service.into();
        trajectory.agent = Some(agent.into());
    })
}

#[test]
fn evaluations_are_counted_by_five_labels() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    assert_eq!(metrics.request(), None, "nothing counted, nothing to send");
    for evaluation in [
        fail(),
        pass(),
        pass(),
        Evaluation {
            value: None,
            verdict: Verdict::NotEvaluated,
            ..fail()
        },
    ] {
        assert_eq!(metrics.record(&evaluation, NOW), None);
    }
    let request = request(&metrics);
    let resource = request.resource_metrics[0].resource.as_ref().unwrap();
    assert_eq!(
        labels(&resource.attributes),
        format!(
            "service.instance.id=5f1c service.name=spanscore service.version={}",
            env!("CARGO_PKG_VERSION")
        )
    );
    let evaluations = sum(&request, "spanscore.evaluations");
    assert!(evaluations.is_monotonic);
    assert_eq!(evaluations.aggregation_temporality, 2, "cumulative");
    let labelled = |label: &str| {
        format!(
            "agent=checkout criterion=checkout-order evaluator=tool_call_order label={label} \
             service=shop"
        )
    };
    assert_eq!(
        points(&evaluations),
        [
            (labelled("error"), 0),
            (labelled("fail"), 1),
            (labelled("not_evaluated"), 1),
            (labelled("pass"), 2),
        ]
    );
    let scores = histogram(&request);
    assert_eq!(
        scores.data_points.len(),
        2,
        "what has no score is in no histogram"
    );
    let passed = scores
        .data_points
        .iter()
        .find(|point| labels(&point.attributes).contains("label=pass"))
        .unwrap();
    assert_eq!((passed.count, passed.sum), (2, Some(2.0)));
    assert_eq!(
        passed.explicit_bounds,
        [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    );
    assert_eq!(passed.bucket_counts, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
    assert!(passed.exemplars.is_empty(), "no trace ids in metrics");
}

/// A series that begins at 1 shows no increase, so the first evaluation creates the series of all
/// verdicts at 0.
#[test]
fn all_verdicts_begin_at_0_with_the_first_of_a_combination() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    metrics.record(&pass(), NOW);
    let request = request(&metrics);
    let labels: Vec<_> = points(&sum(&request, "spanscore.evaluations"))
        .into_iter()
        .map(|(labels, n)| {
            let (_, label) = labels.split_once(" label=").unwrap();
            format!("{label} {n}")
        })
        .collect();
    assert_eq!(
        labels,
        [
            "error service=shop 0",
            "fail service=shop 0",
            "not_evaluated service=shop 0",
            "pass service=shop 1"
        ]
    );
    let failed = histogram(&request)
        .data_points
        .into_iter()
        .find(|point| point.count == 0)
        .unwrap();
    assert_eq!(
        (failed.min, failed.max),
        (None, None),
        "nothing has no least value"
    );
}

#[test]
fn each_series_keeps_the_start_time_at_which_it_began() {
    const LATER: u64 = NOW + 60_000_000_000;
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    metrics.record(&of(pass(), "early", "a"), NOW);
    metrics.record(&of(fail(), "late", "a"), LATER);
    for n_early in [1, 2] {
        let request = request(&metrics);
        let evaluations = sum(&request, "spanscore.evaluations");
        let n_of: Vec<_> = counts(&evaluations).into_iter().map(|(_, n)| n).collect();
        assert_eq!(
            n_of,
            [1, n_early],
            "fails of the late service, passes of the early one"
        );
        let began = |attributes: &[KeyValue]| {
            if labels(attributes).contains("service=late") { LATER } else { NOW }
        };
        for point in &evaluations.data_points {
            assert_eq!(point.start_time_unix_nano, began(&point.attributes));
        }
        for point in &histogram(&request).data_points {
            assert_eq!(point.start_time_unix_nano, began(&point.attributes));
        }
        let Some(Data::Histogram(delays)) = &find(&request, "spanscore.time_to_verdict").data
        else {
            panic!("no delays")
        };
        assert_eq!(delays.data_points[0].start_time_unix_nano, NOW);
        metrics.record(&of(pass(), "early", "a"), LATER);
    }
}

#[test]
fn deltas_begin_anew_and_the_page_to_scrape_does_not() {
    let metrics = metrics(Temporality::Delta, LIMITS);
    metrics.record(&pass(), NOW);
    let first = sum(&request(&metrics), "spanscore.evaluations");
    assert_eq!(
        (first.aggregation_temporality, points(&first)),
        (1, counts(&first))
    );
    assert_eq!(counts(&first)[0].1, 1);
    assert_eq!(metrics.request(), None, "nothing happened since");
    metrics.record(&pass(), NOW);
    metrics.record(&pass(), NOW);
    let later = request(&metrics);
    let second = sum(&later, "spanscore.evaluations");
    assert_eq!(counts(&second)[0].1, 2);
    assert!(second.data_points[0].start_time_unix_nano >= first.data_points[0].time_unix_nano);
    assert_eq!(second.data_points.len(), 1, "no zero is sent twice");
    assert_eq!(histogram(&later).data_points[0].count, 2);

    let page = scraped(&metrics);
    assert!(page.contains("service=\"shop\"} 3\n"), "{page}");
}

#[test]
fn revisions_count_only_where_the_label_changes() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    metrics.record(&fail(), NOW);
    metrics.record(
        &Evaluation {
            revision: 1,
            previous: previous(Verdict::Fail, 0),
            ..fail()
        },
        NOW,
    );
    metrics.record(
        &Evaluation {
            revision: 2,
            previous: previous(Verdict::Fail, 1),
            ..pass()
        },
        NOW,
    );
    let request = request(&metrics);
    assert_eq!(
        counts(&sum(&request, "spanscore.evaluations"))
            .iter()
            .map(|(_, n)| n)
            .sum::<i64>(),
        1
    );
    assert_eq!(
        counts(&sum(&request, "spanscore.evaluation.revisions")),
        [("from=fail to=pass".to_owned(), 1)]
    );
    assert_eq!(
        histogram(&request)
            .data_points
            .iter()
            .map(|point| point.count)
            .sum::<u64>(),
        1
    );
}

#[test]
fn services_and_agents_beyond_their_bound_are_other_and_logged_once() {
    let metrics = metrics(Temporality::Cumulative, [2, 3]);
    for (service, agent) in [("a", "x"), ("b", "y")] {
        assert_eq!(metrics.record(&of(pass(), service, agent), NOW), None);
    }
    assert_eq!(
        metrics.record(&of(pass(), "c", "z"), NOW),
        Some(Folded::Services)
    );
    assert_eq!(metrics.record(&of(pass(), "d", "z"), NOW), None);
    assert_eq!(
        metrics.record(&of(pass(), "a", "w"), NOW),
        Some(Folded::Agents)
    );
    assert_eq!(metrics.record(&of(pass(), "e", "v"), NOW), None);
    let series: Vec<_> = counts(&sum(&request(&metrics), "spanscore.evaluations"));
    let short = |text: &str| {
        text.replace(
            " criterion=checkout-order evaluator=tool_call_order label=pass",
            "",
        )
    };
    let series: Vec<_> = series
        .iter()
        .map(|(labels, n)| format!("{} {n}", short(labels)))
        .collect();
    assert_eq!(
        series,
        [
            "agent=_other service=_other 1",
            "agent=_other service=a 1",
            "agent=x service=a 1",
            "agent=y service=b 1",
            "agent=z service=_other 2"
        ]
    );
}

#[test]
fn names_are_cut_at_64_characters() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    metrics.record(&of(pass(), &"ü".repeat(65), ""), NOW);
    metrics.record(&of(pass(), &format!("{}!", "ü".repeat(64)), ""), NOW);
    let expected = format!(
        "agent= criterion=checkout-order evaluator=tool_call_order label=pass service={}",
        "ü".repeat(64)
    );
    assert_eq!(
        counts(&sum(&request(&metrics), "spanscore.evaluations")),
        [(expected, 2)]
    );
}

/// 200 services, 100 agents and 40 criteria make 800 000 combinations. An instrument must stay
/// within its bound, every evaluation must be counted once, and criteria must be folded last.
#[test]
fn an_instrument_has_at_most_4_000_series() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    let mut warnings = Vec::new();
    let criteria: Vec<_> = (0..700)
        .map(|n| criterion(&format!("criterion-{n:03}")))
        .collect();
    for n in 0..6_000 {
        let criterion = criteria[n % 40].clone();
        let evaluation = of(
            Evaluation {
                criterion,
                ..pass()
            },
            &format!("service-{}", n % 200),
            &format!("agent-{}", n / 60),
        );
        warnings.extend(metrics.record(&evaluation, NOW));
    }
    for criterion in &criteria {
        warnings.extend(metrics.record(
            &of(
                Evaluation {
                    criterion: criterion.clone(),
                    ..fail()
                },
                "late",
                "late",
            ),
            NOW,
        ));
    }
    assert_eq!(warnings, [Folded::Series, Folded::Services]);
    let request = request(&metrics);
    let series = points(&sum(&request, "spanscore.evaluations"));
    assert!(
        (3_800..=MAX_SERIES).contains(&series.len()),
        "{} series",
        series.len()
    );
    assert_eq!(series.iter().map(|(_, n)| n).sum::<i64>(), 6_700);
    assert!(
        series
            .iter()
            .all(|(labels, _)| !labels.contains("otel.metric.overflow"))
    );
    assert!(
        series
            .iter()
            .any(|(labels, _)| labels.starts_with("agent=_other criterion=criterion-039 "))
    );
    assert!(
        series
            .iter()
            .any(|(labels, n)| labels.starts_with("agent=_other criterion=_other ") && *n > 100)
    );
    assert!(histogram(&request).data_points.len() <= MAX_SERIES);
}

#[test]
fn the_page_to_scrape_is_openmetrics_text() {
    let metrics = metrics(Temporality::Cumulative, LIMITS);
    metrics.record(&of(pass(), "\"\"\\\n", "b"), NOW);
    metrics.record(&of(fail(), "shop", "a"), NOW);
    metrics.record(
        &Evaluation {
            revision: 1,
            previous: previous(Verdict::Fail, 0),
            ..pass()
        },
        NOW,
    );
    let page = scraped(&metrics);
    assert_eq!(
        page.lines()
            .filter(|line| line.contains("_bucket{"))
            .count(),
        4 * 12 + 13
    );
    let few = |line: &&str| {
        !line.contains("_bucket{")
            || ["0.6", "0.7", "+Inf"]
                .iter()
                .any(|le| line.contains(&format!("le=\"{le}\"")))
    };
    let page: Vec<_> = page
        .lines()
        .filter(few)
        .map(|line| {
            line.replace(
                "criterion=\"checkout-order\",evaluator=\"tool_call_order\",",
                "",
            )
        })
        .collect();
    insta::assert_snapshot!(page.join("\n"), @r#"
    # HELP spanscore_evaluations Evaluations of finished traces
    # TYPE spanscore_evaluations counter
    spanscore_evaluations_total{agent="a",label="error",service="shop"} 0
    spanscore_evaluations_created{agent="a",label="error",service="shop"} 1790000005.500
    spanscore_evaluations_total{agent="a",label="fail",service="shop"} 1
    spanscore_evaluations_created{agent="a",label="fail",service="shop"} 1790000005.500
    spanscore_evaluations_total{agent="a",label="not_evaluated",service="shop"} 0
    spanscore_evaluations_created{agent="a",label="not_evaluated",service="shop"} 1790000005.500
    spanscore_evaluations_total{agent="a",label="pass",service="shop"} 0
    spanscore_evaluations_created{agent="a",label="pass",service="shop"} 1790000005.500
    spanscore_evaluations_total{agent="b",label="error",service="\"\"\\\n"} 0
    spanscore_evaluations_created{agent="b",label="error",service="\"\"\\\n"} 1790000005.500
    spanscore_evaluations_total{agent="b",label="fail",service="\"\"\\\n"} 0
    spanscore_evaluations_created{agent="b",label="fail",service="\"\"\\\n"} 1790000005.500
    spanscore_evaluations_total{agent="b",label="not_evaluated",service="\"\"\\\n"} 0
    spanscore_evaluations_created{agent="b",label="not_evaluated",service="\"\"\\\n"} 1790000005.500
    spanscore_evaluations_total{agent="b",label="pass",service="\"\"\\\n"} 1
    spanscore_evaluations_created{agent="b",label="pass",service="\"\"\\\n"} 1790000005.500
    # HELP spanscore_evaluation_score Scores of finished traces, 0 to 1
    # TYPE spanscore_evaluation_score histogram
    spanscore_evaluation_score_bucket{agent="a",label="fail",service="shop",le="0.6"} 0
    spanscore_evaluation_score_bucket{agent="a",label="fail",service="shop",le="0.7"} 1
    spanscore_evaluation_score_bucket{agent="a",label="fail",service="shop",le="+Inf"} 1
    spanscore_evaluation_score_sum{agent="a",label="fail",service="shop"} 0.6666666666666666
    spanscore_evaluation_score_count{agent="a",label="fail",service="shop"} 1
    spanscore_evaluation_score_created{agent="a",label="fail",service="shop"} 1790000005.500
    spanscore_evaluation_score_bucket{agent="a",label="pass",service="shop",le="0.6"} 0
    spanscore_evaluation_score_bucket{agent="a",label="pass",service="shop",le="0.7"} 0
    spanscore_evaluation_score_bucket{agent="a",label="pass",service="shop",le="+Inf"} 0
    spanscore_evaluation_score_sum{agent="a",label="pass",service="shop"} 0
    spanscore_evaluation_score_count{agent="a",label="pass",service="shop"} 0
    spanscore_evaluation_score_created{agent="a",label="pass",service="shop"} 1790000005.500
    spanscore_evaluation_score_bucket{agent="b",label="fail",service="\"\"\\\n",le="0.6"} 0
    spanscore_evaluation_score_bucket{agent="b",label="fail",service="\"\"\\\n",le="0.7"} 0
    spanscore_evaluation_score_bucket{agent="b",label="fail",service="\"\"\\\n",le="+Inf"} 0
    spanscore_evaluation_score_sum{agent="b",label="fail",service="\"\"\\\n"} 0
    spanscore_evaluation_score_count{agent="b",label="fail",service="\"\"\\\n"} 0
    spanscore_evaluation_score_created{agent="b",label="fail",service="\"\"\\\n"} 1790000005.500
    spanscore_evaluation_score_bucket{agent="b",label="pass",service="\"\"\\\n",le="0.6"} 0
    spanscore_evaluation_score_bucket{agent="b",label="pass",service="\"\"\\\n",le="0.7"} 0
    spanscore_evaluation_score_bucket{agent="b",label="pass",service="\"\"\\\n",le="+Inf"} 1
    spanscore_evaluation_score_sum{agent="b",label="pass",service="\"\"\\\n"} 1
    spanscore_evaluation_score_count{agent="b",label="pass",service="\"\"\\\n"} 1
    spanscore_evaluation_score_created{agent="b",label="pass",service="\"\"\\\n"} 1790000005.500
    # HELP spanscore_evaluation_revisions Evaluations whose label late spans changed
    # TYPE spanscore_evaluation_revisions counter
    spanscore_evaluation_revisions_total{from="fail",to="pass"} 1
    spanscore_evaluation_revisions_created{from="fail",to="pass"} 1790000005.500
    # HELP spanscore_time_to_verdict_seconds Time from the end of the judged span to its evaluation
    # TYPE spanscore_time_to_verdict_seconds histogram
    spanscore_time_to_verdict_seconds_bucket{completeness="root_ended",le="+Inf"} 2
    spanscore_time_to_verdict_seconds_sum{completeness="root_ended"} 11
    spanscore_time_to_verdict_seconds_count{completeness="root_ended"} 2
    spanscore_time_to_verdict_seconds_created{completeness="root_ended"} 1790000005.500
    # EOF
    "#);
}
