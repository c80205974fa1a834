//! Why a request is not taken, and what that is called in gRPC, in HTTP and in our counters.

use std::time::Duration;

use hyper::StatusCode;
use tonic::Code;

/// Why a request is not taken. One table of answers for both transports (OTLP 1.11, "Failures").
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Problem {
    /// Not what the protocol says: no use sending it again.
    Malformed(String),
    /// It could never fit: no use sending it again, unless in parts.
    TooLarge {
        /// Most bytes of a request, after decompression.
        limit: usize,
        /// Which setting says so.
        setting: &'static str,
    },
    /// An encoding or media type we do not read.
    Unsupported(String),
    /// The sender went away in the middle; it will hear no answer.
    Broken(String),
    /// It may fit later.
    NoRoom {
        /// What there is no room in.
        what: NoRoom,
        /// When to try again.
        retry_after: Duration,
    },
}

/// Why there is no room now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Too many bytes are being received.
    InFlight,
    /// The downstream does not keep up.
    Queue,
    /// The sender took too long, and what it held is needed by others.
    Slow,
    /// We are about to end.
    Draining,
}

impl Problem {
    /// The label of our counters.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::TooLarge { .. } => "too_large",
            Self::Unsupported(_) => "unsupported",
            Self::Broken(_) => "broken",
            Self::NoRoom {
                what: NoRoom::InFlight,
                ..
            } => "in_flight_full",
            Self::NoRoom {
                what: NoRoom::Queue,
                ..
            } => "queue_full",
            Self::NoRoom {
                what: NoRoom::Slow, ..
            } => "slow",
            Self::NoRoom {
                what: NoRoom::Draining,
                ..
            } => "draining",
        }
    }

    pub(super) fn code(&self) -> Code {
        match self {
            Self::Malformed(_) | Self::Broken(_) => Code::InvalidArgument,
            // Without RetryInfo this tells the sender not to try again; OUT_OF_RANGE, tonic's own
            // answer, would be retried for ever.
            Self::TooLarge { .. } => Code::ResourceExhausted,
            Self::Unsupported(_) => Code::Unimplemented,
            Self::NoRoom { .. } => Code::Unavailable,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) | Self::Broken(_) => StatusCode::BAD_REQUEST,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unsupported(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::NoRoom { .. } => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// When to try again; `None` if never.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::NoRoom { retry_after, .. } => Some(*retry_after),
            _ => None,
        }
    }

    pub(super) fn message(&self) -> String {
        match self {
            Self::Malformed(message) | Self::Unsupported(message) | Self::Broken(message) => message.clone(),
            Self::TooLarge { limit, setting } => {
                format!("the request is larger than {limit} bytes after decompression ({setting}); send smaller batches or raise the limit")
            }
            Self::NoRoom { what: NoRoom::InFlight, .. } => {
                "too many bytes are being received at once (`receivers.otlp.max_in_flight`); try again later".to_owned()
            }
            Self::NoRoom { what: NoRoom::Queue, .. } => {
                "the forward queue is full (`forward.queue.max_size`), the downstream does not keep up; try again later".to_owned()
            }
            Self::NoRoom { what: NoRoom::Slow, .. } => "the request took too long to arrive; try again".to_owned(),
            Self::NoRoom { what: NoRoom::Draining, .. } => "spanscore is stopping; try again".to_owned(),
        }
    }
}
