//! Stores attributes by the rules of the key set, within limits that apply to every request.
//! Records which replies and requests of a model were not stored whole.

use smallvec::SmallVec;

use super::any_value_json::{JsonLimits, value_as_json};
use super::call_words::{may_contain_call, names_tool_call};
use super::requests::{RequestMessages, RequestPart, overhead};
use super::shorten::shorten;
use super::value::{ScannedValue, VALUE, ValueKind};
use crate::span::{
    Attribute, KeyId, KeySet, MatchedKey, Retention, Span, StoredAttributes,
    StoredAttributesBuilder, TraceId, Value, cut_at_char, is_unfinished_json,
};
use crate::wire::number_of;

/// Maximum bytes stored of a span name. A longer name is cut at a character boundary.
pub(super) const MAX_NAME_SIZE: usize = 1 << 10;
/// Maximum bytes of a stored trace state (W3C requires support for 512 characters). A longer trace
/// state is dropped, because a cut one would be invalid.
pub(super) const MAX_TRACE_STATE_SIZE: usize = 4 << 10;
/// Maximum bytes of a small value. Small values have a separate budget, so that a few huge values
/// cannot displace a tool's name.
const SMALL: usize = 256;
/// Maximum total bytes of one span's small values, including key suffixes and entry heads.
const SMALL_BUDGET: usize = 64 << 10;
/// Minimum budget, in bytes, for one span's larger values. The budget rises to four times
/// `tools.max_value_size`, but not beyond `MAX_BUDGET`.
const LARGE_BUDGET: usize = 64 << 10;
/// Maximum bytes of each budget, whatever the settings are.
const MAX_BUDGET: usize = 32 << 20;
/// Maximum number of expectations stored for one span. There are two keys, so only a sender that
/// repeats a key exceeds this number.
const MAX_EXPECTATIONS: usize = 4;
/// Maximum bytes of JSON written for a nested request, before its beginning is dropped.
const MAX_REQUEST: usize = 4 << 20;
/// Maximum number of lost replies recorded for one span. There are about twenty keys of replies, of
/// which a span has few.
const MAX_LOST_REPLIES: usize = 16;

/// Stores attributes, one span at a time.
///
/// # Limits for one span
/// - 1 KiB of name, 4 KiB of trace state and 64 KiB of small values
/// - larger values: the larger of 64 KiB and `4 * max_value_size`
/// - a model's replies, and likewise its requests: the larger of `max_value_size` and
///   `max_messages_size`
/// - expectations: `max_expectations_size`
///
/// No limit exceeds 32 MiB. A value that does not fit is cut and marked; a name is only cut. A
/// trace state beyond its limit is dropped, and so are small values and messages whose budget is
/// used up.
pub(super) struct Retainer<'k> {
    keys: &'k KeySet,
    builder: StoredAttributesBuilder,
    json: Vec<u8>,
    /// Maximum bytes of a small value, which is never cut.
    small_value: usize,
    /// Remaining budgets of the current span, in bytes.
    small_budget: usize,
    large_budget: usize,
    replies_budget: usize,
    requests_budget: usize,
    expectations_budget: usize,
    n_expectations: usize,
    /// The keys of the current span's replies that are not stored whole.
    lost_replies: SmallVec<[KeyId; 4]>,
    /// True if messages of the current span's request to a model are missing.
    lost_request: bool,
    /// True if the current span has a separate attribute with a reply, whole or lost.
    has_reply: bool,
    /// True if the SDK dropped attributes or events of the current span, and parts of a reply may
    /// have been among them, because no separate attribute has a reply.
    lost_any: bool,
}

impl<'k> Retainer<'k> {
    pub(super) fn new(keys: &'k KeySet) -> Self {
        let mut keeper = Self {
            keys,
            builder: StoredAttributesBuilder::default(),
            json: Vec::new(),
            small_value: SMALL.min(keys.max_value_size),
            small_budget: 0,
            large_budget: 0,
            replies_budget: 0,
            requests_budget: 0,
            expectations_budget: 0,
            n_expectations: 0,
            lost_replies: SmallVec::new(),
            lost_request: false,
            has_reply: false,
            lost_any: false,
        };
        keeper.reset_budgets();
        keeper
    }

    pub(super) fn keys(&self) -> &'k KeySet {
        self.keys
    }

    pub(super) fn named_trace(&mut self, trace_id: TraceId) {
        self.builder.named_trace(trace_id);
    }

    /// Stores an attribute by the rule of its key. An attribute without a value counts as absent.
    /// [`Self::requests`] stores messages of requests, because the scan reaches the last messages
    /// only at the end of the span.
    #[inline]
    pub(super) fn attribute(
        &mut self,
        kept: MatchedKey<'_>,
        value: ScannedValue<'_>,
        encoded: &[u8],
    ) {
        // Fast path: nearly all attributes are short texts.
        if kept.rule == Retention::Value
            && kept.suffix.is_empty()
            && value.kind == ValueKind::Str
            && self.charge_small(kept, value.bytes.len())
        {
            return self.builder.utf8(kept.key, b"", value.bytes, false);
        }
        self.rare_attribute(kept, value, encoded);
    }

    #[inline(never)]
    fn rare_attribute(&mut self, kept: MatchedKey<'_>, value: ScannedValue<'_>, encoded: &[u8]) {
        if kept.suffix.len() > StoredAttributesBuilder::MAX_SUFFIX {
            return;
        }
        let has_call = || may_contain_call(kept.suffix, value, encoded, number_of(VALUE));
        self.has_reply |=
            matches!(kept.rule, Retention::Reply | Retention::Output) && kept.suffix.is_empty();
        let kept = match kept.rule {
            Retention::Reply if !has_call() => return self.lose_calls_behind(kept, value),
            // Fields of messages are texts, so nested values are not read.
            Retention::Reply if value.kind == ValueKind::Nested && !kept.suffix.is_empty() => {
                return;
            }
            // A result may be cut to `max_value_size`; a reply is needed whole.
            Retention::Output if self.is_long(value, encoded) => {
                if has_call() {
                    MatchedKey {
                        rule: Retention::Reply,
                        ..kept
                    }
                } else {
                    self.lose_calls_behind(kept, value);
                    kept
                }
            }
            _ => kept,
        };
        let bits = value.bits;
        match (kept.rule, value.kind) {
            (_, ValueKind::Nothing | ValueKind::Index) | (Retention::Request, _) => {}
            (Retention::Presence, _) => self.text(kept, b""),
            (_, ValueKind::Str) => self.text(kept, value.bytes),
            (_, ValueKind::Bool) => self.number(kept, Value::Bool(bits != 0)),
            (_, ValueKind::Int) => self.number(kept, Value::Int(bits as i64)),
            (_, ValueKind::Double) => self.number(kept, Value::Double(f64::from_bits(bits))),
            (_, ValueKind::Bytes) => {
                // A character has up to four bytes, so three more bytes complete the last character
                // that fits.
                let read = value.bytes.len().min(self.largest(kept) + 3);
                let text = String::from_utf8_lossy(&value.bytes[..read]);
                if let Some(granted) = self.grant(kept, text.len()) {
                    let fitting = &text[..cut_at_char(text.as_bytes(), granted).len()];
                    let is_whole = read == value.bytes.len() && fitting.len() == text.len();
                    self.push(kept, Value::Bytes(fitting), is_whole);
                }
            }
            (_, ValueKind::Nested) => self.nested(kept, encoded, number_of(VALUE), false),
        }
    }

    /// Stores the body of a log record, the record's field `field`. A reply is stored only if it
    /// mentions a tool call; a request need not mention one.
    pub(super) fn body(
        &mut self,
        key: KeyId,
        value: ScannedValue<'_>,
        record: &[u8],
        field: u64,
        rule: Retention,
    ) {
        let kept = MatchedKey {
            key,
            rule,
            suffix: b"",
        };
        if rule == Retention::Reply && !may_contain_call(b"", value, record, field) {
            return self.lose_calls_behind(kept, value);
        }
        match value.kind {
            ValueKind::Str => self.text(kept, value.bytes),
            ValueKind::Nested => self.nested(kept, record, field, rule == Retention::Request),
            _ => {}
        }
    }

    /// Stores the messages of the request to a model, if they mention tool calls; only the last
    /// ones if not all fit.
    pub(super) fn requests(&mut self, messages: &RequestMessages<'_>) {
        for list in messages.lists() {
            self.request(list);
        }
        if messages.has_result_field() {
            let first = messages.first_that_fits(self.requests_budget, self.keys.max_value_size);
            self.lost_request |= first.is_some();
            for field in messages.fields_from(first.unwrap_or_default()) {
                self.request(field);
            }
        }
    }

    fn request(&mut self, part: RequestPart<'_>) {
        match part.value.kind {
            ValueKind::Str => self.text(part.kept, part.value.bytes),
            _ => self.nested(part.kept, part.encoded, number_of(VALUE), false),
        }
    }

    pub(super) fn begin_event(&mut self, name: KeyId) -> bool {
        // A late event may contain the reply, after other events used up the budget of small
        // values.
        let budget = if self.small_budget < StoredAttributesBuilder::HEAD_SIZE {
            &mut self.replies_budget
        } else {
            &mut self.small_budget
        };
        let Some(left) = budget.checked_sub(StoredAttributesBuilder::HEAD_SIZE) else {
            self.lose(name);
            return false;
        };
        *budget = left;
        self.builder.begin_event(name);
        true
    }

    pub(super) fn end_event(&mut self) {
        self.builder.end_event();
    }

    /// Records the losses of the current span, and stores its trace state and name. Returns the
    /// builder, which has all attributes of the span.
    #[inline]
    pub(super) fn complete(
        &mut self,
        name: &[u8],
        trace_state: &[u8],
    ) -> &mut StoredAttributesBuilder {
        if self.lost_request || self.lost_any || !self.lost_replies.is_empty() {
            self.note_losses();
        }
        if !trace_state.is_empty() && trace_state.len() <= MAX_TRACE_STATE_SIZE {
            self.builder.trace_state(trace_state);
        }
        if !name.is_empty() {
            self.builder.name(cut_at_char(name, MAX_NAME_SIZE));
        }
        &mut self.builder
    }

    /// Returns the attributes of a completed span, readable after [`Self::finish`], and starts the
    /// next span.
    #[inline]
    pub(super) fn take(&mut self) -> StoredAttributes {
        self.reset_budgets();
        self.builder.take()
    }

    /// Like [`Self::take`], but the attributes get a separate text, which is readable immediately
    /// and after the request.
    pub(super) fn take_alone(&mut self) -> StoredAttributes {
        self.forget_losses();
        self.reset_budgets();
        self.builder.finish()
    }

    pub(super) fn discard(&mut self) {
        self.builder.discard();
        self.forget_losses();
        self.reset_budgets();
    }

    /// Makes all returned attributes readable. Returns the bytes of the texts that the attributes
    /// share.
    pub(super) fn finish(&mut self) -> usize {
        self.builder.publish()
    }

    fn reset_budgets(&mut self) {
        self.has_reply = false;
        self.small_budget = SMALL_BUDGET;
        self.large_budget = LARGE_BUDGET
            .max(self.keys.max_value_size.saturating_mul(4))
            .min(MAX_BUDGET);
        let messages = self.keys.max_messages_size.max(self.keys.max_value_size);
        self.replies_budget = messages.min(MAX_BUDGET);
        self.requests_budget = self.replies_budget;
        self.expectations_budget = self.keys.max_expectations_size.min(MAX_BUDGET);
        self.n_expectations = 0;
    }

    /// Returns true if the value may exceed `max_value_size`. Assumes that the JSON text of a
    /// nested value is at most twice as long as its encoding.
    fn is_long(&self, value: ScannedValue<'_>, encoded: &[u8]) -> bool {
        let size = match value.kind {
            ValueKind::Nested => 2 * encoded.len(),
            _ => value.bytes.len(),
        };
        size > self.keys.max_value_size
    }

    #[inline]
    fn text(&mut self, kept: MatchedKey<'_>, text: &[u8]) {
        if text.len() > self.small_value
            && is_whole_message(kept)
            && text.len() > self.largest(kept)
        {
            return self.long_message(kept, text);
        }
        self.text_up_to(kept, text, false);
    }

    fn text_up_to(&mut self, kept: MatchedKey<'_>, text: &[u8], cut: bool) {
        if let Some(granted) = self.grant(kept, text.len()) {
            let cut = cut || granted < text.len();
            let text = cut_at_char(text, granted);
            self.builder.utf8(kept.key, kept.suffix, text, cut);
        }
    }

    /// Stores messages that exceed their limit: shortens strings and, in a request, drops the first
    /// messages.
    fn long_message(&mut self, kept: MatchedKey<'_>, text: &[u8]) {
        let mut json = std::mem::take(&mut self.json);
        let fits = shorten(
            text,
            self.keys.max_value_size,
            self.largest(kept),
            &mut json,
        );
        if fits || (kept.rule == Retention::Request && json.len() <= self.largest(kept)) {
            self.text_up_to(kept, &json, !fits);
        } else {
            self.text_up_to(kept, text, true);
        }
        if !fits {
            self.lose_message(kept);
        }
        self.json = json;
    }

    fn number(&mut self, kept: MatchedKey<'_>, value: Value<'_>) {
        if self
            .grant(kept, StoredAttributesBuilder::NUMBER_SIZE)
            .is_some()
        {
            self.push(kept, value, true);
        }
    }

    fn push(&mut self, kept: MatchedKey<'_>, value: Value<'_>, is_whole: bool) {
        if let Ok(suffix) = std::str::from_utf8(kept.suffix) {
            self.builder.attribute(Attribute {
                key: kept.key,
                suffix,
                value,
                cut: !is_whole,
            });
        }
    }

    /// Stores an array or map as JSON. Messages are stored only if they mention a tool call, were
    /// cut, or `is_wanted` is true.
    fn nested(&mut self, kept: MatchedKey<'_>, encoded: &[u8], field: u64, is_wanted: bool) {
        let mut json = std::mem::take(&mut self.json);
        let mut limits = JsonLimits {
            whole: self.largest(kept),
            string: usize::MAX,
        };
        let mut cut = value_as_json(encoded, field, limits, &mut json);
        if cut && is_whole_message(kept) {
            limits.string = self.keys.max_value_size;
            // Write more than the limit, because the end of a request is stored.
            if kept.rule == Retention::Request {
                limits.whole = MAX_REQUEST;
            }
            cut = value_as_json(encoded, field, limits, &mut json);
            if cut {
                self.lose_message(kept);
            }
            if json.len() > self.largest(kept) {
                return self.long_message(kept, &json);
            }
        }
        // Search the JSON text and not the encoding, which may contain a word in a replaced value
        // or an unknown field.
        let is_wanted = is_wanted
            || !matches!(kept.rule, Retention::Reply | Retention::Request)
            || cut
            || names_tool_call(kept.suffix)
            || names_tool_call(&json);
        if is_wanted
            && let Some(granted) = self.grant(kept, json.len())
            && let Ok(text) = std::str::from_utf8(cut_at_char(&json, granted))
        {
            self.push(kept, Value::Json(text), !cut && granted == json.len());
        }
        self.json = json;
    }

    /// Charges a value to its budget. Returns the number of bytes to store; `None` to drop the
    /// value. Records a reply or request that exceeds its budget as lost.
    fn grant(&mut self, kept: MatchedKey<'_>, wanted: usize) -> Option<usize> {
        if matches!(kept.rule, Retention::Value | Retention::Output) && wanted <= self.small_value {
            if self.charge_small(kept, wanted) {
                return Some(wanted);
            }
            if kept.rule == Retention::Value {
                return None;
            }
        }
        let granted = wanted.min(self.largest(kept));
        if granted < wanted.min(Self::longest(kept, self.keys)) {
            self.lose_message(kept);
        }
        match kept.rule {
            Retention::Reply | Retention::Request => {
                let size = overhead(kept) + granted;
                let budget = if kept.rule == Retention::Reply {
                    &mut self.replies_budget
                } else {
                    &mut self.requests_budget
                };
                match budget.checked_sub(size) {
                    Some(left) if size > 0 && (granted > 0 || wanted == 0) => *budget = left,
                    _ => {
                        self.lose_message(kept);
                        return None;
                    }
                }
            }
            Retention::Output if granted <= self.replies_budget => self.replies_budget -= granted,
            // An expectation is stored even if the budget is used up, because later stages must see
            // that it exists.
            Retention::Expectation if self.n_expectations == MAX_EXPECTATIONS => return None,
            Retention::Expectation => {
                self.n_expectations += 1;
                self.expectations_budget -= granted;
            }
            Retention::Value | Retention::Selected | Retention::Presence | Retention::Own
                if granted > SMALL =>
            {
                self.large_budget -= granted
            }
            Retention::Value
            | Retention::Selected
            | Retention::Output
            | Retention::Presence
            | Retention::Own => {
                self.small_budget = self.small_budget.checked_sub(
                    StoredAttributesBuilder::HEAD_SIZE + kept.suffix.len() + granted,
                )?;
            }
        }
        Some(granted)
    }

    /// Charges a small value to its budget. Returns false if the value is not small, or the budget
    /// is used up.
    #[inline]
    fn charge_small(&mut self, kept: MatchedKey<'_>, size: usize) -> bool {
        let charge = StoredAttributesBuilder::HEAD_SIZE + kept.suffix.len() + size;
        let left = self.small_budget.checked_sub(charge);
        let left = left.filter(|_| size <= self.small_value);
        self.small_budget = left.unwrap_or(self.small_budget);
        left.is_some()
    }

    /// Returns the maximum bytes of a value within both its budget and [`Self::longest`].
    #[inline]
    fn largest(&self, kept: MatchedKey<'_>) -> usize {
        let room = match kept.rule {
            Retention::Reply => self.replies_budget.saturating_sub(overhead(kept)),
            Retention::Request => self.requests_budget.saturating_sub(overhead(kept)),
            Retention::Expectation => self.expectations_budget,
            Retention::Output => self.replies_budget.max(SMALL),
            Retention::Value | Retention::Selected | Retention::Presence | Retention::Own => {
                self.large_budget.max(SMALL)
            }
        };
        room.min(Self::longest(kept, self.keys))
    }

    /// Returns the number of bytes beyond which later stages read nothing of a value.
    #[inline]
    fn longest(kept: MatchedKey<'_>, keys: &KeySet) -> usize {
        match kept.rule {
            Retention::Expectation => usize::MAX,
            _ if is_whole_message(kept) => usize::MAX,
            _ => keys
                .max_value_size
                .max(StoredAttributesBuilder::NUMBER_SIZE),
        }
    }

    // === losses ===

    fn lose_message(&mut self, kept: MatchedKey<'_>) {
        match kept.rule {
            Retention::Reply | Retention::Output => self.lose(kept.key),
            Retention::Request => self.lost_request = true,
            _ => {}
        }
    }

    /// Records a reply as lost if it mentions no call but is cut JSON: an SDK's attribute limit may
    /// have removed calls at its end.
    fn lose_calls_behind(&mut self, kept: MatchedKey<'_>, value: ScannedValue<'_>) {
        let is_text = matches!(value.kind, ValueKind::Str | ValueKind::Bytes);
        if is_text && kept.suffix.is_empty() && is_unfinished_json(value.bytes) {
            self.lose(kept.key);
        }
    }

    /// Records that the SDK dropped attributes or events beyond its limits on their number. They
    /// may have been parts of messages, which are often spread over dozens of attributes.
    #[cold]
    pub(super) fn lose_dropped(&mut self) {
        self.lost_any = !self.has_reply;
        self.lost_request = true;
    }

    fn lose(&mut self, key: KeyId) {
        if !self.lost_replies.contains(&key) && self.lost_replies.len() < MAX_LOST_REPLIES {
            self.lost_replies.push(key);
        }
    }

    /// No budget counts these attributes.
    #[inline(never)]
    fn note_losses(&mut self) {
        let note = |id: KeyId, value| Attribute {
            key: id,
            suffix: "",
            value,
            cut: false,
        };
        if let Some(id) = self.keys.id(Span::LOST_REPLY) {
            for lost in &self.lost_replies {
                self.builder.attribute(note(id, Value::Int(lost.0.into())));
            }
            if self.lost_any {
                self.builder.attribute(note(id, Value::Str("")));
            }
        }
        if self.lost_request
            && let Some(id) = self.keys.id(Span::LOST_REQUEST)
        {
            self.builder.attribute(note(id, Value::Str("")));
        }
        self.forget_losses();
    }

    fn forget_losses(&mut self) {
        self.lost_replies.clear();
        self.lost_request = false;
        self.lost_any = false;
    }
}

/// Returns true for a whole reply or request, as opposed to one field of a message.
#[inline]
fn is_whole_message(kept: MatchedKey<'_>) -> bool {
    matches!(kept.rule, Retention::Reply | Retention::Request) && kept.suffix.is_empty()
}
