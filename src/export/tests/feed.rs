//! Evaluations in, what a listener gets out. They do not prove how it is carried.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use bytes::Bytes;
use serde_json::Value;

use super::fixture::{fail, pass, saying, with};
use crate::evaluate::{Evaluation, Verdict};
use crate::export::feed::{Feed, Filter, Listening, MAX_LISTENERS, MAX_RECENT, MAX_WAITING, Next};
use crate::export::score_line;
use crate::telemetry::Telemetry;

const SECOND: u64 = 1_000_000_000;

fn feed() -> (Arc<Feed>, Arc<Telemetry>) {
    let telemetry = Arc::new(Telemetry::default());
    (Arc::new(Feed::new(telemetry.clone())), telemetry)
}

/// What is there, as a line's agent or what was lost before it.
fn got(listening: &Listening) -> Vec<String> {
    let line = |text: Bytes| {
        serde_json::from_slice::<Value>(&text).unwrap()["agent"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let mut got = Vec::new();
    loop {
        match listening.next(Waker::noop()) {
            Next::Line(text) => got.push(line(text)),
            Next::Lost(n_lost) => got.push(format!("lost {n_lost}")),
            Next::Later => return got,
            Next::End => {
                got.push("end".to_owned());
                return got;
            }
        }
    }
}

fn numbered(evaluation: Evaluation, number: usize) -> Evaluation {
    with(evaluation, |trajectory| {
        trajectory.agent = Some(format!("agent {number}").into())
    })
}

#[test]
fn each_gets_what_it_wants_and_is_woken_for_it() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (feed, _) = feed();
    let all = feed.listen(Filter::default(), 0).unwrap();
    let fails = feed
        .listen(
            Filter {
                label: vec![Verdict::Fail],
                criterion: vec!["check*".into()],
                ..Filter::default()
            },
            0,
        )
        .unwrap();
    let others = feed
        .listen(
            Filter {
                service: vec!["bank".into()],
                ..Filter::default()
            },
            0,
        )
        .unwrap();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    assert_eq!(others.next(&Waker::from(woken.clone())), Next::Later);
    assert_eq!(fails.next(&Waker::from(woken.clone())), Next::Later);
    feed.push(&[numbered(pass(), 1), numbered(fail(), 2)], SECOND);
    assert_eq!(
        (got(&all), got(&fails), got(&others)),
        (
            vec!["agent 1".into(), "agent 2".into()],
            vec!["agent 2".into()],
            vec![]
        )
    );
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    feed.close();
    assert_eq!(got(&all), ["end"]);
}

#[test]
fn a_slow_listener_loses_the_oldest_and_is_told_how_many() {
    let (feed, telemetry) = feed();
    let slow = feed.listen(Filter::default(), 0).unwrap();
    let size = Value::Object(score_line::json(&numbered(pass(), 1_000)))
        .to_string()
        .len();
    let n = MAX_WAITING / size + 100;
    for number in 0..n {
        feed.push(&[numbered(pass(), 1_000 + number)], SECOND);
    }
    let got = got(&slow);
    assert_eq!(got[0], "lost 100");
    assert_eq!(
        (got.len() - 1, got[1].as_str()),
        (MAX_WAITING / size, "agent 1100")
    );
    let metrics = telemetry.metrics_text(0, &[]);
    assert!(
        metrics.contains(
            "spanscore_scores_dropped_total{shape=\"listener\",reason=\"queue_full\"} 100"
        ),
        "{metrics}"
    );
}

#[test]
fn the_last_ones_are_remembered_and_gaps_among_them_told() {
    let (feed, _) = feed();
    let many: Vec<Evaluation> = (0..150).map(|number| numbered(pass(), number)).collect();
    feed.push(&many, SECOND);
    feed.push(&[numbered(fail(), 150), numbered(pass(), 151)], 2 * SECOND);
    let last = |n_last: usize, filter: Filter| got(&feed.listen(filter, n_last).unwrap());
    assert_eq!(last(0, Filter::default()), Vec::<String>::new());
    assert_eq!(last(2, Filter::default()), ["agent 150", "agent 151"]);
    assert_eq!(
        last(3, Filter::default()),
        ["agent 99", "lost 50", "agent 150", "agent 151"]
    );
    assert_eq!(
        last(
            3,
            Filter {
                label: vec![Verdict::Fail],
                ..Filter::default()
            }
        ),
        ["agent 150"]
    );
    for second in 3..10 {
        feed.push(&many, second * SECOND);
    }
    assert!(
        last(1_000, Filter::default())
            .iter()
            .filter(|got| !got.starts_with("lost"))
            .count()
            <= MAX_RECENT
    );
}

#[test]
fn a_line_that_is_larger_than_all_that_may_wait_is_lost() {
    let (feed, _) = feed();
    let listening = feed.listen(Filter::default(), 0).unwrap();
    let huge = saying(pass(), |said| said.explanation = "x".repeat(MAX_WAITING));
    feed.push(&[numbered(huge, 1), numbered(pass(), 2)], SECOND);
    assert_eq!(got(&listening), ["lost 1", "agent 2"]);
    assert_eq!(
        got(&feed.listen(Filter::default(), 9).unwrap()),
        ["agent 2"]
    );
}

#[test]
fn who_leaves_makes_room_for_others() {
    let (feed, _) = feed();
    let mut listening: Vec<Listening> = (0..MAX_LISTENERS)
        .map(|_| feed.listen(Filter::default(), 0).unwrap())
        .collect();
    assert!(feed.listen(Filter::default(), 0).is_none());
    listening.pop();
    assert!(feed.listen(Filter::default(), 0).is_some());
}
