//! The protobuf wire format, read in place: bytes in, keys, numbers and slices out, or a fault that
//! says where the bytes stop making sense. Accepts exactly what prost's decoder accepts (its
//! source, version 0.14, is the specification). Knows no message.

use std::fmt;

/// How deep messages and groups may lie in each other. Prost's default; what is deeper is refused,
/// so that no request exhausts the stack.
pub(in crate::receive) const RECURSION_LIMIT: u32 = 100;

pub(in crate::receive) const VARINT: u64 = 0;
pub(in crate::receive) const FIXED64: u64 = 1;
pub(in crate::receive) const LEN: u64 = 2;
pub(in crate::receive) const START_GROUP: u64 = 3;
pub(in crate::receive) const END_GROUP: u64 = 4;
pub(in crate::receive) const FIXED32: u64 = 5;

/// The key of a field as it stands on the wire.
pub(in crate::receive) const fn key(tag: u64, wire_type: u64) -> u64 {
    tag << 3 | wire_type
}

/// The tag of a key, which need not be a valid one.
pub(in crate::receive) const fn tag_of(key: u64) -> u64 {
    key >> 3
}

/// Why a request is malformed, and where: the text is fit for the message of a gRPC status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScanError {
    reason: Reason,
    /// Field names from the request down.
    path: String,
    offset: usize,
}

impl ScanError {
    /// Where in the body, in bytes from its start.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The field in which the fault lies, as names from the request down joined by dots; empty for
    /// the request itself.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed protobuf: {}", self.reason)?;
        if !self.path.is_empty() {
            write!(f, " in {}", self.path)?;
        }
        write!(f, " at byte {}", self.offset)
    }
}

impl std::error::Error for ScanError {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::receive) enum Reason {
    Truncated,
    InvalidVarint,
    InvalidKey,
    InvalidWireType(u64),
    UnexpectedWireType(u64),
    TagZero,
    StrayEndGroup,
    TooDeep,
    NotUtf8,
    PackedLength,
    IdLength { expected: usize, found: usize },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "a field is longer than what is left"),
            Self::InvalidVarint => write!(
                f,
                "a variable-length number is cut off or longer than 64 bits"
            ),
            Self::InvalidKey => write!(f, "a field key is longer than 32 bits"),
            Self::InvalidWireType(wire_type) => write!(f, "there is no wire type {wire_type}"),
            Self::UnexpectedWireType(wire_type) => {
                write!(f, "wire type {wire_type} does not fit the field")
            }
            Self::TagZero => write!(f, "there is no field number 0"),
            Self::StrayEndGroup => write!(f, "a group ends that was not begun"),
            Self::TooDeep => write!(f, "messages are nested more than {RECURSION_LIMIT} deep"),
            Self::NotUtf8 => write!(f, "a string is not valid UTF-8"),
            Self::PackedLength => write!(f, "packed numbers do not fill their field"),
            Self::IdLength { expected, found } => {
                write!(f, "an id must have {expected} bytes (or none), not {found}")
            }
        }
    }
}

/// A [`ScanError`] on its way up: a thin pointer, so that the good path stays in registers.
#[derive(Debug)]
pub(in crate::receive) struct Fault(Box<Flaw>);

#[derive(Debug)]
struct Flaw {
    reason: Reason,
    /// Where it was found, as an address: slices of the body do not know their offset, and on the
    /// good path nobody needs it.
    address: usize,
    /// From the innermost field up.
    path: Vec<&'static str>,
}

impl Fault {
    #[cold]
    #[inline(never)]
    pub(in crate::receive) fn new(reason: Reason, at: &[u8]) -> Self {
        Self(Box::new(Flaw {
            reason,
            address: at.as_ptr().addr(),
            path: Vec::new(),
        }))
    }

    /// The fault lies in this field.
    #[cold]
    #[inline(never)]
    pub(in crate::receive) fn within(mut self, field: &'static str) -> Self {
        self.0.path.push(field);
        self
    }

    /// The same, as an offset into the request.
    #[cold]
    #[inline(never)]
    pub(in crate::receive) fn locate(mut self, body: &[u8]) -> ScanError {
        self.0.path.reverse();
        let offset = self
            .0
            .address
            .saturating_sub(body.as_ptr().addr())
            .min(body.len());
        ScanError {
            reason: self.0.reason,
            path: self.0.path.join("."),
            offset,
        }
    }
}

/// The allowance of a message inside one that has `depth` left. Prost counts the same way: the
/// request's own fields have 100.
#[inline(always)]
pub(in crate::receive) fn enter(depth: u32, at: &[u8]) -> Result<u32, Fault> {
    match depth.checked_sub(1) {
        Some(depth) => Ok(depth),
        None => Err(Fault::new(Reason::TooDeep, at)),
    }
}

/// Reads fields from the front of a message. What is rarely called takes and returns it by value: a
/// cursor whose address is handed out lives in memory, one that is not lives in registers.
#[derive(Debug, Clone, Copy)]
pub(in crate::receive) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    pub(in crate::receive) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline(always)]
    pub(in crate::receive) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(always)]
    pub(in crate::receive) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// A variable-length number; keys and lengths are such numbers too.
    #[inline(always)]
    pub(in crate::receive) fn varint(&mut self) -> Result<u64, Fault> {
        match *self.rest {
            [a, ref rest @ ..] if a < 0x80 => {
                self.rest = rest;
                Ok(u64::from(a))
            }
            [a, b, ref rest @ ..] if b < 0x80 => {
                self.rest = rest;
                Ok(u64::from(a & 0x7f) | u64::from(b) << 7)
            }
            _ => {
                let (value, rest) = long_varint(self.rest)?;
                self.rest = rest;
                Ok(value)
            }
        }
    }

    #[inline(always)]
    pub(in crate::receive) fn fixed64(&mut self) -> Result<u64, Fault> {
        match self.rest.split_first_chunk() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => Err(Fault::new(Reason::Truncated, self.rest)),
        }
    }

    #[inline(always)]
    pub(in crate::receive) fn fixed32(&mut self) -> Result<u32, Fault> {
        match self.rest.split_first_chunk() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(u32::from_le_bytes(*bytes))
            }
            None => Err(Fault::new(Reason::Truncated, self.rest)),
        }
    }

    /// A length and that many bytes. Prost compares a length with what is left of the whole request
    /// and notices only afterwards that a message was overrun; both refuse the same bytes.
    #[inline(always)]
    pub(in crate::receive) fn delimited(&mut self) -> Result<&'a [u8], Fault> {
        let len = self.varint()?;
        match usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len))
        {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(Fault::new(Reason::Truncated, self.rest)),
        }
    }

    /// A string: `delimited`, and UTF-8.
    #[inline(always)]
    pub(in crate::receive) fn string(&mut self) -> Result<&'a [u8], Fault> {
        let bytes = self.delimited()?;
        check_utf8(bytes)?;
        Ok(bytes)
    }

    /// What stands behind a key that the message does not read: an unknown field is skipped; a
    /// known one (`known` has its bit set) has the wrong wire type, since its right key would have
    /// been read.
    #[inline(always)]
    pub(in crate::receive) fn other(
        &mut self,
        key: u64,
        known: u32,
        depth: u32,
    ) -> Result<(), Fault> {
        *self = self.past_other(key, known, depth)?;
        Ok(())
    }

    #[inline(never)]
    fn past_other(mut self, key: u64, known: u32, depth: u32) -> Result<Self, Fault> {
        let wire_type = self.check_key(key)?;
        if known
            .checked_shr(tag_of(key) as u32)
            .is_some_and(|bits| bits & 1 == 1)
        {
            return Err(Fault::new(Reason::UnexpectedWireType(wire_type), self.rest));
        }
        self.skip(key, depth)?;
        Ok(self)
    }

    fn check_key(&self, key: u64) -> Result<u64, Fault> {
        if key > u64::from(u32::MAX) {
            return Err(Fault::new(Reason::InvalidKey, self.rest));
        }
        match key & 7 {
            6 | 7 => Err(Fault::new(Reason::InvalidWireType(key & 7), self.rest)),
            _ if tag_of(key) == 0 => Err(Fault::new(Reason::TagZero, self.rest)),
            wire_type => Ok(wire_type),
        }
    }

    /// Even a number is refused where no depth is left: so does prost's `skip_field`.
    fn skip(&mut self, key: u64, depth: u32) -> Result<(), Fault> {
        let inner = enter(depth, self.rest)?;
        match key & 7 {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed64().map(drop),
            LEN => self.delimited().map(drop),
            START_GROUP => loop {
                let inner_key = self.varint()?;
                if self.check_key(inner_key)? != END_GROUP {
                    self.skip(inner_key, inner)?;
                } else if tag_of(inner_key) == tag_of(key) {
                    return Ok(());
                } else {
                    return Err(Fault::new(Reason::StrayEndGroup, self.rest));
                }
            },
            END_GROUP => Err(Fault::new(Reason::StrayEndGroup, self.rest)),
            _ => self.fixed32().map(drop),
        }
    }
}

#[inline(never)]
fn long_varint(bytes: &[u8]) -> Result<(u64, &[u8]), Fault> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        // Ten bytes hold 70 bits: of the last one only the lowest bit fits.
        if i == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok((value, &bytes[i + 1..]));
        }
    }
    Err(Fault::new(Reason::InvalidVarint, bytes))
}

/// The length-delimited fields with this tag, in bytes that have been validated; others are passed
/// over.
pub(in crate::receive) fn delimited_fields(bytes: &[u8], tag: u64) -> impl Iterator<Item = &[u8]> {
    let mut cursor = Cursor::new(bytes);
    std::iter::from_fn(move || {
        while !cursor.is_empty() {
            let found = cursor.varint().ok()?;
            if found == key(tag, LEN) {
                return cursor.delimited().ok();
            }
            cursor.skip(found, RECURSION_LIMIT).ok()?;
        }
        None
    })
}

#[inline(always)]
pub(in crate::receive) fn check_utf8(bytes: &[u8]) -> Result<(), Fault> {
    if is_short_ascii(bytes) {
        Ok(())
    } else {
        check_long_utf8(bytes)
    }
}

#[inline(never)]
fn check_long_utf8(bytes: &[u8]) -> Result<(), Fault> {
    match simdutf8::basic::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::new(
            Reason::NotUtf8,
            bytes.get(valid_up_to(bytes)..).unwrap_or(bytes),
        )),
    }
}

/// Where the bytes stop being UTF-8.
#[cold]
fn valid_up_to(bytes: &[u8]) -> usize {
    std::str::from_utf8(bytes).map_or_else(|error| error.valid_up_to(), str::len)
}

/// Most strings are short and ASCII. Overlapping loads look at up to 32 bytes without a loop or a
/// call, which is where the standard library's check spends its time on them.
#[inline(always)]
fn is_short_ascii(bytes: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = |at: usize| {
        bytes
            .get(at..at + 8)
            .and_then(|word| word.try_into().ok())
            .map_or(HIGH, u64::from_le_bytes)
    };
    let len = bytes.len();
    match len {
        16..=32 => (word(0) | word(8) | word(len - 16) | word(len - 8)) & HIGH == 0,
        8..=15 => (word(0) | word(len - 8)) & HIGH == 0,
        0..=7 => bytes.iter().fold(0, |bits, byte| bits | byte) < 0x80,
        _ => false,
    }
}
