//! The last answer and the last failure of each destination, for `/v1/status`. Times are arguments.

use std::sync::Arc;
use std::time::Instant;

use text::abbreviated;

use super::Telemetry;
use crate::sync::Mutex;

/// Maximum length of an error in characters. Peers write these texts.
const MAX_ERROR: usize = 400;

/// A queue began to deliver to its destination.
#[derive(Debug)]
pub struct DestinationOpened {
    /// `forward`, `score_spans`, …
    pub queue: &'static str,
    /// The setting or variable with the endpoint.
    pub origin: String,
    pub endpoint: String,
}

impl DestinationOpened {
    /// Lists the destination in `/v1/status`, and returns the value that records its answers.
    pub fn emit(self, telemetry: &Telemetry) -> DestinationAnswers {
        let Self {
            queue,
            origin,
            endpoint,
        } = self;
        let answers = DestinationAnswers(Arc::new(Mutex::new(DestinationStatus {
            queue,
            origin,
            endpoint,
            state: DestinationState::Untried,
            last_accepted: None,
            last_refused: None,
            last_failed: None,
        })));
        telemetry.destinations.lock().push(answers.clone());
        answers
    }
}

/// Stores the answers of one destination. Clones share them.
#[derive(Debug, Clone)]
pub struct DestinationAnswers(Arc<Mutex<DestinationStatus>>);

#[derive(Debug)]
pub struct AttemptEnded<'a> {
    pub at: Instant,
    pub answer: Answer<'a>,
}

#[derive(Debug, Clone, Copy)]
pub enum Answer<'a> {
    /// The destination accepted the request, requested a smaller one, or does not have the
    /// evaluated span yet.
    Accepted,
    /// The destination permanently refused all or part of the request, with this message.
    Refused(&'a str),
    /// There was no answer, or the destination requested a retry. The text is the reason.
    Failed(&'a str),
}

impl AttemptEnded<'_> {
    pub fn emit(self, answers: &DestinationAnswers) {
        let Self { at, answer } = self;
        let error = |text: &str| Some((at, abbreviated(text, MAX_ERROR).into_owned()));
        let mut status = answers.0.lock();
        status.state = match answer {
            Answer::Accepted => DestinationState::Accepts,
            Answer::Refused(_) => DestinationState::Refuses,
            Answer::Failed(_) => DestinationState::Fails,
        };
        match answer {
            Answer::Accepted => status.last_accepted = Some(at),
            Answer::Refused(why) => status.last_refused = error(why),
            Answer::Failed(why) => status.last_failed = error(why),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DestinationStatus {
    pub queue: &'static str,
    pub origin: String,
    pub endpoint: String,
    pub state: DestinationState,
    pub last_accepted: Option<Instant>,
    pub last_refused: Option<(Instant, String)>,
    pub last_failed: Option<(Instant, String)>,
}

/// The result of the last attempt to deliver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DestinationState {
    Untried,
    Accepts,
    Refuses,
    Fails,
}

impl DestinationState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Untried => "untried",
            Self::Accepts => "accepts",
            Self::Refuses => "refuses",
            Self::Fails => "fails",
        }
    }
}

impl Telemetry {
    /// Returns the status of each destination, in the order in which their queues were opened.
    pub fn destinations(&self) -> Vec<DestinationStatus> {
        let all = self.destinations.lock();
        all.iter().map(|answers| answers.0.lock().clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_attempt_gives_the_state_and_earlier_ones_stay_known() {
        let telemetry = Telemetry::default();
        let opened = DestinationOpened {
            queue: "forward",
            origin: "forward.endpoint".to_owned(),
            endpoint: "http://collector:4317".to_owned(),
        };
        let answers = opened.emit(&telemetry);
        let known = || telemetry.destinations().remove(0);
        assert_eq!(known().state, DestinationState::Untried);
        let start = tokio::time::Instant::now().into_std();
        let later = start + Duration::from_secs(1);
        let note = |at, answer| AttemptEnded { at, answer }.emit(&answers);
        note(start, Answer::Accepted);
        let long = "x".repeat(10_000);
        note(later, Answer::Failed(&long));
        let DestinationStatus {
            state,
            last_accepted,
            last_failed,
            ..
        } = known();
        assert_eq!(state, DestinationState::Fails);
        assert_eq!(last_accepted, Some(start));
        let (at, error) = last_failed.unwrap();
        assert_eq!((at, error.chars().count()), (later, MAX_ERROR + 1));
        note(later, Answer::Refused("no such tenant"));
        assert_eq!(known().state, DestinationState::Refuses);
        note(later, Answer::Accepted);
        assert_eq!(known().state, DestinationState::Accepts);
        assert!(known().last_refused.is_some());
    }
}
