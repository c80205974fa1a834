//! Decides by id, name and arguments whether two spans report the same call.

use std::borrow::Borrow;

use serde_json::Value as Json;

use crate::extract::tool_call::Payload;
use crate::extract::values::equality;

/// The fields of a report that identify a call. An absent field contradicts no value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallReport<'a> {
    pub(crate) call_id: Option<&'a str>,
    pub(crate) name: Option<&'a str>,
    pub(crate) args: Option<&'a Payload>,
}

impl CallReport<'_> {
    /// Returns true if both reports can be of the same call. Their ids must be equal, or one has no
    /// id and their names are equal. Names and arguments must not contradict each other: ids are
    /// reused, so an equal id alone proves nothing.
    pub(crate) fn agrees_with(&self, other: &CallReport<'_>) -> bool {
        let is_known_same = match (self.call_id, other.call_id) {
            (Some(id), Some(other_id)) => id == other_id,
            _ => self.name.is_some() && self.name == other.name,
        };
        let names_differ = match (self.name, other.name) {
            (Some(name), Some(other_name)) => name != other_name,
            _ => false,
        };
        is_known_same && !names_differ && !args_differ(self.args, other.args)
    }
}

/// Returns true if the arguments show that these are two calls. Absent and cut arguments prove
/// nothing.
pub(crate) fn args_differ(one: Option<&Payload>, other: Option<&Payload>) -> bool {
    let (Some(one), Some(other)) = (one, other) else {
        return false;
    };
    !one.is_cut()
        && !other.is_cut()
        && equality::equal(one.json(), other.json()) == Some(false)
        && !lost_its_name(Some(one), Some(other))
        && !lost_its_name(Some(other), Some(one))
}

/// Returns the more complete arguments of two reports of a call; the outer ones if both are equally
/// complete.
pub(crate) fn more_of<P: Borrow<Payload>>(outer: Option<P>, inner: Option<P>) -> Option<P> {
    let [one, other] = [&outer, &inner].map(|args| args.as_ref().map(Borrow::borrow));
    let is_less =
        lost_its_name(one, other) || (!one.is_some_and(is_clear) && other.is_some_and(is_clear));
    if is_less { inner } else { outer }
}

/// Returns true if the arguments are uncut and comparable with any others.
pub(crate) fn is_clear(args: &Payload) -> bool {
    !args.is_cut() && equality::is_comparable(args.json())
}

/// Returns true if only `named` has arguments, or if `bare` has only the text of a single argument
/// whose name is known from `named`.
pub(crate) fn lost_its_name(bare: Option<&Payload>, named: Option<&Payload>) -> bool {
    let (bare, named) = match (bare, named) {
        (_, None) => return false,
        (None, Some(_)) => return true,
        (Some(bare), Some(named)) => (bare, named),
    };
    let Json::Object(fields) = named.json() else {
        return false;
    };
    !bare.is_cut()
        && !bare.json().is_object()
        && fields.len() == 1
        && fields
            .values()
            .all(|value| value == bare.json() || value.as_str() == Some(&bare.text))
}
