//! The structure of a convention: how it recognises a tool call, an agent run and a model call,
//! which keys contain the values of a call, and optional hooks.

use std::borrow::Cow;

use hashbrown::HashMap;
use otlp::span::SpanClass;
use otlp::span::{KeyBits, KeyId};

use super::view::View;
use crate::extract::tool_call::CallPart;
use crate::extract::values::{Conversation, Envelope, Raw};

/// An index in the trace's spans.
pub(crate) type SpanIdx = usize;

/// The spans of one framework, described by data, and by functions where data is not enough. Each
/// convention has a file with its name, or a row in `look_alikes`.
#[derive(Debug)]
pub(crate) struct Convention {
    /// The name of the file or row; also the value of `ToolCall::convention`.
    pub(crate) name: &'static str,
    /// Attributes that make a span a candidate for the convention.
    pub(crate) marks: KeyBits,
    /// Prefixes of span names that make a span a candidate for the convention.
    pub(crate) span_names: &'static [&'static str],
    /// True if the convention recognises log records.
    pub(crate) of_records: bool,
    /// True if instrumentations by several authors use the convention. Values that one of them
    /// captures then prove nothing about another.
    pub(crate) written_by_many: bool,
    /// True if the span above a model span names every call of the reply, so that a cut reply hides
    /// no call.
    pub(crate) reply_is_above: bool,
    pub(crate) kinds: Kinds,

    // Functions that replace parts of `kinds`.
    /// Determines all roles in one pass; replaces `is_call` and `is_model`.
    pub(crate) roles: Option<fn(&View<'_>) -> OwnRoles>,
    pub(crate) is_call: Option<fn(&View<'_>) -> bool>,
    pub(crate) call: Option<for<'a> fn(&View<'a>) -> SpanCall<'a>>,
    /// Returns the agent whose run the span records. If `roles` is set, called only for agent runs.
    pub(crate) agent_run: Option<AgentName>,
    pub(crate) is_model: Option<fn(&View<'_>) -> bool>,

    // Optional hooks. `prune` reads an arriving span; the other hooks read spans of a closed trace.
    pub(crate) prune: Option<Prune>,
    pub(crate) refine: Option<Refine>,
    /// Reads a whole run that one span records, in a trace without tool spans. The arguments are
    /// the run's span and the maximum size of a stored value in bytes.
    pub(crate) conversation: Option<fn(&View<'_>, usize) -> Option<Conversation>>,
    pub(crate) cross_trace: Option<CrossTrace>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnRoles {
    pub(crate) call: bool,
    pub(crate) agent_run: bool,
    pub(crate) model: bool,
}

/// Reads an agent's name from the span of its run.
pub(crate) type AgentName = for<'a> fn(&View<'a>) -> Option<Cow<'a, str>>;

/// A convention in which one attribute names the kind of span, and each part of a call has its own
/// key.
#[derive(Debug)]
pub(crate) struct Kinds {
    pub(crate) kind: Option<KeyId>,
    /// The values of `kind` for a tool call, an agent run and a model call; case is ignored.
    pub(crate) tool: &'static [&'static str],
    pub(crate) agent: &'static [&'static str],
    pub(crate) model: &'static [&'static str],
    /// The attributes that may name the tool, in order of precedence.
    pub(crate) name: &'static [KeyId],
    /// Extracts the tool's name from the span's name; used if no attribute names the tool.
    pub(crate) name_in_span: Option<fn(&str) -> Option<&str>>,
    /// Extracts from the span's name a name that may be a class name, not the tool's; used if
    /// nothing else names the call.
    pub(crate) poor_name_in_span: Option<fn(&str) -> Option<&str>>,
    pub(crate) call_id: &'static [KeyId],
    pub(crate) args: &'static [KeyId],
    pub(crate) args_in: Envelope,
    pub(crate) result: &'static [KeyId],
    pub(crate) failed: Option<fn(&View<'_>) -> bool>,
    /// Attributes that name the agent that made the call.
    pub(crate) caller: &'static [KeyId],
    /// Attributes that name the run's agent. Without them the span's name is the agent's.
    pub(crate) agent_name: &'static [KeyId],
    /// If a span has this attribute, its status ERROR proves nothing.
    pub(crate) error_status_ignored_beside: Option<KeyId>,
}

/// Shortens or drops an attribute of an arriving span, instead of the generic rule.
#[derive(Debug)]
pub(crate) struct Prune {
    pub(crate) key: KeyId,
    pub(crate) applies_to: fn(&View<'_>, SpanClass) -> bool,
    /// Returns the part of the text to store; `None` drops the attribute.
    pub(crate) shorten: fn(&str) -> Option<&str>,
}

/// Corrects roles that depend on several spans of a trace.
#[derive(Debug)]
pub(crate) struct Refine {
    /// The hook runs only if the trace has at least one of these attributes.
    pub(crate) when: KeyBits,
    pub(crate) apply: fn(&mut RecognisedSpans<'_, '_>),
}

/// The spans of one trace, recognised one by one. The lists are indexed by span, except
/// `parents_first`.
#[derive(Debug)]
pub(crate) struct RecognisedSpans<'t, 'a> {
    pub(crate) spans: &'t mut [RecognisedSpan<'a>],
    pub(crate) parent: &'t [Option<SpanIdx>],
    /// All spans, each after its parent.
    pub(crate) parents_first: &'t [SpanIdx],
    /// The corrected start in Unix nanoseconds.
    pub(crate) start: &'t [u64],
    /// The agent whose turn a span belongs to, if one run has turns of several agents.
    pub(crate) turn_agents: &'t mut HashMap<SpanIdx, &'a str>,
}

/// A span recognised without regard to other spans, and then corrected by the hooks.
#[derive(Debug)]
pub(crate) struct RecognisedSpan<'a> {
    pub(crate) view: View<'a>,
    pub(crate) call: Option<SpanCall<'a>>,
    /// The agent, if the span records an agent's run.
    pub(crate) agent: Option<Cow<'a, str>>,
    pub(crate) is_model: bool,
}

/// Recognises spans that contain arguments and results of calls in other traces.
#[derive(Debug)]
pub(crate) struct CrossTrace {
    /// Returns true for the name of a span that contains arguments or results.
    pub(crate) carries: fn(&str) -> bool,
    /// Reads arguments and results of calls from the span, each with its call id. The number is the
    /// maximum size of a stored value in bytes.
    pub(crate) parts: fn(&View<'_>, usize) -> Vec<(String, CallPart)>,
}

/// A tool call as its span records it. Missing fields are filled from the shared keys, then from
/// the models' messages.
#[derive(Debug, Default)]
pub(crate) struct SpanCall<'a> {
    pub(crate) name: Option<Cow<'a, str>>,
    /// A name that may be a class name, not the tool's; used only if nothing else names the call.
    pub(crate) poor_name: Option<&'a str>,
    pub(crate) call_id: Option<Cow<'a, str>>,
    pub(crate) args: Option<Raw<'a>>,
    pub(crate) args_in: Envelope,
    pub(crate) result: Option<Raw<'a>>,
    pub(crate) result_in: Envelope,
    pub(crate) agent: Option<Cow<'a, str>>,
    /// True if the framework marked a failure.
    pub(crate) failed: bool,
    /// True if the status ERROR proves nothing, because the framework copies it from span to span.
    pub(crate) ignores_error_status: bool,
}

// === impl Convention ===

impl Convention {
    /// Recognises no span and has no hooks; the base of every convention.
    pub(crate) const NONE: Self = Self {
        name: "",
        marks: KeyBits::NONE,
        span_names: &[],
        of_records: false,
        written_by_many: false,
        reply_is_above: false,
        kinds: Kinds::NONE,
        roles: None,
        is_call: None,
        call: None,
        agent_run: None,
        is_model: None,
        prune: None,
        refine: None,
        conversation: None,
        cross_trace: None,
    };

    pub(crate) fn roles(&self, span: &View<'_>) -> OwnRoles {
        if let Some(roles) = self.roles {
            let roles = roles(span);
            let agent_run = roles.agent_run && self.agent_run(span).is_some();
            return OwnRoles { agent_run, ..roles };
        }
        let is = |own: Option<fn(&View<'_>) -> bool>, words: &[&str]| match own {
            Some(own) => own(span),
            None => self.kinds.is(span, words),
        };
        OwnRoles {
            call: is(self.is_call, self.kinds.tool),
            agent_run: self.agent_run(span).is_some(),
            model: is(self.is_model, self.kinds.model),
        }
    }

    /// Returns true if the span is an agent run. A run must have a name.
    pub(crate) fn is_agent_run(&self, span: &View<'_>) -> bool {
        self.roles.is_none_or(|roles| roles(span).agent_run) && self.agent_run(span).is_some()
    }

    /// Returns the call of the span, from this convention's own keys.
    pub(crate) fn call<'a>(&self, span: &View<'a>) -> SpanCall<'a> {
        match self.call {
            Some(call) => call(span),
            None => self.kinds.call(span),
        }
    }

    pub(crate) fn agent_run<'a>(&self, span: &View<'a>) -> Option<Cow<'a, str>> {
        let name = match self.agent_run {
            Some(agent_run) => agent_run(span),
            None => self.kinds.agent_run(span),
        };
        name.filter(|name| !name.is_empty())
    }
}

// === impl Kinds ===

impl Kinds {
    pub(crate) const NONE: Self = Self {
        kind: None,
        tool: &[],
        agent: &[],
        model: &[],
        name: &[],
        name_in_span: None,
        poor_name_in_span: None,
        call_id: &[],
        args: &[],
        args_in: Envelope::Plain,
        result: &[],
        failed: None,
        caller: &[],
        agent_name: &[],
        error_status_ignored_beside: None,
    };

    pub(crate) fn is(&self, span: &View<'_>, words: &[&str]) -> bool {
        let kind = self.kind;
        kind.is_some_and(|kind| words.iter().any(|word| span.is(kind, word)))
    }

    pub(crate) fn call<'a>(&self, span: &View<'a>) -> SpanCall<'a> {
        let in_span = |part: Option<fn(&str) -> Option<&str>>| part?(span.name());
        SpanCall {
            name: span
                .first_text(self.name)
                .or_else(|| in_span(self.name_in_span).map(Cow::Borrowed)),
            poor_name: in_span(self.poor_name_in_span),
            call_id: span.first_text(self.call_id),
            args: span.first_raw(self.args),
            args_in: self.args_in,
            result: span.first_raw(self.result),
            result_in: Envelope::Plain,
            agent: span.first_text(self.caller),
            failed: self.failed.is_some_and(|failed| failed(span)),
            ignores_error_status: self
                .error_status_ignored_beside
                .is_some_and(|key| span.has(key)),
        }
    }

    fn agent_run<'a>(&self, span: &View<'a>) -> Option<Cow<'a, str>> {
        self.is(span, self.agent).then(|| {
            let name = span.first_text(self.agent_name);
            name.unwrap_or(Cow::Borrowed(span.name()))
        })
    }
}
