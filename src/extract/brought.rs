//! Pure. The evaluated span, those above it and its resource in, what they say about their own
//! judgement out: the case that the run is one of, criteria to apply, an expectation. Knows under
//! which keys that stands; does not know what becomes of it.

use std::sync::Arc;

use super::outline::Outline;
use super::recognise::{Recogniser, attribute_text};
use super::tree::SpanIdx;
use crate::span::{Attribute, Keep, KeptAttributes, KeyId, KeySet, SpanId, Value};

/// The attribute that names the case a run is one of.
pub const CASE_ID: &str = "test.case.id";
/// The attribute that names registered criteria to apply.
pub const CRITERIA: &str = "spanscore.criteria";
/// The attribute that holds an expectation of its own: the JSON of an `evaluate` block.
pub const EXPECT: &str = "spanscore.expect";

/// How much a run may say about its own judgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bringing {
    /// Is [`CRITERIA`] read?
    pub criteria: bool,
    /// Is [`EXPECT`] read?
    pub expect: bool,
    /// Most bytes of both that are kept of one span.
    pub max_size: usize,
}

/// What a run says about its own judgement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Brought {
    /// The case it is one of: what the nearest span names, from the evaluated one up, else its
    /// resource.
    pub case_id: Option<Arc<str>>,
    /// Each different value of [`CRITERIA`], from the evaluated span up, the resource last.
    pub criteria: Vec<Said>,
    /// Each different value of [`EXPECT`], likewise. One who can set it on one span must not be
    /// able to hide what another span says.
    pub expect: Vec<Said>,
}

impl Brought {
    /// Does it want nothing of its judge? A case's id alone does not: test harnesses put it on
    /// traces of all kinds.
    pub fn asks_nothing(&self) -> bool {
        self.criteria.is_empty() && self.expect.is_empty()
    }
}

/// The value of an attribute, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The span; `None` for the resource.
    pub span_id: Option<SpanId>,
    /// The text as it was sent, compact JSON of arrays and maps; `None` for bytes.
    pub text: Option<Arc<str>>,
    /// Only its beginning was kept.
    pub cut: bool,
}

/// The ids of the keys, where they are kept.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BroughtKeys {
    case_id: Option<KeyId>,
    criteria: Option<KeyId>,
    expect: Option<KeyId>,
}

impl BroughtKeys {
    /// Has the keys kept that are asked for.
    pub(super) fn add(keys: &mut KeySet, bringing: Bringing) -> Self {
        keys.max_expectations_size = bringing.max_size;
        Self {
            case_id: Some(keys.add(CASE_ID, Keep::Value)),
            criteria: bringing
                .criteria
                .then(|| keys.add(CRITERIA, Keep::Expectation)),
            expect: bringing.expect.then(|| keys.add(EXPECT, Keep::Expectation)),
        }
    }
}

/// What a run says about its own judgement. A sub-agent's spans have no say, nor have calls: only
/// what lies above.
pub(super) fn brought(
    outline: &Outline<'_>,
    recogniser: &Recogniser,
    evaluated: SpanIdx,
) -> Brought {
    let keys = recogniser.brought_keys();
    let mut brought = Brought::default();
    let spans = std::iter::once(evaluated)
        .chain(outline.tree.ancestors(evaluated))
        .map(|span_idx| &outline.spans[span_idx].0);
    let resource = &outline.spans[evaluated].0.resource.kept;
    for (span_id, kept) in spans
        .map(|span| (Some(span.span_id), &span.kept))
        .chain([(None, resource)])
    {
        brought.case_id = brought.case_id.or_else(|| {
            let text = attribute_text(kept.get(keys.case_id?)?)?;
            (!text.is_empty()).then(|| Arc::from(&*text))
        });
        note(&mut brought.criteria, keys.criteria, span_id, kept);
        note(&mut brought.expect, keys.expect, span_id, kept);
    }
    brought
}

fn note(said: &mut Vec<Said>, key: Option<KeyId>, span_id: Option<SpanId>, kept: &KeptAttributes) {
    let Some(Attribute { value, cut, .. }) = key.and_then(|key| kept.attribute(key)) else {
        return;
    };
    let text = if let Value::Bytes(_) = value {
        None
    } else {
        attribute_text(value).map(|text| Arc::from(&*text))
    };
    // Baggage copies one value onto every span.
    if !said
        .iter()
        .any(|other| other.text == text && other.cut == cut)
    {
        said.push(Said { span_id, text, cut });
    }
}
