//! Translates each template about two kinds of calls into requirements.

use super::pairs::{Between, Direction, PairRequirement};
use crate::evaluate::parameters::rule::{Overlap, Rule};

/// Returns the requirements of a rule about two kinds of calls; empty for a rule about one kind.
pub(crate) fn requirements(rule: &Rule) -> Vec<PairRequirement> {
    let overlap = rule.shape().overlap;
    let required = |of_b: bool, place: Direction, between: Between| PairRequirement {
        of_b,
        place,
        is_forbidden: false,
        between,
        overlap: overlap.unwrap_or(Overlap::Fail),
    };
    let forbidden = |of_b: bool, place: Direction, between: Between| PairRequirement {
        is_forbidden: true,
        overlap: overlap.unwrap_or(Overlap::Pass),
        ..required(of_b, place, between)
    };
    let (after, before) = (
        |between| required(false, Direction::After, between),
        |between| required(true, Direction::Before, between),
    );
    let anywhere = |of_b| required(of_b, Direction::Anywhere, Between::Anything);
    match rule {
        Rule::Existence(_) | Rule::Absence(_) | Rule::Exactly(_) => Vec::new(),
        Rule::Init(_) | Rule::End(_) | Rule::Total(_) => Vec::new(),
        Rule::RespondedExistence(_) => vec![anywhere(false)],
        Rule::Coexistence(_) => vec![anywhere(false), anywhere(true)],
        Rule::NotCoexistence(_) => [false, true]
            .map(|of_b| forbidden(of_b, Direction::Anywhere, Between::Anything))
            .into(),
        Rule::Response(_) => vec![after(Between::Anything)],
        Rule::AlternateResponse(_) => vec![after(Between::NotOwnKind)],
        Rule::ChainResponse(_) => vec![after(Between::Nothing)],
        Rule::Precedence(_) => vec![before(Between::Anything)],
        Rule::AlternatePrecedence(_) => vec![before(Between::NotOwnKind)],
        Rule::ChainPrecedence(_) => vec![before(Between::Nothing)],
        Rule::Succession(_) => vec![after(Between::Anything), before(Between::Anything)],
        Rule::AlternateSuccession(_) => {
            vec![after(Between::NotOwnKind), before(Between::NotOwnKind)]
        }
        Rule::ChainSuccession(_) => vec![after(Between::Nothing), before(Between::Nothing)],
        Rule::NotSuccession(_) => vec![forbidden(true, Direction::Before, Between::Anything)],
        Rule::NotChainSuccession(_) => vec![forbidden(true, Direction::Before, Between::Nothing)],
    }
}

/// Returns true if every run with a matching call violates the rule because `a` and `b` are the
/// same kind: no call of the kind comes before the first one, or after the last one.
pub(crate) fn is_never_kept(rule: &Rule) -> bool {
    let shape = rule.shape();
    let requires_another = |requirement: &PairRequirement| {
        !requirement.is_forbidden && requirement.place != Direction::Anywhere
    };
    shape.b == Some(shape.a) && requirements(rule).iter().any(requires_another)
}
