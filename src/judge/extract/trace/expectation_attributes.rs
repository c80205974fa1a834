//! Reads the attributes by which a run affects its own judgement: its test case, criteria to apply,
//! and an expectation. They are on the evaluated span, the spans above it, or its resource.

use std::sync::Arc;

use otlp::span::{Attribute, IndexedAttributes, KeyId, SpanId, Value};

use super::span_roles::SpanRoles;
use crate::extract::spans::view::attribute_text;
use crate::extract::spans::{Recogniser, SpanIdx};

/// The attributes by which a run affects its own judgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectationAttributes {
    /// The run's test case: from the evaluated span, else from the nearest span above it that has
    /// one, else from the resource.
    pub case_id: Option<Arc<str>>,
    /// The distinct values of [`CRITERIA`](crate::extract::CRITERIA), from the evaluated span
    /// upwards; the resource's value is last.
    pub criteria: Vec<StatedValue>,
    /// The distinct values of [`EXPECT`](crate::extract::EXPECT), in the same order. A sender that
    /// can set the attribute on one span must not be able to hide the value of another span.
    pub expect: Vec<StatedValue>,
}

impl ExpectationAttributes {
    /// Returns true if the run requests no judgement. A case id alone does not request one, because
    /// test harnesses put it on traces of all kinds.
    pub fn is_empty(&self) -> bool {
        self.criteria.is_empty() && self.expect.is_empty()
    }
}

/// The value of an attribute, and the span that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatedValue {
    /// The span; `None` for the resource.
    pub span_id: Option<SpanId>,
    /// The text as sent, compact JSON for arrays and maps; `None` for bytes.
    pub text: Option<Arc<str>>,
    /// True if only a prefix was stored.
    pub cut: bool,
}

/// Reads only the evaluated span, the spans above it and the resource, so that neither a sub-agent
/// nor a call can choose how its run is judged.
pub(crate) fn expectation_attributes(
    roles: &SpanRoles<'_>,
    recogniser: &Recogniser,
    evaluated: SpanIdx,
) -> ExpectationAttributes {
    let keys = recogniser.expectation_keys();
    let mut expectations = ExpectationAttributes::default();
    let spans = std::iter::once(evaluated).chain(roles.tree.ancestors(evaluated));
    let of_spans = spans.map(|span_idx| {
        let span = &roles.spans[span_idx];
        (Some(span.span_id), roles.trace.attributes(span))
    });
    let resource = &roles.trace.resource(&roles.spans[evaluated]).kept;
    for (span_id, kept) in of_spans.chain([(None, resource.index())]) {
        expectations.case_id = expectations.case_id.or_else(|| {
            let text = attribute_text(kept.get(keys.case_id?)?)?;
            (!text.is_empty()).then(|| Arc::from(&*text))
        });
        add_value(&mut expectations.criteria, keys.criteria, span_id, &kept);
        add_value(&mut expectations.expect, keys.expect, span_id, &kept);
    }
    expectations
}

fn add_value(
    values: &mut Vec<StatedValue>,
    key: Option<KeyId>,
    span_id: Option<SpanId>,
    kept: &IndexedAttributes<'_>,
) {
    let Some(Attribute { value, cut, .. }) = key.and_then(|key| kept.attribute(key)) else {
        return;
    };
    let text = if let Value::Bytes(_) = value {
        None
    } else {
        attribute_text(value).map(|text| Arc::from(&*text))
    };
    // Baggage copies one value to every span.
    if !values
        .iter()
        .any(|other| other.text == text && other.cut == cut)
    {
        values.push(StatedValue { span_id, text, cut });
    }
}
