//! Reasons for refusing a request, each with its gRPC status, HTTP status, counter label and
//! message.

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
    /// The request violates the protocol; retrying is useless.
    Malformed(String),
    /// The request could never fit; retrying is useless unless the sender splits it.
    TooLarge(String),
    /// The encoding or media type is not supported.
    Unsupported(String),
    /// The sender disconnected before the end of the request and gets no answer.
    Interrupted(String),
    /// The requests that are being received use all the memory that they may use together.
    InFlightFull,
    /// The sender took too long, and other requests may need its memory.
    TooSlow,
    Refused(QueueRefusal),
}

impl RequestError {
    /// Returns the label of the counters.
    pub(super) fn reason(&self) -> &'static str {
        self.kind().0
    }

    pub(super) fn code(&self) -> Code {
        self.kind().1
    }

    fn kind(&self) -> (&'static str, Code) {
        match self {
            Self::Malformed(_) => ("malformed", Code::InvalidArgument),
            // Without RetryInfo, this status means "do not retry"; OUT_OF_RANGE, tonic's own
            // answer, would be retried forever.
            Self::TooLarge(_) | Self::Refused(QueueRefusal::TooLarge { .. }) => {
                ("too_large", Code::ResourceExhausted)
            }
            Self::Unsupported(_) => ("unsupported", Code::Unimplemented),
            Self::Interrupted(_) => ("broken", Code::InvalidArgument),
            Self::InFlightFull => ("in_flight_full", Code::Unavailable),
            Self::TooSlow => ("slow", Code::Unavailable),
            Self::Refused(QueueRefusal::Full) => ("queue_full", Code::Unavailable),
            Self::Refused(QueueRefusal::JournalFull) => ("journal_full", Code::Unavailable),
            Self::Refused(QueueRefusal::DiskFull) => ("disk_full", Code::Unavailable),
            Self::Refused(QueueRefusal::DiskFailed) => ("disk_error", Code::Unavailable),
            Self::Refused(QueueRefusal::Draining) => ("draining", Code::Unavailable),
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

    pub(super) fn message(&self) -> String {
        let message = match self {
            Self::Malformed(message)
            | Self::TooLarge(message)
            | Self::Unsupported(message)
            | Self::Interrupted(message) => message,
            Self::Refused(QueueRefusal::TooLarge { limit }) => {
                return too_large(*limit, "half of `forward.queue.max_size`");
            }
            Self::InFlightFull => {
                "too many bytes are being received at once (`receivers.otlp.max_in_flight`); \
                 try again later"
            }
            Self::TooSlow => "the request took too long to arrive; try again",
            Self::Refused(QueueRefusal::Full) => {
                "the forward queue is full (`forward.queue.max_size`) because the downstream is \
                 too slow; try again later"
            }
            Self::Refused(QueueRefusal::Draining) => "spanscore is stopping; try again",
            Self::Refused(QueueRefusal::JournalFull) => {
                "the journal is full (`journal.max_size`) because the downstream is too slow; try \
                 again later"
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

impl From<RequestError> for (RequestError, u64) {
    /// Returns the error of a request whose number of items is not known.
    fn from(error: RequestError) -> Self {
        (error, 0)
    }
}

/// Returns the delay before a retry; `None` if the sender must not retry.
pub(super) fn retry_after(code: Code) -> Option<Duration> {
    (code == Code::Unavailable).then_some(RETRY_AFTER)
}

pub(super) fn too_large(limit: usize, setting: &str) -> String {
    format!(
        "the request is larger than {limit} bytes after decompression ({setting}); \
         send smaller batches or raise the limit"
    )
}
