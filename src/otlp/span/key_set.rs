//! The attributes, events and log records to keep, and how much of each. The stages that read them
//! build the set, the scan follows it.

use hashbrown::HashMap;

/// The number of a kept key: its position in the [`KeySet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u16);

impl KeyId {
    /// Of entries without a key; every key has a lower number.
    pub(super) const NONE: Self = Self(u16::MAX);
}

/// The part of an attribute that is kept, by its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The value, up to `max_value_size`.
    Value,
    /// The result of a call or the reply of a model: up to `max_value_size`, or up to
    /// `max_messages_size` if a substring search finds a tool call in it. Shares the room of
    /// replies.
    Output,
    /// The reply of a model, up to `max_messages_size`, and only if a substring search finds a tool
    /// call in it. Replies have room of their own: neither requests nor other values displace
    /// them. A reply that is not kept whole is noted under [`Span::LOST_REPLY`].
    ///
    /// [`Span::LOST_REPLY`]: super::Span::LOST_REPLY
    Reply,
    /// A message that a model was asked with. All of them together up to `max_messages_size`, the
    /// last ones first, and only if a substring search finds a tool call in them. If others are
    /// missing, that is noted under [`Span::LOST_REQUEST`].
    ///
    /// [`Span::LOST_REQUEST`]: super::Span::LOST_REQUEST
    Request,
    /// An expectation that a run has of itself, up to `max_expectations_size` for all such values
    /// of a span.
    Expectation,
    /// The value once [`KeySet::add`] asks for it, and nothing before.
    Asked,
    /// Only the presence: an empty string is kept.
    Presence,
    /// Nothing of what is sent: only the scan itself writes it.
    Own,
}

/// The kept part of a wanted log record's body. Its attributes follow the table in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedBody {
    /// Nothing: its attributes are enough.
    Not,
    /// The reply of a model, by the rule of [`Keep::Reply`].
    Reply,
    /// A message that a model was asked with, without a search: a tool's answer need not mention
    /// tools.
    Request,
}

/// A row of the table of kept keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The key; a prefix of keys if it ends in `.` or `*` (the star is not part of it). The text
    /// between two stars must occur after the prefix: `llm.output_messages.*tool_call*`. A single
    /// star within the key stands for one word without dots: `llm.*.choices`.
    pub key: &'static str,
    /// The part that is kept.
    pub keep: Keep,
}

/// The attributes and events to keep, and how much of each. Built by the stages that read them,
/// followed by the scan. Numbers are stable: a set that extends another gives each old key its old
/// number.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<(Box<str>, Keep)>,
    exact: HashMap<Box<[u8]>, KeyId>,
    /// Keys with a star, and prefixes, with what must follow the prefix.
    prefixes: Vec<(KeyId, Rest)>,
    /// Event names of wanted log records, and what is kept of their bodies.
    records: Vec<(&'static str, WantedBody)>,
    /// Most bytes kept of one attribute's value (`tools.max_value_size`).
    pub max_value_size: usize,
    /// Most bytes kept of the replies of one span, and of the messages that its model was asked
    /// with (`tools.max_messages_size`).
    pub max_messages_size: usize,
    /// Most bytes kept of one span's expectations (`expectations.max_size`).
    pub max_expectations_size: usize,
}

/// A kept key that an attribute has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The number.
    pub key: KeyId,
    /// The part that is kept.
    pub keep: Keep,
    /// The rest of the attribute's key behind a prefix; empty for a whole key.
    pub suffix: &'a [u8],
}

/// The text that must follow the prefix of a key.
#[derive(Debug, Clone, Copy)]
enum Rest {
    /// Anything in which this text occurs.
    Holding(&'static str),
    /// A word without dots, and this text.
    WordAnd(&'static str),
}

impl KeySet {
    /// A set of these keys, numbered in this order.
    pub fn new(rules: &[KeyRule]) -> Self {
        let mut keys = Self::default();
        for rule in rules {
            match rule.key.split_once('*') {
                Some((prefix, rest)) => {
                    let rest = match rest.strip_suffix('*') {
                        Some(text) => Rest::Holding(text),
                        None if rest.is_empty() => Rest::Holding(rest),
                        None => Rest::WordAnd(rest),
                    };
                    keys.add_prefix(prefix, rest, rule.keep)
                }
                None if rule.key.ends_with('.') => {
                    keys.add_prefix(rule.key, Rest::Holding(""), rule.keep)
                }
                None => keys.add(rule.key, rule.keep),
            };
        }
        keys
    }

    /// The number of a whole key, added if it is new; a known key keeps its rule, except
    /// [`Keep::Asked`]. A full set has 65 535 keys; nothing is kept of any further one.
    pub fn add(&mut self, key: &str, keep: Keep) -> KeyId {
        if let Some(&id) = self.exact.get(key.as_bytes()) {
            if let Some((_, rule @ Keep::Asked)) = self.keys.get_mut(usize::from(id.0)) {
                *rule = keep;
            }
            return id;
        }
        let id = self.next_id();
        if id != KeyId::NONE {
            self.keys.push((key.into(), keep));
            self.exact.insert(key.as_bytes().into(), id);
        }
        id
    }

    /// Sets the event names of the log records to keep.
    pub fn want_records(&mut self, records: Vec<(&'static str, WantedBody)>) {
        self.records = records;
    }

    /// Returns what to keep of the body of a log record with this event name, if the record is
    /// kept.
    pub fn wants_record(&self, event_name: &[u8]) -> Option<WantedBody> {
        self.records
            .iter()
            .find(|(wanted, _)| wanted.as_bytes() == event_name)
            .map(|&(_, body)| body)
    }

    /// The number of a whole key in the set.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.exact.get(key.as_bytes()).copied()
    }

    /// The key, or prefix, with this number.
    pub fn name(&self, id: KeyId) -> &str {
        self.keys
            .get(usize::from(id.0))
            .map_or("", |(name, _)| name)
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The rule for a key, if it is kept. Takes bytes: the scan asks before it validates UTF-8.
    pub fn find<'a>(&self, key: &'a [u8]) -> Option<Kept<'a>> {
        if let Some(&id) = self.exact.get(key) {
            return Some(Kept {
                key: id,
                keep: self.keys[usize::from(id.0)].1,
                suffix: b"",
            });
        }
        self.prefixes.iter().find_map(|&(id, rest)| {
            let (prefix, keep) = &self.keys[usize::from(id.0)];
            let suffix = rest.suffix(key.strip_prefix(prefix.as_bytes())?)?;
            Some(Kept {
                key: id,
                keep: *keep,
                suffix,
            })
        })
    }

    fn add_prefix(&mut self, prefix: &str, rest: Rest, keep: Keep) -> KeyId {
        let id = self.next_id();
        self.keys.push((prefix.into(), keep));
        self.prefixes.push((id, rest));
        id
    }

    fn next_id(&self) -> KeyId {
        u16::try_from(self.keys.len()).map_or(KeyId::NONE, |id| KeyId(id).min(KeyId::NONE))
    }
}

impl Rest {
    /// The rest of an attribute's key behind a rule's prefix, if the rule applies; empty if the
    /// rule names the whole key.
    fn suffix(self, behind: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Holding("") => Some(behind),
            Self::Holding(text) => memchr::memmem::find(behind, text.as_bytes()).map(|_| behind),
            Self::WordAnd(end) => {
                let word = behind.strip_suffix(end.as_bytes())?;
                (!word.is_empty() && !word.contains(&b'.')).then_some(b"".as_slice())
            }
        }
    }
}
