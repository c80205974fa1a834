//! Pure. LlamaIndex's agent workflows under OpenInference: no attribute names the agent and no span
//! is marked as its run, but every turn begins with a span `….setup_agent` whose input is the
//! `repr` of an event that names it. Such a span in, the name out; the run is the span above, and
//! where one workflow has several agents, each has the calls that follow its turn's beginning.

use super::convention::View;
use super::keys;

const NAME: &str = "current_agent_name='";

/// Does a turn of an agent begin with this span?
pub(super) fn begins_turn(span_name: &str) -> bool {
    span_name.ends_with(".setup_agent")
}

/// What is kept of the input of such a span: `current_agent_name='…'`. The event's own field is its
/// last.
pub(super) fn name_in(input: &str) -> Option<&str> {
    let start = input.rfind(NAME)?;
    let len = input[start + NAME.len()..]
        .find('\'')
        .filter(|&len| len > 0)?;
    Some(&input[start..start + NAME.len() + len + 1])
}

/// The agent whose turn begins with this span.
pub(super) fn agent_of_turn<'a>(span: &View<'a>) -> Option<&'a str> {
    if !begins_turn(span.name()) {
        return None;
    }
    name_in(span.text(keys::INPUT_VALUE)?)?
        .strip_prefix(NAME)?
        .strip_suffix('\'')
}
