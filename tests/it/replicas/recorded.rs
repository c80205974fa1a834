//! The recorded sessions of all frameworks over three replicas, which are real processes: their
//! requests by trace id while replicas are taken away, added and killed, and spread by request and
//! by connection. Compares every verdict with that of one process that saw the whole session, and
//! prints how many right ones are missing (`-- --nocapture`). Does not prove how soon a real router
//! follows a change: here it does so at once.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use spanscore::sidecar;

use super::replica::{Replica, Told, peers};
use super::sessions::{Request, Session, recorded_id, round_of, sessions};

/// Two criteria that half of the sessions meet, and two about calls that must not be there: half of
/// a trace fails the former and passes the latter.
const CRITERIA: &str = r#"criteria=[
    { "name": "ends", "evaluate": { "constraints": { "rules": [{ "existence": { "a":
        "^(create_order|book_flight|book_trip|send_receipt|publish_report|cancel_booking)$"
    } }] } } },
    { "name": "begins", "evaluate": { "constraints": { "rules": [{ "precedence": {
        "a": "^(validate_user|search_flights|lookup_account|find_booking|get_weather)$",
        "b": "^(create_order|book_flight|book_trip|charge_card|cancel_booking)$"
    } }] } } },
    { "name": "few", "evaluate": { "efficiency": { "max_calls": 3 } } },
    { "name": "calm", "evaluate": { "constraints": { "rules": [
        { "absence": { "a": "^get_weather$" } }
    ] } } }
]"#;

/// The warm-up in seconds where a test waits for it.
const SHORT: u64 = 3;

/// Starts a replica that warms up for this many seconds.
fn start(file: &Path, warm_up: u64) -> Replica {
    // Longer than the time to notice a change of the peers (2 s), as with the defaults.
    let settings = [
        CRITERIA,
        "assemble.settle=3s",
        "assemble.settle_remote=3s",
        "assemble.inactive=4s",
        &format!("assemble.warm_up={warm_up}s"),
    ];
    Replica::start(file, &settings)
}

/// A list of peers that does not change by itself.
fn peer_file(folder: &tempfile::TempDir, names: &[&str]) -> PathBuf {
    let file = folder.path().join("peers");
    peers(&file, names);
    file
}

/// The earliest beginning of sessions that a replica judges if it has just started or noticed a
/// change.
fn warm(warm_up: u64) -> u64 {
    sidecar::now().unix_nanos + warm_up * 1_000_000_000
}

/// The router's choice of a replica for a trace: when the replicas change, no more traces move than
/// must, as with the router's hash ring.
fn choice<'a>(trace_id: &[u8], among: &[&'a str]) -> &'a str {
    let weight = |name: &&str| {
        let bytes = trace_id.iter().chain(name.as_bytes());
        // FNV-1a; its last step mixes only the low bits.
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    };
    among.iter().copied().max_by_key(weight).unwrap()
}

type Replicas = BTreeMap<&'static str, Replica>;

/// Sends requests by trace id.
fn route(replicas: &Replicas, requests: &[Request]) {
    let names: Vec<&str> = replicas.keys().copied().collect();
    for request in requests {
        let placed = request.placed(|id| {
            let name = choice(id, &names);
            names.iter().position(|other| *other == name).unwrap()
        });
        for (at, part) in placed {
            replicas[names[at]].take(part.signal(), &part.encoded());
        }
    }
}

/// Waits until no trace is open. A judging thread that has not yet processed what it was sent
/// counts none, so it checks again after some seconds.
fn until_closed<'a>(replicas: impl IntoIterator<Item = &'a Replica> + Clone) {
    let is_closed = |replica: &Replica| replica.metric("spanscore_traces_open") == Some(0);
    let mut is_certain = false;
    while !is_certain {
        for replica in replicas.clone() {
            replica.until("spanscore_traces_open", 0);
        }
        if let Some(replica) = replicas.clone().into_iter().next() {
            replica.confirm();
        }
        is_certain = replicas.clone().into_iter().all(is_closed);
    }
}

/// Labels by trace and criterion.
type Labels = BTreeMap<(String, String), BTreeSet<String>>;

/// The verdict of each criterion on each recorded trace.
fn truth(sessions: &[Session]) -> Labels {
    let folder = tempfile::tempdir().unwrap();
    let file = peer_file(&folder, &["only"]);
    let replica = start(&file, SHORT);
    replica.until("spanscore_peers", 1);
    for session in sessions {
        for request in session.renewed(0, warm(SHORT)) {
            replica.take(request.signal(), &request.encoded());
        }
    }
    until_closed([&replica]);
    let mut truth = Labels::new();
    for told in replica.ended() {
        let key = (recorded_id(&told.trace_id).to_owned(), told.criterion);
        truth.insert(key, BTreeSet::from([told.label]));
    }
    let is_decided = |labels: &BTreeSet<String>| !labels.contains("not_evaluated");
    truth.retain(|_, labels| is_decided(labels));
    truth
}

/// The verdicts of one round, counted.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Verdicts that the whole session contradicts.
    n_wrong: usize,
    /// Verdicts that the whole session has, and that no replica gave.
    n_missing: usize,
    /// All verdicts on the whole sessions.
    n_all: usize,
}

fn outcome(truth: &Labels, told: &[Told], round: u16) -> Outcome {
    let mut given = Labels::new();
    // A replica may revise its verdict, and the last one counts; replicas do not revise each
    // other's, so each label that one ended with counts.
    for told in told.iter().filter(|told| round_of(&told.trace_id) == round) {
        let key = (
            recorded_id(&told.trace_id).to_owned(),
            told.criterion.clone(),
        );
        given.entry(key).or_default().insert(told.label.clone());
    }
    let mut outcome = Outcome {
        n_all: truth.len(),
        ..Outcome::default()
    };
    for (key, right) in truth {
        let labels = given.get(key).cloned().unwrap_or_default();
        let decided: BTreeSet<String> = labels
            .into_iter()
            .filter(|label| label != "not_evaluated")
            .collect();
        outcome.n_missing += usize::from(decided.is_disjoint(right));
        outcome.n_wrong += decided.difference(right).count();
    }
    outcome
}

/// The last judgement of each trace by each criterion, of one replica.
fn last(told: Vec<Told>) -> Vec<Told> {
    let keyed = told.into_iter();
    let by_key: BTreeMap<_, _> = keyed
        .map(|told| ((told.trace_id.clone(), told.criterion.clone()), told))
        .collect();
    by_key.into_values().collect()
}

#[test]
fn by_trace_id_scaling_and_killing_give_no_wrong_verdict() {
    // Spans that arrive this soon after a change are no evidence that traces arrive torn. It is
    // longer than a busy machine takes to send the halves of all sessions, and nothing waits for
    // it.
    const WARM_UP: u64 = 60;
    let sessions = sessions();
    let truth = truth(&sessions);
    let folder = tempfile::tempdir().unwrap();
    let file = peer_file(&folder, &["a", "b", "c"]);
    let mut replicas: Replicas = ["a", "b", "c"]
        .map(|name| (name, start(&file, WARM_UP)))
        .into();
    for replica in replicas.values() {
        replica.until("spanscore_peers", 3);
    }
    let mut told = Vec::new();
    let renewed = |round: u16, begin: u64| -> Vec<Vec<Request>> {
        let sessions = sessions.iter();
        sessions
            .map(|session| session.renewed(round, begin))
            .collect()
    };
    let halves = |requests: &[Request]| requests.len().div_ceil(2);

    // Round 0: nothing changes.
    for requests in renewed(0, warm(WARM_UP)) {
        route(&replicas, &requests);
    }
    until_closed(replicas.values());
    // Round 1: three become one while sessions are under way.
    let under_way = renewed(1, warm(WARM_UP));
    for requests in &under_way {
        route(&replicas, &requests[..halves(requests)]);
    }
    peers(&file, &["a"]);
    for name in ["b", "c"] {
        told.extend(last(replicas.remove(name).unwrap().ended()));
    }
    for requests in &under_way {
        route(&replicas, &requests[halves(requests)..]);
    }
    replicas["a"].until("spanscore_peers", 1);
    // Round 2: one becomes three.
    let under_way = renewed(2, warm(WARM_UP));
    for requests in &under_way {
        route(&replicas, &requests[..halves(requests)]);
    }
    replicas["a"].confirm();
    peers(&file, &["a", "d", "e"]);
    replicas.extend(["d", "e"].map(|name| (name, start(&file, WARM_UP))));
    for requests in &under_way {
        route(&replicas, &requests[halves(requests)..]);
    }
    for replica in replicas.values() {
        replica.until("spanscore_peers", 3);
    }
    // Round 3: one of three is killed.
    let under_way = renewed(3, warm(WARM_UP));
    for requests in &under_way {
        route(&replicas, &requests[..halves(requests)]);
    }
    for replica in replicas.values() {
        replica.confirm();
    }
    told.extend(last(replicas.remove("e").unwrap().killed()));
    peers(&file, &["a", "d"]);
    for requests in &under_way {
        route(&replicas, &requests[halves(requests)..]);
    }
    for replica in replicas.values() {
        replica.until("spanscore_peers", 2);
    }
    // Round 4: nothing changes any more.
    for requests in renewed(4, warm(WARM_UP)) {
        route(&replicas, &requests);
    }
    until_closed(replicas.values());
    for replica in replicas.into_values() {
        told.extend(last(replica.ended()));
    }

    let outcomes: Vec<Outcome> = (0..5).map(|round| outcome(&truth, &told, round)).collect();
    let names = ["unchanged", "3 to 1", "1 to 3", "one killed", "unchanged"];
    for (name, outcome) in names.into_iter().zip(&outcomes) {
        println!("{name}: {outcome:?}");
    }
    for (name, outcome) in names.into_iter().zip(&outcomes) {
        assert!(outcome.n_all > 300, "{name}: {outcome:?}");
        assert_eq!(outcome.n_wrong, 0, "{name}: {outcome:?}");
    }
    for at in [0, 4] {
        assert_eq!(outcomes[at].n_missing, 0, "{}", names[at]);
    }
    for at in 1..4 {
        assert!(outcomes[at].n_missing > 0, "{}", names[at]);
    }
}

/// Sends every session, each request to the replica that `place` chooses by the number of the
/// request and of the connection that carries it.
fn spread(
    replicas: &[Replica],
    sessions: &[Session],
    round: u16,
    place: impl Fn(usize, usize) -> usize,
) {
    let mut n_requests = usize::from(round);
    for (number, session) in sessions.iter().enumerate() {
        for request in session.renewed(round, warm(SHORT)) {
            // An SDK has an exporter, and so a connection, for each signal.
            let connection = 2 * number + usize::from(request.signal() == "logs");
            let at = place(n_requests, connection) % replicas.len();
            replicas[at].take(request.signal(), &request.encoded());
            n_requests += 1;
        }
    }
}

/// Verdicts on the sessions of two rounds; the second round begins when all replicas have noticed.
fn spread_twice(place: impl Fn(usize, usize) -> usize, is_noticed: bool) -> [Outcome; 2] {
    let sessions = sessions();
    let truth = truth(&sessions);
    let folder = tempfile::tempdir().unwrap();
    let file = peer_file(&folder, &["a", "b", "c"]);
    let replicas: Vec<Replica> = (0..3).map(|_| start(&file, SHORT)).collect();
    for replica in &replicas {
        replica.until("spanscore_peers", 3);
    }
    // Spans that arrive before the replicas have warmed up are no evidence.
    for replica in &replicas {
        replica.confirm();
        replica.confirm();
    }
    spread(&replicas, &sessions, 0, &place);
    for replica in replicas.iter().filter(|_| is_noticed) {
        replica.until("spanscore_services_torn", 1);
    }
    spread(&replicas, &sessions, 1, &place);
    until_closed(&replicas);
    let told: Vec<Told> = replicas
        .into_iter()
        .flat_map(|replica| last(replica.ended()))
        .collect();
    [0, 1].map(|round| outcome(&truth, &told, round))
}

#[test]
fn spread_by_request_no_verdict_is_wrong_once_that_is_noticed() {
    let [before, after] = spread_twice(|request, _| request, true);
    println!("before it is noticed: {before:?}\nafterwards: {after:?}");
    assert!(before.n_wrong > 0, "half a trace is judged as a whole one");
    assert_eq!(after.n_wrong, 0);
}

#[test]
fn spread_by_connection_no_verdict_is_wrong() {
    let [before, after] = spread_twice(|_, connection| connection, false);
    println!("{before:?}\n{after:?}");
    assert_eq!(before.n_wrong + after.n_wrong, 0);
}
