//! Pure. Which attributes, events and log records to keep, and how much of them: the stages that
//! read them say so, the scan obeys. Knows nothing of what the keys mean.

use hashbrown::HashMap;

/// A key that somebody reads: a position in the [`KeySet`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u16);

impl KeyId {
    /// The key of what has none; every key has a lower id.
    pub(super) const NONE: Self = Self((1 << 14) - 1);
}

/// What is kept of an attribute with a certain key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The value, up to `max_value_size`.
    Value,
    /// Messages of a model, up to `max_messages_size`, and only if a tool call is found in them by
    /// a substring search.
    Messages,
    /// The value, up to `max_brought_size` for all such values of a span: what a run says about its
    /// own judgement.
    Brought,
    /// The presence alone: an empty string is kept.
    Presence,
    /// Nothing of what is sent: only the scan itself writes it.
    Own,
}

/// What is kept of the body of a log record that is wanted; its attributes always go by the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WantedBody {
    /// Nothing: its attributes say it all.
    Not,
    /// Messages of a model, as [`Keep::Messages`] says.
    Messages,
    /// The same, without a search: a tool's answer need not speak of tools.
    Whole,
}

/// A row of the table that says which keys to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRule {
    /// The key; a prefix of keys if it ends in `.` or holds a `*` (the star is not part of it).
    /// What stands between a first and a last star must occur after the prefix:
    /// `llm.output_messages.*tool_call*`.
    pub key: &'static str,
    /// What is kept of it.
    pub keep: Keep,
}

/// Which attributes and events to keep, and how much of them. Built by the stages that read them,
/// obeyed by the scan. Ids are stable: a set that extends another gives every old key its old id.
#[derive(Debug, Clone, Default)]
pub struct KeySet {
    keys: Vec<(Box<str>, Keep)>,
    exact: HashMap<Box<[u8]>, KeyId>,
    /// Prefixes, with what must occur after them.
    prefixes: Vec<(KeyId, &'static str)>,
    /// Event names of log records that are wanted, and whether their bodies are.
    records: Vec<(&'static str, WantedBody)>,
    /// Longest value kept of one attribute, in bytes (`tools.max_value_size`).
    pub max_value_size: usize,
    /// Longest messages kept of one span, in bytes (`tools.max_messages_size`).
    pub max_messages_size: usize,
    /// Most bytes kept of what one span says about its own judgement (`expectations.max_size`).
    pub max_brought_size: usize,
}

/// What the key set says of an attribute's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// Its id.
    pub key: KeyId,
    /// What is kept of it.
    pub keep: Keep,
    /// What follows the prefix; empty for a whole key.
    pub suffix: &'a [u8],
}

impl KeySet {
    /// A set of these keys, in this order: the n-th gets the id n.
    pub fn new(rules: &[KeyRule]) -> Self {
        let mut keys = Self::default();
        for rule in rules {
            match rule.key.split_once('*') {
                Some((prefix, needle)) => keys.add_prefix(
                    prefix,
                    needle.strip_suffix('*').unwrap_or(needle),
                    rule.keep,
                ),
                None if rule.key.ends_with('.') => keys.add_prefix(rule.key, "", rule.keep),
                None => keys.add(rule.key, rule.keep),
            };
        }
        keys
    }

    /// The id of a whole key, added if it is new (a key that is there keeps what is kept of it). A
    /// full set has room for 16 383 keys; of others nothing is kept.
    pub fn add(&mut self, key: &str, keep: Keep) -> KeyId {
        if let Some(id) = self.exact.get(key.as_bytes()) {
            return *id;
        }
        let id = self.next_id();
        if id != KeyId::NONE {
            self.keys.push((key.into(), keep));
            self.exact.insert(key.as_bytes().into(), id);
        }
        id
    }

    /// Log records with these event names tell of tool calls.
    pub fn want_records(&mut self, records: Vec<(&'static str, WantedBody)>) {
        self.records = records;
    }

    /// Does a log record with this event name tell of a tool call, and where?
    pub fn wants_record(&self, event_name: &[u8]) -> Option<WantedBody> {
        self.records
            .iter()
            .find(|(wanted, _)| wanted.as_bytes() == event_name)
            .map(|&(_, body)| body)
    }

    /// The id of a whole key that is in the set.
    pub fn id(&self, key: &str) -> Option<KeyId> {
        self.exact.get(key.as_bytes()).copied()
    }

    /// The key, or prefix, with this id.
    pub fn name(&self, id: KeyId) -> &str {
        self.keys
            .get(usize::from(id.0))
            .map_or("", |(name, _)| name)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Is nothing kept?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Is this key kept, and what of it? Takes bytes: the scan asks before it checks UTF-8.
    pub fn find<'a>(&self, key: &'a [u8]) -> Option<Kept<'a>> {
        if let Some(&id) = self.exact.get(key) {
            return Some(Kept {
                key: id,
                keep: self.keys[usize::from(id.0)].1,
                suffix: b"",
            });
        }
        self.prefixes.iter().find_map(|&(id, needle)| {
            let (prefix, keep) = &self.keys[usize::from(id.0)];
            let suffix = key.strip_prefix(prefix.as_bytes())?;
            (needle.is_empty() || memchr::memmem::find(suffix, needle.as_bytes()).is_some())
                .then_some(Kept {
                    key: id,
                    keep: *keep,
                    suffix,
                })
        })
    }

    fn add_prefix(&mut self, prefix: &str, needle: &'static str, keep: Keep) -> KeyId {
        let id = self.next_id();
        self.keys.push((prefix.into(), keep));
        self.prefixes.push((id, needle));
        id
    }

    fn next_id(&self) -> KeyId {
        u16::try_from(self.keys.len()).map_or(KeyId::NONE, |id| KeyId(id).min(KeyId::NONE))
    }
}
