//! Notes in a journal about open traces whose first records were deleted: their content was copied
//! to later records.

use otlp::span::TraceId;

pub use crate::assemble::OpenTrace;

/// Open traces that a journal contains completely.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedTracesNote {
    /// The record number below which the content of these traces was copied to later records.
    pub below: u64,
    pub traces: Vec<OpenTrace>,
}

const ENTRY: usize = 16 + 8 + 8 + 1;

impl CarriedTracesNote {
    /// Encodes a note for [`Self::decode`].
    pub fn encode(below: u64, traces: &[OpenTrace]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(8 + traces.len() * ENTRY);
        bytes.extend_from_slice(&below.to_le_bytes());
        for trace in traces {
            bytes.extend_from_slice(trace.trace_id.as_bytes());
            bytes.extend_from_slice(&trace.first_record.to_le_bytes());
            bytes.extend_from_slice(&trace.memory_unix_nanos.to_le_bytes());
            bytes.push(u8::from(trace.is_unscored));
        }
        bytes
    }

    /// Returns `None` for bytes that no journal writes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_le_bytes);
        let (below, entries) = bytes.split_at_checked(8)?;
        let below = number(below)?;
        let traces = entries.chunks_exact(ENTRY).map(|entry| {
            Some(OpenTrace {
                trace_id: TraceId::try_new(&entry[..16])?,
                first_record: number(&entry[16..24])?,
                needed_from: below,
                memory_unix_nanos: number(&entry[24..32])?,
                is_unscored: entry[32] != 0,
            })
        });
        let traces = traces.collect::<Option<_>>()?;
        Some(Self { below, traces })
    }
}
