//! Received data: OTLP requests, as protobuf and as JSON.
//!
//! [`scan`](scan::scan) validates the body of a trace request, counts its spans and keeps the
//! attributes that somebody reads, all in one pass; it accepts exactly what prost accepts. [`json`]
//! transcodes OTLP/JSON to protobuf. [`span`] is what remains of a request: spans, log records,
//! ids, times, kept attributes.
//!
//! This crate knows the wire format. It does not know what an attribute means, what a trace is, or
//! where bytes come from: no sockets, no files, no clock.

pub mod wire;

pub mod span;

pub mod scan;
pub mod scan_logs;
pub mod scan_metrics;
pub mod scan_pick;
pub mod scan_scores;

pub mod json;
