//! Recognises calls that are transfers between agents and therefore not tool calls. By default, the
//! target that a name contains must be an agent of the trace, so a bank's `transfer_to_savings` is
//! a tool call.

use crate::extract::glob::glob_matches;
use crate::extract::settings::Handoffs;

/// Prefixes of transfers. The name of an agent of the trace must follow.
const TRANSFERS: &[&str] = &[
    "transfer_to_",
    "handoff_to_",
    "handoff to ",
    "transfer to ",
    "transfer_back_to_",
];

/// Returns true if a call of this name is a transfer. `mode` is the span's `gen_ai.transfer.mode`.
/// `is_agent` receives a name reduced by [`letters`], and is called only if neither the mode nor
/// the name alone gives the answer.
pub(crate) fn is_handoff(
    name: &str,
    mode: Option<&str>,
    handoffs: &Handoffs,
    is_agent: impl FnOnce(&str) -> bool,
) -> bool {
    match handoffs {
        Handoffs::Off => false,
        Handoffs::Globs(globs) => globs.iter().any(|glob| glob_matches(glob, name)),
        Handoffs::Auto if mode == Some("pass_control") => true,
        Handoffs::Auto if mode == Some("return_to_caller") => false,
        Handoffs::Auto if name == "transfer_to_agent" => true,
        Handoffs::Auto => {
            let target = TRANSFERS.iter().find_map(|word| {
                let start = name.get(..word.len())?;
                start
                    .eq_ignore_ascii_case(word)
                    .then(|| letters(&name[word.len()..]))
            });
            target.is_some_and(|target| !target.is_empty() && is_agent(&target))
        }
    }
}

/// Returns the letters and digits in lower case, the form in which an agent's name is compared with
/// the name of a transfer.
pub(crate) fn letters(name: &str) -> String {
    name.chars()
        .filter(|char| char.is_alphanumeric())
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(name: &str) -> bool {
        ["Weather Specialist", "billing_agent"]
            .map(letters)
            .contains(&name.to_owned())
    }

    #[test]
    fn a_transfer_names_an_agent_of_the_trace() {
        for name in [
            "transfer_to_agent",
            "transfer_to_billing_agent",
            "handoff_to_Weather_Specialist",
            "handoff to Weather specialist",
            "Transfer_To_BillingAgent",
        ] {
            assert!(is_handoff(name, None, &Handoffs::Auto, agents), "{name}");
            assert!(!is_handoff(name, None, &Handoffs::Off, agents), "{name}");
        }
        for name in [
            "transfer_to_savings",
            "transfer_to_",
            "handoff",
            "billing_agent",
            "délégué",
        ] {
            assert!(!is_handoff(name, None, &Handoffs::Auto, agents), "{name}");
        }
    }

    #[test]
    fn globs_replace_the_rule() {
        let handoffs = Handoffs::Globs(vec!["go_*".into(), "pass?".into()]);
        assert!(
            is_handoff("go_home", None, &handoffs, agents)
                && is_handoff("pass1", None, &handoffs, agents)
        );
        assert!(
            !is_handoff("transfer_to_agent", None, &handoffs, agents)
                && !is_handoff("pass12", None, &handoffs, agents)
        );
    }
}
