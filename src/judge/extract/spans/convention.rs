//! The parts of a convention: how it recognises a tool call, an agent run and a model call, where
//! it keeps the parts of a call, and its optional hooks for whatever a single span does not show.

use std::borrow::Cow;

use hashbrown::HashMap;
use otlp::span::SpanClass;
use otlp::span::{KeyId, Span};

use super::key_bits::KeyBits;
use super::view::View;
use crate::extract::tool_call::CallPart;
use crate::extract::values::{Conversation, Envelope, Raw};

/// A position in the trace's spans.
pub(crate) type SpanIdx = usize;

/// One framework's way of writing spans: a row of data, and functions where data is not enough.
/// Each lives in a file of its own, named like it, or is a row of `look_alikes`.
#[derive(Debug)]
pub(crate) struct Convention {
    /// The file or row, and the word in `ToolCall::convention`.
    pub(crate) name: &'static str,
    /// Recognises no span without one of these attributes …
    pub(crate) marks: KeyBits,
    /// … unless the span's name begins with one of these.
    pub(crate) span_names: &'static [&'static str],
    /// True if it recognises log records.
    pub(crate) of_records: bool,
    /// Instrumentations of several authors write by it: what one of them captures of a call says
    /// nothing about another.
    pub(crate) written_by_many: bool,
    /// The span above one of its model spans names every call of the reply, so that a reply of its
    /// own that was cut hides none.
    pub(crate) reply_is_above: bool,
    pub(crate) kinds: Kinds,

    // Functions that replace what `kinds` says.
    /// Replaces `is_call` and `is_model`, where one look at the span answers for all.
    pub(crate) roles: Option<fn(&View<'_>) -> OwnRoles>,
    pub(crate) is_call: Option<fn(&View<'_>) -> bool>,
    pub(crate) call: Option<for<'a> fn(&View<'a>) -> SpanCall<'a>>,
    /// The name of the agent whose run this span is; beside `roles`, asked only of spans that are
    /// runs by those.
    pub(crate) agent_run: Option<AgentName>,
    pub(crate) is_model: Option<fn(&View<'_>) -> bool>,

    // Hooks for what is spread over several spans.
    pub(crate) prune: Option<Prune>,
    pub(crate) refine: Option<Refine>,
    /// Reads a whole run that is recorded in one span, in a trace without tool spans. The arguments
    /// are the run's span and the most bytes kept of a value.
    pub(crate) conversation: Option<fn(&View<'_>, usize) -> Option<Conversation>>,
    pub(crate) cross_trace: Option<CrossTrace>,
}

/// The roles that a convention recognises in a span.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OwnRoles {
    pub(crate) call: bool,
    pub(crate) agent_run: bool,
    pub(crate) model: bool,
}

/// Reads an agent's name from the span of its run.
pub(crate) type AgentName = for<'a> fn(&View<'a>) -> Option<Cow<'a, str>>;

/// A convention in which one attribute names the kind of span, and the parts of a call have keys of
/// their own.
#[derive(Debug)]
pub(crate) struct Kinds {
    /// The attribute that names the kind.
    pub(crate) kind: Option<KeyId>,
    /// The words for a tool call, an agent run and a model call, in any case.
    pub(crate) tool: &'static [&'static str],
    pub(crate) agent: &'static [&'static str],
    pub(crate) model: &'static [&'static str],
    /// Attributes that name the tool, the first one first.
    pub(crate) name: &'static [KeyId],
    /// The tool's name within the span's name, if no attribute names it.
    pub(crate) name_in_span: Option<fn(&str) -> Option<&str>>,
    /// A poor name within the span's name, such as a class: used where nothing else names the call.
    pub(crate) poor_name_in_span: Option<fn(&str) -> Option<&str>>,
    pub(crate) call_id: &'static [KeyId],
    pub(crate) args: &'static [KeyId],
    pub(crate) args_in: Envelope,
    pub(crate) result: &'static [KeyId],
    pub(crate) failed: Option<fn(&View<'_>) -> bool>,
    /// The agent that made the call.
    pub(crate) caller: &'static [KeyId],
    /// The agent whose run it is; without it the span's name.
    pub(crate) agent_name: &'static [KeyId],
    /// Beside this attribute the status ERROR proves nothing.
    pub(crate) status_lies_beside: Option<KeyId>,
}

/// Shortens one attribute of a span that arrives, where the generic rule would keep all or nothing.
#[derive(Debug)]
pub(crate) struct Prune {
    pub(crate) key: KeyId,
    pub(crate) applies_to: fn(&View<'_>, SpanClass) -> bool,
    /// The part of the text to keep.
    pub(crate) keep: fn(&str) -> Option<&str>,
}

/// Corrects what the spans of a trace were recognised as, each on its own.
#[derive(Debug)]
pub(crate) struct Refine {
    /// Called only for a trace in which a span has one of these attributes.
    pub(crate) when: KeyBits,
    pub(crate) apply: fn(&mut RecognisedSpans<'_, '_>),
}

/// The spans of one trace, recognised one by one; everything is indexed by span.
#[derive(Debug)]
pub(crate) struct RecognisedSpans<'t, 'a> {
    pub(crate) spans: &'t mut [RecognisedSpan<'a>],
    pub(crate) parent: &'t [Option<SpanIdx>],
    /// Every span after its parent.
    pub(crate) parents_first: &'t [SpanIdx],
    /// Corrected start, Unix nanoseconds.
    pub(crate) start: &'t [u64],
    /// The agent whose turn a span belongs to, where one run has turns of several agents.
    pub(crate) turn_agents: &'t mut HashMap<SpanIdx, &'a str>,
}

/// A span, recognised on its own.
#[derive(Debug)]
pub(crate) struct RecognisedSpan<'a> {
    pub(crate) view: View<'a>,
    /// The call that it is.
    pub(crate) call: Option<SpanCall<'a>>,
    /// The agent whose run it is.
    pub(crate) agent: Option<Cow<'a, str>>,
    pub(crate) is_model: bool,
}

/// Spans that hand around the arguments and results of calls that other traces made.
#[derive(Debug)]
pub(crate) struct CrossTrace {
    /// Returns true for the name of such a span.
    pub(crate) carries: fn(&str) -> bool,
    /// The parts of calls in such a span, by call id. The number is the most bytes kept of a value.
    pub(crate) parts: fn(&Span, usize) -> Vec<(String, CallPart)>,
}

/// A tool call as its own span shows it; what is missing is filled in from the shared keys, then
/// from the models' messages.
#[derive(Debug, Default)]
pub(crate) struct SpanCall<'a> {
    pub(crate) name: Option<Cow<'a, str>>,
    /// A poor name, such as a class: used only where nothing else names the call.
    pub(crate) poor_name: Option<&'a str>,
    pub(crate) call_id: Option<Cow<'a, str>>,
    pub(crate) args: Option<Raw<'a>>,
    pub(crate) args_in: Envelope,
    pub(crate) result: Option<Raw<'a>>,
    pub(crate) result_in: Envelope,
    pub(crate) agent: Option<Cow<'a, str>>,
    /// The framework's own mark of a failure.
    pub(crate) failed: bool,
    /// The status ERROR proves nothing here: it leaks from one span to the next.
    pub(crate) status_lies: bool,
}

// === impl Convention ===

impl Convention {
    /// Recognises no span and has no hooks: what a convention is built upon.
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

    /// Returns true if the span is an agent's run. One without a name is none.
    pub(crate) fn is_agent_run(&self, span: &View<'_>) -> bool {
        self.roles.is_none_or(|roles| roles(span).agent_run) && self.agent_run(span).is_some()
    }

    /// The call that the span is, as far as this convention's own keys show it.
    pub(crate) fn call<'a>(&self, span: &View<'a>) -> SpanCall<'a> {
        match self.call {
            Some(call) => call(span),
            None => self.kinds.call(span),
        }
    }

    /// The name of the agent whose run this span is.
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
        status_lies_beside: None,
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
            status_lies: self.status_lies_beside.is_some_and(|key| span.has(key)),
        }
    }

    fn agent_run<'a>(&self, span: &View<'a>) -> Option<Cow<'a, str>> {
        self.is(span, self.agent).then(|| {
            let name = span.first_text(self.agent_name);
            name.unwrap_or(Cow::Borrowed(span.name()))
        })
    }
}
