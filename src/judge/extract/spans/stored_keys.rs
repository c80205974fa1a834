//! Lists the attributes, events and log records that the scan must store. Events and records are
//! built in; attributes are built in, named in the settings, read by selectors, or copied to
//! scores.

use otlp::span::{KeySet, Retention, WantedBody};

use super::conventions::log_calls;
use super::keys::RULES;
use super::log_records::MESSAGE_EVENTS;
use crate::extract::settings::Tools;

/// Returns the keys to store: the built-in ones, then the names in the settings, then `extra` (read
/// by selectors or copied to scores). Keys of `previous` retain their ids, so that spans scanned
/// earlier remain readable.
pub fn stored_keys<'a>(
    tools: &Tools,
    extra: impl IntoIterator<Item = &'a str>,
    previous: Option<&KeySet>,
) -> KeySet {
    let mut keys = previous.cloned().unwrap_or_else(|| KeySet::new(RULES));
    for name in tools.attributes() {
        keys.add(name, Retention::Value);
    }
    for name in extra {
        keys.add(name, Retention::Value);
    }
    let calls = log_calls::EVENTS
        .iter()
        .map(|&event| (event, WantedBody::Not));
    keys.want_records(calls.chain(MESSAGE_EVENTS.iter().copied()).collect());
    keys.max_value_size = tools.max_value_size;
    keys.max_messages_size = tools.max_messages_size;
    keys
}

#[cfg(test)]
mod tests {
    use super::super::keys::TOOL_NAME;
    use super::*;

    #[test]
    fn configured_names_follow_and_a_wider_set_keeps_the_ids() {
        let tools = Tools {
            name_attributes: vec!["tool.name".into(), "acme.tool".into()],
            ..Tools::default()
        };
        let first = stored_keys(&tools, ["env"], None);
        let second = stored_keys(&Tools::default(), ["deployment"], Some(&first));
        assert_eq!(first.id("tool.name"), Some(TOOL_NAME));
        assert_eq!(first.id("acme.tool"), second.id("acme.tool"));
        assert_eq!(second.len(), first.len() + 1);
    }
}
