//! Tests the lines that a listener of the stream receives. The tests do not cover the transport.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use bytes::Bytes;
use judge::evaluate::{Evaluation, Verdict};
use serde_json::Value;

use super::fixture::{fail, pass, saying, with};
use crate::export::score_line;
use crate::export::stream::{
    MAX_LISTENERS, MAX_STORED_BYTES, NextLine, ScoreFilter, ScoreListener, ScoreStream,
};
use crate::telemetry::Telemetry;

const SECOND: u64 = 1_000_000_000;

fn stream() -> (Arc<ScoreStream>, Arc<Telemetry>) {
    let telemetry = Arc::new(Telemetry::default());
    (Arc::new(ScoreStream::new(telemetry.clone())), telemetry)
}

/// Returns the received content: a line's agent, the number of lines lost before it, or `end`.
fn got(listener: &ScoreListener) -> Vec<String> {
    let line = |text: Bytes| {
        serde_json::from_slice::<Value>(&text).unwrap()["agent"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let mut got = Vec::new();
    loop {
        match listener.next(Waker::noop()) {
            NextLine::Line(text) => got.push(line(text)),
            NextLine::Lost(n_lost) => got.push(format!("lost {n_lost}")),
            NextLine::Later => return got,
            NextLine::End => {
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
fn each_listener_gets_the_scores_of_its_filter() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (stream, _) = stream();
    let all = stream.listen(ScoreFilter::default(), 0).unwrap();
    let fails = stream
        .listen(
            ScoreFilter {
                label: vec![Verdict::Fail],
                criterion: vec!["check*".into()],
                ..ScoreFilter::default()
            },
            0,
        )
        .unwrap();
    let others = stream
        .listen(
            ScoreFilter {
                service: vec!["bank".into()],
                ..ScoreFilter::default()
            },
            0,
        )
        .unwrap();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    assert_eq!(others.next(&Waker::from(woken.clone())), NextLine::Later);
    assert_eq!(fails.next(&Waker::from(woken.clone())), NextLine::Later);
    stream.push(&[numbered(pass(), 1), numbered(fail(), 2)], SECOND);
    assert_eq!(
        (got(&all), got(&fails), got(&others)),
        (
            vec!["agent 1".into(), "agent 2".into()],
            vec!["agent 2".into()],
            vec![]
        )
    );
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    stream.close();
    assert_eq!(got(&all), ["end"]);
}

#[test]
fn a_slow_listener_loses_the_oldest_and_gets_their_number() {
    let (stream, telemetry) = stream();
    let slow = stream.listen(ScoreFilter::default(), 0).unwrap();
    let size = Value::Object(score_line::json(&numbered(pass(), 1_000)))
        .to_string()
        .len();
    let n = MAX_STORED_BYTES / size + 100;
    for number in 0..n {
        stream.push(&[numbered(pass(), 1_000 + number)], SECOND);
    }
    let got = got(&slow);
    assert_eq!(got[0], "lost 100");
    assert_eq!(
        (got.len() - 1, got[1].as_str()),
        (MAX_STORED_BYTES / size, "agent 1100")
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
fn the_latest_scores_are_remembered_and_gaps_are_reported() {
    let (stream, _) = stream();
    let many: Vec<Evaluation> = (0..150).map(|number| numbered(pass(), number)).collect();
    stream.push(&many, SECOND);
    stream.push(&[numbered(fail(), 150), numbered(pass(), 151)], 2 * SECOND);
    let last = |n_last: usize, filter: ScoreFilter| got(&stream.listen(filter, n_last).unwrap());
    assert_eq!(last(0, ScoreFilter::default()), Vec::<String>::new());
    assert_eq!(last(2, ScoreFilter::default()), ["agent 150", "agent 151"]);
    assert_eq!(
        last(3, ScoreFilter::default()),
        ["agent 99", "lost 50", "agent 150", "agent 151"]
    );
    assert_eq!(
        last(
            3,
            ScoreFilter {
                label: vec![Verdict::Fail],
                ..ScoreFilter::default()
            }
        ),
        ["agent 150"]
    );
}

#[test]
fn a_line_that_is_larger_than_all_stored_lines_is_lost() {
    let (stream, _) = stream();
    let listener = stream.listen(ScoreFilter::default(), 0).unwrap();
    let huge = saying(pass(), |said| {
        said.explanation = "x".repeat(MAX_STORED_BYTES)
    });
    stream.push(&[numbered(huge, 1), numbered(pass(), 2)], SECOND);
    assert_eq!(got(&listener), ["lost 1", "agent 2"]);
    assert_eq!(
        got(&stream.listen(ScoreFilter::default(), 9).unwrap()),
        ["agent 2"]
    );
}

#[test]
fn who_leaves_makes_room_for_others() {
    let (stream, _) = stream();
    let mut listener: Vec<ScoreListener> = (0..MAX_LISTENERS)
        .map(|_| stream.listen(ScoreFilter::default(), 0).unwrap())
        .collect();
    let refused = stream.listen(ScoreFilter::default(), 0);
    let full = "all 8 listeners are in use: stop one and retry";
    assert_eq!(refused.err().as_deref(), Some(full));
    listener.pop();
    assert!(stream.listen(ScoreFilter::default(), 0).is_ok());
}

/// A stopping sidecar may need a long time to deliver its queue. A listener that reconnects in that
/// time must be refused unless it requests recent lines; otherwise it would get an empty stream and
/// reconnect repeatedly.
#[test]
fn an_ended_stream_has_recent_lines_and_no_others() {
    let (stream, _) = stream();
    stream.push(&[numbered(pass(), 1)], SECOND);
    stream.close();
    let refused = stream.listen(ScoreFilter::default(), 0);
    let ended = "the sidecar is stopping and judges nothing more";
    assert_eq!(refused.err().as_deref(), Some(ended));
    let recent = stream.listen(ScoreFilter::default(), 9).unwrap();
    assert_eq!(got(&recent), ["agent 1", "end"]);
}
