//! Pure. A regular expression that was checked when it was loaded: text in, a bounded, linear-time
//! matcher out. Knows nothing of tools.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerlKind, ClassSetItem, ErrorKind, Visitor,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Most bytes of one compiled pattern. Searching takes time (pattern × text) at worst, so this
/// bounds it; a hundred ordinary patterns stay far below.
const MAX_COMPILED_SIZE: usize = 1 << 20;
/// Most bytes of the states a search builds as it goes; beyond that it starts them anew, slower but
/// still linear.
const MAX_CACHE_SIZE: usize = 256 << 10;
/// The same bound for a pattern that came over the network.
const MAX_BROUGHT_SIZE: usize = 32 << 10;
/// So many times may patterns that came over the network be compiled, where mistakes beside them
/// make it read again.
const MAX_ATTEMPTS: usize = 8;
/// Deepest nesting of groups and classes; the default of the `regex` crate, 250, is more than any
/// hand writes.
const MAX_NESTING: u32 = 100;

/// An unanchored regular expression in the syntax of the `regex` crate, where `\d`, `\w` and `\b`
/// (and `\D`, `\W`, `\B`) are ASCII, as in the reference, and `\s` is Unicode white space. `.` and
/// literals are whole characters, in any script.
///
/// The `regex` crate has no such mixture: its Unicode switch turns all classes at once, and without
/// it `.` would match half a character. So the pattern is parsed and the classes that are to be
/// ASCII are written out: `\d` becomes `[0-9]`. One trace remains: `(?i)[\w]`, in brackets, also
/// matches `ſ` and the Kelvin sign, which fold to `s` and `k`.
#[derive(Clone)]
pub struct Pattern {
    source: String,
    regex: Regex,
    /// Names of tools are short: the regex would take nearly twice as long to find a plain text in
    /// one (265 instructions in place of 150).
    plain: Option<Plain>,
}

/// A pattern that is a plain text, and where it must stand.
#[derive(Clone)]
struct Plain {
    at_start: bool,
    text: String,
    at_end: bool,
}

impl Pattern {
    /// Compiles a pattern; the error says what is wrong and what to write instead.
    pub fn try_new(source: &str) -> Result<Self, String> {
        let ast = ast::parse::ParserBuilder::new()
            .nest_limit(MAX_NESTING)
            .build()
            .parse(source)
            .map_err(|error| refusal(source, &error))?;
        let rewritten =
            ast::visit(&ast, AsciiClasses::new(source)).map_err(|error| refusal(source, &error))?;
        let size = allowed_size()?;
        let regex = RegexBuilder::new(&rewritten)
            .size_limit(size)
            .dfa_size_limit(size.min(MAX_CACHE_SIZE))
            .nest_limit(MAX_NESTING * 2)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!("the pattern `{source}` is larger than {} KiB when compiled: use smaller repetitions", limit >> 10)
                }
                error => format!("`{source}` is not a regular expression: {}", last_line(&error.to_string())),
            })?;
        Ok(Self {
            source: source.to_owned(),
            regex,
            plain: Plain::of(source),
        })
    }

    /// Is there a match anywhere in the text?
    pub fn is_match(&self, text: &str) -> bool {
        self.plain
            .as_ref()
            .map_or_else(|| self.regex.is_match(text), |plain| plain.is_match(text))
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

impl Plain {
    fn of(source: &str) -> Option<Self> {
        let (at_start, text) = source
            .strip_prefix('^')
            .map_or((false, source), |text| (true, text));
        let (at_end, text) = text
            .strip_suffix('$')
            .map_or((false, text), |text| (true, text));
        let is_plain = text
            .chars()
            .all(|c| c.is_alphanumeric() || "_- :/".contains(c));
        is_plain.then(|| Self {
            at_start,
            text: text.to_owned(),
            at_end,
        })
    }

    fn is_match(&self, text: &str) -> bool {
        match (self.at_start, self.at_end) {
            (false, false) => text.contains(&self.text),
            (true, false) => text.starts_with(&self.text),
            (false, true) => text.ends_with(&self.text),
            (true, true) => text == self.text,
        }
    }
}

thread_local! {
    /// How many more patterns may be compiled here; `None` where a file registers them. Patterns
    /// are read deep inside an evaluator, where serde lets nothing through that could tell who
    /// wrote them.
    static ALLOWANCE: Cell<Option<Allowance>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Allowance {
    most: usize,
    left: usize,
    /// How many more may be compiled in all attempts together.
    work: usize,
}

/// Reads what came over the network, with a run or from a caller of the API, and tells how many
/// patterns are in it. They are small and at most so many, since their author could send as many as
/// he likes.
pub fn frugally<T>(max_patterns: usize, read: impl FnOnce() -> T) -> (T, usize) {
    let work = max_patterns.saturating_mul(MAX_ATTEMPTS);
    ALLOWANCE.set(Some(Allowance {
        most: max_patterns,
        left: max_patterns,
        work,
    }));
    let read = read();
    let left = ALLOWANCE.take().map_or(0, |allowance| allowance.left);
    (read, max_patterns - left)
}

/// Reads what will be read again if there is a mistake in it: the patterns of an attempt that fails
/// are not counted twice.
pub fn attempt<T, E>(read: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let before = ALLOWANCE.get();
    let read = read();
    if let (Err(_), Some(before), Some(Allowance { work, .. })) = (&read, before, ALLOWANCE.get()) {
        ALLOWANCE.set(Some(Allowance { work, ..before }));
    }
    read
}

/// Most bytes that the next pattern may take.
fn allowed_size() -> Result<usize, String> {
    match ALLOWANCE.get() {
        None => Ok(MAX_COMPILED_SIZE),
        Some(Allowance { left: 0, most, .. }) => Err(format!(
            "more than {most} patterns: put those that last into a criteria file"
        )),
        Some(Allowance { work: 0, .. }) => {
            Err("too many patterns beside so many mistakes: mend the others first".to_owned())
        }
        Some(Allowance { left, most, work }) => {
            ALLOWANCE.set(Some(Allowance {
                left: left - 1,
                most,
                work: work - 1,
            }));
            Ok(MAX_BROUGHT_SIZE)
        }
    }
}

fn refusal(source: &str, error: &ast::Error) -> String {
    match error.kind() {
        ErrorKind::UnsupportedLookAround => format!(
            "`{source}` uses look-around, which is not supported: patterns run in linear time, so that none can hang the sidecar; \
             split it over `required` and `disallowed`"
        ),
        ErrorKind::UnsupportedBackreference => {
            format!("`{source}` uses a back-reference, {NO_BACK_REFERENCE}")
        }
        ErrorKind::EscapeUnrecognized if source[error.span().start.offset..].starts_with("\\k") => {
            format!("`{source}` uses a back-reference, {NO_BACK_REFERENCE}")
        }
        kind => {
            let column = source[..error.span().start.offset].chars().count() + 1;
            format!("`{source}` is not a regular expression: {kind}, at character {column}")
        }
    }
}

const NO_BACK_REFERENCE: &str = "which is not supported: patterns run in linear time, so that none can hang the sidecar; write the alternatives out";

fn last_line(text: &str) -> &str {
    text.lines()
        .last()
        .unwrap_or(text)
        .trim_start_matches("error: ")
}

// === ASCII classes ===

/// Copies a pattern, writing out what is to be ASCII.
struct AsciiClasses<'a> {
    source: &'a str,
    copied: usize,
    out: String,
}

impl<'a> AsciiClasses<'a> {
    fn new(source: &'a str) -> Self {
        Self {
            source,
            copied: 0,
            out: String::with_capacity(source.len()),
        }
    }

    fn replace(&mut self, span: &ast::Span, replacement: fmt::Arguments<'_>) {
        self.out
            .push_str(&self.source[self.copied..span.start.offset]);
        let _ = fmt::Write::write_fmt(&mut self.out, replacement);
        self.copied = span.end.offset;
    }
}

impl Visitor for AsciiClasses<'_> {
    type Output = String;
    type Err = ast::Error;

    fn finish(mut self) -> Result<String, ast::Error> {
        self.out.push_str(&self.source[self.copied..]);
        Ok(self.out)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ast::Error> {
        match ast {
            // Case-folding would add `ſ` and the Kelvin sign to the letters, so these are kept out
            // of a surrounding `(?i)`.
            Ast::ClassPerl(class) => {
                if let Some(class_text) = written_out(class) {
                    self.replace(&class.span, format_args!("(?-i:{class_text})"));
                }
            }
            Ast::Assertion(assertion) => match assertion.kind {
                AssertionKind::StartLine
                | AssertionKind::EndLine
                | AssertionKind::StartText
                | AssertionKind::EndText => {}
                _ => {
                    let source = self.source;
                    let boundary = &source[assertion.span.start.offset..assertion.span.end.offset];
                    self.replace(&assertion.span, format_args!("(?-u:{boundary})"));
                }
            },
            _ => {}
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ast::Error> {
        if let ClassSetItem::Perl(class) = item
            && let Some(class_text) = written_out(class)
        {
            self.replace(&class.span, format_args!("{class_text}"));
        }
        Ok(())
    }
}

fn written_out(class: &ast::ClassPerl) -> Option<&'static str> {
    match (&class.kind, class.negated) {
        (ClassPerlKind::Digit, false) => Some("[0-9]"),
        (ClassPerlKind::Digit, true) => Some("[^0-9]"),
        (ClassPerlKind::Word, false) => Some("[0-9A-Za-z_]"),
        (ClassPerlKind::Word, true) => Some("[^0-9A-Za-z_]"),
        (ClassPerlKind::Space, _) => None,
    }
}

// === as a value of the configuration ===

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_new(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.serialize(serializer)
    }
}

impl JsonSchema for Pattern {
    fn schema_name() -> Cow<'static, str> {
        "Pattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "An unanchored regular expression in the syntax of the `regex` crate; \\d, \\w and \\b are ASCII, \\s is \
                            Unicode white space; no look-around, no back-references.",
            "type": "string",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_words_and_boundaries_are_ascii_but_white_space_is_unicode() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢٣", false),
            (r"^\D+$", "١٢٣", true),
            (r"^[\d.]+$", "1.5", true),
            (r"^[^\d]$", "٣", true),
            (r"^\w+$", "caf", true),
            (r"^\w+$", "café", false),
            (r"^\W$", "é", true),
            (r"(?i)^\w$", "ſ", false),
            (r"(?i)^\W$", "ſ", true),
            (r"(?i)^[a-z]x$", "QX", true),
            (r"\bcaf\b", "café", true),
            (r"\Bé", "日é", true),
            (r"\b{start}b", "é b", true),
            (r"^a\sb$", "a\u{2003}b", true),
            (r"^a\Sb$", "a\u{2003}b", false),
            (r"^.$", "日", true),
            (r"^[é日]$", "日", true),
            (r"^\p{L}+$", "日本", true),
            (r"^\\d$", r"\d", true),
            (
                r"(?x) ^ \d # a digit: \d
                 $",
                "7",
                true,
            ),
            ("npm test", "run npm test now", true),
        ] {
            let compiled = Pattern::try_new(pattern).unwrap();
            assert_eq!(compiled.is_match(text), matches, "`{pattern}` on `{text}`");
        }
    }

    #[test]
    fn a_plain_text_is_found_where_the_regex_finds_it() {
        for pattern in [
            "",
            "^",
            "$",
            "^$",
            "bash",
            "^bash",
            "bash$",
            "^bash$",
            "run bash",
            "ä",
            "^a-b/c:d$",
            "ba.h",
            "b^ash",
        ] {
            let compiled = Pattern::try_new(pattern).unwrap();
            assert_eq!(
                compiled.plain.is_some(),
                !["ba.h", "b^ash"].contains(&pattern),
                "`{pattern}`"
            );
            for text in [
                "",
                "bash",
                "bash\n",
                "\nbash",
                "run bash now",
                "bas",
                "Bash",
                "ä",
                "a-b/c:d",
                "a-b/c:d ",
                "bashbash",
            ] {
                assert_eq!(
                    compiled.is_match(text),
                    compiled.regex.is_match(text),
                    "`{pattern}` on `{text}`"
                );
            }
        }
    }

    #[test]
    fn refusals_say_why() {
        for (pattern, part) in [
            (
                "(?=x)",
                "uses look-around, which is not supported: patterns run in linear time",
            ),
            ("a(?!b)", "uses look-around"),
            ("(?<!x)y", "uses look-around"),
            (
                r"(a)\1",
                "uses a back-reference, which is not supported: patterns run in linear time",
            ),
            (r"(?<n>a)\k<n>", "uses a back-reference"),
            (
                "é[a",
                "`é[a` is not a regular expression: unclosed character class, at character 2",
            ),
            (
                "[a-\\d]",
                "is not a regular expression: invalid range boundary",
            ),
            ("a{1000}{1000}", "is larger than 1024 KiB when compiled"),
            (
                r"\p{Nonsense}",
                "is not a regular expression: Unicode property not found",
            ),
        ] {
            let refusal = Pattern::try_new(pattern).unwrap_err();
            assert!(refusal.contains(part), "`{pattern}`: {refusal}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_not_a_stack_overflow() {
        let deep = format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(Pattern::try_new(&deep).unwrap_err().contains("nest"));
    }

    #[test]
    fn a_hostile_pattern_reads_10_mb_in_linear_time() {
        // Exponential for a backtracking engine. Here the work is bounded by pattern × text; the
        // test ends or it does not.
        let pattern = Pattern::try_new(r"^(a+)+$|(a|aa)+b|(\w+\s?)*!$").unwrap();
        assert!(!pattern.is_match(&("a".repeat(10 << 20) + "?")));
    }
}
