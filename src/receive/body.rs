//! Reads a request's body into one contiguous message, with a permit for its memory.
//!
//! The permit grows as bytes arrive or are decompressed, so neither an announced length nor a
//! compressed body reserves memory in advance. There are two exceptions: up to 4 MiB of an
//! announced length, once the buffer is larger than 32 KiB, and 64 KiB of compressed bytes. The
//! length that a compressed body claims is trusted only if the body has arrived in full, and only
//! during decompression.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::time;

use super::RequestBody;
use super::decompress::{Decoder, Encoding};
use super::mapped::MappedMessage;
use super::memory_permit::MemoryPermit;
use super::pace::{Pace, chunk};
use super::request_error::RequestError;
use crate::config::Bound;
use crate::fair::EvictingBudget;

/// Timeout for one body: a sender that sends a few bytes at a time must not use memory forever.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Size in bytes below which a body is copied: a slice would pin the connection's read buffer,
/// which may be much larger.
const COPY_BELOW: usize = 16 << 10;

/// Size of the pieces of a compressed body that are decompressed in one call. Most bodies have one
/// piece, and a stream that starts and ends in the same call is inflated without copies into a
/// window. A call takes a few milliseconds, unless a bomb decompresses to the limit of a request.
const DECOMPRESSED_AT_ONCE: usize = 64 << 10;

/// Minimum capacity of a growing buffer, in bytes.
const MIN_CAPACITY: usize = 4 << 10;

/// Maximum bytes of an announced message that are allocated in advance, once some of it has
/// arrived. Growing in steps would copy a message of 2 MB twice, each time into new pages, which is
/// a third of the cost of receiving it.
const RESERVED_AT_ONCE: usize = 4 << 20;

/// Size of the buffer in bytes, after decompression, from which the announced length is trusted.
const TRUSTED_FROM: usize = 32 << 10;

/// Announced length in bytes from which an uncompressed message gets mapped memory (see
/// `mapped.rs`). Smaller messages use the allocator, because its pages cost less.
const MAPPED_FROM: usize = 4 << 20;

/// Maximum bytes of a body that are read and discarded after a refusal, so that its sender reads
/// our answer instead of a broken pipe and can reuse the connection.
const DISCARD_LIMIT: usize = 128 << 20;

const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits on the size of a request.
#[derive(Debug, Clone)]
pub(super) struct BodyLimits {
    /// Maximum bytes after decompression, each with the setting that defines it. The lowest maximum
    /// applies; it is never more than the budget.
    pub(super) sizes: Vec<(Bound, &'static str)>,
    /// The budget of all requests that are being received.
    pub(super) budget: Arc<EvictingBudget>,
}

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
        | RequestError::TooLarge { .. }
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
            let (prefix, rest) = prefix(body, &mut pace, &permit).await?;
            let mut message = prefix.message(encoding, limits, permit)?;
            check_room(prefix.length)?;
            message.take(rest).await?;
            message
        }
    };
    while let Some(chunk) = pace.next_chunk(body, &message.permit).await? {
        message.take(chunk).await?;
    }
    message.permit.arrived()?;
    message.finish()
}

// === MessagePrefix ===

struct MessagePrefix {
    compressed: bool,
    length: usize,
}

async fn prefix<B: RequestBody>(
    body: &mut B,
    pace: &mut Pace,
    permit: &MemoryPermit,
) -> Result<(MessagePrefix, Bytes), RequestError> {
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
            let [compressed, length @ ..] = prefix;
            let compressed = match compressed {
                0 => false,
                1 => true,
                other => {
                    return Err(RequestError::Malformed(format!(
                        "a gRPC message begins with 0 or 1, not with {other}"
                    )));
                }
            };
            return Ok((
                MessagePrefix {
                    compressed,
                    length: u32::from_be_bytes(length) as usize,
                },
                chunk,
            ));
        }
    }
}

impl MessagePrefix {
    fn message<'a>(
        &self,
        encoding: Encoding,
        limits: &'a BodyLimits,
        permit: MemoryPermit,
    ) -> Result<MessageBuffer<'a>, RequestError> {
        let encoding = match (self.compressed, encoding) {
            (true, Encoding::Identity) => {
                return Err(RequestError::Malformed(
                    "the message is marked as compressed, but `grpc-encoding` does not say how"
                        .to_owned(),
                ));
            }
            (true, encoding) => encoding,
            (false, _) => Encoding::Identity,
        };
        let mut message = MessageBuffer::try_new(encoding, Some(self.length), limits, permit)?;
        message.framed = true;
        Ok(message)
    }
}

// === MessageBuffer ===

struct MessageBuffer<'a> {
    limits: &'a BodyLimits,
    permit: MemoryPermit,
    /// The length of the message before decompression, if known.
    announced: Option<usize>,
    /// True if the protocol requires exactly `announced` bytes; hyper checks a content-length
    /// itself.
    framed: bool,
    n_received: usize,
    encoding: Encoding,
    /// The decoder, created when the first bytes are decompressed.
    decoder: Option<Decoder>,
    /// Compressed bytes to decompress next.
    pending: Vec<u8>,
    n_fed: usize,
    /// The first piece of an uncompressed message. A message of one piece is passed on without a
    /// copy, unless it is small.
    first: Bytes,
    /// A decompressed message, or an uncompressed one of more than one piece, unless it is mapped.
    bytes: Vec<u8>,
    /// A large uncompressed message of more than one piece.
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
        // A message that is too large before decompression is hardly ever smaller after it.
        if announced.is_some_and(|announced| announced > limits.max_size()) {
            return Err(limits.too_large());
        }
        Ok(Self {
            limits,
            permit,
            announced,
            framed: false,
            n_received: 0,
            encoding,
            decoder: None,
            pending: Vec::new(),
            n_fed: 0,
            first: Bytes::new(),
            bytes: Vec::new(),
            mapped: None,
            granted: 0,
        })
    }

    /// Adds the next bytes of the body. Few bytes may decompress to a thousand times as many, so
    /// decompression runs in steps, between which other tasks run.
    async fn take(&mut self, mut chunk: Bytes) -> Result<(), RequestError> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.n_received += chunk.len();
        if self.framed
            && self
                .announced
                .is_some_and(|announced| self.n_received > announced)
        {
            return Err(RequestError::Malformed(
                "more than one message in a request".to_owned(),
            ));
        }
        if self.encoding == Encoding::Identity {
            return self.push(chunk);
        }
        while self.pending.len() + chunk.len() > DECOMPRESSED_AT_ONCE {
            self.collect(&chunk.split_to(DECOMPRESSED_AT_ONCE - self.pending.len()))?;
            if self.decoder.is_none() {
                // Between the steps, the decoder's tables stay in memory, and for zstd also its
                // window.
                self.permit.add_fixed(self.encoding.decoder_size())?;
                self.permit.set_window(self.encoding.window());
            }
            self.decompress(None)?;
            tokio::task::yield_now().await;
        }
        self.collect(&chunk)
    }

    fn push(&mut self, chunk: Bytes) -> Result<(), RequestError> {
        if self.n_received > self.limits.max_size() {
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
                self.granted = grow(
                    &mut self.bytes,
                    self.granted,
                    piece.len(),
                    self.announced,
                    &mut self.permit,
                    self.limits,
                )?;
            }
            self.bytes.extend_from_slice(&piece);
        }
        Ok(())
    }

    fn collect(&mut self, chunk: &[u8]) -> Result<(), RequestError> {
        let n_pending = self.pending.len() + chunk.len();
        self.permit.grow_to(self.bytes.capacity() + n_pending)?;
        if self.pending.capacity() < n_pending {
            let in_all = self
                .announced
                .unwrap_or(DECOMPRESSED_AT_ONCE)
                .min(DECOMPRESSED_AT_ONCE)
                .min(n_pending * 4);
            self.pending
                .reserve_exact(in_all.max(n_pending) - self.pending.len());
        }
        self.pending.extend_from_slice(chunk);
        Ok(())
    }

    /// Decompresses the collected bytes. `claimed` is the decompressed length that they claim.
    fn decompress(&mut self, claimed: Option<usize>) -> Result<(), RequestError> {
        if self.decoder.is_none() {
            self.decoder = self.encoding.decoder()?;
        }
        let Self {
            limits,
            permit,
            announced,
            decoder: Some(decoder),
            pending,
            n_fed,
            bytes,
            ..
        } = self
        else {
            return Ok(());
        };
        *n_fed += pending.len();
        let guess = pending.len().saturating_mul(4);
        // Real telemetry does not decompress to more than a thousand times its size.
        let claimed = claimed.map(|len| len.min(pending.len() << 10));
        decoder.feed(pending, bytes, |bytes, n_unread| {
            // Assume that the rest decompresses like the beginning. An eighth more usually saves
            // the last step.
            let n_read = (*n_fed - n_unread).max(1);
            let in_all = || {
                (bytes.len() + bytes.len() / 8).saturating_mul(announced.unwrap_or_default())
                    / n_read
            };
            let expected = match claimed {
                Some(claimed) if bytes.is_empty() => claimed,
                _ if bytes.len() >= TRUSTED_FROM => in_all(),
                _ => 0,
            };
            let ahead = expected
                .min(limits.max_size() + 1)
                .min(RESERVED_AT_ONCE)
                .saturating_sub(bytes.len());
            let is_granted = ahead > 0 && permit.grow_to(bytes.len() + ahead).is_ok();
            grow(
                bytes,
                bytes.capacity(),
                if is_granted { ahead } else { guess },
                None,
                permit,
                limits,
            )
            .map(drop)
        })?;
        pending.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<BufferedMessage, RequestError> {
        if self.framed
            && self
                .announced
                .is_some_and(|announced| self.n_received < announced)
        {
            return Err(RequestError::Malformed(
                "the message ends early; it was truncated in transit".to_owned(),
            ));
        }
        let is_whole = self.n_fed == 0;
        let claimed = if is_whole { self.encoding.claimed_len(&self.pending) } else { None };
        self.decompress(claimed)?;
        let Self {
            mut permit,
            encoding,
            decoder,
            first,
            mut bytes,
            mapped,
            limits,
            ..
        } = self;
        if let Some(decoder) = decoder {
            decoder.finish()?;
        }
        if !is_whole {
            permit.remove_fixed(encoding.decoder_size());
            permit.set_window(0);
        }
        let bytes = match (mapped, first.len()) {
            (Some(mapped), _) => mapped.into_bytes(),
            (None, 0) if bytes.len() > limits.max_size() => return Err(limits.too_large()),
            (None, 0) => {
                // Later stages count only the bytes, so spare capacity would be unaccounted memory.
                if bytes.capacity() - bytes.len() > bytes.len() / 8 {
                    bytes.shrink_to_fit();
                }
                Bytes::from(bytes)
            }
            (None, 1..COPY_BELOW) => Bytes::copy_from_slice(&first),
            (None, _) => first,
        };
        permit.shrink_to(bytes.len());
        Ok(BufferedMessage { bytes, permit })
    }
}

/// Allocates space for `n_more` bytes, and at least doubles the buffer if the message may be that
/// long, so that a body is not copied repeatedly. Returns the size up to which the buffer may grow.
fn grow(
    bytes: &mut Vec<u8>,
    granted: usize,
    n_more: usize,
    announced: Option<usize>,
    permit: &mut MemoryPermit,
    limits: &BodyLimits,
) -> Result<usize, RequestError> {
    if bytes.len() > limits.max_size() {
        return Err(limits.too_large());
    }
    // Allow one byte more than the maximum: if it is used, the body is too large.
    let max_len = announced.unwrap_or(limits.max_size() + 1);
    let wanted = (bytes.len() + n_more)
        .max(granted * 2)
        .max(MIN_CAPACITY)
        .min(max_len)
        .max(bytes.len() + 1);
    permit.grow_to(wanted.min(limits.max_size()))?;
    let reserved = announced
        .filter(|_| wanted > TRUSTED_FROM)
        .map_or(0, |announced| announced.min(RESERVED_AT_ONCE));
    bytes.reserve_exact(wanted.max(reserved) - bytes.len());
    Ok(wanted)
}

impl BodyLimits {
    /// Returns the maximum bytes after decompression.
    pub(super) fn max_size(&self) -> usize {
        self.least().0
    }

    pub(super) fn too_large(&self) -> RequestError {
        let (limit, setting) = self.least();
        RequestError::TooLarge { limit, setting }
    }

    fn least(&self) -> (usize, &'static str) {
        let sizes = self
            .sizes
            .iter()
            .map(|(size, setting)| (size.get(), *setting));
        sizes.min_by_key(|(size, _)| *size).unwrap_or_default()
    }
}
