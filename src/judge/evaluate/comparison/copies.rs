//! Finds literal copies of texts from one value in another.

use hashbrown::HashMap;
use memchr::memmem;
use serde_json::Value;

use super::captured::Tri;
use super::value_path::PathValues;

/// Minimum characters of a text that `a_in_b` searches for; shorter texts occur in most texts by
/// chance.
const MIN_WHOLE: usize = 8;

/// Maximum [`cost`] of a value that is indexed, one unit per byte and 16 per text. The index needs
/// about 40 bytes for each byte.
const MAX_INDEXED: u64 = 1 << 20;

/// Spends work from a budget; returns `false` if too little is left.
pub(crate) type Spend<'s> = dyn FnMut(u64) -> bool + 's;

/// The relation between two values `a` and `b` that share text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copied {
    /// A text of `a` is inside a text of `b`.
    AInB,
    /// Every text of `b` is a whole word in a text of `a`.
    BInA,
    /// `a` and `b` have at least this many consecutive characters in common.
    Shared(usize),
}

/// The texts and numbers found in the values at a path; empty texts are skipped.
#[derive(Debug, Default)]
pub(crate) struct TextLeaves<'v> {
    texts: Vec<Text<'v>>,
    /// The cost of reading all texts, in units of the search budget.
    cost: u64,
    /// True if more texts may lie behind a cut.
    is_open: bool,
}

#[derive(Debug, Clone, Copy)]
struct Text<'v> {
    text: &'v str,
    /// True if the text's end is missing.
    is_cut: bool,
}

impl<'v> TextLeaves<'v> {
    pub(crate) fn new(found: &PathValues<'v>) -> Self {
        let mut texts = Self {
            is_open: found.is_open,
            ..Self::default()
        };
        for value in &found.values {
            texts.add(value, found);
        }
        texts
    }

    fn add(&mut self, value: &'v Value, found: &PathValues<'v>) {
        let is_cut = found.is_incomplete(value);
        let text = match value {
            Value::String(text) => text.as_str(),
            Value::Number(number) => number.as_str(),
            Value::Array(items) => {
                items.iter().for_each(|item| self.add(item, found));
                ""
            }
            Value::Object(fields) => {
                fields.values().for_each(|field| self.add(field, found));
                ""
            }
            Value::Null | Value::Bool(_) => "",
        };
        if text.is_empty() {
            self.is_open |= is_cut;
        } else {
            self.cost += cost(text);
            self.texts.push(Text { text, is_cut });
        }
    }

    /// Returns true if there are certainly no texts.
    pub(crate) fn is_empty(&self) -> bool {
        self.texts.is_empty() && !self.is_open
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.is_open || self.texts.iter().any(|text| text.is_cut)
    }

    /// Returns [`Tri::Maybe`] if a cut may hide a whole text.
    fn behind_cut(&self) -> Tri {
        if self.is_open { Tri::Maybe } else { Tri::No }
    }
}

/// Returns the cost of reading or searching a text, in units of the search budget.
fn cost(text: &str) -> u64 {
    text.len() as u64 + 16
}

/// The texts of value `a`, prepared for comparison with several values `b`.
pub(crate) struct Source<'t, 'v> {
    copied: Copied,
    texts: &'t TextLeaves<'v>,
    /// For [`Copied::Shared`]: maps each substring of the required length to the text from that
    /// substring on. `None` if the texts are too large to index, or the budget is used up.
    runs: Option<HashMap<&'v str, &'v str>>,
}

impl<'t, 'v> Source<'t, 'v> {
    pub(crate) fn new(copied: Copied, texts: &'t TextLeaves<'v>, spend: &mut Spend<'_>) -> Self {
        let runs = match copied {
            Copied::Shared(length) => {
                let is_small = texts.cost <= MAX_INDEXED && spend(cost_of_runs(texts, length));
                is_small.then(|| runs(texts, length).collect())
            }
            _ => Some(HashMap::new()),
        };
        Self {
            copied,
            texts,
            runs,
        }
    }

    /// Returns whether the values `a` (this source) and `b` (`other`) share text as `copied`
    /// requires, and the length of a copy in characters. `None` if the budget is used up while
    /// searching.
    pub(crate) fn copy_in(
        &self,
        other: &TextLeaves<'_>,
        spend: &mut Spend<'_>,
    ) -> Option<(Tri, usize)> {
        if self.texts.is_empty() || other.is_empty() {
            return Some((Tri::No, 0));
        }
        match self.copied {
            Copied::AInB => a_in_b(self.texts, other, spend),
            Copied::BInA => b_in_a(self.texts, other, spend),
            Copied::Shared(length) => self.shared(length, other, spend),
        }
    }

    fn shared(
        &self,
        length: usize,
        other: &TextLeaves<'_>,
        spend: &mut Spend<'_>,
    ) -> Option<(Tri, usize)> {
        let Some(indexed) = &self.runs else {
            spend(u64::MAX);
            return Some((Tri::Maybe, 0));
        };
        if !spend(cost_of_runs(other, length)) {
            return None;
        }
        let mut runs = runs(other, length);
        let found = runs.find_map(|(run, here)| Some((indexed.get(run)?, here)));
        Some(match found {
            Some((there, here)) => {
                let common = there.chars().zip(here.chars());
                let n_chars = common.take_while(|(one, other)| one == other).count();
                (Tri::Yes, n_chars)
            }
            None if self.texts.is_cut() || other.is_cut() => (Tri::Maybe, 0),
            None => (Tri::No, 0),
        })
    }
}

/// Returns each substring of `length` characters, and the text from that substring on.
fn runs<'t>(texts: &TextLeaves<'t>, length: usize) -> impl Iterator<Item = (&'t str, &'t str)> {
    texts.texts.iter().flat_map(move |&Text { text, .. }| {
        let starts = text.char_indices().map(|(at, _)| at);
        let ends = starts.clone().chain([text.len()]).skip(length);
        starts
            .zip(ends)
            .map(move |(start, end)| (&text[start..end], &text[start..]))
    })
}

fn cost_of_runs(texts: &TextLeaves<'_>, length: usize) -> u64 {
    texts.cost.saturating_mul(1 + length as u64 / 8)
}

fn a_in_b(a: &TextLeaves<'_>, b: &TextLeaves<'_>, spend: &mut Spend<'_>) -> Option<(Tri, usize)> {
    if !spend(a.texts.len() as u64) {
        return None;
    }
    let mut any = a.behind_cut();
    let is_short = |text: &str| text.chars().nth(MIN_WHOLE - 1).is_none();
    for text in a
        .texts
        .iter()
        .filter(|text| text.is_cut || !is_short(text.text))
    {
        any = any.max(found_in(text, b, false, spend)?);
        if any == Tri::Yes {
            return Some((Tri::Yes, text.text.chars().count()));
        }
    }
    Some((any, 0))
}

fn b_in_a(a: &TextLeaves<'_>, b: &TextLeaves<'_>, spend: &mut Spend<'_>) -> Option<(Tri, usize)> {
    let (mut all, mut longest) = (!b.behind_cut(), 0);
    for text in &b.texts {
        all = all.min(found_in(text, a, true, spend)?);
        if all == Tri::No {
            break;
        }
        longest = longest.max(text.text.chars().count());
    }
    Some((all, longest))
}

/// Returns whether `sought` occurs in one of the other texts; with `as_word`, as a whole word.
/// `None` if the budget is used up.
fn found_in(
    sought: &Text<'_>,
    others: &TextLeaves<'_>,
    as_word: bool,
    spend: &mut Spend<'_>,
) -> Option<Tri> {
    let mut found = others.behind_cut();
    if !spend(cost(sought.text)) {
        return None;
    }
    let finder = memmem::Finder::new(sought.text.as_bytes());
    for Text { text, is_cut } in &others.texts {
        if !spend(cost(text)) {
            return None;
        }
        if *is_cut {
            found = found.max(Tri::Maybe);
        }
        let mut from = 0;
        while let Some(at) = finder.find(&text.as_bytes()[from..]) {
            if !spend(cost(sought.text)) {
                return None;
            }
            let (start, end) = (from + at, from + at + sought.text.len());
            let before = text[..start].chars().next_back();
            let after = text[end..].chars().next();
            if !(as_word && before.is_some_and(is_of_word)) {
                match after {
                    _ if sought.is_cut => found = found.max(Tri::Maybe),
                    Some(after) if as_word && is_of_word(after) => {}
                    None if as_word && *is_cut => {}
                    _ => return Some(Tri::Yes),
                }
            }
            from = start + text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(found)
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::evaluate::comparison::value_path::ValuePath;

    fn texts(value: &Value) -> TextLeaves<'_> {
        let root = ValuePath::parse("args").unwrap();
        TextLeaves::new(&root.follow(value, Vec::new()))
    }

    fn copy(copied: Copied, a: &Value, b: &Value) -> (Tri, usize) {
        let spend = &mut |_| true;
        let (a, b) = (texts(a), texts(b));
        let source = Source::new(copied, &a, spend);
        source.copy_in(&b, spend).unwrap()
    }

    #[test]
    fn nothing_is_read_once_the_work_is_used_up() {
        for (a, b) in [("eight888", "nine99999"), ("", "short"), ("x", "y")] {
            let (a, b) = (
                json!(vec![a; 9000]),
                json!([vec![b; 9000], vec![""; 9000], "z"]),
            );
            for copied in [Copied::AInB, Copied::BInA, Copied::Shared(8)] {
                let (a, b) = (texts(&a), texts(&b));
                let source = Source::new(copied, &a, &mut |_| true);
                let (mut n_asked, mut n_spent) = (0, 0);
                let found = source.copy_in(&b, &mut |cost| {
                    n_asked += 1;
                    n_spent += cost;
                    n_spent <= 1000
                });
                assert!(found.is_none() || a.is_empty(), "{copied:?}: {found:?}");
                assert!(n_asked <= 64, "{copied:?} asked {n_asked} times for work");
            }
        }
    }

    #[test]
    fn whole_words_are_found_and_parts_of_words_are_not() {
        for (a, b, expected) in [
            (json!("Kunde C-17, Konto 4711-22"), json!("C-17"), true),
            (json!("Kunde C-17, Konto 4711-22"), json!(4711), true),
            (json!("Kunde C-17, Konto 4711-22"), json!("C-1"), false),
            (json!("xshort short"), json!("short"), true),
            (json!("日本語の文"), json!("日本語"), false),
            (json!("a_b"), json!("a"), false),
            (json!("x"), json!(""), false),
            (json!("x"), json!([]), false),
            (
                json!({"k": ["one", 2.50]}),
                json!(["one", 2.50, true]),
                true,
            ),
            (json!("one two"), json!(["one", "three"]), false),
        ] {
            assert_eq!(
                copy(Copied::BInA, &a, &b).0,
                Tri::from(expected),
                "{b} in {a}"
            );
        }
    }

    #[test]
    fn short_texts_are_no_copies() {
        for (a, b, expected) in [
            (json!("eight888"), json!("<eight888>"), (Tri::Yes, 8)),
            (json!("seven77"), json!("seven77"), (Tri::No, 0)),
            (
                json!(["seven77", "日本語のとても長い"]),
                json!({"x": "「日本語のとても長い」"}),
                (Tri::Yes, 9),
            ),
            (json!(12345678), json!("n=12345678"), (Tri::Yes, 8)),
        ] {
            assert_eq!(copy(Copied::AInB, &a, &b), expected, "{a} in {b}");
        }
    }

    proptest! {
        /// Compares the result with a search of every pair of positions.
        #[test]
        fn shared_runs_are_those_of_all_pairs(a in "[ab日]{0,60}", b in "[ab日]{0,60}") {
            let (one, other): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            let length_at = |i: usize, j: usize| {
                one[i..].iter().zip(&other[j..]).take_while(|(x, y)| x == y).count()
            };
            let pairs = (0..one.len()).flat_map(|i| (0..other.len()).map(move |j| (i, j)));
            let longest = pairs.map(|(i, j)| length_at(i, j)).max().unwrap_or(0);
            for length in [3, 8, 16] {
                let (found, n_chars) = copy(Copied::Shared(length), &json!(a), &json!(b));
                prop_assert_eq!(found, Tri::from(longest >= length));
                prop_assert!(n_chars <= longest && (found == Tri::No || n_chars >= length));
            }
        }
    }
}
