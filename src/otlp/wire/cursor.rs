//! Reads protobuf in place and yields keys, numbers and slices. Accepts exactly the bytes that
//! prost's decoder accepts (the source of its version 0.14 is the specification).

use super::{
    END_GROUP, FIXED64, Fault, FaultKind, LEN, RECURSION_LIMIT, START_GROUP, VARINT, check_utf8,
    number_of,
};

/// Returns the remaining depth inside a nested message whose parent has `depth` left. Counts as
/// prost does: the depth of the request's own fields is 100.
#[inline(always)]
pub fn enter(depth: u32, at: &[u8]) -> Result<u32, Fault> {
    match depth.checked_sub(1) {
        Some(depth) => Ok(depth),
        None => Err(Fault::new(FaultKind::TooDeep, at)),
    }
}

/// Reads fields from the front of a message.
#[derive(Debug, Clone, Copy)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    #[inline(always)]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline(always)]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Reads a variable-length number. Keys and lengths have the same encoding.
    #[inline(always)]
    pub(crate) fn varint(&mut self) -> Result<u64, Fault> {
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
    pub(crate) fn fixed64(&mut self) -> Result<u64, Fault> {
        match self.rest.split_first_chunk() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(u64::from_le_bytes(*bytes))
            }
            None => Err(Fault::new(FaultKind::Truncated, self.rest)),
        }
    }

    #[inline(always)]
    pub(crate) fn fixed32(&mut self) -> Result<u32, Fault> {
        match self.rest.split_first_chunk() {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(u32::from_le_bytes(*bytes))
            }
            None => Err(Fault::new(FaultKind::Truncated, self.rest)),
        }
    }

    /// Reads a length and that many bytes. Prost compares the length with the rest of the whole
    /// request, and notices only later that the length exceeds the message; both reject the same
    /// bytes.
    #[inline(always)]
    pub(crate) fn delimited(&mut self) -> Result<&'a [u8], Fault> {
        let len = self.varint()?;
        match usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len))
        {
            Some((bytes, rest)) => {
                self.rest = rest;
                Ok(bytes)
            }
            None => Err(Fault::new(FaultKind::Truncated, self.rest)),
        }
    }

    #[inline(always)]
    pub(crate) fn string(&mut self) -> Result<&'a [u8], Fault> {
        let bytes = self.delimited()?;
        check_utf8(bytes)?;
        Ok(bytes)
    }

    /// Skips a field that the caller does not read. Rejects a field whose number has its bit set in
    /// `known`: the caller reads this field under its right key, so this key has a wrong wire type.
    #[inline(always)]
    pub(crate) fn skip_unread(&mut self, key: u64, known: u32, depth: u32) -> Result<(), Fault> {
        *self = self.past_unread(key, known, depth)?;
        Ok(())
    }

    /// Takes and returns the cursor by value, because passing the address of a cursor would force
    /// it from registers into memory.
    #[inline(never)]
    fn past_unread(mut self, key: u64, known: u32, depth: u32) -> Result<Self, Fault> {
        let wire_type = self.check_key(key)?;
        if known
            .checked_shr(number_of(key) as u32)
            .is_some_and(|bits| bits & 1 == 1)
        {
            return Err(Fault::new(
                FaultKind::UnexpectedWireType(wire_type),
                self.rest,
            ));
        }
        self.skip(key, depth)?;
        Ok(self)
    }

    fn check_key(&self, key: u64) -> Result<u64, Fault> {
        if key > u64::from(u32::MAX) {
            return Err(Fault::new(FaultKind::InvalidKey, self.rest));
        }
        match key & 7 {
            6 | 7 => Err(Fault::new(FaultKind::InvalidWireType(key & 7), self.rest)),
            _ if number_of(key) == 0 => Err(Fault::new(FaultKind::FieldNumberZero, self.rest)),
            wire_type => Ok(wire_type),
        }
    }

    /// Skips a field. Without remaining depth, even a number is rejected, as in prost's
    /// `skip_field`.
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
                } else if number_of(inner_key) == number_of(key) {
                    return Ok(());
                } else {
                    return Err(Fault::new(FaultKind::StrayEndGroup, self.rest));
                }
            },
            END_GROUP => Err(Fault::new(FaultKind::StrayEndGroup, self.rest)),
            _ => self.fixed32().map(drop),
        }
    }
}

#[inline(never)]
fn long_varint(bytes: &[u8]) -> Result<(u64, &[u8]), Fault> {
    let mut value = 0;
    for (i, &byte) in bytes.iter().take(10).enumerate() {
        // Ten bytes contain 70 bits, so only the lowest bit of the last byte is valid.
        if i == 9 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Ok((value, &bytes[i + 1..]));
        }
    }
    Err(Fault::new(FaultKind::InvalidVarint, bytes))
}

/// Returns the contents of the length-delimited fields with this number. Ends early at a fault, so
/// the bytes must have been validated.
pub fn delimited_fields(bytes: &[u8], field_number: u64) -> impl Iterator<Item = &[u8]> {
    let mut cursor = Cursor::new(bytes);
    std::iter::from_fn(move || {
        while !cursor.is_empty() {
            let found = cursor.varint().ok()?;
            if found & 7 != LEN {
                cursor.skip(found, RECURSION_LIMIT).ok()?;
                continue;
            }
            let content = cursor.delimited().ok()?;
            if number_of(found) == field_number {
                return Some(content);
            }
        }
        None
    })
}

/// A field of any type.
pub struct Field<'a> {
    /// The field number.
    pub number: u64,
    /// Key, length and content, as encoded.
    pub raw: &'a [u8],
    /// The content of a length-delimited field.
    pub content: Option<&'a [u8]>,
}

/// Returns the fields of a message. Ends after the first fault.
pub fn fields(bytes: &[u8]) -> impl Iterator<Item = Result<Field<'_>, Fault>> {
    let mut cursor = Cursor::new(bytes);
    std::iter::from_fn(move || {
        if cursor.is_empty() {
            return None;
        }
        let field = next_field(&mut cursor);
        if field.is_err() {
            cursor = Cursor::new(&[]);
        }
        Some(field)
    })
}

fn next_field<'a>(cursor: &mut Cursor<'a>) -> Result<Field<'a>, Fault> {
    let start = cursor.rest;
    let key = cursor.varint()?;
    cursor.check_key(key)?;
    let content = if key & 7 == LEN {
        Some(cursor.delimited()?)
    } else {
        cursor.skip(key, RECURSION_LIMIT)?;
        None
    };
    Ok(Field {
        number: number_of(key),
        raw: &start[..start.len() - cursor.rest.len()],
        content,
    })
}
