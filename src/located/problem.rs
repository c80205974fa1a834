//! Messages about mistakes, each with its place, the line with a caret, and the remedy.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use text::is_unsafe_on_terminals;

use super::texts::{MAX_EXCERPT_CHARS, Spot, floor_char_boundary};

/// Maximum number of stored problems; further errors are only counted, because a caller of the API
/// can fill a document with mistakes.
const MAX_PROBLEMS: usize = 1_000;
/// Maximum bytes of a JSON pointer; a longer one is cut and ends in `…`.
const MAX_POINTER: usize = 1_024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// The configuration can be used, but probably does not do what was meant.
    Warning,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub severity: Severity,
    /// The mistake, in lower case and without a final period.
    pub title: String,
    /// The place; `None` for a mistake that has none, such as an unknown variable.
    pub spot: Option<Spot>,
    /// The remedy, written beside the caret.
    pub label: Option<String>,
    /// The place as a JSON pointer (RFC 6901); empty for the whole document.
    pub pointer: String,
    /// Further lines below the excerpt, such as the place of a duplicate, or the corrected text.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    n_more: usize,
}

impl Problem {
    pub fn new(title: impl Into<String>, spot: Option<Spot>) -> Self {
        Self {
            severity: Severity::Error,
            title: title.into(),
            spot,
            label: None,
            pointer: String::new(),
            notes: Vec::new(),
        }
    }

    pub fn warning(title: impl Into<String>, spot: Option<Spot>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::new(title, spot)
        }
    }

    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    pub fn at(mut self, mut pointer: String) -> Self {
        if pointer.len() > MAX_POINTER {
            pointer.truncate(floor_char_boundary(&pointer, MAX_POINTER));
            pointer.push('…');
        }
        self.pointer = pointer;
        self
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Renders the message in several lines, with a final line break; with `colour`, adds terminal
    /// colours.
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
            paint.with("1", &format!(": {}", shown(&self.title)))
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
                                .map(|label| format!(" {}", shown(label)))
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
                shown(lines.next().unwrap_or_default())
            );
            for line in lines {
                let _ = writeln!(out, "{:gutter$}   {}", "", shown(line));
            }
        }
        out
    }

    fn write_label_below(&self, out: &mut String, gutter: usize, paint: Paint) {
        if let Some(label) = &self.label {
            let label = shown(label);
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
        if self.0 { format!("\u{1b}[{style}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Escapes text for terminals, because it may contain keys and values of the document.
fn shown(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe_on_terminals) {
        return Cow::Borrowed(text);
    }
    let escaped = |c: char| {
        if is_unsafe_on_terminals(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    };
    Cow::Owned(text.chars().map(escaped).collect())
}

fn cropped(line: &str, column: usize, width: usize) -> (String, usize, usize) {
    // In YAML a tab is one column wide. It is shown as one space, so that the caret is below its
    // character.
    let letters: Vec<char> = line
        .chars()
        .map(|letter| if is_unsafe_on_terminals(letter) { ' ' } else { letter })
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

impl Problems {
    pub fn push(&mut self, problem: Problem) {
        if self.kept.len() >= MAX_PROBLEMS {
            self.n_more += usize::from(problem.severity == Severity::Error);
        } else if !self.kept.contains(&problem) {
            self.kept.push(problem);
        }
    }

    pub fn sorted(mut self) -> Self {
        self.kept.sort_by_key(|problem| {
            problem
                .spot
                .as_ref()
                .map_or((usize::MAX, 0), |spot| spot.order)
        });
        self
    }

    pub fn extend(&mut self, problems: Problems) {
        problems
            .kept
            .into_iter()
            .for_each(|problem| self.push(problem));
        self.n_more += problems.n_more;
    }

    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Counts errors that were not stored, too.
    pub fn n_errors(&self) -> usize {
        self.kept
            .iter()
            .filter(|problem| problem.severity == Severity::Error)
            .count()
            + self.n_more
    }

    pub fn len(&self) -> usize {
        self.kept.len() + self.n_more
    }

    /// Iterates over the problems, at most the first 1,000 found.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.kept.iter()
    }

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

#[cfg(test)]
mod tests {
    use super::*;

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
