//! Pure. A span in, what it is out: a tool call, an agent run, a model's call. Asks the conventions
//! in their order, then fills in from the keys that all of them share. Looks at one span at a time;
//! what other spans tell is joined later.

use std::borrow::Cow;
use std::sync::Arc;

use hashbrown::HashSet;

use super::brought::{Bringing, BroughtKeys};
use super::convention::{self, Call, Convention, View, first_raw, first_text, is, is_true, text};
use super::keys;
use super::log_messages;
use super::tool_name;
use super::{CONVENTIONS, HouseConvention, Tools};
use crate::assemble::Mark;
use crate::span::{KeyId, KeySet, Span, Value};

/// The settings of `tools`, made ready: built once for a configuration, asked for every span.
#[derive(Debug, Clone)]
pub struct Recogniser {
    pub(super) tools: Tools,
    pub(super) keys: Arc<KeySet>,
    names: Vec<KeyId>,
    ignore: HashSet<String>,
    house: Vec<House>,
    /// What selectors read and scores copy.
    readable: Vec<(KeyId, Arc<str>)>,
    brought_keys: BroughtKeys,
    /// Counts the changes of `tools`, so that what was recognised by others is known to be stale; 0
    /// once it cannot count any further.
    edition: u8,
}

/// A convention of the settings.
#[derive(Debug, Clone)]
pub(super) struct House {
    name: Arc<str>,
    matches: Vec<(KeyId, String)>,
    name_from: Option<KeyId>,
    args_from: Option<KeyId>,
    result_from: Option<KeyId>,
    id_from: Option<KeyId>,
}

/// What a span is.
#[derive(Debug, Default)]
pub(super) struct Recognised<'a> {
    /// A tool call, and who tells its parts.
    pub(super) teller: Option<Teller<'a>>,
    /// The convention that recognised the call, or else the run or model.
    pub(super) convention: &'a str,
    /// The name of the agent whose run it is.
    pub(super) agent: Option<Cow<'a, str>>,
    pub(super) model: bool,
    /// A tool call by its marks, but made up by the framework (`tool.synthesized`).
    pub(super) synthesized: bool,
}

/// Who tells the parts of a call: most spans are only asked whether they are one.
#[derive(Debug, Clone, Copy)]
pub(super) enum Teller<'a> {
    BuiltIn(&'static Convention),
    House(&'a House),
    /// The name stands in an attribute of the settings.
    Named(KeyId),
}

impl Teller<'_> {
    /// The call that the span is, as far as its convention tells.
    pub(super) fn call<'a>(self, span: &View<'a>) -> Call<'a> {
        match self {
            Self::BuiltIn(convention) => (convention.call)(span),
            Self::House(house) => house.call(span),
            Self::Named(key) => tool_name::named_in(span, key),
        }
    }
}

const NAMES: &[KeyId] = &[
    keys::GEN_AI_TOOL_NAME,
    keys::TOOL_NAME,
    keys::AI_TOOL_NAME,
    keys::FUNCTION_NAME,
];
const CALL_IDS: &[KeyId] = &[
    keys::GEN_AI_CALL_ID,
    keys::GEN_AI_CALL_ID_GEMINI,
    keys::OI_CALL_ID,
    keys::TOOL_ID,
    keys::TOOL_CALL_ID,
    keys::TOOL_CALL_ID_FLAT,
    keys::AI_CALL_ID,
    keys::TOOL_USE_ID,
];
const ARGS: &[KeyId] = &[
    keys::GEN_AI_ARGS,
    keys::AI_ARGS,
    keys::INPUT_VALUE,
    keys::TRACELOOP_INPUT,
    keys::ADK_ARGS,
    keys::TOOL_ARGUMENTS,
    keys::TOOL_ARGS,
    keys::TOOL_INPUT,
    keys::PYDANTIC_ARGS,
];
const RESULTS: &[KeyId] = &[
    keys::GEN_AI_RESULT,
    keys::AI_RESULT,
    keys::OUTPUT_VALUE,
    keys::TRACELOOP_OUTPUT,
    keys::ADK_RESULT,
    keys::TOOL_RESULT,
    keys::TOOL_OUTPUT,
    keys::PYDANTIC_RESULT,
];
/// A span's own agent, the narrower one first: a sub-agent's spans can carry the name of the agent
/// that called it.
const AGENTS: &[KeyId] = &[
    keys::SUBAGENT_NAME,
    keys::GEN_AI_AGENT,
    keys::AGENT_NAME,
    keys::PYDANTIC_AGENT,
    keys::LANGFUSE_AGENT,
    keys::LANGSMITH_AGENT,
    keys::TRACELOOP_AGENT,
    keys::AI_FUNCTION,
    keys::ENTITY_NAME,
];

impl Recogniser {
    /// Made for the settings, and for the attributes that selectors read and scores copy. Every key
    /// of `previous` keeps its id, so that spans taken under it can still be read.
    pub fn new<'a>(
        tools: &Tools,
        readable: impl IntoIterator<Item = &'a str>,
        previous: Option<&Self>,
    ) -> Self {
        let readable: Vec<&str> = readable.into_iter().collect();
        let mut keys = keys::keys(
            tools,
            readable.iter().copied(),
            previous.map(|previous| &*previous.keys),
        );
        let edition = match previous {
            None => 1,
            Some(Self { edition: 0, .. }) => 0,
            Some(previous) if previous.tools == *tools => previous.edition,
            Some(previous) => previous.edition.wrapping_add(1),
        };
        let brought_keys = BroughtKeys::add(&mut keys, Bringing::default());
        let keys = Arc::new(keys);
        let readable = readable
            .into_iter()
            .filter_map(|name| Some((keys.id(name)?, Arc::from(name))))
            .collect();
        let id = |name: &Option<String>| name.as_deref().and_then(|name| keys.id(name));
        let house = (tools.conventions.iter())
            .map(|house| House {
                name: house.name.as_str().into(),
                matches: house
                    .matches
                    .iter()
                    .filter_map(|(key, value)| Some((keys.id(key)?, value.clone())))
                    .collect(),
                name_from: id(&house.name_from),
                args_from: id(&house.args_from),
                result_from: id(&house.result_from),
                id_from: id(&house.id_from),
            })
            .filter(|house| !house.matches.is_empty())
            .collect();
        let names = tools
            .name_attributes
            .iter()
            .filter_map(|name| keys.id(name))
            .collect();
        Self {
            tools: tools.clone(),
            names,
            ignore: tools.ignore.iter().cloned().collect(),
            house,
            keys,
            readable,
            brought_keys,
            edition,
        }
    }

    /// The same, with what runs may say about their own judgement.
    pub fn bringing(mut self, bringing: Bringing) -> Self {
        self.brought_keys = BroughtKeys::add(Arc::make_mut(&mut self.keys), bringing);
        self
    }

    /// The same, also reading these attributes.
    pub fn reading<'a>(&'a self, further: impl IntoIterator<Item = &'a str>) -> Self {
        let readable = self.readable.iter().map(|(_, name)| &**name);
        Self::new(&self.tools, readable.chain(further), Some(self))
    }

    /// The keys that the scan must keep.
    pub fn keys(&self) -> &Arc<KeySet> {
        &self.keys
    }

    pub(super) fn readable(&self) -> &[(KeyId, Arc<str>)] {
        &self.readable
    }

    pub(super) fn brought_keys(&self) -> BroughtKeys {
        self.brought_keys
    }

    /// Is a call of this name no call (`tools.ignore`)?
    pub(super) fn ignores(&self, name: &str) -> bool {
        self.ignore.contains(name)
    }

    /// What a span is, that bears this mark: most spans of a trace are neither calls nor runs, and
    /// need not be looked at again.
    pub(super) fn recognise_marked<'a>(&'a self, span: &View<'a>, mark: Mark) -> Recognised<'a> {
        let is_known =
            mark.edition != 0 && mark.edition == self.edition && !mark.tool_call && !mark.agent_run;
        if is_known {
            Recognised {
                model: mark.model,
                ..Recognised::default()
            }
        } else {
            self.recognise(span)
        }
    }

    pub(super) fn recognise<'a>(&'a self, span: &View<'a>) -> Recognised<'a> {
        let mut recognised = Recognised::default();
        if let Some(house) = self.house.iter().find(|house| house.is_call(span)) {
            (recognised.teller, recognised.convention) = (Some(Teller::House(house)), &house.name);
        }
        let mut asked = span
            .marks()
            .fold(ASKED_BY_NAME, |asked, mark| asked | ASKED[mark]);
        while asked != 0 {
            recognised.ask(&CONVENTIONS[asked.trailing_zeros() as usize], span);
            asked &= asked - 1;
        }
        if recognised.teller.is_none()
            && !recognised.model
            && let Some(&key) = self
                .names
                .iter()
                .find(|&&key| tool_name::is_named_in(span, key))
        {
            (recognised.teller, recognised.convention) =
                (Some(Teller::Named(key)), tool_name::TOOL_NAME.name);
            recognised.agent = None;
        }
        recognised.synthesized = recognised.teller.is_some() && is_true(span, keys::SYNTHESIZED);
        if recognised.synthesized {
            recognised.teller = None;
        }
        recognised
    }
}

/// The conventions to ask, as bits: whatever the span, and for each mark that it has. Most spans
/// have one mark, of one convention.
const ASKED_BY_NAME: u32 = asked(None);
const ASKED: [u32; 64] = {
    let mut by_mark = [0; 64];
    let mut mark = 0;
    while mark < 64 {
        by_mark[mark] = asked(Some(mark));
        mark += 1;
    }
    by_mark
};

const fn asked(mark: Option<usize>) -> u32 {
    let mut asked = 0;
    let mut at = 0;
    while at < CONVENTIONS.len() {
        let marks = CONVENTIONS[at].marks;
        let is_asked = match mark {
            None => marks == convention::SPAN_NAME,
            Some(mark) => marks >> mark & 1 == 1,
        };
        asked |= (is_asked as u32) << at;
        at += 1;
    }
    asked
}

impl<'a> Recognised<'a> {
    fn ask(&mut self, convention: &'static Convention, span: &View<'a>) {
        if self.teller.is_none() && !self.model && (convention.is_call)(span) {
            (self.teller, self.convention) = (Some(Teller::BuiltIn(convention)), convention.name);
        }
        if self.agent.is_none() {
            self.agent = (convention.agent_run)(span).filter(|name| !name.is_empty());
        }
        if self.teller.is_none() && !self.model {
            self.model = (convention.is_model)(span);
        }
        if self.convention.is_empty() && (self.agent.is_some() || self.model) {
            self.convention = convention.name;
        }
    }
}

impl House {
    fn is_call(&self, span: &View<'_>) -> bool {
        let matches = |(key, word): &(KeyId, String)| {
            span.get(*key)
                .and_then(attribute_text)
                .is_some_and(|text| text == *word)
        };
        self.matches.iter().all(matches)
    }

    fn call<'a>(&self, span: &View<'a>) -> Call<'a> {
        Call {
            name: self
                .name_from
                .and_then(|key| text(span, key))
                .or_else(|| Some(Cow::Borrowed(span.name()))),
            call_id: self.id_from.and_then(|key| text(span, key)),
            args: self.args_from.and_then(|key| convention::raw(span, key)),
            result: self.result_from.and_then(|key| convention::raw(span, key)),
            ..Call::default()
        }
    }
}

/// The same with what the convention's own keys lack.
pub(super) fn filled<'a>(mut call: Call<'a>, span: &View<'a>, is_agent_run: bool) -> Call<'a> {
    call.name = call
        .name
        .take()
        .or_else(|| first_text(span, NAMES))
        .filter(|name| !name.trim_start().is_empty());
    call.call_id = call.call_id.take().or_else(|| first_text(span, CALL_IDS));
    let other = |keys: &[KeyId]| first_raw(span, keys).filter(|_| span.has_any(keys::KINDS));
    call.args = call.args.or_else(|| other(ARGS));
    call.result = call.result.or_else(|| other(RESULTS));
    if call.agent.is_none() {
        // The agent of a call that is a run itself is the callee; who called it stands in
        // LangChain's metadata alone.
        call.agent = if is_agent_run {
            metadata(span, "lc_agent_name")
        } else {
            own_agent(span)
        };
    }
    call.failed |= failed(span);
    call
}

/// The marks of a failure that all conventions share.
fn failed(span: &View<'_>) -> bool {
    span.has(keys::ERROR_TYPE)
        || span.events().any(|event| event.name == keys::EXCEPTION)
        || is(span, keys::TOOL_STATUS, "error")
        || is(span, keys::TASK_STATUS, "failure")
        || is(span, keys::LANGFUSE_LEVEL, "ERROR")
        || is(span, keys::TOOL_SUCCESS, "false")
        || span.get(keys::TOOL_SUCCESS) == Some(Value::Bool(false))
}

/// The agent that a span names as its own.
pub(super) fn own_agent<'a>(span: &View<'a>) -> Option<Cow<'a, str>> {
    first_text(span, AGENTS).or_else(|| metadata(span, "lc_agent_name"))
}

/// An entry of LangChain's `metadata`, which is JSON text: read without parsing all of it.
pub(super) fn metadata<'a>(span: &View<'a>, name: &str) -> Option<Cow<'a, str>> {
    let text = span.text(keys::METADATA)?;
    let at = text.find(&format!("\"{name}\""))?;
    let rest = text[at + name.len() + 2..]
        .trim_start()
        .strip_prefix(':')?
        .trim_start();
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<serde_json::Value>();
    match values.next()?.ok()? {
        serde_json::Value::String(text) if !text.is_empty() => Some(Cow::Owned(text)),
        serde_json::Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

/// An attribute as the text that selectors compare: numbers and booleans as their JSON text.
pub(super) fn attribute_text(value: Value<'_>) -> Option<Cow<'_, str>> {
    Some(match value {
        Value::Str(text) | Value::Json(text) => Cow::Borrowed(text),
        Value::Bool(value) => Cow::Owned(value.to_string()),
        Value::Int(value) => Cow::Owned(value.to_string()),
        Value::Double(value) => Cow::Owned(serde_json::Value::from(value).to_string()),
        Value::Bytes(_) => return None,
    })
}

/// What a span is, as far as assembly needs it. Asked once for each span that arrives.
pub fn mark(span: &Span, recogniser: &Recogniser) -> Mark {
    let span = &View::new(span);
    if log_messages::is_held(span) {
        return Mark {
            record: true,
            edition: recogniser.edition,
            ..Mark::default()
        };
    }
    let recognised = recogniser.recognise(span);
    let update = match span.get(keys::JUDGMENT_UPDATE) {
        Some(Value::Int(update)) => u64::try_from(update).ok(),
        Some(Value::Str(update)) => update.parse().ok(),
        _ => None,
    };
    Mark {
        tool_call: recognised.teller.is_some() || recognised.synthesized,
        agent_run: recognised.agent.is_some(),
        model: recognised.model,
        partial: update == Some(0) && span.span.start_unix_nanos == span.span.end_unix_nanos,
        update: update.unwrap_or_default(),
        record: false,
        edition: recogniser.edition,
    }
}

impl HouseConvention {
    pub(super) fn attributes(&self) -> impl Iterator<Item = &str> {
        let from = [
            &self.name_from,
            &self.args_from,
            &self.result_from,
            &self.id_from,
        ];
        self.matches
            .keys()
            .map(String::as_str)
            .chain(from.into_iter().filter_map(|name| name.as_deref()))
    }
}
