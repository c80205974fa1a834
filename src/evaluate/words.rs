//! Pure. What there is to say of an evaluation: in words once somebody reads them, and in numbers
//! for whoever only asks whether they would be the same. Knows no single evaluator, and not who
//! reads.

use std::any::Any;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::score::{Evaluation, Explain};

/// What an evaluation says, put into words when they are first read: most evaluations are only
/// counted, and words would be half of what judging costs.
#[derive(Debug, Clone)]
pub struct Words {
    said: OnceLock<Box<Said>>,
    /// What they are made of; nothing where they were there from the beginning.
    unsaid: Option<Unsaid>,
}

/// An evaluation in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// For people, in one or two sentences.
    pub explanation: String,
    /// The reference evaluator's own justification fields, a JSON object.
    pub details: Value,
    /// The calls to blame, positions in the trajectory.
    pub offending: Vec<usize>,
}

/// An evaluator's score, and how much of values its words will show.
#[derive(Debug, Clone)]
pub(super) struct Unsaid {
    /// A `Score` with the evidence of the criterion's evaluator, which alone knows its type.
    pub(super) score: Arc<dyn Any + Send + Sync>,
    pub(super) explain: Explain,
}

/// What an evaluation shows beyond the names of the calls, its value and its label. Two that are
/// equal in all of this look the same to whoever reads them.
#[derive(Debug, PartialEq)]
pub enum Shown<'a> {
    /// Numbers from which the words follow, and which follow from the words.
    Numbers(Numbers),
    /// More than that.
    Words(&'a Said),
}

/// Positions and counts.
pub type Numbers = SmallVec<[usize; 4]>;

impl Words {
    pub(super) fn later(unsaid: Unsaid) -> Self {
        Self {
            said: OnceLock::new(),
            unsaid: Some(unsaid),
        }
    }

    pub(super) fn of(&self, evaluation: &Evaluation) -> &Said {
        self.said.get_or_init(|| {
            let said = self.unsaid.as_ref().map(|unsaid| {
                evaluation
                    .criterion
                    .evaluate
                    .as_judge()
                    .say(unsaid, evaluation)
            });
            Box::new(said.unwrap_or_default())
        })
    }

    pub(super) fn shown(&self, evaluation: &Evaluation) -> Shown<'_> {
        let numbers = self.unsaid.as_ref().and_then(|unsaid| {
            evaluation
                .criterion
                .evaluate
                .as_judge()
                .shown(unsaid, evaluation)
        });
        numbers.map_or_else(|| Shown::Words(self.of(evaluation)), Shown::Numbers)
    }
}

impl From<Said> for Words {
    fn from(said: Said) -> Self {
        Self {
            said: OnceLock::from(Box::new(said)),
            unsaid: None,
        }
    }
}

impl From<String> for Said {
    /// A sentence, and nothing else.
    fn from(explanation: String) -> Self {
        Self {
            explanation,
            ..Self::default()
        }
    }
}

impl Default for Said {
    /// Not a word.
    fn default() -> Self {
        Self {
            explanation: String::new(),
            details: Value::Object(Map::new()),
            offending: Vec::new(),
        }
    }
}
