//! What a terminal can show: colours and its width. Knows nothing of what is printed.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

use crate::export::score_line::{Colour, Look};

/// Narrower than this, lines are not wrapped: there is nothing left to read.
const MIN_WIDTH: usize = 20;

/// How text for people looks on this output.
pub(super) fn look(
    output: &(impl IsTerminal + AsFd),
    environment: &BTreeMap<String, String>,
) -> Look {
    let is_terminal = output.is_terminal();
    let width = || {
        let columns = tcgetwinsize(output).map_or(0, |size| usize::from(size.ws_col));
        match columns {
            // Serial consoles and some CI systems have a terminal without a size.
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

/// `NO_COLOR` (https://no-color.org) wins over `CLICOLOR_FORCE` and `CLICOLOR`
/// (https://bixense.com/clicolors), and these over what the terminal says about itself.
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
}
