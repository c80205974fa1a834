//! Shortens a JSON text that is too long to store: cuts long strings and drops the first items of a
//! list.

use memchr::memchr2;

/// Writes `json` to `shortened` with long strings cut. A cut string is slightly longer than
/// `max_string` bytes, so that a reader with this limit detects the cut. If a list is still longer
/// than `limit`, only its last whole items remain. Returns true if everything fits.
///
/// Takes linear time, and memory for at most twice the limit and one item.
pub(super) fn shorten(
    json: &[u8],
    max_string: usize,
    limit: usize,
    shortened: &mut Vec<u8>,
) -> bool {
    shortened.clear();
    let mut copy = TextCopy {
        json,
        copied: 0,
        out: shortened,
    };
    let mut items = Items::default();
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(&byte) = json.get(at) {
        match byte {
            b'"' => {
                at = copy.string(at, max_string);
                continue;
            }
            b'[' | b'{' => {
                depth += 1;
                if depth == 1 && byte == b'[' && copy.is_blank_before(at) {
                    copy.up_to(at + 1);
                    items.begin(copy.out.len());
                }
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    copy.up_to(at);
                    items.end(copy.out, limit, byte == b']');
                }
            }
            b',' if depth == 1 => {
                copy.up_to(at + 1);
                items.next(copy.out, limit);
            }
            _ => {}
        }
        at += 1;
    }
    copy.up_to(json.len());
    items.finish(copy.out, limit)
}

struct TextCopy<'a> {
    json: &'a [u8],
    copied: usize,
    out: &'a mut Vec<u8>,
}

impl TextCopy<'_> {
    fn up_to(&mut self, end: usize) {
        if let Some(text) = self.json.get(self.copied..end) {
            self.out.extend_from_slice(text);
            self.copied = end;
        }
    }

    fn is_blank_before(&self, at: usize) -> bool {
        self.json[..at].iter().all(u8::is_ascii_whitespace)
    }

    /// Cuts the string that starts at `open` if it is too long. Returns the position after the
    /// string.
    fn string(&mut self, open: usize, max_string: usize) -> usize {
        let mut at = open + 1;
        // Lower bound of the decoded length, because an escape decodes to at least one byte.
        let mut n_bytes = 0;
        let mut end_of_head = None;
        loop {
            let rest = self.json.get(at..).unwrap_or_default();
            let Some(plain) = memchr2(b'"', b'\\', rest) else {
                // The string has no end, because the text was cut.
                return self.json.len();
            };
            if end_of_head.is_none() && n_bytes + plain > max_string {
                let mut end = at + max_string + 1 - n_bytes;
                while self.json.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
                    end += 1;
                }
                end_of_head = Some(end);
            }
            n_bytes += plain;
            at += plain;
            if rest[plain] == b'"' {
                break;
            }
            if end_of_head.is_none() && n_bytes > max_string {
                end_of_head = Some(at);
            }
            at += escape_len(&rest[plain..]);
            n_bytes += 1;
        }
        if let Some(end) = end_of_head.filter(|&end| end < at) {
            self.up_to(end);
            self.copied = at;
        }
        at + 1
    }
}

/// Returns the length of the escape at the start of the text. A surrogate pair counts as one
/// escape.
fn escape_len(text: &[u8]) -> usize {
    match text {
        [
            _,
            b'u',
            b'd' | b'D',
            b'8' | b'9' | b'a' | b'A' | b'b' | b'B',
            _,
            _,
            b'\\',
            b'u',
            ..,
        ] => 12,
        [_, b'u', ..] => 6,
        _ => 2,
    }
}

/// The items of the outermost list, the first of which may be dropped.
#[derive(Default)]
struct Items {
    /// The start in the output of each item that may remain.
    starts: Vec<usize>,
    /// The index in `starts` of the first item that remains.
    first: usize,
    is_list: bool,
    is_closed: bool,
    is_cut: bool,
}

impl Items {
    fn begin(&mut self, start: usize) {
        self.is_list = true;
        self.starts.push(start);
    }

    fn next(&mut self, out: &mut Vec<u8>, limit: usize) {
        if self.is_list {
            self.drop_first(out, limit);
            self.starts.push(out.len());
        }
    }

    fn end(&mut self, out: &mut Vec<u8>, limit: usize, is_bracket: bool) {
        if self.is_list && is_bracket {
            self.drop_first(out, limit);
            self.is_closed = true;
        }
    }

    /// Drops the first items until the rest fits, brackets included.
    fn drop_first(&mut self, out: &mut Vec<u8>, limit: usize) {
        while let Some(&start) = self.starts.get(self.first)
            && out.len() - start + 2 > limit
        {
            self.first += 1;
            self.is_cut = true;
        }
        // Linear in total, because the moved rest is no longer than the dropped text.
        let dead = self.starts.get(self.first).copied().unwrap_or(out.len());
        if self.is_cut && dead > out.len() / 2 {
            out.drain(..dead);
            self.starts.drain(..self.first);
            self.first = 0;
            self.starts.iter_mut().for_each(|start| *start -= dead);
        }
    }

    /// Writes the list of the remaining items. Returns true if everything fits.
    fn finish(self, out: &mut Vec<u8>, limit: usize) -> bool {
        if self.is_cut {
            let start = self.starts.get(self.first).copied();
            out.drain(..start.unwrap_or(out.len()));
            out.insert(0, b'[');
            if start.is_none() && self.is_closed {
                out.clear();
                out.extend_from_slice(b"[]");
            }
            return false;
        }
        out.len() <= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shortened(json: &str, max_string: usize, limit: usize) -> (String, bool) {
        let mut out = b"old".to_vec();
        let fits = shorten(json.as_bytes(), max_string, limit, &mut out);
        (String::from_utf8(out).unwrap(), fits)
    }

    #[test]
    fn long_strings_are_cut_between_characters_and_everything_else_stays() {
        let json = r#" {"id": "c1", "args": "{\"a\": \"äääääääääää\"}", "n": [1, {"x": null}]} "#;
        let (short, fits) = shortened(json, 8, 1_000);
        assert_eq!(
            short,
            r#" {"id": "c1", "args": "{\"a\": \"ä", "n": [1, {"x": null}]} "#
        );
        assert!(fits);
        let parsed: serde_json::Value = serde_json::from_str(&short).unwrap();
        assert!(parsed["args"].as_str().unwrap().len() > 8);
        assert_eq!(shortened(json, 100, 1_000), (json.to_owned(), true));
    }

    #[test]
    fn an_escape_is_never_split() {
        for len in 0..11 {
            let json = r#"["a\ud83d\ude00\u00e4\"\\b\n", "end"]"#;
            let (short, fits) = shortened(json, len, 1_000);
            let parsed: Vec<String> = serde_json::from_str(&short).unwrap();
            assert!(fits && parsed[0].len() > len, "{len}: {short}");
            assert!("a😀ä\"\\b\n".starts_with(&parsed[0]), "{len}: {short}");
        }
    }

    #[test]
    fn of_a_list_the_last_whole_items_are_left() {
        let json = r#"[{"a": [1, 2]}, {"b": "]},["}, {"c": 3}]"#;
        let left = |limit| shortened(json, 100, limit);
        assert_eq!(left(json.len()), (json.to_owned(), true));
        assert_eq!(
            left(39),
            (r#"[ {"b": "]},["}, {"c": 3}]"#.to_owned(), false)
        );
        assert_eq!(left(14), (r#"[ {"c": 3}]"#.to_owned(), false));
        assert_eq!(left(5), ("[]".to_owned(), false));
        let long = format!("[{}]", vec![r#"{"n": "0123456789"}"#; 10_000].join(","));
        let (short, fits) = shortened(&long, 100, 1_000);
        let items: Vec<serde_json::Value> = serde_json::from_str(&short).unwrap();
        assert!(!fits && items.len() == 49 && short.len() <= 1_000);
    }

    #[test]
    fn text_that_has_no_end_stays_without_one() {
        for cut in [
            r#"[{"a": "bc"#,
            r#"[{"a": "bc\"#,
            r#"[{"a": 1}"#,
            r#"[{"a": 1}, {"b""#,
        ] {
            assert_eq!(shortened(cut, 100, 1_000), (cut.to_owned(), true));
            let (short, fits) = shortened(cut, 100, 3);
            assert!(!fits && serde_json::from_str::<serde_json::Value>(&short).is_err());
        }
        assert!(!shortened("no JSON, at all", 2, 5).1);
        assert_eq!(
            shortened(r#"{"a": 1}"#, 9, 5),
            (r#"{"a": 1}"#.to_owned(), false)
        );
    }
}
