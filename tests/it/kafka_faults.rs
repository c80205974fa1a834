//! Tests judges that are killed, drained and joined by others, and writers and brokers that are
//! killed, all under load. No trace is lost, torn or judged wrongly. Except for the replay mark,
//! the scores equal, byte for byte, those of a single undisturbed process. Needs three brokers and
//! several minutes, so `tests/kafka/run faults` runs this test.

mod load;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rustix::process::{Pid, Signal, kill_process};
use spanscore::sidecar::now;

use crate::kafka_judges::{CRITERIA, line_with, text_of};
use crate::support::backend::Backend;
use crate::support::program::Running;

use load::Load;

const N_PARTITIONS: i32 = 12;
const N_JUDGES: usize = 3;

/// Maximum wait without progress; long enough for slow machines.
const PATIENCE: Duration = Duration::from_secs(120);

/// Interval between checks of other processes.
const LOOK: Duration = Duration::from_millis(250);

struct Bench {
    brokers: String,
    folder: String,
    topic: String,
    /// The group protocol of the judges.
    protocol: String,
    scratch: PathBuf,
}

/// Returns an environment variable that a script or a person sets.
#[expect(clippy::disallowed_methods, reason = "the script names its brokers")]
fn set(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Bench {
    async fn new() -> Self {
        let run = std::process::id();
        let scratch = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{run}"));
        fs::create_dir_all(&scratch).unwrap();
        fs::write(scratch.join("criteria.yaml"), CRITERIA).unwrap();
        let bench = Self {
            brokers: set("SPANSCORE_TEST_BROKERS").expect("tests/kafka/run faults sets it"),
            folder: set("SPANSCORE_TEST_BROKER_FOLDER").expect("tests/kafka/run faults sets it"),
            topic: format!("faults-{run}"),
            protocol: set("SPANSCORE_TEST_PROTOCOL").unwrap_or_else(|| "classic".to_owned()),
            scratch,
        };
        let admin: AdminClient<DefaultClientContext> = bench.client().create().unwrap();
        let topic = NewTopic::new(&bench.topic, N_PARTITIONS, TopicReplication::Fixed(3))
            .set("message.timestamp.type", "LogAppendTime")
            .set("min.insync.replicas", "2");
        let created = admin.create_topics([&topic], &AdminOptions::new()).await;
        created.unwrap()[0].as_ref().unwrap();
        bench
    }

    fn client(&self) -> ClientConfig {
        let mut client = ClientConfig::new();
        client.set("bootstrap.servers", &self.brokers);
        client
    }

    fn arguments(&self, settings: &[&str]) -> Vec<String> {
        let brokers: Vec<String> = self
            .brokers
            .split(',')
            .map(|it| format!("{it:?}"))
            .collect();
        let brokers = format!("kafka.brokers=[{}]", brokers.join(","));
        let settings = settings.iter().map(|it| (*it).to_owned());
        let settings = [brokers].into_iter().chain(settings);
        settings.flat_map(|it| ["--set".to_owned(), it]).collect()
    }

    fn judge(&self, group: &str, n_threads: usize, backend: &Backend) -> Running {
        let criteria = self.scratch.join("criteria.yaml");
        let mut arguments = self.arguments(&[
            "kafka.read.enabled=true",
            &format!("kafka.read.topic={}", self.topic),
            &format!("kafka.read.group={group}"),
            &format!("kafka.read.protocol={}", self.protocol),
            "kafka.read.start=earliest",
            "kafka.read.session_timeout=6s",
            "assemble.settle=300ms",
            &format!("scoring.threads={n_threads}"),
            &format!("forward.endpoint=http://{}", backend.address),
        ]);
        arguments.extend(["--config".to_owned(), criteria.display().to_string()]);
        start(&arguments)
    }

    fn writer(&self, index: usize) -> (Running, String) {
        let journal = self.scratch.join(format!("journal-{index}"));
        let mut writer = start(&self.arguments(&[
            "kafka.write.enabled=true",
            &format!("kafka.write.topic={}", self.topic),
            &format!("journal.directory={}", journal.display()),
            "scoring.enabled=false",
            "shutdown.quiet=0",
        ]));
        let [otlp, _] = writer.addresses();
        (writer, otlp)
    }

    fn broker(&self, what: &str, number: usize) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/kafka/broker");
        let mut command = Command::new(script);
        let status = command
            .args([what, &self.folder, &number.to_string()])
            .status();
        assert!(status.unwrap().success(), "{what} {number}");
    }

    /// Waits until all replicas of every partition are in sync.
    fn all_in_sync(&self, events: &Events) {
        let consumer: BaseConsumer = self.client().create().unwrap();
        for topic in [&*self.topic, "__consumer_offsets"] {
            events.until("replicas in sync", |_| {
                let found = consumer.fetch_metadata(Some(topic), Duration::from_secs(10));
                found.is_ok_and(|found| {
                    let mut partitions = found.topics()[0].partitions().iter();
                    partitions.all(|it| it.isr().len() == 3)
                })
            });
        }
    }
}

fn start(arguments: &[String]) -> Running {
    Running::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
}

/// The state of the judges, derived from the log lines read so far.
#[derive(Default)]
struct Events {
    state: Mutex<Log>,
    changed: Condvar,
}

#[derive(Default)]
struct Log {
    /// The partitions of each living judge. A partition may be listed twice until the thread that
    /// had it notices that it was assigned to another thread.
    held: BTreeMap<usize, Vec<i32>>,
    /// The time of the last assignment of a partition.
    last_taken: Option<Instant>,
    n_lost: usize,
}

impl Log {
    fn has_all(&self) -> bool {
        let mut all: Vec<i32> = self.held.values().flatten().copied().collect();
        all.sort_unstable();
        all == (0..N_PARTITIONS).collect::<Vec<_>>() && self.held.values().all(|it| !it.is_empty())
    }
}

impl Events {
    fn took(&self, judge: usize, line: &serde_json::Value) {
        let Some(what) = line["message"]
            .as_str()
            .and_then(|message| message.strip_prefix("partitions "))
        else {
            return;
        };
        let partitions: Vec<i32> =
            serde_json::from_str(line["partitions"].as_str().unwrap()).unwrap();
        let mut state = self.state.lock().unwrap();
        if what == "lost" {
            state.n_lost += partitions.len();
        }
        if what == "assigned" {
            state.last_taken = Some(now().instant);
        }
        if let Some(held) = state.held.get_mut(&judge) {
            for partition in partitions {
                let at = held.iter().position(|it| *it == partition);
                match (what, at) {
                    ("assigned", _) => held.push(partition),
                    (_, Some(at)) => drop(held.swap_remove(at)),
                    (_, None) => {}
                }
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    fn until(&self, what: &str, mut is_so: impl FnMut(&Log) -> bool) {
        let give_up_at = now().instant + PATIENCE;
        let mut state = self.state.lock().unwrap();
        while !is_so(&state) {
            assert!(now().instant < give_up_at, "{what}: {:?}", state.held);
            state = self.changed.wait_timeout(state, LOOK).unwrap().0;
        }
    }

    /// Waits until the living judges have all partitions, and each of them has some. Returns the
    /// time from `since` to the last assignment.
    fn settled(&self, since: Instant) -> Duration {
        self.until("all partitions", Log::has_all);
        let last = self.state.lock().unwrap().last_taken;
        last.unwrap().saturating_duration_since(since)
    }
}

/// A judge process. A thread reads its log.
struct Judge {
    number: usize,
    pid: Pid,
    reading: Option<JoinHandle<i32>>,
    events: Arc<Events>,
}

impl Judge {
    /// Starts reading the judge's log, and writes it to `folder`.
    fn new(number: usize, mut running: Running, folder: &Path, events: &Arc<Events>) -> Self {
        let told = Arc::clone(events);
        let mut kept = File::create(folder.join(format!("judge-{number}.log"))).unwrap();
        events.state.lock().unwrap().held.insert(number, Vec::new());
        let pid = Pid::from_child(&running.child);
        let reading = thread::spawn(move || {
            let mut line = String::new();
            while running.log.read_line(&mut line).is_ok_and(|n| n > 0) {
                kept.write_all(line.as_bytes()).unwrap();
                if let Ok(line) = serde_json::from_str(&line) {
                    told.took(number, &line);
                }
                line.clear();
            }
            running.child.wait().unwrap().code().unwrap_or(-1)
        });
        Self {
            number,
            pid,
            reading: Some(reading),
            events: Arc::clone(events),
        }
    }

    /// Kills or drains the judge, and removes its partitions. Returns its exit code.
    fn end(mut self, signal: Signal) -> i32 {
        self.events.state.lock().unwrap().held.remove(&self.number);
        kill_process(self.pid, signal).unwrap();
        self.reading.take().unwrap().join().unwrap()
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        if self.reading.is_some() {
            let _ = kill_process(self.pid, Signal::KILL);
        }
    }
}

struct Score {
    trace: u64,
    criterion: String,
    revision: i64,
    verdict: [String; 2],
    /// The bytes of the score except for the replay mark.
    bytes: Vec<u8>,
    n_marked: usize,
    n_unmarked: usize,
}

/// A trace, and the criterion, revision, label and completeness of each of its scores.
type WrongTrace = (u64, Vec<(String, i64, [String; 2])>);

/// The scores that a backend received, by span id.
#[derive(Default)]
struct Scores {
    all: BTreeMap<Vec<u8>, Score>,
    n_read: usize,
}

impl Scores {
    fn read(&mut self, backend: &Backend) {
        let arrived = backend.arrived();
        for arrived in arrived.iter().skip(self.n_read) {
            if arrived.signal != "traces" {
                continue;
            }
            let request = ExportTraceServiceRequest::decode(arrived.body.clone()).unwrap();
            for resource in request.resource_spans {
                let about = resource.resource.unwrap().encode_to_vec();
                for span in resource.scope_spans.into_iter().flat_map(|it| it.spans) {
                    self.take(span, &about);
                }
            }
        }
        self.n_read = arrived.len();
    }

    fn take(&mut self, mut span: Span, resource: &[u8]) {
        let n_attributes = span.attributes.len();
        span.attributes.retain(|it| it.key != "spanscore.replayed");
        let is_marked = span.attributes.len() < n_attributes;
        let bytes = [resource, &span.encode_to_vec()].concat();
        let score = self
            .all
            .entry(span.span_id.clone())
            .or_insert_with(|| Score {
                trace: u64::from_be_bytes(span.trace_id[8..].try_into().unwrap()),
                criterion: text_of(&span, "gen_ai.evaluation.name"),
                revision: revision_of(&span),
                verdict: ["gen_ai.evaluation.score.label", "spanscore.completeness"]
                    .map(|key| text_of(&span, key)),
                bytes: bytes.clone(),
                n_marked: 0,
                n_unmarked: 0,
            });
        assert!(score.bytes == bytes, "another score under the same id");
        if is_marked { score.n_marked += 1 } else { score.n_unmarked += 1 }
    }

    /// Returns the traces, up to number `n_traces`, whose latest scores are not the expected
    /// scores.
    fn wrong(&self, n_traces: u64) -> Vec<u64> {
        let mut latest: BTreeMap<(u64, &str), &Score> = BTreeMap::new();
        for score in self.all.values() {
            let slot = latest
                .entry((score.trace, &score.criterion))
                .or_insert(score);
            if score.revision > slot.revision {
                *slot = score;
            }
        }
        let is_right = |trace: u64, criterion: &str| {
            let found = latest.get(&(trace, criterion));
            let label = match (criterion, trace % 2) {
                ("no rm", 0) => "fail",
                _ => "pass",
            };
            found.is_some_and(|it| it.verdict == [label, "root_ended"])
        };
        let wrong = (1..=n_traces)
            .filter(|trace| !is_right(*trace, "no rm") || !is_right(*trace, "five calls"));
        wrong.collect()
    }

    fn told(&self, trace: u64) -> WrongTrace {
        let of_trace = self.all.values().filter(|it| it.trace == trace);
        let of_trace = of_trace.map(|it| (it.criterion.clone(), it.revision, it.verdict.clone()));
        (trace, of_trace.collect())
    }

    /// Waits until the latest scores of all traces up to number `n_traces` are right. A backlog may
    /// take long, so this panics only after [`PATIENCE`] without progress.
    fn all_right(&mut self, n_traces: u64, backend: &Backend, events: &Events) {
        let (mut fewest, mut give_up_at) = (usize::MAX, now().instant + PATIENCE);
        loop {
            self.read(backend);
            let wrong = self.wrong(n_traces);
            if wrong.is_empty() {
                return;
            }
            if wrong.len() < fewest {
                (fewest, give_up_at) = (wrong.len(), now().instant + PATIENCE);
            }
            if now().instant >= give_up_at {
                let some: Vec<_> = wrong.iter().take(5).map(|it| self.told(*it)).collect();
                panic!("{fewest} of {n_traces} are not right: {some:?}");
            }
            // The arrival of a score notifies nobody, so check again after a while.
            let state = events.state.lock().unwrap();
            drop(events.changed.wait_timeout(state, LOOK).unwrap());
        }
    }
}

fn revision_of(span: &Span) -> i64 {
    use opentelemetry_proto::tonic::common::v1::any_value::Value;
    let found = span
        .attributes
        .iter()
        .find(|it| it.key == "spanscore.revision");
    match found.and_then(|it| it.value.as_ref()?.value.clone()) {
        Some(Value::IntValue(revision)) => revision,
        other => panic!("{other:?}"),
    }
}

fn seconds(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let middle = all.get(all.len() / 2).copied().unwrap_or_default();
    let most = all.last().copied().unwrap_or_default();
    format!(
        "{:.2} s (median), {:.2} s (most)",
        middle.as_secs_f64(),
        most.as_secs_f64()
    )
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs three brokers and minutes: tests/kafka/run faults"]
async fn kills_rebalances_and_dead_brokers_change_no_score() {
    let n_kills: usize = set("SPANSCORE_TEST_KILLS").map_or(20, |n| n.parse().unwrap());
    let bench = Bench::new().await;
    let (backend, events) = (Backend::start().await, Arc::new(Events::default()));
    let mut scores = Scores::default();
    let mut n_judges = 0;
    let mut join = || {
        n_judges += 1;
        let judge = bench.judge("disturbed", 2, &backend);
        Judge::new(n_judges, judge, &bench.scratch, &events)
    };
    let mut judges: Vec<Judge> = (0..N_JUDGES).map(|_| join()).collect();
    events.settled(now().instant);
    let mut writers: Vec<Option<(Running, String)>> =
        (0..2).map(|index| Some(bench.writer(index))).collect();
    let addresses = writers.iter().flatten().map(|(_, otlp)| Some(otlp.clone()));
    let load = Load::start(addresses.collect());
    let begun = now().instant;

    let mut after_kills = Vec::new();
    for kill in 0..n_kills {
        let index = kill % writers.len();
        let (mut writer, _) = writers[index].take().unwrap();
        load.use_writer(index, None);
        writer.child.kill().unwrap();
        writer.child.wait().unwrap();
        let killed_at = now().instant;
        judges.remove(kill % N_JUDGES).end(Signal::KILL);
        let again = bench.writer(index);
        load.use_writer(index, Some(again.1.clone()));
        writers[index] = Some(again);
        after_kills.push(events.settled(killed_at));
        judges.push(join());
        events.settled(now().instant);
    }
    let mut after_drains = Vec::new();
    for drain in 0..n_kills.div_ceil(2) {
        let begun = now().instant;
        let drained = judges.remove(drain % N_JUDGES).end(Signal::TERM);
        assert_eq!(drained, 0);
        after_drains.push(events.settled(begun));
        judges.push(join());
        events.settled(now().instant);
    }
    scores.read(&backend);
    let n_repeated_by = |scores: &Scores| -> usize {
        let counts = scores
            .all
            .values()
            .map(|it| it.n_marked + it.n_unmarked - 1);
        counts.sum()
    };
    let n_repeated = n_repeated_by(&scores);
    for number in 1..=3 {
        bench.broker("kill", number);
        // Wait for the traces that have begun, and for about 100 that begin while the broker is
        // down.
        scores.all_right(load.n_sent() + 100, &backend, &events);
        bench.broker("start", number);
        bench.all_in_sync(&events);
    }
    events.settled(now().instant);
    let n_traces = load.end();
    scores.all_right(n_traces, &backend, &events);
    let took = now().instant.saturating_duration_since(begun);
    for judge in judges {
        assert_eq!(judge.end(Signal::TERM), 0);
    }
    for (writer, _) in writers.into_iter().flatten() {
        writer.signal(Signal::TERM);
        assert_eq!(writer.ended().0, 0);
    }
    scores.read(&backend);

    let alone = Backend::start().await;
    let mut undisturbed = bench.judge("undisturbed", 1, &alone);
    line_with(&mut undisturbed, "partitions assigned");
    let mut expected = Scores::default();
    expected.all_right(n_traces, &alone, &events);
    undisturbed.signal(Signal::TERM);
    assert_eq!(undisturbed.ended().0, 0);
    expected.read(&alone);

    let n_all = n_repeated_by(&scores);
    let rate = scores.all.len() as f64 / took.as_secs_f64();
    println!(
        "{}: {n_traces} traces, {} scores, {rate:.0} a second; {n_kills} kills of judges and of \
         writers, {} drains, 3 dead brokers; partitions lost by judges that lived: {}",
        bench.protocol,
        scores.all.len(),
        after_drains.len(),
        events.state.lock().unwrap().n_lost,
    );
    println!("repeats: {n_repeated} after kills and drains, {n_all} in all");
    println!(
        "takeover after a kill (session 6 s): {}",
        seconds(after_kills)
    );
    println!("takeover after a drain: {}", seconds(after_drains));

    for score in scores.all.values() {
        let (trace, criterion) = (score.trace, &score.criterion);
        assert!(
            score.n_unmarked <= 1,
            "{criterion} of {trace} comes twice unmarked"
        );
    }
    let differ = |(id, score): (&Vec<u8>, &Score)| {
        let other = expected.all.get(id);
        let is_same = other.is_some_and(|other| other.bytes == score.bytes);
        let told = |it: &Score| {
            (
                it.trace,
                it.criterion.clone(),
                it.revision,
                it.verdict.clone(),
            )
        };
        (!is_same).then(|| (told(score), other.map(told)))
    };
    let different: Vec<_> = scores.all.iter().filter_map(differ).collect();
    let is_missing = |id: &&Vec<u8>| !scores.all.contains_key(*id);
    let n_missing = expected.all.keys().filter(is_missing).count();
    let some = &different[..different.len().min(5)];
    assert_eq!((different.len(), n_missing), (0, 0), "{some:?}");
    // The allowed number of repeated scores: for each kill of a judge, the scores of one second.
    let bound = n_kills as f64 * rate;
    assert!((n_repeated as f64) <= bound, "{n_repeated} > {bound}");
    fs::remove_dir_all(&bench.scratch).unwrap();
}
