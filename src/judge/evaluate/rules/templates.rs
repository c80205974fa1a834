//! Translates each template about two kinds of calls into requirements.

use super::pairs::{Between, Direction, PairRequirement};
use crate::evaluate::parameters::rule::{Overlap, Rule};

/// Returns the requirements of a rule about two kinds of calls; empty for a rule about one kind.
pub(crate) fn questions(rule: &Rule) -> Vec<PairRequirement> {
    let overlap = rule.shape().overlap;
    let asks = |of_b: bool, place: Direction, between: Between| PairRequirement {
        of_b,
        place,
        bars: false,
        between,
        overlap: overlap.unwrap_or(Overlap::Fail),
    };
    let bars = |of_b: bool, place: Direction, between: Between| PairRequirement {
        bars: true,
        overlap: overlap.unwrap_or(Overlap::Pass),
        ..asks(of_b, place, between)
    };
    let (after, before) = (
        |between| asks(false, Direction::After, between),
        |between| asks(true, Direction::Before, between),
    );
    let anywhere = |of_b| asks(of_b, Direction::Anywhere, Between::Anything);
    match rule {
        Rule::Existence(_) | Rule::Absence(_) | Rule::Exactly(_) => Vec::new(),
        Rule::Init(_) | Rule::End(_) | Rule::Total(_) => Vec::new(),
        Rule::RespondedExistence(_) => vec![anywhere(false)],
        Rule::Coexistence(_) => vec![anywhere(false), anywhere(true)],
        Rule::NotCoexistence(_) => [false, true]
            .map(|of_b| bars(of_b, Direction::Anywhere, Between::Anything))
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
        Rule::NotSuccession(_) => vec![bars(true, Direction::Before, Between::Anything)],
        Rule::NotChainSuccession(_) => vec![bars(true, Direction::Before, Between::Nothing)],
    }
}

/// Returns true if every run with a matching call violates the rule because `a` and `b` are the
/// same kind: no call of the kind comes before the first one, or after the last one.
pub(crate) fn is_never_kept(rule: &Rule) -> bool {
    let shape = rule.shape();
    let asks_for_another =
        |question: &PairRequirement| !question.bars && question.place != Direction::Anywhere;
    shape.b == Some(shape.a) && questions(rule).iter().any(asks_for_another)
}
