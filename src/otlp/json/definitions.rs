//! The types of the generated table `MESSAGES`: OTLP's messages and their fields.

/// `name` is the last part of the message's full name.
pub(super) struct OtlpMessage {
    pub(super) name: &'static str,
    pub(super) fields: &'static [OtlpField],
}

pub(super) struct OtlpField {
    pub(super) name: &'static str,
    pub(super) json_name: &'static str,
    pub(super) number: u64,
    pub(super) kind: OtlpKind,
    pub(super) is_list: bool,
    /// True if a default value differs from an absent value, as in a member of a `oneof`.
    pub(super) has_presence: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OtlpKind {
    Double,
    Int32,
    Sint32,
    Int64,
    Sfixed64,
    Uint32,
    Fixed32,
    Uint64,
    Fixed64,
    Bool,
    String,
    Bytes,
    /// The names of the values, with their numbers.
    Enum(&'static [(&'static str, i32)]),
    /// The index of the message in the table.
    Message(usize),
}
