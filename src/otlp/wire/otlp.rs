//! OTLP's field numbers, in a module for each message that is read or written field by field. The
//! scan's tables have the numbers of messages that are only validated.
//!
//! Requests of all three signals have the same outer fields, so their levels have common names: a
//! request contains resource groups, a resource group contains scope groups, and a scope group
//! contains the items: spans, log records or metrics.

/// `ExportTraceServiceRequest`, `ExportLogsServiceRequest`, `ExportMetricsServiceRequest`.
pub mod request {
    /// `resource_spans`, `resource_logs`, `resource_metrics`.
    pub const RESOURCE_GROUPS: u64 = 1;
}

/// `ResourceSpans`, `ResourceLogs`, `ResourceMetrics`.
pub mod resource_group {
    pub const RESOURCE: u64 = 1;
    /// `scope_spans`, `scope_logs`, `scope_metrics`.
    pub const SCOPE_GROUPS: u64 = 2;
    pub(crate) const SCHEMA_URL: u64 = 3;
}

/// `ScopeSpans`, `ScopeLogs`, `ScopeMetrics`.
pub mod scope_group {
    pub const SCOPE: u64 = 1;
    /// `spans`, `log_records`, `metrics`.
    pub const ITEMS: u64 = 2;
    pub(crate) const SCHEMA_URL: u64 = 3;
}

pub mod resource {
    pub const ATTRIBUTES: u64 = 1;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 2;
    pub(crate) const ENTITY_REFS: u64 = 3;
}

/// `InstrumentationScope`.
pub mod scope {
    pub const NAME: u64 = 1;
    pub const VERSION: u64 = 2;
    pub(crate) const ATTRIBUTES: u64 = 3;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 4;
}

pub mod key_value {
    pub const KEY: u64 = 1;
    pub const VALUE: u64 = 2;
    pub(crate) const KEY_STRINDEX: u64 = 3;
}

pub mod any_value {
    pub const STRING: u64 = 1;
    pub const BOOL: u64 = 2;
    pub const INT: u64 = 3;
    pub const DOUBLE: u64 = 4;
    pub(crate) const ARRAY: u64 = 5;
    pub(crate) const KVLIST: u64 = 6;
    pub(crate) const BYTES: u64 = 7;
    pub(crate) const STRING_STRINDEX: u64 = 8;
}

pub mod span {
    pub const TRACE_ID: u64 = 1;
    pub const SPAN_ID: u64 = 2;
    pub const TRACE_STATE: u64 = 3;
    pub const PARENT_SPAN_ID: u64 = 4;
    pub const NAME: u64 = 5;
    pub const KIND: u64 = 6;
    pub const START_TIME: u64 = 7;
    pub const END_TIME: u64 = 8;
    pub const ATTRIBUTES: u64 = 9;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 10;
    pub(crate) const EVENTS: u64 = 11;
    pub(crate) const DROPPED_EVENTS_COUNT: u64 = 12;
    pub const LINKS: u64 = 13;
    pub const DROPPED_LINKS_COUNT: u64 = 14;
    pub const STATUS: u64 = 15;
    pub const FLAGS: u64 = 16;
}

/// `Span.Event`.
pub(crate) mod event {
    pub(crate) const TIME: u64 = 1;
    pub(crate) const NAME: u64 = 2;
    pub(crate) const ATTRIBUTES: u64 = 3;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 4;
}

/// `Span.Link`.
pub mod link {
    pub const TRACE_ID: u64 = 1;
    pub const SPAN_ID: u64 = 2;
    pub(crate) const TRACE_STATE: u64 = 3;
    pub const ATTRIBUTES: u64 = 4;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 5;
    pub(crate) const FLAGS: u64 = 6;
}

pub mod status {
    pub const MESSAGE: u64 = 2;
    pub const CODE: u64 = 3;
}

pub mod log_record {
    pub const TIME: u64 = 1;
    pub const SEVERITY_NUMBER: u64 = 2;
    pub const SEVERITY_TEXT: u64 = 3;
    pub(crate) const BODY: u64 = 5;
    pub const ATTRIBUTES: u64 = 6;
    pub(crate) const DROPPED_ATTRIBUTES_COUNT: u64 = 7;
    pub const FLAGS: u64 = 8;
    pub const TRACE_ID: u64 = 9;
    pub const SPAN_ID: u64 = 10;
    pub const OBSERVED_TIME: u64 = 11;
    pub const EVENT_NAME: u64 = 12;
}

pub mod metric {
    pub(crate) const GAUGE: u64 = 5;
    pub(crate) const SUM: u64 = 7;
    pub(crate) const HISTOGRAM: u64 = 9;
    pub(crate) const EXPONENTIAL_HISTOGRAM: u64 = 10;
    pub(crate) const SUMMARY: u64 = 11;
    /// The members of the `oneof` with the data.
    pub const DATA: [u64; 5] = [GAUGE, SUM, HISTOGRAM, EXPONENTIAL_HISTOGRAM, SUMMARY];
    /// The field `data_points`, which has the same number in all five messages.
    pub const DATA_POINTS: u64 = 1;
}
