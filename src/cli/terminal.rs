//! The colours and width of a terminal.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use text::wrapped;

use crate::config::Problems;
use crate::export::score_line::{Colour, Look};

/// Minimum width in columns. Text for a narrower terminal is not wrapped.
const MIN_WIDTH: usize = 20;

/// Returns the colours and the line width for this output.
pub(super) fn look(
    output: &(impl IsTerminal + AsFd),
    environment: &BTreeMap<String, String>,
) -> Look {
    let is_terminal = output.is_terminal();
    let width = || {
        let columns = tcgetwinsize(output).map_or(0, |size| usize::from(size.ws_col));
        match columns {
            // Serial consoles and some CI systems have a terminal whose size is unknown.
            0 => environment.get("COLUMNS")?.parse().ok(),
            columns => Some(columns),
        }
    };
    Look {
        colour: Colour::when(shows_colours(is_terminal, environment)),
        width: is_terminal
            .then(width)
            .flatten()
            .filter(|width| *width >= MIN_WIDTH),
    }
}

/// Renders messages about a document for this output. Quoted lines of the document are not wrapped,
/// because a caret in the next line points into them.
pub(super) fn rendered(problems: &Problems, look: Look) -> String {
    let text = problems.render(look.colour == Colour::Ansi);
    let line = |line: &str| {
        let mut letters = without_codes(line).trim_start().to_owned();
        letters.truncate(letters.find(' ').unwrap_or_default());
        let is_numbered = !letters.is_empty() && letters.bytes().all(|byte| byte.is_ascii_digit());
        if is_numbered {
            line.to_owned()
        } else {
            wrapped(line, look.width).into_owned()
        }
    };
    text.split_inclusive('\n').map(line).collect()
}

fn without_codes(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    let others = parts.map(|part| part.split_once('m').map_or("", |(_, rest)| rest));
    others.fold(first, |text, part| text + part)
}

/// Returns true if the output has colours. `NO_COLOR` (https://no-color.org) overrides
/// `CLICOLOR_FORCE` and `CLICOLOR` (https://bixense.com/clicolors), which override the terminal's
/// abilities.
fn shows_colours(is_terminal: bool, environment: &BTreeMap<String, String>) -> bool {
    let variable = |name: &str| environment.get(name).map(String::as_str);
    if variable("NO_COLOR").is_some_and(|value| !value.is_empty()) {
        return false;
    }
    if variable("CLICOLOR_FORCE").is_some_and(|value| !value.is_empty() && value != "0") {
        return true;
    }
    is_terminal && variable("CLICOLOR") != Some("0") && variable("TERM") != Some("dumb")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use judge::evaluate::PatternLimits;

    #[test]
    fn variables_decide_about_colours() {
        let cases = [
            (vec![], true, true),
            (vec![], false, false),
            (vec![("TERM", "dumb")], true, false),
            (vec![("CLICOLOR", "0")], true, false),
            (vec![("CLICOLOR_FORCE", "1")], false, true),
            (vec![("CLICOLOR_FORCE", "0")], false, false),
            (vec![("CLICOLOR_FORCE", "1"), ("TERM", "dumb")], true, true),
            (
                vec![("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")],
                true,
                false,
            ),
            (vec![("NO_COLOR", "")], true, true),
        ];
        for (variables, is_terminal, expected) in cases {
            let environment = variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            assert_eq!(
                shows_colours(is_terminal, &environment),
                expected,
                "{variables:?} {is_terminal}"
            );
        }
    }

    #[test]
    fn messages_are_wrapped_and_lines_of_the_document_are_not() {
        let text = "{ name: a, thresholdd: 0.5, description: a text that goes on and on }";
        let problems = config::criterion(text, None, PatternLimits::FILE).unwrap_err();
        for colour in [Colour::Plain, Colour::Ansi] {
            let width = Some(40);
            let message = without_codes(&rendered(&problems, Look { colour, width }));
            assert!(message.contains(&format!(" 1 | {text}\n")), "{message}");
            let others = message.lines().filter(|line| !line.contains("description"));
            assert!(others.clone().count() > 4, "{message}");
            let longest = others.map(|line| line.trim_end().chars().count()).max();
            assert!(longest <= Some(40), "{message}");
        }
    }
}
