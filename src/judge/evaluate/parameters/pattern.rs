//! Regular expressions that run in linear time and bounded memory. Deserialising a [`Pattern`] only
//! stores its text; [`PatternCompiler`] compiles it later, under limits for the pattern's source: a
//! file or a request.

use std::fmt;

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{
    self, AssertionKind, Ast, ClassPerlKind, ClassSetItem, ErrorKind, RepetitionKind,
    RepetitionRange, Visitor,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum bytes of automaton states that a search caches. A search that needs more clears the
/// cache and continues, slower but still in linear time.
const MAX_CACHE_SIZE: usize = 256 << 10;
/// Maximum nesting of groups and classes. Nobody nests deeper by hand; the default of the `regex`
/// crate is 250.
const MAX_NESTING: u32 = 100;

/// An unanchored regular expression in the syntax of the `regex` crate. `\d`, `\w` and `\b` (and
/// `\D`, `\W`, `\B`) are ASCII; `\s` is Unicode white space. `.` and literals match whole
/// characters of any script.
///
/// The `regex` crate can only switch all classes to ASCII together, and then `.` matches a single
/// byte of a character. So we parse the pattern and write out the ASCII classes: `\d` becomes
/// `[0-9]`. One exception remains: `(?i)[\w]` also matches `ſ` and the Kelvin sign, which case-fold
/// to `s` and `k`.
#[derive(Clone, Deserialize, Serialize, JsonSchema)]
#[serde(from = "String", into = "String")]
#[schemars(
    description = "An unanchored regular expression in the syntax of the `regex` crate; \
                          \\d, \\w and \\b are ASCII, \\s is Unicode white space; \
                          no look-around, no back-references."
)]
pub struct Pattern {
    source: String,
    /// `None` until [`PatternCompiler`] compiles the pattern's evaluator.
    compiled: Option<Compiled>,
}

#[derive(Clone)]
struct Compiled {
    regex: Regex,
    /// The approximate number of states. A search visits at most this many states for each byte.
    n_states: u64,
    /// Set if the pattern is plain text. Tool names are short: the regex would take nearly twice as
    /// long to find the text (265 instructions instead of 150).
    plain: Option<Plain>,
}

/// Limits on the number of patterns and the size of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatternLimits {
    /// Maximum number of patterns.
    pub max_patterns: usize,
    /// Maximum bytes of one compiled pattern. The limit also bounds the time of a search, which is
    /// at most proportional to (pattern × text).
    pub max_compiled_size: usize,
}

/// Compiles all patterns of one source, such as a file or a request, under shared limits.
#[derive(Debug, Clone)]
pub struct PatternCompiler {
    limits: PatternLimits,
    n_compiled: usize,
    /// True after an error has reported that there are more than `max_patterns` patterns.
    is_exhausted: bool,
}

/// A pattern's path below `evaluate` (keys, and positions as numbers), and the pattern.
pub(crate) type PlacedPattern<'a> = (Vec<String>, &'a mut Pattern);

/// An error in a field that only the complete evaluator reveals: a pattern that does not compile,
/// or a field that contradicts another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field's path below the compiled value (keys, and positions as numbers). If a string is
    /// the short form of a map, the path ends with the key whose value the string is.
    pub path: Vec<String>,
    /// The mistake and, for most mistakes, its remedy.
    pub message: String,
    /// True if the field itself is the mistake, whatever its value.
    pub at_key: bool,
}

// === impl PatternLimits ===

impl PatternLimits {
    /// The limits for files. A hundred ordinary patterns together are far smaller than the size
    /// limit.
    pub const FILE: Self = Self {
        max_patterns: usize::MAX,
        max_compiled_size: 1 << 20,
    };

    /// Returns the limits for patterns from the network, whose author can send any number of them.
    pub const fn network(max_patterns: usize) -> Self {
        Self {
            max_patterns,
            max_compiled_size: 32 << 10,
        }
    }
}

// === impl PatternCompiler ===

impl PatternCompiler {
    pub fn new(limits: PatternLimits) -> Self {
        Self {
            limits,
            n_compiled: 0,
            is_exhausted: false,
        }
    }

    /// Compiles all patterns of one value. If a pattern does not compile, none of them counts
    /// towards the limit, because the value is either parsed again without that pattern or
    /// rejected.
    pub(crate) fn compile(
        &mut self,
        patterns: Vec<PlacedPattern<'_>>,
    ) -> Result<(), Vec<FieldError>> {
        let n_before = self.n_compiled;
        let mut errors = Vec::new();
        for (path, pattern) in patterns {
            let PatternLimits {
                max_patterns,
                max_compiled_size,
            } = self.limits;
            if self.n_compiled == max_patterns {
                if !self.is_exhausted {
                    self.is_exhausted = true;
                    let message = format!(
                        "more than {max_patterns} patterns: put lasting criteria into a file"
                    );
                    errors.push(FieldError::of_value(path, message));
                }
                return Err(errors);
            }
            self.n_compiled += 1;
            if let Err(message) = pattern.compile(max_compiled_size) {
                errors.push(FieldError::of_value(path, message));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        self.n_compiled = n_before;
        Err(errors)
    }
}

// === impl FieldError ===

impl FieldError {
    fn of_value(path: Vec<String>, message: String) -> Self {
        Self {
            path,
            message,
            at_key: false,
        }
    }

    /// Creates an error in the value of a field, at a path of keys.
    pub(crate) fn new(path: &[&str], message: impl Into<String>) -> Self {
        let path = path.iter().map(|key| (*key).to_owned()).collect();
        Self::of_value(path, message.into())
    }

    /// Creates an error about a field that must be absent, at a path of keys below an evaluator's
    /// name.
    pub(crate) fn of_key(path: &[&str], message: impl Into<String>) -> Self {
        Self {
            at_key: true,
            ..Self::new(path, message)
        }
    }

    /// Prefixes the path with `keys`.
    pub fn below(mut self, keys: &[&str]) -> Self {
        let keys = keys.iter().map(|key| (*key).to_owned());
        self.path.splice(0..0, keys);
        self
    }

    pub(crate) fn join(errors: &[Self]) -> String {
        let messages = errors
            .iter()
            .map(|Self { path, message, .. }| format!("{message}, at `{}`", path.join(".")));
        messages.collect::<Vec<_>>().join("; ")
    }
}

// === impl Pattern ===

/// A pattern that is plain text, with or without anchors.
#[derive(Clone)]
struct Plain {
    at_start: bool,
    text: String,
    at_end: bool,
}

impl Pattern {
    fn compile(&mut self, max_size: usize) -> Result<(), String> {
        let source = self.source.as_str();
        let ast = ast::parse::ParserBuilder::new()
            .nest_limit(MAX_NESTING)
            .build()
            .parse(source)
            .map_err(|error| refusal(source, &error))?;
        let rewritten =
            ast::visit(&ast, AsciiClasses::new(source)).map_err(|error| refusal(source, &error))?;
        let regex = RegexBuilder::new(&rewritten)
            .size_limit(max_size)
            .dfa_size_limit(max_size.min(MAX_CACHE_SIZE))
            .nest_limit(MAX_NESTING * 2)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(limit) => {
                    format!(
                        "the pattern `{source}` is larger than {} KiB when compiled: use smaller \
                         repetitions",
                        limit >> 10
                    )
                }
                error => format!(
                    "`{source}` is not a regular expression: {}",
                    last_line(&error.to_string())
                ),
            })?;
        self.compiled = Some(Compiled {
            regex,
            n_states: n_states(&ast),
            plain: Plain::new(source),
        });
        Ok(())
    }

    /// Returns true if the pattern matches anywhere in the text.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        let Compiled { regex, plain, .. } = self.compiled();
        match plain {
            Some(plain) => plain.is_match(text),
            None => regex.is_match(text),
        }
    }

    /// Returns the maximum work of a search in the text. Measured on one core: 4 ns per unit for
    /// `ignore.{0,1000}instructions`, at most 30 ns for patterns made to be slow, and far less for
    /// ordinary patterns.
    pub(crate) fn search_cost(&self, text: &str) -> u64 {
        let Compiled {
            n_states, plain, ..
        } = self.compiled();
        let per_byte = match plain {
            Some(_) => 1,
            None => 1 + n_states / 4,
        };
        per_byte.saturating_mul(text.len() as u64)
    }

    fn compiled(&self) -> &Compiled {
        self.compiled
            .as_ref()
            .expect("an evaluator is made by compiling the patterns of its source")
    }

    /// Returns the regular expression that [`regex`] compiled, with ASCII classes written out.
    pub(crate) fn rewritten(&self) -> &str {
        self.compiled().regex.as_str()
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.source
    }
}

impl Plain {
    fn new(source: &str) -> Option<Self> {
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

/// Estimates the number of states. Compiling unrolls repetitions, so nested repetitions multiply. A
/// character needs a few states, a Unicode class dozens.
fn n_states(ast: &Ast) -> u64 {
    match ast {
        Ast::Empty(_) | Ast::Flags(_) | Ast::Assertion(_) => 0,
        Ast::Literal(_) => 1,
        Ast::Dot(_) | Ast::ClassPerl(_) | Ast::ClassBracketed(_) => 4,
        Ast::ClassUnicode(_) => 64,
        Ast::Group(group) => n_states(&group.ast),
        Ast::Alternation(alternation) => sum_of_states(&alternation.asts),
        Ast::Concat(concat) => sum_of_states(&concat.asts),
        Ast::Repetition(repetition) => {
            let n_times = match &repetition.op.kind {
                RepetitionKind::Range(
                    RepetitionRange::Exactly(n) | RepetitionRange::Bounded(_, n),
                ) => u64::from(*n),
                RepetitionKind::Range(RepetitionRange::AtLeast(n)) => u64::from(*n) + 1,
                _ => 1,
            };
            n_states(&repetition.ast).saturating_mul(n_times)
        }
    }
}

fn sum_of_states(asts: &[Ast]) -> u64 {
    asts.iter().map(n_states).fold(0, u64::saturating_add)
}

fn refusal(source: &str, error: &ast::Error) -> String {
    match error.kind() {
        ErrorKind::UnsupportedLookAround => format!(
            "`{source}` uses look-around, which is not supported: {LINEAR}; use two patterns, such \
             as one under `required` and one under `disallowed`, or in two rules"
        ),
        ErrorKind::UnsupportedBackreference => no_back_reference(source),
        ErrorKind::EscapeUnrecognized if source[error.span().start.offset..].starts_with("\\k") => {
            no_back_reference(source)
        }
        kind => {
            let column = source[..error.span().start.offset].chars().count() + 1;
            format!("`{source}` is not a regular expression: {kind}, at character {column}")
        }
    }
}

const LINEAR: &str = "patterns run in linear time, so that none can hang the sidecar";

fn no_back_reference(source: &str) -> String {
    format!(
        "`{source}` uses a back-reference, which is not supported: {LINEAR}; \
         write the alternatives out"
    )
}

fn last_line(text: &str) -> &str {
    text.lines()
        .last()
        .unwrap_or(text)
        .trim_start_matches("error: ")
}

// === ASCII classes ===

/// Copies a pattern and replaces the classes and word boundaries that must be ASCII.
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
            // A surrounding `(?i)` would add `ſ` and the Kelvin sign to the letters, so `(?-i:…)`
            // shields the classes.
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

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::code(&self.source))
    }
}

impl From<String> for Pattern {
    fn from(source: String) -> Self {
        Self {
            source,
            compiled: None,
        }
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.source
    }
}

#[cfg(test)]
mod tests;
