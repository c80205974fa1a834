//! Reads the chunks of a body as they arrive, and abandons a sender that is too slow or was
//! evicted.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{self, Instant};

use super::RequestBody;
use super::memory_permit::MemoryPermit;
use super::request_error::RequestError;

/// Time in which a sender must send [`LEAST_ADVANCE`]; otherwise it is abandoned.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes by which a body must grow for its sender to count as advancing, unless the body is
/// complete. A sender must not occupy memory by sending a byte from time to time.
pub(super) const LEAST_ADVANCE: usize = 16 << 10;

pub(super) async fn chunk<B: RequestBody>(body: &mut B) -> Result<Option<Bytes>, RequestError> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(RequestError::Interrupted(format!(
                    "the body broke off: {error}"
                )));
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(chunk) => return Ok(Some(chunk)),
                // Ignore the trailers of a request: OTLP has none.
                Err(_) => continue,
            },
        }
    }
}

/// The speed at which a body arrives.
pub(super) struct Pace {
    /// Time by which the body must have advanced.
    deadline: Instant,
    /// Bytes since the last advance.
    n_bytes: usize,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            deadline: Instant::now() + IDLE_TIMEOUT,
            n_bytes: 0,
        }
    }

    /// Like [`chunk`], but fails if the sender is too slow or was evicted.
    pub(super) async fn next_chunk<B: RequestBody>(
        &mut self,
        body: &mut B,
        permit: &MemoryPermit,
    ) -> Result<Option<Bytes>, RequestError> {
        let next = tokio::select! {
            biased;
            next = chunk(body) => next?,
            () = permit.reservation.evicted() => return Err(RequestError::InFlightFull),
            () = time::sleep_until(self.deadline) => return Err(RequestError::TooSlow),
        };
        self.n_bytes += next.as_ref().map_or(0, Bytes::len);
        if self.n_bytes >= LEAST_ADVANCE {
            *self = Self::new();
            permit.reservation.moved(false);
        }
        Ok(next)
    }
}
