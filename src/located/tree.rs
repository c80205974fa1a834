//! A YAML or JSON document as a tree of nodes with their places.

use super::texts::Place;

#[derive(Debug, Clone)]
pub struct Node {
    pub place: Place,
    pub value: NodeValue,
}

#[derive(Debug, Clone)]
pub enum NodeValue {
    Scalar(Scalar),
    List(Vec<Node>),
    Map(Map),
    /// A list item that was removed because of a mistake; the other items retain their indices.
    Gone,
}

/// A scalar as written, with the kind that YAML gives it.
#[derive(Debug, Clone)]
pub struct Scalar {
    pub text: String,
    pub kind: Kind,
    /// True if the value came from a variable, a flag or a file. Quotes around a reference do not
    /// make its value a text, because YAML requires them in a map in braces, such as
    /// `{ port: "${env:PORT}" }`.
    pub substituted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    Null,
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text,
}

/// A map; `pruned` has the keys of entries that were removed because of a mistake.
#[derive(Debug, Clone, Default)]
pub struct Map {
    pub entries: Vec<MapEntry>,
    pub pruned: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct MapEntry {
    pub key: String,
    pub key_place: Place,
    pub value: Node,
}

impl Map {
    pub fn retain(&mut self, mut keep: impl FnMut(&mut MapEntry) -> bool) {
        let pruned = &mut self.pruned;
        self.entries.retain_mut(|entry| {
            let kept = keep(entry);
            if !kept {
                pruned.push(entry.key.clone());
            }
            kept
        });
    }
}

impl Node {
    pub fn empty_map(place: Place) -> Self {
        Self {
            place,
            value: NodeValue::Map(Map::default()),
        }
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.value, NodeValue::Gone)
    }

    pub fn is_null(&self) -> bool {
        matches!(
            &self.value,
            NodeValue::Scalar(Scalar {
                kind: Kind::Null,
                ..
            })
        )
    }

    pub fn find(&self, path: &[&str]) -> Option<&Node> {
        self.find_entry(path).map(|entry| &entry.value)
    }

    /// Like [`Node::find`], but mutable and without indices in lists.
    pub fn find_mut(&mut self, path: &[&str]) -> Option<&mut Node> {
        let Some((key, rest)) = path.split_first() else {
            return Some(self);
        };
        let NodeValue::Map(map) = &mut self.value else {
            return None;
        };
        let entry = map.entries.iter_mut().find(|entry| entry.key == *key)?;
        entry.value.find_mut(rest)
    }

    /// Returns the entry at the end of a path of keys, and of indices in lists.
    pub fn find_entry(&self, path: &[&str]) -> Option<&MapEntry> {
        let (key, rest) = path.split_first()?;
        let map = match &self.value {
            NodeValue::Map(map) => map,
            NodeValue::List(items) => {
                return items.get(key.parse::<usize>().ok()?)?.find_entry(rest);
            }
            NodeValue::Scalar(_) | NodeValue::Gone => return None,
        };
        let entry = map.entries.iter().find(|entry| entry.key == *key)?;
        if rest.is_empty() { Some(entry) } else { entry.value.find_entry(rest) }
    }

    /// Inserts a value at a path of keys. `on_conflict` decides between the new and an existing
    /// value.
    pub fn put(&mut self, path: &[String], key_place: Place, value: Node, on_conflict: OnConflict) {
        let Some((key, rest)) = path.split_first() else {
            return;
        };
        if !matches!(self.value, NodeValue::Map(_)) {
            if on_conflict == OnConflict::Keep {
                return;
            }
            self.value = NodeValue::Map(Map::default());
        }
        let NodeValue::Map(map) = &mut self.value else {
            return;
        };
        let found = map.entries.iter_mut().find(|entry| entry.key == *key);
        match (found, rest.is_empty()) {
            (Some(entry), true) => {
                if on_conflict == OnConflict::Replace {
                    (entry.key_place, entry.value) = (key_place, value);
                }
            }
            (Some(entry), false) => entry.value.put(rest, key_place, value, on_conflict),
            (None, true) => map.entries.push(MapEntry {
                key: key.clone(),
                key_place,
                value,
            }),
            (None, false) => {
                let mut inner = Self::empty_map(value.place);
                inner.put(rest, key_place, value, on_conflict);
                map.entries.push(MapEntry {
                    key: key.clone(),
                    key_place,
                    value: inner,
                });
            }
        }
    }

    /// Removes the entry or item at the end of a path of indices; returns false if there is none.
    /// The root cannot be removed.
    pub(crate) fn prune(&mut self, path: &[usize]) -> bool {
        let Some((first, rest)) = path.split_first() else {
            return false;
        };
        match &mut self.value {
            NodeValue::List(items) if rest.is_empty() => match items.get_mut(*first) {
                Some(item) => {
                    item.value = NodeValue::Gone;
                    true
                }
                None => false,
            },
            NodeValue::Map(map) if rest.is_empty() && *first < map.entries.len() => {
                let entry = map.entries.remove(*first);
                map.pruned.push(entry.key);
                true
            }
            NodeValue::List(items) => items.get_mut(*first).is_some_and(|item| item.prune(rest)),
            NodeValue::Map(map) => map
                .entries
                .get_mut(*first)
                .is_some_and(|entry| entry.value.prune(rest)),
            NodeValue::Scalar(_) | NodeValue::Gone => false,
        }
    }

    /// Returns true if anything was removed from this node or below it.
    pub fn is_pruned(&self) -> bool {
        match &self.value {
            NodeValue::Scalar(_) => false,
            NodeValue::Gone => true,
            NodeValue::List(items) => items.iter().any(Self::is_pruned),
            NodeValue::Map(map) => {
                !map.pruned.is_empty() || map.entries.iter().any(|entry| entry.value.is_pruned())
            }
        }
    }

    /// Returns true if the value at this path of keys, any part of the value, or a map above it was
    /// removed.
    pub fn is_pruned_at(&self, path: &[&str]) -> bool {
        let Some((key, rest)) = path.split_first() else {
            return self.is_pruned();
        };
        let NodeValue::Map(map) = &self.value else {
            return false;
        };
        map.pruned.iter().any(|pruned| pruned == key)
            || map
                .entries
                .iter()
                .find(|entry| entry.key == *key)
                .is_some_and(|entry| entry.value.is_pruned_at(rest))
    }

    /// Returns the JSON pointer (RFC 6901) of the node at the end of a path of indices.
    pub(crate) fn pointer(&self, path: &[usize]) -> String {
        let (mut node, mut pointer) = (self, String::new());
        for idx in path {
            match &node.value {
                NodeValue::List(items) => {
                    let Some(item) = items.get(*idx) else { break };
                    pointer.push_str(&format!("/{idx}"));
                    node = item;
                }
                NodeValue::Map(map) => {
                    let Some(entry) = map.entries.get(*idx) else {
                        break;
                    };
                    pointer.push('/');
                    pointer.push_str(&entry.key.replace('~', "~0").replace('/', "~1"));
                    node = &entry.value;
                }
                NodeValue::Scalar(_) | NodeValue::Gone => break,
            }
        }
        pointer
    }

    /// Returns the node at the end of a path of indices, its entry, and the keys along the path
    /// (items as `[3]`, or by their name).
    pub fn follow(&self, path: &[usize]) -> (&Node, Option<&MapEntry>, Vec<String>) {
        let (mut node, mut holder, mut keys) = (self, None, Vec::new());
        for idx in path {
            match &node.value {
                NodeValue::List(items) => {
                    let Some(item) = items.get(*idx) else { break };
                    let name = item.find(&["name"]).and_then(|name| match &name.value {
                        NodeValue::Scalar(Scalar { text, .. }) if !text.is_empty() => {
                            Some(text.as_str())
                        }
                        _ => None,
                    });
                    keys.push(name.map_or_else(|| format!("[{idx}]"), |name| format!("[{name}]")));
                    (node, holder) = (item, None);
                }
                NodeValue::Map(map) => {
                    let Some(entry) = map.entries.get(*idx) else {
                        break;
                    };
                    keys.push(entry.key.clone());
                    (node, holder) = (&entry.value, Some(entry));
                }
                NodeValue::Scalar(_) | NodeValue::Gone => break,
            }
        }
        (node, holder, keys)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    Replace,
    Keep,
}
