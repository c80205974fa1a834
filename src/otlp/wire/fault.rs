//! The fault that makes a protobuf message malformed, with its field and offset.

use std::fmt;

use super::RECURSION_LIMIT;

/// A mistake in a request, with its place. The text is suitable as the message of a gRPC status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedProtobuf {
    kind: FaultKind,
    /// The field names, outermost first.
    path: String,
    offset: usize,
}

impl MalformedProtobuf {
    /// Returns the offset in the body, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the field with the fault: names from the request downwards, joined by dots; empty
    /// for a fault in the request itself.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl fmt::Display for MalformedProtobuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed protobuf: {}", self.kind)?;
        if !self.path.is_empty() {
            write!(f, " in {}", self.path)?;
        }
        write!(f, " at byte {}", self.offset)
    }
}

impl std::error::Error for MalformedProtobuf {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    Truncated,
    InvalidVarint,
    InvalidKey,
    InvalidWireType(u64),
    UnexpectedWireType(u64),
    FieldNumberZero,
    StrayEndGroup,
    TooDeep,
    NotUtf8,
    PackedLength,
    IdLength { expected: usize, found: usize },
    NoRoom,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated => write!(f, "a field is longer than the rest of its message"),
            Self::InvalidVarint => write!(
                f,
                "a variable-length number is cut off or longer than 64 bits"
            ),
            Self::InvalidKey => write!(f, "a field key is longer than 32 bits"),
            Self::InvalidWireType(wire_type) => write!(f, "there is no wire type {wire_type}"),
            Self::UnexpectedWireType(wire_type) => {
                write!(f, "wire type {wire_type} does not fit the field")
            }
            Self::FieldNumberZero => write!(f, "there is no field number 0"),
            Self::StrayEndGroup => write!(f, "a group ends that did not start"),
            Self::TooDeep => write!(f, "messages are nested more than {RECURSION_LIMIT} deep"),
            Self::NotUtf8 => write!(f, "a string is not valid UTF-8"),
            Self::PackedLength => write!(f, "a packed field does not contain whole numbers"),
            Self::NoRoom => write!(f, "there is not enough memory for so many items"),
            Self::IdLength { expected, found } => {
                write!(f, "an id must have {expected} bytes (or none), not {found}")
            }
        }
    }
}

/// A [`MalformedProtobuf`] under construction. It is a thin pointer, so that a success is returned
/// in registers.
#[derive(Debug)]
pub struct Fault(Box<FaultDetails>);

#[derive(Debug)]
struct FaultDetails {
    kind: FaultKind,
    /// The address of the faulty bytes, from which [`Fault::locate`] computes the offset.
    address: usize,
    path: Vec<&'static str>,
}

impl Fault {
    #[cold]
    #[inline(never)]
    pub(crate) fn new(kind: FaultKind, at: &[u8]) -> Self {
        Self(Box::new(FaultDetails {
            kind,
            address: at.as_ptr().addr(),
            path: Vec::new(),
        }))
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn within(mut self, field: &'static str) -> Self {
        self.0.path.push(field);
        self
    }

    /// Returns the error for the sender, with the offset into the request.
    #[cold]
    #[inline(never)]
    pub(crate) fn locate(mut self, body: &[u8]) -> MalformedProtobuf {
        self.0.path.reverse();
        let offset = self
            .0
            .address
            .saturating_sub(body.as_ptr().addr())
            .min(body.len());
        MalformedProtobuf {
            kind: self.0.kind,
            path: self.0.path.join("."),
            offset,
        }
    }
}
