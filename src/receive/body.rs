//! A request's body in, its message in one piece out, with the room it takes. Knows gRPC's message
//! prefix, limits and deadlines; does not know what the bytes mean. Room is taken as bytes arrive
//! or are decompressed, so that a sender who announces much and sends little, or sends little that
//! unpacks to much, holds no more than what is really there (and room for 4 MiB to come, once there
//! are 32 KiB; and 64 KiB for what is compressed). Only a compressed body that is there as a whole
//! is believed how long it is, for as long as it is unpacked.

use std::fmt::Display;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use hyper::body::Body;
use tokio::time;

use super::decompress::{Decoder, Encoding};
use super::problem::{NoRoom, Problem};
use super::room::{Budget, RETRY_AFTER, Room};

/// A sender that is silent for so long in the middle of a body is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for one body: a sender that drips must not hold room for ever.
const TOTAL_TIMEOUT: Duration = Duration::from_secs(120);

/// Below this a body is copied: a slice would pin the connection's read buffer, of which it may be
/// a small part.
const COPY_BELOW: usize = 16 << 10;

/// Compressed bytes that are collected and unpacked without a break. That takes most requests
/// whole, and a stream that ends in the call in which it began is inflated without copies into a
/// window. A few milliseconds, unless a bomb unpacks to all that one request may have.
const UNPACKED_AT_ONCE: usize = 64 << 10;

/// The least that a buffer grows to.
const MIN_CAPACITY: usize = 4 << 10;

/// So much of an announced message is asked of the allocator at once, when some of it has come:
/// growing step by step copies a message of 2 MB twice, into pages that are new each time, which is
/// a third of what it costs to receive.
const RESERVED_AT_ONCE: usize = 4 << 20;

/// A sender that has sent less than this, unpacked, is not trusted with what it announces.
const TRUSTED_FROM: usize = 32 << 10;

/// After a refusal, so much of a body is read and thrown away, so that its sender gets to read our
/// answer instead of a broken pipe, and can go on using the connection.
const DISCARD_LIMIT: usize = 128 << 20;

/// And for so long.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

/// How large a request may be.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Most bytes after decompression; never more than the budget.
    pub(super) max_size: usize,
    /// Which setting says so.
    pub(super) setting: &'static str,
    /// Bytes of all requests being received.
    pub(super) budget: Arc<Budget>,
}

/// How the message lies in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// OTLP/HTTP: the body is the message.
    Whole,
    /// gRPC: one byte "compressed?", four bytes length, the message; exactly one of them.
    Prefixed,
}

/// A message, and the room it takes as long as it is held.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// Reads a body to its end. After an error the rest of it has been read and thrown away, as far as
/// that is reasonable.
pub(super) async fn read<B>(
    body: &mut B,
    framing: Framing,
    encoding: Encoding,
    limits: &Limits,
) -> Result<Held, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let gathering = gather(body, framing, encoding, limits);
    let held = time::timeout(TOTAL_TIMEOUT, gathering)
        .await
        .unwrap_or(Err(slow()));
    if let Err(
        Problem::Malformed(_)
        | Problem::TooLarge { .. }
        | Problem::NoRoom {
            what: NoRoom::InFlight,
            ..
        },
    ) = held
    {
        discard(body).await;
    }
    held
}

/// Reads what is left of a body and throws it away.
pub(super) async fn discard<B>(body: &mut B)
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let discarding = async {
        let mut n_discarded = 0;
        while let Ok(Some(chunk)) = next_chunk(body).await {
            n_discarded += chunk.len();
            if n_discarded > DISCARD_LIMIT {
                break;
            }
        }
    };
    // The answer goes out either way.
    let _ = time::timeout(DISCARD_TIMEOUT, discarding).await;
}

async fn gather<B>(
    body: &mut B,
    framing: Framing,
    encoding: Encoding,
    limits: &Limits,
) -> Result<Held, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let announced = body
        .size_hint()
        .exact()
        .map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    let mut message = match framing {
        Framing::Whole => Message::try_new(encoding, announced, limits)?,
        Framing::Prefixed => {
            let (prefix, rest) = prefix(body).await?;
            let mut message = prefix.message(encoding, limits)?;
            message.take(rest).await?;
            message
        }
    };
    while let Some(chunk) = next_chunk(body).await? {
        message.take(chunk).await?;
    }
    message.finish()
}

/// The next data of a body; `None` at its end.
async fn next_chunk<B>(body: &mut B) -> Result<Option<Bytes>, Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    loop {
        match time::timeout(
            IDLE_TIMEOUT,
            poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)),
        )
        .await
        {
            Err(_) => return Err(slow()),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => {
                return Err(Problem::Broken(format!("the body broke off: {error}")));
            }
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(chunk) => return Ok(Some(chunk)),
                // Trailers of a request tell us nothing.
                Err(_) => continue,
            },
        }
    }
}

fn slow() -> Problem {
    Problem::NoRoom {
        what: NoRoom::Slow,
        retry_after: RETRY_AFTER,
    }
}

// === Prefix ===

/// What stands before a gRPC message.
struct Prefix {
    compressed: bool,
    length: usize,
}

/// Reads the prefix, and gives back what came with it.
async fn prefix<B>(body: &mut B) -> Result<(Prefix, Bytes), Problem>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Display,
{
    let mut prefix = [0; 5];
    let mut n_filled = 0;
    loop {
        let Some(mut chunk) = next_chunk(body).await? else {
            return Err(Problem::Malformed(
                "the body ends before its message begins".to_owned(),
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
                    return Err(Problem::Malformed(format!(
                        "a gRPC message begins with 0 or 1, not with {other}"
                    )));
                }
            };
            return Ok((
                Prefix {
                    compressed,
                    length: u32::from_be_bytes(length) as usize,
                },
                chunk,
            ));
        }
    }
}

impl Prefix {
    fn message<'a>(&self, encoding: Encoding, limits: &'a Limits) -> Result<Message<'a>, Problem> {
        let encoding = match (self.compressed, encoding) {
            (true, Encoding::Identity) => {
                return Err(Problem::Malformed(
                    "the message is marked as compressed, but `grpc-encoding` does not say how"
                        .to_owned(),
                ));
            }
            (true, encoding) => encoding,
            (false, _) => Encoding::Identity,
        };
        let mut message = Message::try_new(encoding, Some(self.length), limits)?;
        message.framed = true;
        Ok(message)
    }
}

// === Message ===

/// A message as far as it has come.
struct Message<'a> {
    limits: &'a Limits,
    room: Room,
    /// How many bytes are to come before decompression, if known.
    announced: Option<usize>,
    /// `announced` is part of the protocol and must be met; a content-length is hyper's to check.
    framed: bool,
    n_received: usize,
    decoder: Option<Decoder>,
    /// What is to be unpacked next.
    packed: Vec<u8>,
    /// How much was given to the decoder.
    n_fed: usize,
    /// The first piece of what is not compressed. If it is the only one it is passed on without a
    /// copy.
    first: Bytes,
    /// Everything, once there is more than one piece.
    bytes: Vec<u8>,
    /// How long that may grow in the room taken.
    granted: usize,
}

impl<'a> Message<'a> {
    fn try_new(
        encoding: Encoding,
        announced: Option<usize>,
        limits: &'a Limits,
    ) -> Result<Self, Problem> {
        // What is larger than allowed before decompression will not be smaller after it.
        if announced.is_some_and(|announced| announced > limits.max_size) {
            return Err(limits.too_large());
        }
        Ok(Self {
            limits,
            room: limits.budget.room(),
            announced,
            framed: false,
            n_received: 0,
            decoder: encoding.decoder()?,
            packed: Vec::new(),
            n_fed: 0,
            first: Bytes::new(),
            bytes: Vec::new(),
            granted: 0,
        })
    }

    /// What little is sent may unpack to a thousand times as much, so it is taken in steps, between
    /// which others get their turn.
    async fn take(&mut self, mut chunk: Bytes) -> Result<(), Problem> {
        if chunk.is_empty() {
            return Ok(());
        }
        self.n_received += chunk.len();
        if self.framed
            && self
                .announced
                .is_some_and(|announced| self.n_received > announced)
        {
            return Err(Problem::Malformed(
                "more than one message in a request".to_owned(),
            ));
        }
        if self.decoder.is_none() {
            return self.push(chunk);
        }
        while self.packed.len() + chunk.len() > UNPACKED_AT_ONCE {
            self.collect(&chunk.split_to(UNPACKED_AT_ONCE - self.packed.len()))?;
            self.unpack(None)?;
            tokio::task::yield_now().await;
        }
        self.collect(&chunk)
    }

    /// Takes what is not compressed.
    fn push(&mut self, chunk: Bytes) -> Result<(), Problem> {
        if self.n_received > self.limits.max_size {
            return Err(self.limits.too_large());
        }
        if self.n_received == chunk.len() {
            self.room.grow_to(chunk.len())?;
            self.first = chunk;
            return Ok(());
        }
        let first = std::mem::take(&mut self.first);
        for piece in [first, chunk] {
            if self.granted.saturating_sub(self.bytes.len()) < piece.len() {
                self.granted = grow(
                    &mut self.bytes,
                    self.granted,
                    piece.len(),
                    self.announced,
                    &mut self.room,
                    self.limits,
                )?;
            }
            self.bytes.extend_from_slice(&piece);
        }
        Ok(())
    }

    /// Takes what is to be unpacked.
    fn collect(&mut self, chunk: &[u8]) -> Result<(), Problem> {
        let n_packed = self.packed.len() + chunk.len();
        self.room.grow_to(self.bytes.capacity() + n_packed)?;
        if self.packed.capacity() < n_packed {
            let in_all = self
                .announced
                .unwrap_or(UNPACKED_AT_ONCE)
                .min(UNPACKED_AT_ONCE)
                .min(n_packed * 4);
            self.packed
                .reserve_exact(in_all.max(n_packed) - self.packed.len());
        }
        self.packed.extend_from_slice(chunk);
        Ok(())
    }

    /// Unpacks what was collected, which claims to be so long.
    fn unpack(&mut self, claimed: Option<usize>) -> Result<(), Problem> {
        let Self {
            limits,
            room,
            announced,
            decoder: Some(decoder),
            packed,
            n_fed,
            bytes,
            ..
        } = self
        else {
            return Ok(());
        };
        *n_fed += packed.len();
        let guess = packed.len().saturating_mul(4);
        // Nothing real unpacks to more than a thousand times its size.
        let claimed = claimed.map(|len| len.min(packed.len() << 10));
        decoder.feed(packed, bytes, |bytes, n_unread| {
            // The rest unpacks about as the beginning did; an eighth more spares the last step.
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
                .min(limits.max_size + 1)
                .min(RESERVED_AT_ONCE)
                .saturating_sub(bytes.len());
            let has_room = ahead > 0 && room.grow_to(bytes.len() + ahead).is_ok();
            grow(
                bytes,
                bytes.capacity(),
                if has_room { ahead } else { guess },
                None,
                room,
                limits,
            )
            .map(drop)
        })?;
        packed.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Held, Problem> {
        if self.framed
            && self
                .announced
                .is_some_and(|announced| self.n_received < announced)
        {
            return Err(Problem::Malformed(
                "the message ends early; it was truncated on its way".to_owned(),
            ));
        }
        let is_whole = self.n_fed == 0;
        let claimed = self
            .decoder
            .as_ref()
            .filter(|_| is_whole)
            .and_then(|decoder| decoder.claimed_len(&self.packed));
        self.unpack(claimed)?;
        let Self {
            mut room,
            decoder,
            first,
            mut bytes,
            limits,
            ..
        } = self;
        if let Some(decoder) = decoder {
            decoder.finish()?;
        }
        let bytes = match first.len() {
            0 if bytes.len() > limits.max_size => return Err(limits.too_large()),
            0 => {
                // What follows counts the bytes, so spare capacity would be memory in nobody's
                // books.
                if bytes.capacity() - bytes.len() > bytes.len() / 8 {
                    bytes.shrink_to_fit();
                }
                Bytes::from(bytes)
            }
            1..COPY_BELOW => Bytes::copy_from_slice(&first),
            _ => first,
        };
        room.shrink_to(bytes.len());
        Ok(Held { bytes, room })
    }
}

/// Makes space for `n_more` bytes, at least doubling, so that a body is not copied again and again.
/// How many bytes there may be then.
fn grow(
    bytes: &mut Vec<u8>,
    granted: usize,
    n_more: usize,
    announced: Option<usize>,
    room: &mut Room,
    limits: &Limits,
) -> Result<usize, Problem> {
    if bytes.len() > limits.max_size {
        return Err(limits.too_large());
    }
    // One byte more than allowed: if that gets used, the body is too large.
    let most = announced.unwrap_or(limits.max_size + 1);
    let wanted = (bytes.len() + n_more)
        .max(granted * 2)
        .max(MIN_CAPACITY)
        .min(most)
        .max(bytes.len() + 1);
    room.grow_to(wanted.min(limits.max_size))?;
    let at_once = announced
        .filter(|_| wanted > TRUSTED_FROM)
        .map_or(0, |announced| announced.min(RESERVED_AT_ONCE));
    bytes.reserve_exact(wanted.max(at_once) - bytes.len());
    Ok(wanted)
}

impl Limits {
    fn too_large(&self) -> Problem {
        Problem::TooLarge {
            limit: self.max_size,
            setting: self.setting,
        }
    }
}
