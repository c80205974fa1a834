//! A mistake and its place in, a message that a person can act on out: what is wrong, where, the
//! line with a caret, the remedy. Knows how messages look; does not know what can be wrong.

use std::fmt::{self, Write as _};
use std::ops::Range;

/// Lines longer than this are cropped around the caret (a JSON file may be one line).
const MAX_EXCERPT_CHARS: usize = 140;
/// Most problems that are kept; how many more there are is counted. Whoever may send a document can
/// fill it with mistakes.
const MAX_PROBLEMS: usize = 1_000;
/// Longest JSON pointer in bytes; what is longer ends in `…`.
const MAX_POINTER: usize = 1_024;
/// Lines and columns are noted so many bytes apart, so that a place in a long line is found without
/// counting from its start.
const MARK_DISTANCE: usize = 1_024;

/// Does a problem stop us?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, but probably not as meant.
    Warning,
}

/// One thing wrong with a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Does it stop us?
    pub severity: Severity,
    /// What is wrong: lower case, no final period.
    pub title: String,
    /// Where; `None` only for what has no place, such as a value that nobody wrote.
    pub spot: Option<Spot>,
    /// The remedy, written beside the caret.
    pub label: Option<String>,
    /// Where, as a JSON pointer (RFC 6901); empty for the whole.
    pub pointer: String,
    /// Further lines below, such as the place of the other one of two, or a rewrite.
    pub notes: Vec<String>,
}

/// A place in a file, a variable or a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// File path, variable or flag.
    pub name: String,
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
    /// Length of the underlined part in characters, at least 1.
    pub width: usize,
    /// The line around the column, secrets masked; `None` where all of it is secret.
    pub excerpt: Option<String>,
    /// Characters of the line that are left out before the excerpt.
    n_before: usize,
    /// Is it a file? Variables and flags have no line worth naming.
    pub is_file: bool,
    order: (usize, usize),
}

/// Everything wrong with a configuration, in the order of the files and lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    /// Errors beyond those that are kept.
    n_more: usize,
}

/// A stretch of bytes of one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) source: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// All texts that a configuration is made of; places point into them.
#[derive(Debug, Default)]
pub(super) struct Texts(Vec<Text>);

#[derive(Debug)]
struct Text {
    name: String,
    text: String,
    kind: TextKind,
    hidden: Vec<Range<usize>>,
    /// Where each stretch of `MARK_DISTANCE` bytes begins.
    marks: Vec<Position>,
}

/// Line and column, both counted from 1.
#[derive(Debug, Clone, Copy)]
struct Position {
    line: usize,
    column: usize,
}

/// What kind of thing a text came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextKind {
    File,
    /// A variable or a flag.
    Variable,
    /// The same, holding a secret: never shown.
    SecretVariable,
}

// === impl Problem ===

impl Problem {
    pub(super) fn new(title: impl Into<String>, spot: Option<Spot>) -> Self {
        Self {
            severity: Severity::Error,
            title: title.into(),
            spot,
            label: None,
            pointer: String::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn warning(title: impl Into<String>, spot: Option<Spot>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::new(title, spot)
        }
    }

    pub(super) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    pub(super) fn at(mut self, mut pointer: String) -> Self {
        if pointer.len() > MAX_POINTER {
            pointer.truncate(floor_char_boundary(&pointer, MAX_POINTER));
            pointer.push('…');
        }
        self.pointer = pointer;
        self
    }

    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// The message in several lines, with a final line break; `colour` for terminals.
    pub fn render(&self, colour: bool) -> String {
        let paint = Paint(colour);
        let mut out = String::new();
        let (word, style) = match self.severity {
            Severity::Error => ("error", "1;31"),
            Severity::Warning => ("warning", "1;33"),
        };
        let _ = writeln!(
            out,
            "{}{}",
            paint.with(style, word),
            paint.with("1", &format!(": {}", self.title))
        );
        let mut gutter = 2;
        match &self.spot {
            Some(spot) => {
                gutter = spot.line.to_string().len().max(2);
                let place = if spot.is_file {
                    format!("{}:{}:{}", spot.name, spot.line, spot.column)
                } else {
                    spot.name.clone()
                };
                let _ = writeln!(out, "{:gutter$}{} {place}", "", paint.with("1;34", "-->"));
                match &spot.excerpt {
                    Some(excerpt) => {
                        let (excerpt, column, width) =
                            cropped(excerpt, spot.column - spot.n_before, spot.width);
                        let bar = paint.with("1;34", "|");
                        let caret = format!(
                            "{}{}",
                            "^".repeat(width),
                            self.label
                                .iter()
                                .map(|label| format!(" {label}"))
                                .collect::<String>()
                        );
                        let line_no = paint.with("1;34", &format!("{:>gutter$}", spot.line));
                        let _ = writeln!(out, "{:gutter$} {bar}", "");
                        let _ = writeln!(out, "{line_no} {bar} {excerpt}");
                        let _ = writeln!(
                            out,
                            "{:gutter$} {bar} {:pad$}{}",
                            "",
                            "",
                            paint.with(style, &caret),
                            pad = column - 1
                        );
                    }
                    None => self.write_label_below(&mut out, gutter, paint),
                }
            }
            None => self.write_label_below(&mut out, gutter, paint),
        }
        for note in &self.notes {
            let mut lines = note.lines();
            let _ = writeln!(
                out,
                "{:gutter$} {} {}",
                "",
                paint.with("1;34", "="),
                lines.next().unwrap_or_default()
            );
            for line in lines {
                let _ = writeln!(out, "{:gutter$}   {line}", "");
            }
        }
        out
    }

    fn write_label_below(&self, out: &mut String, gutter: usize, paint: Paint) {
        if let Some(label) = &self.label {
            let _ = writeln!(out, "{:gutter$} {} {label}", "", paint.with("1;34", "="));
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn with(self, style: &str, text: &str) -> String {
        if self.0 {
            format!("\u{1b}[{style}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }
}

fn cropped(line: &str, column: usize, width: usize) -> (String, usize, usize) {
    // A tab is one column wide to YAML, so it is shown as one space: the caret must stand below its
    // character.
    let letters: Vec<char> = line
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    if letters.len() <= MAX_EXCERPT_CHARS {
        return (letters.into_iter().collect(), column, width);
    }
    let from = (column - 1)
        .saturating_sub(MAX_EXCERPT_CHARS / 3)
        .min(letters.len());
    let to = (from + MAX_EXCERPT_CHARS).min(letters.len());
    let before = if from > 0 { "…" } else { "" };
    let after = if to < letters.len() { "…" } else { "" };
    let shown: String = letters[from..to].iter().collect();
    let column = column - from + before.chars().count();
    (
        format!("{before}{shown}{after}"),
        column,
        width.min(MAX_EXCERPT_CHARS.saturating_sub(column).max(1)),
    )
}

// === impl Problems ===

impl Problems {
    pub(super) fn push(&mut self, problem: Problem) {
        if self.kept.len() >= MAX_PROBLEMS {
            self.n_more += usize::from(problem.severity == Severity::Error);
        } else if !self.kept.contains(&problem) {
            self.kept.push(problem);
        }
    }

    pub(super) fn sorted(mut self) -> Self {
        self.kept.sort_by_key(|problem| {
            problem
                .spot
                .as_ref()
                .map_or((usize::MAX, 0), |spot| spot.order)
        });
        self
    }

    pub(super) fn extend(&mut self, problems: Problems) {
        problems
            .kept
            .into_iter()
            .for_each(|problem| self.push(problem));
        self.n_more += problems.n_more;
    }

    /// Is there nothing wrong?
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many of them are errors; the others are warnings.
    pub fn n_errors(&self) -> usize {
        self.kept
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
            + self.n_more
    }

    /// How many things are wrong.
    pub fn len(&self) -> usize {
        self.kept.len() + self.n_more
    }

    /// One after the other; at most the first 1 000 that were found.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.kept.iter()
    }

    /// All messages, an empty line between two.
    pub fn render(&self, colour: bool) -> String {
        let mut messages: Vec<String> = self
            .kept
            .iter()
            .map(|problem| problem.render(colour))
            .collect();
        if self.n_more > 0 {
            messages.push(
                Problem::new(format!("{} more mistakes are not shown", self.n_more), None)
                    .render(colour),
            );
        }
        messages.join("\n")
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.render(false).trim_end())
    }
}

impl std::error::Error for Problems {}

// === impl Texts ===

impl Texts {
    /// Takes a text in and tells its number. A byte order mark is dropped, so that columns are
    /// right.
    pub(super) fn add(&mut self, name: impl Into<String>, text: &str, kind: TextKind) -> usize {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).to_owned();
        let mut marks = vec![Position { line: 1, column: 1 }];
        for stretch in text.as_bytes().chunks_exact(MARK_DISTANCE) {
            marks.push(marks[marks.len() - 1].after(stretch));
        }
        self.0.push(Text {
            name: name.into(),
            text,
            kind,
            hidden: Vec::new(),
            marks,
        });
        self.0.len() - 1
    }

    pub(super) fn text(&self, source: usize) -> &str {
        &self.0[source].text
    }

    /// The text at a place; empty where the parser tells no place.
    pub(super) fn slice(&self, place: Place) -> &str {
        self.0[place.source]
            .text
            .get(place.start..place.end)
            .unwrap_or_default()
    }

    /// Masks a stretch wherever the line is shown.
    pub(super) fn hide(&mut self, place: Place) {
        self.0[place.source].hidden.push(place.start..place.end);
    }

    pub(super) fn spot(&self, place: Place) -> Spot {
        let source = &self.0[place.source];
        let Text {
            name,
            text,
            kind,
            hidden,
            ..
        } = source;
        let start = floor_char_boundary(text, place.start);
        let end = floor_char_boundary(text, place.end).max(start);
        let Position { line, column } = source.position(start);
        // One character more than is shown on either side, so that cropping sees that there is
        // more.
        let line_start = text[..start]
            .char_indices()
            .rev()
            .take(MAX_EXCERPT_CHARS + 1)
            .take_while(|(_, letter)| *letter != '\n')
            .last();
        let line_start = line_start.map_or(start, |(at, _)| at);
        let line_end = text[start..]
            .char_indices()
            .take(MAX_EXCERPT_CHARS + 1)
            .take_while(|(_, letter)| *letter != '\n')
            .last();
        let line_end = line_end.map_or(start, |(at, letter)| start + at + letter.len_utf8());
        let masked: String = text[line_start..line_end]
            .char_indices()
            .map(|(at, letter)| {
                if hidden
                    .iter()
                    .any(|range| range.contains(&(line_start + at)))
                {
                    '*'
                } else {
                    letter
                }
            })
            .collect();
        Spot {
            name: name.clone(),
            line,
            column,
            width: text[start..end.min(line_end)]
                .trim_end()
                .chars()
                .count()
                .max(1),
            excerpt: (*kind != TextKind::SecretVariable).then(|| masked.trim_end().to_owned()),
            n_before: column - 1 - text[line_start..start].chars().count(),
            is_file: *kind == TextKind::File,
            order: (place.source, start),
        }
    }

    /// The whole line in which a place starts.
    pub(super) fn line(&self, place: Place) -> &str {
        let text = &self.0[place.source].text;
        let (before, after) = text.split_at(floor_char_boundary(text, place.start));
        let end = before.len() + after.find('\n').unwrap_or(after.len());
        &text[before.rfind('\n').map_or(0, |at| at + 1)..end]
    }

    /// The start of a line and column, both counted from 1, as a place one character wide.
    pub(super) fn place_at(&self, source: usize, line: usize, column: usize) -> Place {
        let text = &self.0[source].text;
        let line_start: usize = text
            .split_inclusive('\n')
            .take(line.saturating_sub(1))
            .map(str::len)
            .sum();
        let start = text[line_start..]
            .char_indices()
            .nth(column.saturating_sub(1))
            .map_or(text.len(), |(at, _)| line_start + at);
        Place {
            source,
            start,
            end: start + text[start..].chars().next().map_or(0, char::len_utf8),
        }
    }

    /// `spanscore.yaml:12`, or the variable's name.
    pub(super) fn short(&self, place: Place) -> String {
        let spot = self.spot(place);
        if spot.is_file {
            format!("{}:{}", spot.name, spot.line)
        } else {
            spot.name
        }
    }

    pub(super) fn is_file(&self, source: usize) -> bool {
        self.0[source].kind == TextKind::File
    }
}

// === impl Text ===

impl Text {
    /// Of a byte that begins a character.
    fn position(&self, at: usize) -> Position {
        let mark = at / MARK_DISTANCE;
        self.marks[mark].after(&self.text.as_bytes()[mark * MARK_DISTANCE..at])
    }
}

impl Position {
    /// Behind these bytes. A character counts where it begins, since a stretch may end within one.
    fn after(self, bytes: &[u8]) -> Self {
        bytes
            .iter()
            .fold(self, |Self { line, column }, byte| match byte {
                b'\n' => Self {
                    line: line + 1,
                    column: 1,
                },
                0x80..=0xBF => Self { line, column },
                _ => Self {
                    line,
                    column: column + 1,
                },
            })
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len()))
        .rev()
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_columns_are_those_that_counting_from_the_start_finds() {
        let mut texts = Texts::default();
        let text = format!(
            "{}\n{}\n\nä{}",
            "é".repeat(700),
            "x€".repeat(3 * MARK_DISTANCE),
            "y".repeat(MARK_DISTANCE - 1)
        );
        let source = texts.add("file", &text, TextKind::File);
        let places = text.char_indices().map(|(at, _)| at).step_by(7).chain([
            MARK_DISTANCE - 1,
            MARK_DISTANCE,
            text.len(),
        ]);
        for start in places.filter(|at| text.is_char_boundary(*at)) {
            let before = &text[..start];
            let spot = texts.spot(Place {
                source,
                start,
                end: start,
            });
            let column = before.rsplit('\n').next().unwrap().chars().count() + 1;
            assert_eq!(
                (spot.line, spot.column),
                (before.matches('\n').count() + 1, column),
                "byte {start}"
            );
            assert!(spot.excerpt.unwrap().chars().count() <= 2 * (MAX_EXCERPT_CHARS + 1));
        }
    }

    #[test]
    fn mistakes_beyond_the_bound_are_counted() {
        let mut problems = Problems::default();
        (0..MAX_PROBLEMS + 7)
            .for_each(|n| problems.push(Problem::new(format!("mistake {n}"), None)));
        assert_eq!(
            (problems.iter().len(), problems.n_errors()),
            (MAX_PROBLEMS, MAX_PROBLEMS + 7)
        );
        assert!(
            problems
                .to_string()
                .ends_with("error: 7 more mistakes are not shown")
        );
    }
}
