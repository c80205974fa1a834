//! The texts from which a tree was parsed, and places in these texts. A [`Spot`] is a place as
//! messages show it: line, column, and the line's text with secrets masked.

use std::ops::Range;

/// Maximum characters shown of a line; a longer line is cropped around the caret (a JSON file may
/// be one line).
pub(super) const MAX_EXCERPT_CHARS: usize = 140;
/// Line and column are stored at intervals of this many bytes, so that finding a place in a long
/// line does not count from the line's start.
const MARK_DISTANCE: usize = 1_024;

/// A place in a file, a variable or a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    pub name: String,
    /// The line, counted from 1.
    pub line: usize,
    /// The column in characters, counted from 1.
    pub column: usize,
    pub width: usize,
    /// The line around the column, with secrets masked; `None` if the whole line may be secret.
    pub excerpt: Option<String>,
    /// The number of characters that were cropped before the excerpt.
    pub(super) n_before: usize,
    /// True for a file. For a variable or a flag, messages name no line.
    pub is_file: bool,
    pub(super) order: (usize, usize),
}

/// A range of bytes in one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    pub source: usize,
    pub start: usize,
    pub end: usize,
}

/// All texts of a configuration; a [`Place`] is a range in one of them.
#[derive(Debug, Default)]
pub struct Texts(Vec<Text>);

#[derive(Debug)]
struct Text {
    name: String,
    text: String,
    kind: TextKind,
    hidden: Vec<Range<usize>>,
    /// The start of each interval of `MARK_DISTANCE` bytes.
    marks: Vec<Position>,
}

#[derive(Debug, Clone, Copy)]
struct Position {
    line: usize,
    column: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    File,
    Variable,
    /// A variable or a flag with a secret, which is never shown.
    SecretVariable,
}

impl Texts {
    /// Adds a text and returns its index. Drops a byte order mark, so that columns are right.
    pub fn add(&mut self, name: impl Into<String>, text: &str, kind: TextKind) -> usize {
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

    pub(crate) fn text(&self, source: usize) -> &str {
        &self.0[source].text
    }

    /// Returns the text at a place; empty if the parser reported no place.
    pub(crate) fn slice(&self, place: Place) -> &str {
        self.0[place.source]
            .text
            .get(place.start..place.end)
            .unwrap_or_default()
    }

    pub(crate) fn hide(&mut self, place: Place) {
        self.0[place.source].hidden.push(place.start..place.end);
    }

    pub(crate) fn is_hidden(&self, place: Place) -> bool {
        let Text { kind, hidden, .. } = &self.0[place.source];
        let overlaps = |range: &Range<usize>| range.start < place.end && place.start < range.end;
        *kind == TextKind::SecretVariable || hidden.iter().any(overlaps)
    }

    pub fn spot(&self, place: Place) -> Spot {
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
        // Take one character more on either side than is shown, so that a cut is noticed.
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

    pub(crate) fn line(&self, place: Place) -> &str {
        let text = &self.0[place.source].text;
        let (before, after) = text.split_at(floor_char_boundary(text, place.start));
        let end = before.len() + after.find('\n').unwrap_or(after.len());
        &text[before.rfind('\n').map_or(0, |at| at + 1)..end]
    }

    /// Returns the place, one character wide, of a line and column counted from 1.
    pub(crate) fn place_at(&self, source: usize, line: usize, column: usize) -> Place {
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

    /// Returns `file.yaml:12`, or the name of a variable or flag.
    pub fn short(&self, place: Place) -> String {
        let spot = self.spot(place);
        if spot.is_file { format!("{}:{}", spot.name, spot.line) } else { spot.name }
    }

    /// Returns the path of a file, as given, or the name of a variable or flag.
    pub fn name(&self, source: usize) -> &str {
        &self.0[source].name
    }

    pub fn is_file(&self, source: usize) -> bool {
        self.0[source].kind == TextKind::File
    }
}

impl Text {
    /// Returns the line and column of a byte at which a character starts.
    fn position(&self, at: usize) -> Position {
        let mark = at / MARK_DISTANCE;
        self.marks[mark].after(&self.text.as_bytes()[mark * MARK_DISTANCE..at])
    }
}

impl Position {
    /// Returns the position after these bytes. A character is counted at its first byte, because an
    /// interval may end inside a character.
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

pub(super) fn floor_char_boundary(text: &str, at: usize) -> usize {
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
}
