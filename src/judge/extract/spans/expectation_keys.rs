//! The attributes in which a run can state its own expectations.

use otlp::span::{KeyId, KeySet, Retention};

/// The attribute with the id of the run's test case.
pub const CASE_ID: &str = "test.case.id";
/// The attribute that names registered criteria to apply.
pub const CRITERIA: &str = "spanscore.criteria";
/// The attribute with the run's own expectation: the JSON of an `evaluate` block.
pub const EXPECT: &str = "spanscore.expect";

/// Limits on a run's own expectations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpanExpectationPolicy {
    /// True if [`CRITERIA`] is read.
    pub criteria: bool,
    /// True if [`EXPECT`] is read.
    pub expect: bool,
    /// Maximum total bytes of the two attributes that are stored for one span.
    pub max_size: usize,
}

/// The ids of the keys that the policy allows.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ExpectationKeys {
    pub(crate) case_id: Option<KeyId>,
    pub(crate) criteria: Option<KeyId>,
    pub(crate) expect: Option<KeyId>,
}

impl ExpectationKeys {
    pub(super) fn add(keys: &mut KeySet, policy: SpanExpectationPolicy) -> Self {
        let SpanExpectationPolicy {
            criteria, expect, ..
        } = policy;
        keys.max_expectations_size = policy.max_size;
        Self {
            case_id: Some(keys.add(CASE_ID, Retention::Value)),
            criteria: criteria.then(|| keys.add(CRITERIA, Retention::Expectation)),
            expect: expect.then(|| keys.add(EXPECT, Retention::Expectation)),
        }
    }
}
