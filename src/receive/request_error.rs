//! Reasons for refusing a request, and the gRPC status, HTTP status, counter label and message for
//! it.

use std::time::Duration;

use hyper::StatusCode;
use tonic::Code;

use crate::transport::QueueRefusal;

/// Delay after which a sender that was refused for lack of space or time should retry: requests in
/// flight are done within a moment, and `Retry-After` counts in whole seconds.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The reason why a request is refused. Both transports answer from this table (OTLP 1.11,
/// "Failures").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RequestError {
    /// Violates the protocol; retrying is useless.
    Malformed(String),
    /// Could never fit; retrying is useless unless in parts.
    TooLarge {
        /// Most bytes of a request, after decompression.
        limit: usize,
        /// The setting that limits it.
        setting: &'static str,
    },
    /// Has items that take more memory than all requests may together; retrying is useless unless
    /// in parts.
    TooDense {
        /// Most bytes of all requests being received.
        limit: usize,
    },
    /// An encoding or media type that we do not read.
    Unsupported(String),
    /// The sender disconnected in the middle and will get no answer.
    Interrupted(String),
    /// Too many bytes are being received.
    InFlightFull,
    /// The sender took too long, and other requests need its memory.
    TooSlow,
    /// The forward queue did not take it.
    Refused(QueueRefusal),
}

impl RequestError {
    /// The label of our counters.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::TooLarge { .. }
            | Self::TooDense { .. }
            | Self::Refused(QueueRefusal::TooLarge { .. }) => "too_large",
            Self::Unsupported(_) => "unsupported",
            Self::Interrupted(_) => "broken",
            Self::InFlightFull => "in_flight_full",
            Self::TooSlow => "slow",
            Self::Refused(QueueRefusal::Full) => "queue_full",
            Self::Refused(QueueRefusal::JournalFull) => "journal_full",
            Self::Refused(QueueRefusal::DiskFull) => "disk_full",
            Self::Refused(QueueRefusal::DiskFailed) => "disk_error",
            Self::Refused(QueueRefusal::Draining) => "draining",
        }
    }

    pub(super) fn code(&self) -> Code {
        match self {
            Self::Malformed(_) | Self::Interrupted(_) => Code::InvalidArgument,
            // Without RetryInfo this asks the sender not to retry; OUT_OF_RANGE, tonic's own
            // answer, would be retried forever.
            Self::TooLarge { .. }
            | Self::TooDense { .. }
            | Self::Refused(QueueRefusal::TooLarge { .. }) => Code::ResourceExhausted,
            Self::Unsupported(_) => Code::Unimplemented,
            Self::InFlightFull | Self::TooSlow | Self::Refused(_) => Code::Unavailable,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self.code() {
            Code::InvalidArgument => StatusCode::BAD_REQUEST,
            Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
            Code::Unimplemented => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Delay before a retry; `None` if there must be none.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        (self.code() == Code::Unavailable).then_some(RETRY_AFTER)
    }

    pub(super) fn message(&self) -> String {
        let message = match self {
            Self::Malformed(message) | Self::Unsupported(message) | Self::Interrupted(message) => {
                message
            }
            Self::TooLarge { limit, setting } => return too_large(*limit, setting),
            Self::TooDense { limit } => {
                return format!(
                    "the request has so many small items that reading it takes more than {limit} \
                     bytes (`receivers.otlp.max_in_flight`); send smaller batches or raise the \
                     limit"
                );
            }
            Self::Refused(QueueRefusal::TooLarge { limit }) => {
                return too_large(*limit, "half of `forward.queue.max_size`");
            }
            Self::InFlightFull => {
                "too many bytes are being received at once (`receivers.otlp.max_in_flight`); \
                 try again later"
            }
            Self::TooSlow => "the request took too long to arrive; try again",
            Self::Refused(QueueRefusal::Full) => {
                "the forward queue is full (`forward.queue.max_size`) because the downstream does \
                 not keep up; try again later"
            }
            Self::Refused(QueueRefusal::Draining) => "spanscore is stopping; try again",
            Self::Refused(QueueRefusal::JournalFull) => {
                "the journal is full (`journal.max_size`) because the downstream does not keep up; \
                 try again later"
            }
            Self::Refused(QueueRefusal::DiskFull) => {
                "the disk of `journal.directory` is full; try again later"
            }
            Self::Refused(QueueRefusal::DiskFailed) => {
                "the disk of `journal.directory` cannot be written; try again later"
            }
        };
        message.to_owned()
    }
}

fn too_large(limit: usize, setting: &str) -> String {
    format!(
        "the request is larger than {limit} bytes after decompression ({setting}); \
         send smaller batches or raise the limit"
    )
}
