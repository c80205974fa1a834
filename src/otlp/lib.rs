//! Parses OTLP requests, as protobuf and as JSON.
//!
//! [`scan`](scan::scan) validates a trace request, counts its spans and stores the attributes that
//! later stages read, in one pass. [`json`] transcodes OTLP/JSON to protobuf. [`span`] defines the
//! result of a scan: spans and log records with ids, times and the stored attributes.
//!
//! This crate does not decide which spans are tool calls or agent runs. It assembles no traces, and
//! uses no sockets, files or clocks.

pub mod wire;

pub mod span;

pub mod scan;
pub mod scan_logs;
pub mod scan_metrics;
pub mod scan_scores;

pub mod json;
