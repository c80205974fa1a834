//! OTLP over gRPC and HTTP in, received requests out. Knows the protocol's answers; does not know who forwards or judges.

pub mod json;
pub mod scan;
pub mod scan_logs;
pub mod scan_metrics;
