//! The set of attributes, events and log records to store, and how much of each. The stages that
//! read attributes build the set; the scan applies it.

use hashbrown::HashMap;

/// The number of a stored key: its position in the [`KeySet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u16);

impl KeyId {
    /// The number of an entry without a key. Every key has a lower number.
    pub(super) const NONE: Self = Self(u16::MAX);
}

/// The rule of a key, which states how much of an attribute to store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// The value, up to `max_value_size` bytes.
    Value,
    /// A call's result or a model's reply, up to `max_value_size`; up to `max_messages_size` if a
    /// substring search finds a tool call in the text. A long value uses the budget of replies.
    Output,
    /// A model's reply, up to `max_messages_size`, only if a substring search finds a tool call in
    /// the reply. Replies have a separate budget, which requests and plain values cannot use up.
    /// The scan records a reply that was not stored whole under [`Span::LOST_REPLY`].
    ///
    /// [`Span::LOST_REPLY`]: super::Span::LOST_REPLY
    Reply,
    /// A message of the request to a model. The last messages are stored, up to `max_messages_size`
    /// in total, only if a substring search finds a tool call in them. The scan records missing
    /// messages under [`Span::LOST_REQUEST`].
    ///
    /// [`Span::LOST_REQUEST`]: super::Span::LOST_REQUEST
    Request,
    /// An expectation that a run states about itself, up to `max_expectations_size` for all
    /// expectations of a span.
    Expectation,
    /// Nothing, until [`KeySet::add`] replaces this rule.
    Selected,
    /// Only the presence of the attribute, as an empty string.
    Presence,
    /// No value from a sender. Only the scan writes attributes with this key.
    Own,
}

/// The rule for the body of a wanted log record. The record's attributes follow the [`KeySet`] in
/// all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedBody {
    /// Nothing, because the record's attributes suffice.
    Not,
    /// A model's reply, by the rule of [`Retention::Reply`].
    Reply,
    /// A message of the request to a model, without a substring search, because a tool's result
    /// need not mention tools.
    Request,
}

/// A row of the table of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The key, or a prefix of keys if the text ends in `.` or `*` (the prefix excludes the star).
    /// The text between two stars must occur after the prefix: `llm.output_messages.*tool_call*`. A
    /// single star inside the key matches one word without dots: `llm.*.choices`.
    pub key: &'static str,
    /// The rule of the key.
    pub rule: Retention,
}

/// The attributes and events to store, and how much of each. Key numbers are stable: in a set that
/// extends an older set, each old key retains its number.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<(Box<str>, Retention)>,
    exact: HashMap<Box<[u8]>, KeyId>,
    /// Keys with a star and prefixes, each with the text that must follow.
    prefixes: Vec<(KeyId, Rest)>,
    /// Event names of wanted log records, and the rules for their bodies.
    records: Vec<(&'static str, WantedBody)>,
    /// Maximum bytes of one attribute's value (`tools.max_value_size`).
    pub max_value_size: usize,
    /// Maximum bytes of one span's replies, and likewise of the messages of its request to a model
    /// (`tools.max_messages_size`).
    pub max_messages_size: usize,
    /// Maximum bytes of one span's expectations (`expectations.max_size`).
    pub max_expectations_size: usize,
}

/// The match of an attribute's key in a [`KeySet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchedKey<'a> {
    /// The number of the key or prefix.
    pub key: KeyId,
    /// The rule of the key.
    pub rule: Retention,
    /// The part of the attribute's key after the prefix; empty if the whole key matched.
    pub suffix: &'a [u8],
}

/// The text that must follow the prefix of a key.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// Text that contains this text.
    Containing(&'static str),
    /// A word without dots, followed by this text.
    WordAnd(&'static str),
}

impl KeySet {
    /// Creates a set of these keys, numbered in the order of `rules`.
    pub fn new(rules: &[KeyRule]) -> Self {
        let mut keys = Self::default();
        for rule in rules {
            match rule.key.split_once('*') {
                Some((prefix, rest)) => {
                    let rest = match rest.strip_suffix('*') {
                        Some(text) => Rest::Containing(text),
                        None if rest.is_empty() => Rest::Containing(rest),
                        None => Rest::WordAnd(rest),
                    };
                    keys.add_prefix(prefix, rest, rule.rule)
                }
                None if rule.key.ends_with('.') => {
                    keys.add_prefix(rule.key, Rest::Containing(""), rule.rule)
                }
                None => keys.add(rule.key, rule.rule),
            };
        }
        keys
    }

    /// Adds a key if it is new, and returns its number. A known key retains its rule, unless the
    /// rule is [`Retention::Selected`]. A set has at most 65,535 keys; further keys are not
    /// stored.
    pub fn add(&mut self, key: &str, rule: Retention) -> KeyId {
        if let Some(&id) = self.exact.get(key.as_bytes()) {
            if let Some((_, known @ Retention::Selected)) = self.keys.get_mut(usize::from(id.0)) {
                *known = rule;
            }
            return id;
        }
        let id = self.next_id();
        if id != KeyId::NONE {
            self.keys.push((key.into(), rule));
            self.exact.insert(key.as_bytes().into(), id);
        }
        id
    }

    /// Sets the event names of the log records to store.
    pub fn want_records(&mut self, records: Vec<(&'static str, WantedBody)>) {
        self.records = records;
    }

    /// Returns the rule for the body of a log record with this event name; `None` if the record is
    /// not stored.
    pub fn wants_record(&self, event_name: &[u8]) -> Option<WantedBody> {
        self.records
            .iter()
            .find(|(wanted, _)| wanted.as_bytes() == event_name)
            .map(|&(_, body)| body)
    }

    /// Returns the number of a key in the set. Prefixes do not match.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.exact.get(key.as_bytes()).copied()
    }

    /// Returns the key, or prefix, with this number.
    pub fn name(&self, id: KeyId) -> &str {
        self.keys
            .get(usize::from(id.0))
            .map_or("", |(name, _)| name)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if the set has no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the match of a key, if senders' attributes are stored under it. The key is bytes,
    /// because the scan looks up event names before it validates them as UTF-8.
    pub fn find<'a>(&self, key: &'a [u8]) -> Option<MatchedKey<'a>> {
        if let Some(&id) = self.exact.get(key) {
            let rule = self.keys[usize::from(id.0)].1;
            return (!matches!(rule, Retention::Selected | Retention::Own)).then_some(MatchedKey {
                key: id,
                rule,
                suffix: b"",
            });
        }
        self.prefixes.iter().find_map(|&(id, rest)| {
            let (prefix, rule) = &self.keys[usize::from(id.0)];
            let suffix = rest.suffix(key.strip_prefix(prefix.as_bytes())?)?;
            Some(MatchedKey {
                key: id,
                rule: *rule,
                suffix,
            })
        })
    }

    fn add_prefix(&mut self, prefix: &str, rest: Rest, rule: Retention) -> KeyId {
        let id = self.next_id();
        self.keys.push((prefix.into(), rule));
        self.prefixes.push((id, rest));
        id
    }

    fn next_id(&self) -> KeyId {
        u16::try_from(self.keys.len()).map_or(KeyId::NONE, |id| KeyId(id).min(KeyId::NONE))
    }
}

impl Rest {
    /// Returns the suffix of a key that matches the rule; `behind` is the text after the rule's
    /// prefix. The suffix is empty if the rule covers the whole key. `None` if the rule does not
    /// match.
    fn suffix(self, behind: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Containing("") => Some(behind),
            Self::Containing(text) => memchr::memmem::find(behind, text.as_bytes()).map(|_| behind),
            Self::WordAnd(end) => {
                let word = behind.strip_suffix(end.as_bytes())?;
                (!word.is_empty() && !word.contains(&b'.')).then_some(b"".as_slice())
            }
        }
    }
}
