//! Tests the real program with disk faults: kills the program at its Nth system call, lets system
//! calls fail, and puts the program's folders on separate file systems (`mounted`). Only
//! `.ci/extended disks` runs these tests, because they need `strace`, root and several minutes. A
//! test that cannot run prints the reason. Does not test hardware that lies about its writes.

mod mounted;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use otlp::span::ScopeHash;
use prost::Message;
use rustix::process::Signal;

use super::{N_CRITERIA, at_present, run_of, start_tampered, unix_nanos};
use crate::support::backend::Backend;
use crate::support::eventually::within;
use crate::support::program::{Running, http, is_acknowledged};
use crate::support::repetitions::number;
use crate::support::spans::request;

/// Number of runs that are judged.
const N_RUNS: u64 = 5;

/// Number of large requests. They suffice to complete, free and reuse segments.
const N_FILLERS: u64 = 10;
const FILLER_SIZE: usize = 1_500_000;

/// Requests, and the scores of an undisturbed run that gets these requests.
struct Trial {
    requests: Vec<(Vec<String>, Vec<u8>)>,
    expected: BTreeMap<Vec<u8>, Vec<Span>>,
}

impl Trial {
    /// Prepares a trial; `None` if the test is skipped.
    async fn begin(test: &str, programs: &[&str], needs_root: bool) -> Option<Self> {
        if !is_asked_for(test, programs, needs_root) {
            return None;
        }
        let requests = requests(unix_nanos());
        let expected = undisturbed(&requests).await;
        Some(Self { requests, expected })
    }

    fn case<'a>(&'a self, folder: &'a Path, journal: PathBuf) -> Case<'a> {
        Case {
            folder,
            journal,
            requests: &self.requests,
        }
    }
}

/// Returns true if `.ci/extended disks` runs these tests and the machine meets their requirements.
/// Otherwise prints the reason.
fn is_asked_for(test: &str, programs: &[&str], needs_root: bool) -> bool {
    let why = if number("SPANSCORE_TEST_DISKS", 0) == 0 {
        "`.ci/extended disks` runs it".to_owned()
    } else if needs_root && !rustix::process::geteuid().is_root() {
        "only root can mount".to_owned()
    } else {
        // A container may forbid `strace`.
        let works = |program: &&&str| {
            let mut command = Command::new(program);
            let silent = command.stdout(Stdio::null()).stderr(Stdio::null());
            match **program {
                "strace" => silent.arg("true").status().is_ok_and(|it| it.success()),
                _ => silent.arg("--version").status().is_ok(),
            }
        };
        match programs.iter().find(|program| !works(program)) {
            Some(program) => format!("`{program}` is not installed or not allowed"),
            None => return true,
        }
    };
    skip(test, &why);
    false
}

/// Bypasses the test runner, which hides the output of a passing test.
fn skip(test: &str, why: &str) {
    let line = format!("\nSKIPPED restarts::disks::{test}: {why}\n");
    io::stderr().write_all(line.as_bytes()).unwrap();
}

fn say(text: &str) {
    io::stderr()
        .write_all(format!("{text}\n").as_bytes())
        .unwrap();
}

/// Returns a request that is only forwarded, because its span has no ids.
fn filler(n: u64, size: usize) -> Vec<u8> {
    request(vec![Span {
        name: format!("filler {n}"),
        trace_state: "x".repeat(size),
        ..Span::default()
    }])
}

/// Returns requests, each with the names or ids of its spans: some fillers, then runs between
/// fillers.
fn requests(present: u64) -> Vec<(Vec<String>, Vec<u8>)> {
    let mut requests = Vec::new();
    let add_filler = |requests: &mut Vec<_>, n: u64| {
        requests.push((vec![format!("filler {n}")], filler(n, FILLER_SIZE)));
    };
    for n in 0..N_FILLERS - N_RUNS {
        add_filler(&mut requests, n);
    }
    for run in 1..=N_RUNS {
        let mut spans = run_of(run);
        at_present(&mut spans, present);
        for part in [&spans[1..], &spans[..1]] {
            let ids = part.iter().map(span_id).collect();
            requests.push((ids, request(part.to_vec())));
        }
        add_filler(&mut requests, N_FILLERS - N_RUNS + run);
    }
    requests
}

fn span_id(span: &Span) -> String {
    format!("{:?} {:?}", span.trace_id, span.span_id)
}

#[derive(Default)]
struct Received {
    n_requests: usize,
    /// The number of copies of each span.
    spans: BTreeMap<String, usize>,
    /// Every copy of each score span.
    scores: BTreeMap<Vec<u8>, Vec<Span>>,
}

impl Received {
    fn update(&mut self, backend: &Backend) -> &Self {
        let arrived = backend.arrived();
        for arrived in &arrived[self.n_requests..] {
            if arrived.signal == "traces" {
                self.take(ExportTraceServiceRequest::decode(arrived.body.clone()).unwrap());
            }
        }
        self.n_requests = arrived.len();
        self
    }

    fn take(&mut self, request: ExportTraceServiceRequest) {
        let groups = request.resource_spans.into_iter();
        for scope in groups.flat_map(|resource| resource.scope_spans) {
            let name = scope.scope.as_ref().map_or("", |scope| &scope.name);
            let is_score = name.as_bytes() == ScopeHash::OWN_NAME.as_bytes();
            for span in scope.spans {
                if is_score {
                    let id = [&span.trace_id[..], &span.span_id].concat();
                    self.scores.entry(id).or_default().push(span);
                } else if span.name.starts_with("filler") {
                    *self.spans.entry(span.name).or_default() += 1;
                } else {
                    *self.spans.entry(span_id(&span)).or_default() += 1;
                }
            }
        }
    }

    fn has(&self, names: &[String]) -> bool {
        names.iter().all(|name| self.spans.contains_key(name))
    }
}

/// The input of two starts of the program, of which only the first has a fault of the disk.
struct Case<'a> {
    folder: &'a Path,
    journal: PathBuf,
    requests: &'a [(Vec<String>, Vec<u8>)],
}

impl Case<'_> {
    fn start(&self, endpoint: &str, tampering: Option<&str>) -> Running {
        let more = ["assemble.restart_guard=0", "journal.max_size=128MiB"];
        start_tampered(tampering, self.folder, endpoint, Some(&self.journal), &more)
    }

    /// Sends the requests from index `from` on, until one is not acknowledged. With `is_patient`,
    /// repeats a refused request until it is acknowledged or the program ends. Returns the number
    /// of acknowledged requests, including those before `from`.
    fn send(&self, sidecar: &mut Running, otlp: &str, from: usize, is_patient: bool) -> usize {
        let mut n_acknowledged = from;
        while let Some((_, body)) = self.requests.get(n_acknowledged) {
            if is_acknowledged(otlp, body) {
                n_acknowledged += 1;
            } else if !is_patient || ended(sidecar).is_some() {
                break;
            }
        }
        n_acknowledged
    }

    /// Waits until everything has arrived or the program has ended.
    async fn wait(&self, sidecar: &mut Running, backend: &Backend, received: &mut Received) {
        let n_scores = N_CRITERIA * N_RUNS as usize;
        // Injected delays may make system calls slow.
        within(Duration::from_secs(300), "everything arrives", || {
            let received = received.update(backend);
            let mut requests = self.requests.iter();
            let is_all =
                requests.all(|(names, _)| received.has(names)) && received.scores.len() >= n_scores;
            (is_all || ended(sidecar).is_some()).then_some(())
        })
        .await;
    }

    /// Waits until everything has arrived, then stops the program. It must exit cleanly.
    async fn finish(
        &self,
        mut sidecar: Running,
        backend: &Backend,
        received: &mut Received,
        what: &str,
    ) {
        self.wait(&mut sidecar, backend, received).await;
        sidecar.signal(Signal::TERM);
        assert_eq!(sidecar.ended().0, 0, "{what}");
        received.update(backend);
    }
}

fn ended(sidecar: &mut Running) -> Option<ExitStatus> {
    sidecar.child.try_wait().unwrap()
}

/// Returns the scores of a run without a fault.
async fn undisturbed(requests: &[(Vec<String>, Vec<u8>)]) -> BTreeMap<Vec<u8>, Vec<Span>> {
    let folder = tempfile::tempdir().unwrap();
    let backend = Backend::start().await;
    let case = Case {
        folder: folder.path(),
        journal: folder.path().join("journal"),
        requests,
    };
    let mut sidecar = case.start(&format!("http://{}", backend.address), None);
    let [otlp, _] = sidecar.addresses();
    let mut received = Received::default();
    assert_eq!(case.send(&mut sidecar, &otlp, 0, false), requests.len());
    case.finish(sidecar, &backend, &mut received, "undisturbed")
        .await;
    assert!(received.scores.values().all(|copies| copies.len() == 1));
    assert_eq!(received.scores.len(), N_CRITERIA * N_RUNS as usize);
    received.scores
}

/// Checks that every acknowledged span has arrived, and that each score equals that of the
/// undisturbed run. Returns the numbers of spans and of scores that arrived more than once.
fn check(
    what: &str,
    acknowledged: &[(Vec<String>, Vec<u8>)],
    received: &Received,
    expected: &BTreeMap<Vec<u8>, Vec<Span>>,
) -> [usize; 2] {
    for (names, _) in acknowledged {
        assert!(received.has(names), "{what}: {names:?} are lost");
    }
    let ids = |scores: &BTreeMap<Vec<u8>, Vec<Span>>| -> BTreeSet<Vec<u8>> {
        scores.keys().cloned().collect()
    };
    assert_eq!(ids(&received.scores), ids(expected), "{what}: scores");
    for (id, copies) in &received.scores {
        for copy in copies {
            assert_eq!(copy, &expected[id][0], "{what}: a score differs");
        }
        assert!(copies.len() <= 2, "{what}: a score came thrice");
    }
    let twice = received.spans.values().filter(|n| **n > 1).count();
    let scores_twice = received.scores.values().filter(|copies| copies.len() > 1);
    [twice, scores_twice.count()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_system_call_loses_nothing() {
    let test = "a_kill_at_any_system_call_loses_nothing";
    let Some(trial) = Trial::begin(test, &["strace"], false).await else {
        return;
    };
    let requests = &trial.requests;
    let calls = [
        ("pwritev", 24),
        ("fdatasync", 20),
        ("?fsync,?fdatasync", 6),
        ("?rename,?renameat,?renameat2", 2),
        ("?unlink,?unlinkat", 2),
        ("fallocate", 4),
        ("ftruncate", 2),
    ];
    let most = number("SPANSCORE_TEST_KILLS", 24);
    let (mut n_cases, mut n_killed, mut twice) = (0, 0, [0, 0]);
    for (calls, n_usual) in calls {
        for n in 1..=most.min(n_usual) {
            let folder = tempfile::tempdir().unwrap();
            let backend = Backend::start().await;
            let endpoint = format!("http://{}", backend.address);
            let case = trial.case(folder.path(), folder.path().join("journal"));
            let what = format!("{calls} {n}");
            let inject = format!("{calls}:signal=KILL:when={n}");
            let mut received = Received::default();
            let mut first = case.start(&endpoint, Some(&inject));
            // The program may be killed before it listens on its ports.
            let mut n_acknowledged = 0;
            if let Some([otlp, _]) = first.addresses_unless_ended() {
                n_acknowledged = case.send(&mut first, &otlp, 0, false);
                case.wait(&mut first, &backend, &mut received).await;
            }
            n_killed += usize::from(ended(&mut first).is_some());
            if ended(&mut first).is_none() {
                first.signal(Signal::TERM);
            }
            first.child.wait().unwrap();

            let mut second = case.start(&endpoint, None);
            let [otlp, _] = second.addresses();
            let n_sent = case.send(&mut second, &otlp, n_acknowledged, false);
            assert_eq!(n_sent, requests.len(), "{what}: it takes requests again");
            case.finish(second, &backend, &mut received, &what).await;
            let of_case = check(&what, requests, &received, &trial.expected);
            twice = [twice[0] + of_case[0], twice[1] + of_case[1]];
            n_cases += 1;
        }
    }
    say(&format!(
        "{n_cases} kills asked for, {n_killed} happened, {} spans each: 0 lost; {} requests' spans \
         and {} scores came twice",
        requests.iter().map(|(names, _)| names.len()).sum::<usize>(),
        twice[0],
        twice[1]
    ));
    assert!(n_killed > n_cases / 2, "{n_killed} of {n_cases}");
}

#[tokio::test(flavor = "multi_thread")]
async fn system_calls_that_fail_refuse_requests_and_lose_nothing() {
    let test = "system_calls_that_fail_refuse_requests_and_lose_nothing";
    let Some(trial) = Trial::begin(test, &["strace"], false).await else {
        return;
    };
    let requests = &trial.requests;
    for inject in [
        "fdatasync:error=EIO:when=3..6",
        "fdatasync:error=EROFS:when=4",
        "pwritev:error=ENOSPC:when=5..9",
        "pwritev:error=EIO:when=7",
        "fallocate:error=ENOSPC:when=1..3",
        "fsync:error=EIO:when=2..4",
        "?rename,?renameat,?renameat2:error=EIO:when=1",
        "?unlink,?unlinkat:error=EROFS:when=1..2",
        "fdatasync:delay_exit=300000:when=2+3",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let backend = Backend::start().await;
        let case = trial.case(folder.path(), folder.path().join("journal"));
        let endpoint = format!("http://{}", backend.address);
        let mut sidecar = case.start(&endpoint, Some(inject));
        let [otlp, admin] = sidecar.addresses();
        let n_acknowledged = case.send(&mut sidecar, &otlp, 0, true);
        assert_eq!(n_acknowledged, requests.len(), "{inject}");
        let answer = http(&admin, "GET /livez", &[]);
        assert!(answer.starts_with("HTTP/1.1 200"), "{inject}: {answer}");
        let mut received = Received::default();
        case.finish(sidecar, &backend, &mut received, inject).await;
        let [_, n_twice] = check(inject, requests, &received, &trial.expected);
        assert_eq!(n_twice, 0, "{inject}: nothing was killed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn starts_that_are_killed_while_they_read_the_journal_lose_nothing() {
    let test = "starts_that_are_killed_while_they_read_the_journal_lose_nothing";
    let Some(trial) = Trial::begin(test, &["strace"], false).await else {
        return;
    };
    let requests = &trial.requests;
    let folder = tempfile::tempdir().unwrap();
    // This backend stops immediately, so nothing listens at its address.
    let address = Backend::start_apart().await.address.to_string();
    let endpoint = format!("http://{address}");
    let case = trial.case(folder.path(), folder.path().join("journal"));
    let mut first = case.start(&endpoint, None);
    let [otlp, _] = first.addresses();
    assert_eq!(case.send(&mut first, &otlp, 0, false), requests.len());
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    let mut n_killed = 0;
    for n in 1..=20 {
        let inject = format!("pread64:signal=KILL:when={n}");
        let mut killed = case.start(&endpoint, Some(&inject));
        if killed.addresses_unless_ended().is_some() && ended(&mut killed).is_none() {
            killed.signal(Signal::KILL);
        }
        n_killed += usize::from(!killed.child.wait().unwrap().success());
    }
    assert_eq!(n_killed, 20);
    let backend = Backend::start_at(&address).await;
    let mut last = case.start(&endpoint, None);
    last.addresses();
    let mut received = Received::default();
    case.finish(last, &backend, &mut received, test).await;
    check(test, requests, &received, &trial.expected);
}
