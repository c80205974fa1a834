//! The rules by which traces are judged, and the attributes that they need from spans.

use std::error::Error;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use otlp::scan::{self, MalformedProtobuf};
use otlp::span::{Batch, KeySet, Span, SpanAdmission, StoredAttributesBuilder};
use serde::Deserialize;
use serde_json::Value;

use crate::evaluate::{
    Criterion, Expectation, Expectations, Explain, FieldError, FromSpans, PatternCompiler,
    PatternLimits, Scope, WrittenCriterion,
};
use crate::extract::{Recogniser, Tools};

/// The rules by which every trace is judged. They are immutable; a reload replaces them.
#[derive(Debug, Clone)]
pub struct Rules {
    /// The criteria, in file order.
    pub criteria: Vec<Arc<Criterion>>,
    /// Recognises tool calls, and lists the attributes that the scan must store.
    pub recogniser: Recogniser,
    /// The settings for values in explanations.
    pub explain: Explain,
    pub expectations: Arc<Expectations>,
    /// The criteria that raise alarms for open traces.
    pub(super) alarms: Arc<[Arc<Criterion>]>,
    pub(super) watched_by: u64,
    pub(super) of_sessions: Vec<Arc<Criterion>>,
}

impl Rules {
    /// Creates rules with these criteria, and defaults for everything else.
    pub fn new(criteria: Vec<Criterion>) -> Self {
        Self::following(None, criteria, &Tools::default(), Explain::default(), &[])
    }

    /// Parses `{"criteria": […]}`, each criterion as in a configuration file (docs/evaluators.md).
    ///
    /// # Errors
    /// Returns all mistakes of the criteria, each with the path of its field. If the text cannot be
    /// parsed, returns only that mistake.
    pub fn from_json(text: &str) -> Result<Self, InvalidRules> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            criteria: Vec<Value>,
        }
        let written: Written =
            serde_json::from_str(text).map_err(|error| InvalidRules::at(&[], &error))?;
        let mut compiler = PatternCompiler::new(PatternLimits::FILE);
        let (mut criteria, mut errors): (Vec<Criterion>, Vec<FieldError>) = Default::default();
        for (idx, value) in written.criteria.into_iter().enumerate() {
            let place = ["criteria", &idx.to_string()];
            let criterion = WrittenCriterion::deserialize(value)
                .map_err(|error| InvalidRules::at(&[], &error).errors)
                .and_then(|written| written.compile(&mut compiler));
            match criterion {
                Ok(twin) if criteria.iter().any(|known| known.name == twin.name) => {
                    let message = format!("two criteria are named `{}`: rename one", twin.name);
                    errors.push(FieldError::new(&["name"], message).below(&place));
                }
                Ok(criterion) => criteria.push(criterion),
                Err(found) => errors.extend(found.into_iter().map(|error| error.below(&place))),
            }
        }
        if errors.is_empty() {
            Ok(Self::new(criteria))
        } else {
            Err(InvalidRules { errors })
        }
    }

    /// Returns rules that recognise tool calls by these settings.
    pub fn with_tools(self, tools: &Tools) -> Self {
        let readable = self.recogniser.readable().iter();
        let recogniser = Recogniser::new(tools, readable.map(|(_, name)| &**name), None);
        let Expectations {
            from_spans,
            max_size,
            ..
        } = &*self.expectations;
        let recogniser = recogniser.with_span_expectations(from_spans.policy(*max_size));
        Self {
            recogniser: recogniser
                .with_usage(self.recogniser.reads_usage)
                .with_watch(Criterion::watch(&self.alarms)),
            ..self
        }
    }

    /// Creates rules without expectations.
    fn of(recogniser: Recogniser, criteria: Vec<Arc<Criterion>>, explain: Explain) -> Self {
        let (of_sessions, of_traces): (Vec<_>, Vec<_>) = criteria
            .iter()
            .cloned()
            .partition(|criterion| criterion.scope == Scope::Session);
        let mut alarms = of_traces;
        alarms.retain(|criterion| criterion.alarm.is_some());
        let reads_usage = criteria.iter().any(|criterion| criterion.reads_usage());
        let mut watched_by = DefaultHasher::new();
        for criterion in &alarms {
            (criterion.name.as_str(), criterion.revision()).hash(&mut watched_by);
        }
        Self {
            recogniser: recogniser
                .with_usage(reads_usage)
                .with_watch(Criterion::watch(&alarms)),
            criteria,
            explain,
            expectations: Arc::default(),
            alarms: alarms.into(),
            watched_by: watched_by.finish(),
            of_sessions,
        }
    }

    /// Creates the rules of a configuration, without expectations of single runs. Scores copy the
    /// `copy_attributes` of the evaluated span. Spans that were scanned under `previous` rules can
    /// still be read.
    #[doc(hidden)]
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
        let criteria = criteria.into_iter().map(Arc::new).collect();
        Self::of(recogniser, criteria, explain)
    }

    pub fn expecting(self, expectations: Expectations) -> Self {
        let policy = expectations.from_spans.policy(expectations.max_size);
        let reads_usage = expectations.from_spans == FromSpans::Full
            || expectations.cases.values().any(Expectation::may_read_usage);
        let recogniser = self.recogniser.with_span_expectations(policy);
        Self {
            recogniser: recogniser.with_usage(reads_usage),
            expectations: expectations.into(),
            ..self
        }
    }

    /// Returns a copy without criteria and expectations. Trajectories are still extracted, with the
    /// attributes that the criteria read, with model tokens, and with the runs' own expectations.
    pub fn without_judgement(&self) -> Self {
        let recogniser = self.recogniser.clone().with_usage(true);
        Self::of(recogniser, Vec::new(), self.explain)
    }

    pub fn judge_sessions(&self) -> bool {
        !self.of_sessions.is_empty()
    }

    /// Returns true if these rules can judge any run.
    pub fn may_judge(&self) -> bool {
        let Expectations {
            from_spans, cases, ..
        } = &*self.expectations;
        !self.criteria.is_empty() || !cases.is_empty() || *from_spans == FromSpans::Full
    }

    /// Returns a copy with other criteria and the attributes that their selectors read, without
    /// expectations of single runs.
    pub fn judging_by(&self, criteria: Vec<Arc<Criterion>>) -> Self {
        let recogniser = self.recogniser.also_reading(
            criteria
                .iter()
                .flat_map(|criterion| criterion.selector_attributes()),
        );
        Self::of(recogniser, criteria, self.explain)
    }

    /// Scans one OTLP trace request in protobuf, with the attributes that the rules read.
    ///
    /// # Errors
    /// Returns an error if the body is not an `ExportTraceServiceRequest`.
    pub fn scan(&self, body: &[u8]) -> Result<Batch, MalformedProtobuf> {
        Ok(scan::scan(body, Some(self))?.batch)
    }

    /// Returns the attributes that the scan must store.
    pub fn keys(&self) -> &KeySet {
        self.recogniser.keys()
    }
}

impl SpanAdmission for Rules {
    fn keys(&self) -> &KeySet {
        self.recogniser.keys()
    }

    fn admit(&self, span: &mut Span, kept: &mut StoredAttributesBuilder) -> bool {
        self.recogniser.admit(span, kept)
    }

    fn watched_by(&self) -> Option<u64> {
        Some(self.watched_by)
    }
}

/// The mistakes of criteria that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRules {
    /// The mistakes and their remedies, with the paths of their fields.
    pub errors: Vec<FieldError>,
}

impl InvalidRules {
    fn at(path: &[&str], error: &serde_json::Error) -> Self {
        Self {
            errors: vec![FieldError::new(path, error.to_string())],
        }
    }
}

impl Error for InvalidRules {}

impl fmt::Display for InvalidRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&FieldError::join(&self.errors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_reported_with_its_path() {
        let text = r#"{ "criteria": [
            { "name": "a", "evaluate": { "tool_order": { "expected_tools": [{}] } } },
            { "name": "b", "evaluate": { "tool_calls": { "disallowed": ["(", "["] } } },
            { "name": "c", "evaluate": { "tool_calls": { "disallowed": ["x"] } } },
            { "name": "c", "evaluate": { "tool_calls": { "disallowed": ["y"] } } } ] }"#;
        let InvalidRules { errors } = Rules::from_json(text).unwrap_err();
        let paths: Vec<String> = errors.iter().map(|error| error.path.join(".")).collect();
        assert_eq!(
            paths,
            [
                "criteria.0",
                "criteria.1.evaluate.tool_calls.disallowed.0.name",
                "criteria.1.evaluate.tool_calls.disallowed.1.name",
                "criteria.3.name"
            ]
        );
        let no_criteria = Rules::from_json("{}").unwrap_err().to_string();
        assert!(no_criteria.contains("criteria"), "{no_criteria}");
    }
}
