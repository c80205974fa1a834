//! Pure. Which calls are transfers between agents, and so no calls. Knows the names of the trace's agents: a bank's `transfer_to_savings`
//! stays a call.

use super::settings::Handoffs;

/// Names that are transfers when an agent of the trace follows.
const TRANSFERS: &[&str] = &["transfer_to_", "handoff_to_", "handoff to ", "transfer to ", "transfer_back_to_"];

/// Is a call of this name a transfer? `is_agent` is asked, in letters and digits, only where the name alone does not tell.
pub(super) fn is_handoff(name: &str, handoffs: &Handoffs, is_agent: impl FnOnce(&str) -> bool) -> bool {
    match handoffs {
        Handoffs::Off => false,
        Handoffs::Globs(globs) => globs.iter().any(|glob| matches(glob, name)),
        Handoffs::Auto if name == "transfer_to_agent" => true,
        Handoffs::Auto => {
            let target = TRANSFERS.iter().find_map(|word| {
                let start = name.get(..word.len())?;
                start.eq_ignore_ascii_case(word).then(|| letters(&name[word.len()..]))
            });
            target.is_some_and(|target| !target.is_empty() && is_agent(&target))
        }
    }
}

/// Letters and digits, in lower case: how a name is compared with a tool made of it.
pub(super) fn letters(name: &str) -> String {
    name.chars().filter(|char| char.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Does the whole name match the glob? `*` is any text, `?` any one character. Linear in the name for each star: it never hangs.
pub(super) fn matches(glob: &str, name: &str) -> bool {
    let (glob, name): (Vec<char>, Vec<char>) = (glob.chars().collect(), name.chars().collect());
    let (mut glob_at, mut name_at) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while name_at < name.len() {
        match glob.get(glob_at) {
            Some('*') => {
                star = Some((glob_at, name_at));
                glob_at += 1;
            }
            Some(&char) if char == '?' || char == name[name_at] => {
                glob_at += 1;
                name_at += 1;
            }
            _ => {
                let Some((star_at, taken)) = star else { return false };
                star = Some((star_at, taken + 1));
                glob_at = star_at + 1;
                name_at = taken + 1;
            }
        }
    }
    glob[glob_at..].iter().all(|&char| char == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(name: &str) -> bool {
        ["Weather Specialist", "billing_agent"].map(letters).contains(&name.to_owned())
    }

    #[test]
    fn a_transfer_is_told_by_the_agents_of_the_trace() {
        for name in [
            "transfer_to_agent",
            "transfer_to_billing_agent",
            "handoff_to_Weather_Specialist",
            "handoff to Weather specialist",
            "Transfer_To_BillingAgent",
        ] {
            assert!(is_handoff(name, &Handoffs::Auto, agents), "{name}");
            assert!(!is_handoff(name, &Handoffs::Off, agents), "{name}");
        }
        for name in ["transfer_to_savings", "transfer_to_", "handoff", "billing_agent", "délégué"] {
            assert!(!is_handoff(name, &Handoffs::Auto, agents), "{name}");
        }
    }

    #[test]
    fn globs_replace_the_rule() {
        let handoffs = Handoffs::Globs(vec!["go_*".into(), "pass?".into()]);
        assert!(is_handoff("go_home", &handoffs, agents) && is_handoff("pass1", &handoffs, agents));
        assert!(!is_handoff("transfer_to_agent", &handoffs, agents) && !is_handoff("pass12", &handoffs, agents));
    }
}
