//! What is kept of the attributes that pass by: validated keys and values in, [`KeptAttributes`] out, within
//! bounds that hold for any request. Obeys the key set; does not know what the keys mean.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::render::value_as_json;
use super::value::{Held, HeldKind, VALUE};
use crate::span::{
    Attribute, Keep, Kept, KeptAttributes, KeptAttributesBuilder, KeyId, KeySet, RequestArena,
    Value, cut_at_char,
};
use crate::wire::{Fault, check_utf8, delimited_fields, number_of};

/// Longest span name kept, in bytes; a longer one is cut at a character's boundary.
pub(super) const MAX_NAME_SIZE: usize = 1 << 10;
/// Longest trace state kept, in bytes (W3C asks for 512 characters); a longer one is left out,
/// since a cut one would be wrong.
pub(super) const MAX_TRACE_STATE_SIZE: usize = 4 << 10;
/// A value up to this size is small: small values have a room of their own, so that a few huge
/// values never crowd out a tool's name.
const SMALL: usize = 256;
/// Bytes of small values (keys' suffixes and entry headers counted) kept of one span.
const SMALL_ROOM: usize = 64 << 10;
/// Bytes of larger values kept of one span, at the least; four values of `tools.max_value_size`
/// fit, up to `MAX_ROOM`.
const LARGE_ROOM: usize = 64 << 10;
/// Most of each of these rooms, whatever the settings say: facts find nothing that begins behind
/// 256 MiB.
const MAX_ROOM: usize = 32 << 20;
/// Values that a span says about its own judgement: there are two keys, and keys are unique.
const MAX_BROUGHT: usize = 4;

/// Keeps facts, one span at a time.
///
/// # Bounds
/// Whatever a span holds, its facts take at most 1 KiB of name, 4 KiB of trace state, 64 KiB of
/// small values, the larger of 64 KiB and `4 * max_value_size` of larger ones, and
/// `max_messages_size` of messages, and `max_brought_size` of what it says about its own judgement,
/// each of the last three at most 32 MiB; values that are bytes take a seventh more. A value for
/// which there is no room is cut and marked; once the room for small values is used up, further
/// ones are left out.
pub(super) struct Keeper<'k> {
    keys: &'k KeySet,
    builder: KeptAttributesBuilder,
    arena: RequestArena,
    json: Vec<u8>,
    /// A value up to this size is small and never cut.
    small_value: usize,
    small_room: usize,
    large_room: usize,
    messages_room: usize,
    brought_room: usize,
    n_brought: usize,
}

impl<'k> Keeper<'k> {
    pub(super) fn new(keys: &'k KeySet) -> Self {
        let (builder, arena, json) = (
            KeptAttributesBuilder::default(),
            RequestArena::default(),
            Vec::new(),
        );
        let small_value = SMALL.min(keys.max_value_size);
        let mut keeper = Self {
            keys,
            builder,
            arena,
            json,
            small_value,
            small_room: 0,
            large_room: 0,
            messages_room: 0,
            brought_room: 0,
            n_brought: 0,
        };
        keeper.make_room();
        keeper
    }

    /// The key set that is obeyed.
    pub(super) fn keys(&self) -> &'k KeySet {
        self.keys
    }

    /// Name and trace state come before all else.
    #[inline]
    pub(super) fn names(&mut self, name: &[u8], trace_state: &[u8]) {
        if !name.is_empty() {
            self.builder.name(cut_at_char(name, MAX_NAME_SIZE));
        }
        if !trace_state.is_empty() && trace_state.len() <= MAX_TRACE_STATE_SIZE {
            self.builder.trace_state(trace_state);
        }
    }

    /// Keep an attribute as its key's rule says. An attribute without a value is as good as absent.
    pub(super) fn attribute(&mut self, kept: Kept<'_>, held: Held<'_>, encoded: &[u8]) {
        if kept.suffix.len() > KeptAttributesBuilder::MAX_SUFFIX {
            return;
        }
        let bits = held.bits;
        match (kept.keep, held.kind) {
            (_, HeldKind::Nothing | HeldKind::Index) | (Keep::Own, _) => {}
            (Keep::Presence, _) => self.text(kept, b""),
            (Keep::Messages, _) if !may_hold_call(kept.suffix, held, encoded, number_of(VALUE)) => {
            }
            (_, HeldKind::Str) => self.text(kept, held.bytes),
            (_, HeldKind::Bool) => self.rare(kept, KeptAttributesBuilder::NUMBER_SIZE, |_| {
                Value::Bool(bits != 0)
            }),
            (_, HeldKind::Int) => self.rare(kept, KeptAttributesBuilder::NUMBER_SIZE, |_| {
                Value::Int(bits as i64)
            }),
            (_, HeldKind::Double) => self.rare(kept, KeptAttributesBuilder::NUMBER_SIZE, |_| {
                Value::Double(f64::from_bits(bits))
            }),
            (_, HeldKind::Bytes) => {
                if let Some(granted) = self.grant(kept, held.bytes.len()) {
                    // What they take beyond themselves comes off the room of their like, so that
                    // huge ones crowd out no tool's name.
                    let room = if granted > SMALL {
                        &mut self.large_room
                    } else {
                        &mut self.small_room
                    };
                    *room = room.saturating_sub(granted.div_ceil(7));
                    self.builder.bytes(
                        kept.key,
                        kept.suffix,
                        &held.bytes[..granted],
                        granted < held.bytes.len(),
                    );
                }
            }
            (_, HeldKind::Nested) => self.nested(kept, encoded, number_of(VALUE), false),
        }
    }

    /// Keep the body of a log record, its field `field`, as messages; with `whole` also where
    /// nothing in it speaks of a call.
    pub(super) fn body(
        &mut self,
        key: KeyId,
        held: Held<'_>,
        record: &[u8],
        field: u64,
        whole: bool,
    ) {
        let kept = Kept {
            key,
            keep: Keep::Messages,
            suffix: b"",
        };
        if !(whole || may_hold_call(b"", held, record, field)) {
            return;
        }
        match held.kind {
            HeldKind::Str => self.text(kept, held.bytes),
            HeldKind::Nested => self.nested(kept, record, field, whole),
            _ => {}
        }
    }

    /// Open an event if there is room for it.
    pub(super) fn begin_event(&mut self, name: KeyId) -> bool {
        let Some(room) = self
            .small_room
            .checked_sub(KeptAttributesBuilder::HEAD_SIZE)
        else {
            return false;
        };
        self.small_room = room;
        self.builder.begin_event(name);
        true
    }

    /// Close the open event.
    pub(super) fn end_event(&mut self) {
        self.builder.end_event();
    }

    /// Hand out what was kept, and make room for the next span. It can be read after
    /// [`Self::finish`].
    pub(super) fn take(&mut self) -> KeptAttributes {
        self.make_room();
        self.arena.add(&mut self.builder)
    }

    /// The same in memory of its own, for what outlives the request.
    pub(super) fn take_alone(&mut self) -> KeptAttributes {
        self.make_room();
        self.builder.finish()
    }

    /// Forget what was kept since the last was taken.
    pub(super) fn discard(&mut self) {
        if !self.builder.is_empty() {
            drop(self.builder.finish());
        }
        self.make_room();
    }

    /// Make readable what was taken. How many bytes the pieces take that it lies in.
    pub(super) fn finish(&mut self) -> usize {
        self.arena.finish()
    }

    fn make_room(&mut self) {
        self.small_room = SMALL_ROOM;
        self.large_room = LARGE_ROOM
            .max(self.keys.max_value_size.saturating_mul(4))
            .min(MAX_ROOM);
        self.messages_room = self.keys.max_messages_size.min(MAX_ROOM);
        self.brought_room = self.keys.max_brought_size.min(MAX_ROOM);
        self.n_brought = 0;
    }

    fn text(&mut self, kept: Kept<'_>, text: &[u8]) {
        if let Some(granted) = self.grant(kept, text.len()) {
            self.builder.utf8(
                kept.key,
                kept.suffix,
                cut_at_char(text, granted),
                granted < text.len(),
            );
        }
    }

    fn rare<'v>(&mut self, kept: Kept<'_>, size: usize, value: impl FnOnce(usize) -> Value<'v>) {
        if let Some(granted) = self.grant(kept, size)
            && let Ok(suffix) = std::str::from_utf8(kept.suffix)
        {
            self.builder.attribute(Attribute {
                key: kept.key,
                suffix,
                value: value(granted),
                cut: granted < size,
            });
        }
    }

    fn nested(&mut self, kept: Kept<'_>, encoded: &[u8], field: u64, whole: bool) {
        let mut json = std::mem::take(&mut self.json);
        let cut = value_as_json(encoded, field, self.largest(kept), &mut json);
        // The encoding may hold words that a later value replaced, or in fields that nobody knows.
        let is_wanted = whole
            || kept.keep != Keep::Messages
            || cut
            || names_tool_call(kept.suffix)
            || names_tool_call(&json);
        if is_wanted
            && let Some(granted) = self.grant(kept, json.len())
            && let (Ok(suffix), Ok(text)) = (
                std::str::from_utf8(kept.suffix),
                std::str::from_utf8(cut_at_char(&json, granted)),
            )
        {
            self.builder.attribute(Attribute {
                key: kept.key,
                suffix,
                value: Value::Json(text),
                cut: cut || granted < json.len(),
            });
        }
        self.json = json;
    }

    /// How many of the wanted bytes may be kept? `None`: not even the entry.
    #[inline]
    fn grant(&mut self, kept: Kept<'_>, wanted: usize) -> Option<usize> {
        // Nearly all values are such.
        if kept.keep == Keep::Value && wanted <= self.small_value {
            self.small_room = self
                .small_room
                .checked_sub(KeptAttributesBuilder::HEAD_SIZE + kept.suffix.len() + wanted)?;
            return Some(wanted);
        }
        let granted = wanted.min(self.largest(kept));
        match kept.keep {
            Keep::Messages => {
                if granted == 0 && wanted > 0 {
                    return None;
                }
                self.messages_room = self
                    .messages_room
                    .checked_sub(kept.suffix.len() + granted)?;
            }
            // A room of its own, and an entry however little of it is left: that there is a value
            // must be known.
            Keep::Brought if self.n_brought == MAX_BROUGHT => return None,
            Keep::Brought => {
                self.n_brought += 1;
                self.brought_room -= granted;
            }
            Keep::Value | Keep::Presence | Keep::Own if granted > SMALL => {
                self.large_room -= granted
            }
            Keep::Value | Keep::Presence | Keep::Own => {
                self.small_room = self
                    .small_room
                    .checked_sub(KeptAttributesBuilder::HEAD_SIZE + kept.suffix.len() + granted)?;
            }
        }
        Some(granted)
    }

    /// The largest value there is room for.
    #[inline]
    fn largest(&self, kept: Kept<'_>) -> usize {
        match kept.keep {
            Keep::Messages => self.messages_room.saturating_sub(kept.suffix.len()),
            Keep::Brought => self.brought_room,
            Keep::Value | Keep::Presence | Keep::Own => self.large_room.max(SMALL).min(
                self.keys
                    .max_value_size
                    .max(KeptAttributesBuilder::NUMBER_SIZE),
            ),
        }
    }
}

/// Might there be a tool call or its result in these messages, the field `field` of what is
/// encoded, or does their key speak of one?
fn may_hold_call(suffix: &[u8], held: Held<'_>, encoded: &[u8], field: u64) -> bool {
    names_tool_call(suffix)
        || match held.kind {
            HeldKind::Str | HeldKind::Bytes => names_tool_call(held.bytes),
            HeldKind::Nested => delimited_fields(encoded, field).any(names_tool_call),
            _ => false,
        }
}

/// Looks for the words in which the known message formats speak of tool calls and results
/// (`tool_call`, `toolCallId`, `tool-result`, `toolUse`, `ToolMessage`, `function_call`,
/// `functionResponse`, …), at the speed of a substring search. A false alarm costs memory, no more.
fn names_tool_call(text: &[u8]) -> bool {
    static TOOL: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"ool"));
    static FUNCTION: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new(b"unction"));
    const AFTER_TOOL: [&[u8]; 6] = [
        b"call",
        b"use",
        b"result",
        b"request",
        b"response",
        b"message",
    ];
    const AFTER_FUNCTION: [&[u8]; 2] = [b"call", b"response"];
    !text.is_empty()
        && (holds_word(text, &TOOL, b't', &AFTER_TOOL)
            || holds_word(text, &FUNCTION, b'f', &AFTER_FUNCTION))
}

/// Is there a word that begins with `first` (in either case) and the stem, followed by one of
/// `endings` with or without a separator?
fn holds_word(text: &[u8], stem: &Finder<'_>, first: u8, endings: &[&[u8]]) -> bool {
    stem.find_iter(text).any(|at| {
        let after = &text[at + stem.needle().len()..];
        let after = after
            .strip_prefix(b"_")
            .or_else(|| after.strip_prefix(b"-"))
            .unwrap_or(after);
        let starts = at > 0 && text[at - 1].eq_ignore_ascii_case(&first);
        starts
            && endings.iter().any(|ending| {
                after
                    .get(..ending.len())
                    .is_some_and(|word| word.eq_ignore_ascii_case(ending))
            })
    })
}

// === KnownKeys ===

/// As many as a byte tells apart, so that no index has to be checked.
const N_SLOTS: usize = 256;

/// Keys seen before in this request, with what the key set says of them: a request names the same
/// few dozen keys over and over, and a key that equals one seen before is neither checked for UTF-8
/// nor looked up again.
pub(super) struct KnownKeys<'b> {
    keys: [&'b [u8]; N_SLOTS],
    kept: [Option<Kept<'b>>; N_SLOTS],
}

/// Where a key stands among the known ones, until another is looked up.
#[derive(Clone, Copy)]
pub(super) struct KnownKey(u8);

impl<'b> KnownKeys<'b> {
    pub(super) fn new() -> Self {
        Self {
            keys: [b""; N_SLOTS],
            kept: [None; N_SLOTS],
        }
    }

    /// Check that a key is UTF-8; it is known from then on.
    #[inline(always)]
    pub(super) fn lookup(
        &mut self,
        keys: Option<&KeySet>,
        key: &'b [u8],
    ) -> Result<KnownKey, Fault> {
        let known = slot_of(key);
        if !is_same(self.keys[usize::from(known.0)], key) {
            self.learn(keys, key, known)?;
        }
        Ok(known)
    }

    /// What is kept of it.
    #[inline(always)]
    pub(super) fn kept(&self, known: KnownKey) -> Option<Kept<'b>> {
        self.kept[usize::from(known.0)]
    }

    #[inline(never)]
    fn learn(
        &mut self,
        keys: Option<&KeySet>,
        key: &'b [u8],
        known: KnownKey,
    ) -> Result<(), Fault> {
        check_utf8(key)?;
        self.keys[usize::from(known.0)] = key;
        self.kept[usize::from(known.0)] = keys.and_then(|keys| keys.find(key));
        Ok(())
    }
}

/// Are these the same key? Those of 8 to 32 bytes, that is nearly all, are compared by overlapping
/// words, without a call. The empty key is no key that is known: it stands in the empty slots.
#[inline(always)]
fn is_same(known: &[u8], key: &[u8]) -> bool {
    if known.len() != key.len() {
        return false;
    }
    match key.len() {
        0 => false,
        8..=16 => {
            known.first_chunk::<8>() == key.first_chunk()
                && known.last_chunk::<8>() == key.last_chunk()
        }
        17..=32 => {
            known.first_chunk::<16>() == key.first_chunk()
                && known.last_chunk::<16>() == key.last_chunk()
        }
        _ => known == key,
    }
}

/// A slot by length and last eight bytes: the keys of one namespace differ at their ends.
#[inline(always)]
fn slot_of(key: &[u8]) -> KnownKey {
    let end = match key.last_chunk::<8>() {
        Some(end) => u64::from_le_bytes(*end),
        None => key.iter().fold(0, |end, &byte| end << 8 | u64::from(byte)),
    };
    let mixed = (end ^ key.len() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    KnownKey((mixed >> 56) as u8)
}
