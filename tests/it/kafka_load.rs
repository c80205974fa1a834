//! Tests a burst that a judge cannot process immediately because the backend for its scores is
//! down. Some records contain random bytes. Nothing is lost, nothing is wrong, and every record is
//! accounted for. Needs a broker, so `tests/kafka/run` runs this test.

use std::time::Duration;

use rdkafka::producer::{BaseProducer, BaseRecord, Producer};

use crate::kafka_judges::{Bench, end, send_parts};
use crate::support::backend::Backend;
use crate::support::eventually::within;
use crate::support::program::{http, metric, wait_for_metric};

/// Number of traces in the burst, each in two requests.
const N_TRACES: u64 = 1_000;

/// Number of records with random bytes: one per hundred requests.
const N_RANDOM: usize = 20;

fn lag_of_all(admin: &str) -> f64 {
    let of = |partition| format!("spanscore_kafka_lag_records{{partition=\"{partition}\"}}");
    (0..6).map(|partition| metric(admin, &of(partition))).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_burst_during_an_outage_of_the_backend_waits_in_the_topic() {
    let mut bench = Bench::new("burst").await;
    bench.backend = Backend::start_apart().await;
    let address = bench.backend.address.to_string();
    // The burst gives more scores than fit into the queue.
    let (judge, admin) = bench.judge_with(&["scores.queue.max_size=64KiB"]);
    let (writer, otlp) = bench.writer_with(&[]);
    for part in 0..2 {
        send_parts(&otlp, 1..=20, part);
    }
    assert_eq!(bench.all_judged(1..=20, &[&admin]).await, 0);
    let sent = "spanscore_scores_sent_total{shape=\"score_spans\"}";
    wait_for_metric(&admin, sent, |n| n == 40.0).await;

    bench.backend = Backend::start().await;
    let producer: BaseProducer = bench.client().create().unwrap();
    let mut rng = fastrand::Rng::with_seed(7);
    for number in 0..N_RANDOM {
        let first = 21 + N_TRACES / N_RANDOM as u64 * number as u64;
        let some = first..first + N_TRACES / N_RANDOM as u64;
        for part in 0..2 {
            send_parts(&otlp, some.clone(), part);
        }
        let bytes: Vec<u8> = (0..300).map(|_| rng.u8(..)).collect();
        let record: BaseRecord<'_, (), [u8]> = BaseRecord::to(&bench.topic).payload(&bytes);
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(Duration::from_secs(10)).unwrap();
    }
    // The judge stops reading when its queue is full, so records remain in the topic.
    let of_lag = Duration::from_secs(300);
    let lags = || (lag_of_all(&admin) >= 100.0).then_some(());
    within(of_lag, "a hundred records wait", lags).await;
    let capacity = "spanscore_exporter_queue_size_bytes{queue=\"score_spans\"}";
    let waiting = metric(&admin, capacity);
    assert!(waiting <= f64::from(64 << 10), "{waiting}");
    let live = http(&admin, "GET /livez", &[]);
    assert!(live.starts_with("HTTP/1.1 200"), "{live}");

    bench.backend = Backend::start_at(&address).await;
    assert_eq!(bench.all_judged(21..=20 + N_TRACES, &[&admin]).await, 0);
    let has_read = || (lag_of_all(&admin) == 0.0).then_some(());
    within(of_lag, "no record waits", has_read).await;
    let set_aside = "spanscore_kafka_records_set_aside_total{reason=\"protobuf\"}";
    wait_for_metric(&admin, set_aside, |n| n == N_RANDOM as f64).await;
    wait_for_metric(&admin, sent, |n| n == (2 * (20 + N_TRACES)) as f64).await;
    let page = http(&admin, "GET /metrics", &[]);
    let dropped = page
        .lines()
        .find(|line| line.starts_with("spanscore_scores_dropped_total"));
    assert_eq!(dropped, None);
    end(writer);
    end(judge);
}
