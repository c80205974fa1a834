//! Criteria that select an agent by name must find the agent's runs in recorded sessions whose
//! outermost span is a workflow. Does not prove that every framework names its agents.

use judge::evaluate::Verdict;
use judge::pipeline::Rules;
use serde_json::json;

use super::{items, judged, load};

#[test]
fn an_agent_is_selected_below_the_workflow_that_wraps_it() {
    let mut n_sessions = 0;
    for scenario in load::scenarios() {
        let agent = match &*scenario.name {
            "openai-agents-openinference/bank"
            | "openai-agents-openllmetry/bank"
            | "openai-agents-otel/bank"
            | "openai-agents-logfire/responses" => "bank_agent",
            "js-openai-agents-openinference/simple" => "Travel desk",
            _ => continue,
        };
        n_sessions += 1;
        let criterion = json!({
            "name": "pays-nothing",
            "select": { "agent": agent },
            "evaluate": { "tool_calls": { "disallowed": ["^pay$"] } },
        });
        let rules = Rules::new(vec![serde_json::from_value(criterion).unwrap()]);
        let evaluations = judged(items(&scenario, &rules), &rules).evaluations;
        let verdicts = evaluations.iter().map(|evaluation| evaluation.verdict);
        assert_eq!(
            verdicts.collect::<Vec<_>>(),
            [Verdict::Pass],
            "{}",
            scenario.name
        );
    }
    assert_eq!(n_sessions, 5);
}
