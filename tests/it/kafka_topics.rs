//! Tests faults of a topic with the real program and a real broker: partitions that are added,
//! spans that another writer assigns to other partitions, and records that are not OTLP and are
//! moved to a separate topic. Also tests both group protocols. `tests/kafka/run` runs these tests.

use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};

use crate::kafka_judges::{Bench, end, line_with, send_parts};
use crate::kafka_logins::is_ready;
use crate::support::eventually::within;
use crate::support::program::{metric, wait_for_metric};

async fn add_partitions(bench: &Bench, n_partitions: usize) {
    let admin: AdminClient<DefaultClientContext> = bench.client().create().unwrap();
    let partitions = NewPartitions::new(&bench.topic, n_partitions);
    let created = admin.create_partitions([&partitions], &AdminOptions::new());
    created.await.unwrap()[0].as_ref().unwrap();
}

fn send_whole(bench: &Bench, traces: std::ops::RangeInclusive<u64>, more: &[&str]) {
    let (writer, otlp) = bench.writer_with(more);
    for part in 0..2 {
        send_parts(&otlp, traces.clone(), part);
    }
    end(writer);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn partitions_that_are_added_are_read_from_their_beginning() {
    let bench = Bench::new("added").await;
    let latest = "kafka.read.start=latest";
    let (judge, admin) = bench.judge_with(&[latest]);
    wait_for_metric(&admin, "spanscore_kafka_assigned_partitions", |it| {
        it == 6.0
    })
    .await;
    send_whole(&bench, 1..=20, &[]);
    assert_eq!(bench.all_judged(1..=20, &[&admin]).await, 0);
    end(judge);
    // No judge reads while these spans are written.
    add_partitions(&bench, 9).await;
    send_whole(&bench, 21..=60, &[]);
    let (mut judge, admin) = bench.judge_with(&[latest]);
    assert_eq!(bench.all_judged(1..=60, &[&admin]).await, 0);
    // The second judge is running while the partitions are added.
    add_partitions(&bench, 12).await;
    let line = line_with(&mut judge, "partitions were added to the topic");
    assert_eq!([&line["n_before"], &line["n_partitions"]], [9, 12]);
    wait_for_metric(&admin, "spanscore_kafka_assigned_partitions", |it| {
        it == 12.0
    })
    .await;
    send_whole(&bench, 61..=90, &[]);
    assert_eq!(bench.all_judged(1..=90, &[&admin]).await, 0);
    end(judge);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn spans_that_another_partitioner_placed_are_told_with_its_name() {
    let bench = Bench::new("placed").await;
    send_whole(&bench, 1..=20, &["kafka.write.partitioner=murmur2"]);
    let (mut judge, admin) = bench.judge_at_start(&[]);
    let line = line_with(&mut judge, "are not partitioned by trace id");
    assert_eq!(line["topic"], bench.topic);
    assert_eq!(line["would_fit"], "murmur2");
    assert!(metric(&admin, "spanscore_kafka_misplaced_traces_total") > 0.0);
    end(judge);
}

/// Returns the only record of the topic, and its headers.
fn only_record(bench: &Bench, topic: &str) -> (Vec<u8>, Vec<(String, String)>) {
    let consumer: BaseConsumer = bench.client().set("group.id", topic).create().unwrap();
    let mut all = TopicPartitionList::new();
    let mut n_records = 0;
    for partition in 0..6 {
        let ends = consumer.fetch_watermarks(topic, partition, Duration::from_secs(10));
        n_records += ends.unwrap().1;
        all.add_partition_offset(topic, partition, Offset::Beginning)
            .unwrap();
    }
    assert_eq!(n_records, 1);
    consumer.assign(&all).unwrap();
    let record: BorrowedMessage<'_> = consumer.poll(Duration::from_secs(30)).unwrap().unwrap();
    let headers = record.headers().unwrap().iter();
    let headers = headers.map(|it| {
        let value = String::from_utf8(it.value.unwrap().to_vec()).unwrap();
        (it.key.to_owned(), value)
    });
    (record.payload().unwrap().to_vec(), headers.collect())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_record_that_is_no_otlp_waits_for_the_set_aside_topic() {
    let bench = Bench::new("aside").await;
    let mut aside = Bench::without_topic("aside").await;
    aside.topic.push_str("-out");
    let producer: BaseProducer = bench.client().create().unwrap();
    let poison = b"{ \"resourceSpans\": 7 }";
    let record: BaseRecord<'_, (), [u8]> =
        BaseRecord::to(&bench.topic).partition(3).payload(poison);
    producer.send(record).map_err(|(error, _)| error).unwrap();
    producer.flush(Duration::from_secs(10)).unwrap();
    send_whole(&bench, 1..=20, &[]);

    let setting = format!("kafka.read.set_aside_topic={}", aside.topic);
    let (mut judge, admin) = bench.judge_at_start(&[&setting]);
    let line = line_with(&mut judge, "cannot set a record aside");
    assert_eq!(
        (&line["partition"], &line["offset"]),
        (&3.into(), &0.into())
    );
    let why = line["why"].as_str().unwrap();
    let expected = format!(
        "topic `{}` does not exist; create it: kafka-topics",
        aside.topic
    );
    assert!(why.starts_with(&expected), "{why}");
    // Reading of partition 3 stops at the record; all other partitions continue.
    wait_for_metric(
        &admin,
        "spanscore_kafka_lag_records{partition=\"2\"}",
        |it| it == 0.0,
    )
    .await;
    assert!(metric(&admin, "spanscore_kafka_lag_records{partition=\"3\"}") > 0.0);
    // A successor reads the record again.
    end(judge);
    let (mut judge, admin) = bench.judge_at_start(&[&setting]);
    line_with(&mut judge, "cannot set a record aside");
    aside.create_topic().await;
    let line = line_with(&mut judge, "record moved to the set-aside topic");
    assert_eq!(line["offset"], 0);
    assert_eq!(bench.all_judged(1..=20, &[&admin]).await, 0);
    let name = "spanscore_kafka_records_set_aside_total{reason=\"json\"}";
    assert_eq!(metric(&admin, name), 1.0);
    end(judge);
    let (judge, admin) = bench.judge_with(&[&setting]);
    wait_for_metric(&admin, "spanscore_kafka_assigned_partitions", |it| {
        it == 6.0
    })
    .await;
    assert_eq!(metric(&admin, name), 0.0, "it is not read again");
    end(judge);

    let (value, headers) = only_record(&bench, &aside.topic);
    assert_eq!(value, poison);
    let expected = [
        ("topic", &*bench.topic),
        ("partition", "3"),
        ("offset", "0"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(headers[..3], expected);
    assert_eq!(headers[3].0, "reason");
    assert_eq!(headers[3].1, line["why"].as_str().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_judge_with_more_threads_than_partitions_becomes_ready() {
    for protocol in ["classic", "consumer"] {
        let bench = Bench::new(&format!("idle-{protocol}")).await;
        let protocol = format!("kafka.read.protocol={protocol}");
        let (judge, admin) = bench.judge_with(&[&protocol, "scoring.threads=8"]);
        within(Duration::from_secs(300), &protocol, || {
            is_ready(&admin).then_some(())
        })
        .await;
        end(judge);
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a broker: tests/kafka/run starts one"]
async fn a_group_may_be_led_by_the_brokers() {
    for protocol in ["consumer", "auto"] {
        let bench = Bench::new(&format!("protocol-{protocol}")).await;
        let protocol = format!("kafka.read.protocol={protocol}");
        let settings = [&*protocol, "kafka.rack=zone-1"];
        let (writer, otlp) = bench.writer();
        let (first, first_admin) = bench.judge_with(&settings);
        send_parts(&otlp, 1..=60, 0);
        let (mut second, second_admin) = bench.judge_with(&settings);
        send_parts(&otlp, 1..=20, 1);
        bench
            .all_judged(1..=20, &[&first_admin, &second_admin])
            .await;
        assert!(metric(&second_admin, "spanscore_kafka_assigned_partitions") > 0.0);
        second.child.kill().unwrap();
        second.child.wait().unwrap();
        send_parts(&otlp, 21..=60, 1);
        bench.all_judged(1..=60, &[&first_admin]).await;
        assert!(is_ready(&first_admin));
        end(writer);
        end(first);
    }
}
