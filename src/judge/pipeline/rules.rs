//! The rules by which traces are judged, and what they need of the spans. Does not know how
//! traces are assembled.

use std::sync::Arc;

use otlp::span::KeySet;

use crate::evaluate::{Criterion, Expectations, Explain, FromSpans};
use crate::extract::{Recogniser, Tools};

/// The rules by which every trace is judged: one immutable set, swapped as a whole.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The criteria, in file order.
    pub criteria: Vec<Arc<Criterion>>,
    /// Recognises tool calls, and lists the attributes that the scan must keep.
    pub recogniser: Recogniser,
    /// How much of a value an explanation shows.
    pub explain: Explain,
    /// Expectations of single runs.
    pub expectations: Arc<Expectations>,
}

impl Rules {
    /// The rules of a configuration, without expectations of single runs. Scores copy the
    /// `copy_attributes` of the evaluated span, which are kept like those that selectors read.
    pub fn new(
        criteria: Vec<Criterion>,
        tools: &Tools,
        explain: Explain,
        copy_attributes: &[String],
    ) -> Self {
        Self::following(None, criteria, tools, explain, copy_attributes)
    }

    /// Like [`Self::new`], for rules that replace earlier ones: spans that were taken in under the
    /// earlier rules can still be read.
    pub fn following(
        previous: Option<&Self>,
        criteria: Vec<Criterion>,
        tools: &Tools,
        explain: Explain,
        copy_attributes: &[String],
    ) -> Self {
        let previous = previous.map(|rules| &rules.recogniser);
        let selected = criteria.iter().flat_map(Criterion::selector_attributes);
        let copied = copy_attributes.iter().map(String::as_str);
        let recogniser = Recogniser::new(tools, selected.chain(copied), previous);
        Self {
            recogniser,
            explain,
            criteria: criteria.into_iter().map(Arc::new).collect(),
            expectations: Arc::default(),
        }
    }

    /// Adds expectations of single runs.
    pub fn expecting(self, expectations: Expectations) -> Self {
        let bringing = expectations.from_spans.bringing(expectations.max_size);
        Self {
            recogniser: self.recogniser.with_span_expectations(bringing),
            expectations: expectations.into(),
            ..self
        }
    }

    /// A copy without criteria and expectations: trajectories are still extracted, with what runs
    /// say of themselves.
    pub fn without_judgement(&self) -> Self {
        Self {
            criteria: Vec::new(),
            expectations: Arc::default(),
            ..self.clone()
        }
    }

    /// Can these rules judge any run?
    pub fn may_judge(&self) -> bool {
        let Expectations {
            from_spans, cases, ..
        } = &*self.expectations;
        !self.criteria.is_empty() || !cases.is_empty() || *from_spans == FromSpans::Full
    }

    /// A copy with other criteria and the attributes that their selectors read, without
    /// expectations of single runs.
    pub fn judging_by(&self, criteria: Vec<Arc<Criterion>>) -> Self {
        let recogniser = self.recogniser.also_reading(
            criteria
                .iter()
                .flat_map(|criterion| criterion.selector_attributes()),
        );
        Self {
            criteria,
            recogniser,
            explain: self.explain,
            expectations: Arc::default(),
        }
    }

    /// The attributes that the scan must keep.
    pub fn keys(&self) -> &Arc<KeySet> {
        self.recogniser.keys()
    }
}
