//! Reads a request's body into one contiguous message, with a permit for its memory.
//!
//! The permit grows as bytes arrive or are decompressed, so an announced length reserves no memory
//! in advance, except up to 4 MiB, once the buffer is larger than 32 KiB. A compressed body is
//! decompressed when it has arrived.

use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time;

use super::RequestBody;
use super::decompress::Encoding;
use super::mapped::MappedMessage;
use super::memory_permit::{BodyLimits, MemoryPermit};
use super::pace::{Pace, chunk};
use super::request_error::RequestError;

/// Timeout for one body: a sender that sends a few bytes at a time must not use memory forever.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Size in bytes below which a body is copied: a slice would pin the connection's read buffer,
/// which may be much larger.
const COPY_BELOW: usize = 16 << 10;

/// Minimum capacity of a growing buffer, in bytes.
const MIN_CAPACITY: usize = 4 << 10;

/// Maximum bytes of an announced message that are allocated in advance, once some of it has
/// arrived. Growing in steps would copy a message of 2 MB twice, each time into new pages, which is
/// a third of the cost of receiving it.
const RESERVED_AT_ONCE: usize = 4 << 20;

/// Size of the buffer in bytes from which the announced length is trusted.
const TRUSTED_FROM: usize = 32 << 10;

/// Announced length in bytes from which an uncompressed message gets mapped memory (see
/// `mapped.rs`). Smaller messages use the allocator, because its pages cost less.
const MAPPED_FROM: usize = 4 << 20;

/// Maximum bytes of a body that are read and discarded after a refusal, so that its sender reads
/// our answer instead of a broken pipe and can reuse the connection.
const DISCARD_LIMIT: usize = 128 << 20;

const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Framing of the message in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// OTLP/HTTP: the body is the message.
    Whole,
    /// gRPC: one byte "compressed?", four bytes of length, then the message; exactly one message.
    Prefixed,
}

#[derive(Debug)]
pub(super) struct BufferedMessage {
    pub(super) bytes: Bytes,
    pub(super) permit: MemoryPermit,
}

/// Reads a body to its end. First calls `check_room` with the announced length of the message, 0 if
/// none is announced; the length is before decompression, which rarely makes a message shorter.
/// `permit` accounts for the memory. After a refusal, unless the sender is too slow or gone, reads
/// and discards the rest, within [`DISCARD_LIMIT`] and [`DISCARD_TIMEOUT`].
pub(super) async fn read<B: RequestBody>(
    body: &mut B,
    framing: Framing,
    encoding: Encoding,
    limits: &BodyLimits,
    permit: MemoryPermit,
    check_room: impl Fn(usize) -> Result<(), RequestError>,
) -> Result<BufferedMessage, RequestError> {
    let gathering = gather(body, framing, encoding, limits, permit, check_room);
    let message = time::timeout(TOTAL_TIMEOUT, gathering)
        .await
        .unwrap_or(Err(RequestError::TooSlow));
    if let Err(
        RequestError::Malformed(_)
        | RequestError::TooLarge(_)
        | RequestError::InFlightFull
        | RequestError::Refused(_),
    ) = message
    {
        discard(body).await;
    }
    message
}

pub(super) async fn discard<B: RequestBody>(body: &mut B) {
    let discarding = async {
        let mut n_discarded = 0;
        while let Ok(Some(chunk)) = chunk(body).await {
            n_discarded += chunk.len();
            if n_discarded > DISCARD_LIMIT {
                break;
            }
        }
    };
    // The answer is sent even after a timeout.
    let _ = time::timeout(DISCARD_TIMEOUT, discarding).await;
}

async fn gather<B: RequestBody>(
    body: &mut B,
    framing: Framing,
    encoding: Encoding,
    limits: &BodyLimits,
    permit: MemoryPermit,
    check_room: impl Fn(usize) -> Result<(), RequestError>,
) -> Result<BufferedMessage, RequestError> {
    let mut pace = Pace::new();
    let announced = body
        .size_hint()
        .exact()
        .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let mut message = match framing {
        Framing::Whole => {
            let message = MessageBuffer::try_new(encoding, announced, limits, permit)?;
            check_room(announced.unwrap_or_default())?;
            message
        }
        Framing::Prefixed => {
            let ([compressed, length @ ..], rest) = prefix(body, &mut pace, &permit).await?;
            let encoding = match (compressed, encoding) {
                (0, _) => Encoding::Identity,
                (1, Encoding::Identity) => {
                    return Err(RequestError::Malformed(
                        "the message is marked as compressed, but `grpc-encoding` does not say how"
                            .to_owned(),
                    ));
                }
                (1, encoding) => encoding,
                (other, _) => {
                    return Err(RequestError::Malformed(format!(
                        "a gRPC message begins with 0 or 1, not with {other}"
                    )));
                }
            };
            let length = u32::from_be_bytes(length) as usize;
            let mut message = MessageBuffer::try_new(encoding, Some(length), limits, permit)?;
            message.framed = true;
            check_room(length)?;
            message.take(rest)?;
            message
        }
    };
    while let Some(chunk) = pace.next_chunk(body, &message.permit).await? {
        message.take(chunk)?;
    }
    message.permit.arrived()?;
    message.finish().await
}

/// Reads the prefix of a gRPC message. Also returns the bytes after it.
async fn prefix<B: RequestBody>(
    body: &mut B,
    pace: &mut Pace,
    permit: &MemoryPermit,
) -> Result<([u8; 5], Bytes), RequestError> {
    let mut prefix = [0; 5];
    let mut n_filled = 0;
    loop {
        let Some(mut chunk) = pace.next_chunk(body, permit).await? else {
            return Err(RequestError::Malformed(
                "the body ends before its message starts".to_owned(),
            ));
        };
        let n = chunk.len().min(prefix.len() - n_filled);
        prefix[n_filled..n_filled + n].copy_from_slice(&chunk[..n]);
        chunk.advance(n);
        n_filled += n;
        if n_filled == prefix.len() {
            return Ok((prefix, chunk));
        }
    }
}

// === MessageBuffer ===

struct MessageBuffer<'a> {
    limits: &'a BodyLimits,
    /// Maximum bytes before decompression.
    max_received: usize,
    permit: MemoryPermit,
    /// The length of the message before decompression, if known.
    announced: Option<usize>,
    /// True if the protocol requires exactly `announced` bytes; hyper checks a content-length
    /// itself.
    framed: bool,
    n_received: usize,
    encoding: Encoding,
    /// The first piece. A message of one piece is passed on without a copy, unless it is small.
    first: Bytes,
    /// A message of more than one piece, unless it is mapped.
    bytes: Vec<u8>,
    /// A large message of more than one piece.
    mapped: Option<MappedMessage>,
    /// The length up to which the permit allows the message to grow.
    granted: usize,
}

impl<'a> MessageBuffer<'a> {
    fn try_new(
        encoding: Encoding,
        announced: Option<usize>,
        limits: &'a BodyLimits,
        permit: MemoryPermit,
    ) -> Result<Self, RequestError> {
        // Bytes that cannot be compressed become slightly longer.
        let slack = if encoding == Encoding::Identity { 0 } else { limits.max_size() / 64 };
        let max_received = limits.max_size() + slack;
        if announced.is_some_and(|announced| announced > max_received) {
            return Err(limits.too_large());
        }
        Ok(Self {
            limits,
            max_received,
            permit,
            announced,
            framed: false,
            n_received: 0,
            encoding,
            first: Bytes::new(),
            bytes: Vec::new(),
            mapped: None,
            granted: 0,
        })
    }

    /// Adds the next bytes of the body.
    fn take(&mut self, chunk: Bytes) -> Result<(), RequestError> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.n_received += chunk.len();
        if self.framed && self.announced.is_some_and(|it| self.n_received > it) {
            return Err(RequestError::Malformed(
                "more than one message in a request".to_owned(),
            ));
        }
        if self.n_received > self.max_received {
            return Err(self.limits.too_large());
        }
        if self.n_received == chunk.len() {
            self.permit.grow_to(chunk.len())?;
            self.first = chunk;
            return Ok(());
        }
        let first = std::mem::take(&mut self.first);
        if self.bytes.is_empty() && self.mapped.is_none() {
            let large = self.announced.filter(|len| *len >= MAPPED_FROM);
            self.mapped = large.and_then(MappedMessage::try_new);
        }
        if let Some(mapped) = &mut self.mapped {
            if self.n_received > self.granted {
                let doubled = (self.granted * 2).min(self.announced.unwrap_or_default());
                self.granted = self.n_received.max(doubled);
                self.permit.grow_to(self.granted)?;
            }
            return if mapped.push(&first) && mapped.push(&chunk) {
                Ok(())
            } else {
                Err(RequestError::Malformed(
                    "the body is longer than announced".to_owned(),
                ))
            };
        }
        for piece in [first, chunk] {
            if self.granted.saturating_sub(self.bytes.len()) < piece.len() {
                self.grow(piece.len())?;
            }
            self.bytes.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Allocates space for `n_more` bytes, and at least doubles the buffer if the message may be
    /// that long, so that a body is not copied repeatedly.
    fn grow(&mut self, n_more: usize) -> Result<(), RequestError> {
        let len = self.bytes.len();
        let doubled = (self.granted * 2)
            .max(MIN_CAPACITY)
            .min(self.announced.unwrap_or(self.max_received));
        self.granted = (len + n_more).max(doubled);
        self.permit.grow_to(self.granted)?;
        let reserved = self
            .announced
            .filter(|_| self.granted > TRUSTED_FROM)
            .map_or(0, |announced| announced.min(RESERVED_AT_ONCE));
        self.bytes.reserve_exact(self.granted.max(reserved) - len);
        Ok(())
    }

    async fn finish(mut self) -> Result<BufferedMessage, RequestError> {
        if self.framed && self.announced.is_some_and(|it| self.n_received < it) {
            return Err(RequestError::Malformed(
                "the message ends early; it was truncated in transit".to_owned(),
            ));
        }
        let message = match self.mapped {
            Some(mapped) => mapped.into_bytes(),
            None if !self.bytes.is_empty() => fitted(self.bytes),
            None if self.first.len() < COPY_BELOW => Bytes::copy_from_slice(&self.first),
            None => self.first,
        };
        let bytes = if self.encoding == Encoding::Identity {
            message
        } else {
            let (limits, permit) = (self.limits, &mut self.permit);
            fitted(self.encoding.decompress(&message, limits, permit).await?)
        };
        self.permit.shrink_to(bytes.len());
        let permit = self.permit;
        Ok(BufferedMessage { bytes, permit })
    }
}

/// Frees spare capacity: later stages count only the bytes.
fn fitted(mut bytes: Vec<u8>) -> Bytes {
    if bytes.capacity() - bytes.len() > bytes.len() / 8 {
        bytes.shrink_to_fit();
    }
    Bytes::from(bytes)
}
