//! Recognises a span as a tool call, agent run or model call. Tries the conventions in order when
//! the span arrives, and stores the result with the span, so that closing the trace does not try
//! them again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;
use otlp::span::{Keep, KeyId, KeySet, Recognition};

use super::convention::{Convention, SpanCall};
use super::conventions::{ConventionId, candidates, tool_name};
use super::expectation_keys::{ExpectationKeys, SpanExpectationPolicy};
use super::kept_keys::kept_keys;
use super::keys;
use super::view::{View, attribute_text};
use super::watch::AlarmWatch;
use crate::extract::settings::{CustomConvention, SpanKind, Tools};

/// The compiled settings of `tools`, built once per configuration.
#[derive(Debug, Clone)]
pub struct Recogniser {
    pub(crate) tools: Tools,
    keys: KeySet,
    /// `tools.name_attributes`.
    names: Vec<KeyId>,
    ignored: HashSet<String>,
    custom: Vec<CompiledConvention>,
    /// Attributes that selectors read and scores copy.
    readable: Vec<(KeyId, Arc<str>)>,
    expectation_keys: ExpectationKeys,
    /// True if the token counts of models are read.
    pub(crate) reads_usage: bool,
    /// The calls that can raise an alarm; `None` if no criterion raises alarms.
    watch: Option<Arc<AlarmWatch>>,
    /// Counts the changes of `tools`, so that notes of earlier recognisers are detected as stale; 0
    /// once the counter has overflowed.
    recogniser_version: u8,
    kept_since: KeptSince,
}

/// The recogniser version since which the scan keeps every attribute that `tools` names. A span
/// that was scanned before may be a call that cannot be recognised.
#[derive(Debug, Clone, Copy)]
struct KeptSince {
    /// The first version under which the scan kept all these attributes from the start.
    version: u8,
    /// Number of keys at the start of that version. Selectors can add keys within a version.
    n_keys: usize,
}

/// A convention from the settings, with key ids instead of names.
#[derive(Debug, Clone)]
pub(crate) struct CompiledConvention {
    name: Arc<str>,
    kind: SpanKind,
    matches: Vec<(KeyId, String)>,
    error_match: Vec<(KeyId, String)>,
    name_from: Option<KeyId>,
    args_from: Option<KeyId>,
    result_from: Option<KeyId>,
    id_from: Option<KeyId>,
}

/// The recognised kind of a span.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Recognised<'a> {
    /// The source of the call's fields, if the span is a tool call.
    pub(crate) call: Option<CallSource<'a>>,
    /// The convention that recognised an agent run and reads the agent's name.
    pub(crate) agent: Option<ConventionRef<'a>>,
    /// The convention that recognised a model call; always `None` if `call` is set.
    pub(crate) model: Option<ConventionRef<'a>>,
    /// True if the marks show a tool call that the framework made up (`tool.synthesized`).
    pub(crate) synthesized: bool,
}

/// A built-in convention, or a convention from the settings.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConventionRef<'a> {
    BuiltIn(ConventionId),
    Custom(&'a CompiledConvention),
}

/// The source of a call's fields.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CallSource<'a> {
    BuiltIn(ConventionId),
    Custom(&'a CompiledConvention),
    /// The attribute of `tools.name_attributes` that contains the tool's name.
    Named(KeyId),
}

impl Recogniser {
    /// Compiles the settings. `readable` lists the attributes that selectors read and scores copy.
    /// Every key of `previous` keeps its id, so that spans scanned under `previous` stay readable.
    pub fn new<'a>(
        tools: &Tools,
        readable: impl IntoIterator<Item = &'a str>,
        previous: Option<&Self>,
    ) -> Self {
        let readable: Vec<&str> = readable.into_iter().collect();
        let previous_keys = previous.map(|previous| &previous.keys);
        let mut keys = kept_keys(tools, readable.iter().copied(), previous_keys);
        let mut names = tools.attributes();
        let are_kept = |since: &KeptSince| {
            names.all(|name| {
                keys.id(name)
                    .is_some_and(|id| usize::from(id.0) < since.n_keys)
            })
        };
        let recogniser_version = match previous {
            None => 1,
            Some(Self {
                recogniser_version: 0,
                ..
            }) => 0,
            Some(previous) if previous.tools == *tools => previous.recogniser_version,
            Some(previous) => previous.recogniser_version.wrapping_add(1),
        };
        let known_since = previous.map(|previous| previous.kept_since);
        let kept_since = known_since.filter(are_kept).unwrap_or(KeptSince {
            version: recogniser_version,
            n_keys: keys.len(),
        });
        let expectation_keys = ExpectationKeys::add(&mut keys, SpanExpectationPolicy::default());
        let readable = readable
            .into_iter()
            .filter_map(|name| Some((keys.id(name)?, Arc::from(name))))
            .collect();
        let custom = tools
            .conventions
            .iter()
            .map(|custom| CompiledConvention::new(custom, &keys))
            .filter(|custom| !custom.matches.is_empty())
            .collect();
        let names = tools.name_attributes.iter();
        Self {
            tools: tools.clone(),
            names: names.filter_map(|name| keys.id(name)).collect(),
            ignored: tools.ignore.iter().cloned().collect(),
            custom,
            keys,
            readable,
            expectation_keys,
            reads_usage: previous.is_some_and(|previous| previous.reads_usage),
            watch: None,
            recogniser_version,
            kept_since,
        }
    }

    /// Sets the policy for expectations that runs state about themselves.
    pub fn with_span_expectations(mut self, policy: SpanExpectationPolicy) -> Self {
        self.expectation_keys = ExpectationKeys::add(&mut self.keys, policy);
        self
    }

    /// Reads the token counts of models if `is_read`. Later settings cannot stop the reading.
    pub fn with_usage(mut self, is_read: bool) -> Self {
        if is_read && !self.reads_usage {
            for key in keys::usage_keys() {
                self.keys.add(key, Keep::Value);
            }
        }
        self.reads_usage |= is_read;
        self
    }

    /// Marks the calls that can raise an alarm.
    pub fn with_watch(self, watch: Option<Arc<AlarmWatch>>) -> Self {
        Self { watch, ..self }
    }

    /// Returns true if the span can raise an alarm.
    pub(super) fn watches(&self, recognised: &Recognised<'_>, span: &View<'_>) -> bool {
        let Some(watch) = &self.watch else {
            return false;
        };
        match recognised.call {
            Some(call) => watch.watches(call.call(span).name.as_deref()),
            None if recognised.synthesized => watch.watches(None),
            None => recognised.model.is_some() && watch.watches_models(),
        }
    }

    /// Returns a copy that also reads the attributes `further`.
    pub fn also_reading<'a>(&'a self, further: impl IntoIterator<Item = &'a str>) -> Self {
        let readable = self.readable.iter().map(|(_, name)| &**name);
        Self::new(&self.tools, readable.chain(further), Some(self))
    }

    /// The keys that the scan must keep.
    pub fn keys(&self) -> &KeySet {
        &self.keys
    }

    pub(crate) fn readable(&self) -> &[(KeyId, Arc<str>)] {
        &self.readable
    }

    pub(crate) fn expectation_keys(&self) -> ExpectationKeys {
        self.expectation_keys
    }

    /// Returns true if the span was scanned before a reload that added attributes of calls.
    pub(crate) fn reads_more_than_is_kept(&self, note: Recognition) -> bool {
        (1..self.kept_since.version).contains(&note.recogniser_version)
    }

    /// Returns true if `tools.ignore` names this tool.
    pub(crate) fn ignores(&self, name: &str) -> bool {
        self.ignored.contains(name)
    }

    /// Recognises a span of a closed trace by the note made on arrival. Tries the conventions only
    /// if the note was made under other settings.
    pub(crate) fn recall<'a>(&'a self, span: &View<'a>, note: Recognition) -> Recognised<'a> {
        if note.recogniser_version == 0 || note.recogniser_version != self.recogniser_version {
            return self.recognise(span);
        }
        Recognised {
            call: self.call_from_note(note.call),
            agent: self.convention_from_note(note.agent),
            model: self.convention_from_note(note.model),
            synthesized: note.call == SYNTHESIZED,
        }
    }

    pub(super) fn recognise<'a>(&'a self, span: &View<'a>) -> Recognised<'a> {
        let mut recognised = Recognised::default();
        let custom = |kind: SpanKind| {
            let mut custom = self.custom.iter();
            custom.find(|custom| custom.kind == kind && custom.is_match(span))
        };
        recognised.call = custom(SpanKind::Tool).map(CallSource::Custom);
        if recognised.call.is_none() {
            recognised.model = custom(SpanKind::Model).map(ConventionRef::Custom);
        }
        recognised.agent = custom(SpanKind::Agent).map(ConventionRef::Custom);
        let is_custom_run = recognised.agent.is_some();
        candidates(span).for_each(|id| recognised.ask(id, span));
        if recognised.call.is_none() && recognised.model.is_none() && !is_custom_run {
            let mut names = self.names.iter();
            if let Some(&key) = names.find(|&&key| tool_name::is_named_in(span, key)) {
                recognised.call = Some(CallSource::Named(key));
                recognised.agent = None;
            }
        }
        recognised.synthesized = recognised.call.is_some() && span.is_true(keys::SYNTHESIZED);
        if recognised.synthesized {
            recognised.call = None;
        }
        recognised
    }
}

impl<'a> Recognised<'a> {
    fn ask(&mut self, id: ConventionId, span: &View<'a>) {
        let convention: &Convention = id.get();
        if self.call.is_some() || self.model.is_some() {
            if self.agent.is_none() && convention.is_agent_run(span) {
                self.agent = Some(ConventionRef::BuiltIn(id));
            }
            return;
        }
        let roles = convention.roles(span);
        if self.agent.is_none() && roles.agent_run {
            self.agent = Some(ConventionRef::BuiltIn(id));
        }
        if roles.call {
            self.call = Some(CallSource::BuiltIn(id));
        } else if roles.model {
            self.model = Some(ConventionRef::BuiltIn(id));
        }
    }

    /// The name of the convention that recognised the call, or else of the first convention that
    /// recognised a run or model; empty if none did.
    pub(crate) fn convention(&self) -> &'a str {
        match (self.call, self.agent, self.model) {
            (Some(source), _, _) => source.convention(),
            (None, Some(ConventionRef::Custom(custom)), _)
            | (None, _, Some(ConventionRef::Custom(custom))) => &custom.name,
            (None, Some(ConventionRef::BuiltIn(run)), Some(ConventionRef::BuiltIn(model))) => {
                run.min(model).get().name
            }
            (None, Some(ConventionRef::BuiltIn(id)), None)
            | (None, None, Some(ConventionRef::BuiltIn(id))) => id.get().name,
            (None, None, None) => "",
        }
    }
}

impl<'a> ConventionRef<'a> {
    /// The built-in convention.
    pub(crate) fn built_in(self) -> Option<ConventionId> {
        match self {
            Self::BuiltIn(id) => Some(id),
            Self::Custom(_) => None,
        }
    }

    /// Reads the agent's name from a span that this convention recognised as an agent run.
    pub(crate) fn agent_run<'s>(self, span: &View<'s>) -> Option<Cow<'s, str>> {
        match self {
            Self::BuiltIn(id) => id.get().agent_run(span),
            Self::Custom(custom) => Some(custom.name(span)),
        }
    }
}

impl<'a> CallSource<'a> {
    /// Reads the call of a span by its convention.
    pub(crate) fn call<'s>(self, span: &View<'s>) -> SpanCall<'s> {
        match self {
            Self::BuiltIn(id) => id.get().call(span),
            Self::Custom(custom) => custom.call(span),
            Self::Named(key) => tool_name::named_in(span, key),
        }
    }

    fn convention(self) -> &'a str {
        match self {
            Self::BuiltIn(id) => id.get().name,
            Self::Custom(custom) => &custom.name,
            Self::Named(_) => ConventionId::TOOL_NAME.get().name,
        }
    }
}

// === impl CompiledConvention ===

impl CompiledConvention {
    fn new(settings: &CustomConvention, keys: &KeySet) -> Self {
        let id = |name: &Option<String>| name.as_deref().and_then(|name| keys.id(name));
        let compiled = |matches: &BTreeMap<String, String>| {
            let matches = matches.iter();
            matches
                .filter_map(|(key, value)| Some((keys.id(key)?, value.clone())))
                .collect()
        };
        Self {
            name: settings.name.as_str().into(),
            kind: settings.kind,
            matches: compiled(&settings.matches),
            error_match: compiled(&settings.error_match),
            name_from: id(&settings.name_from),
            args_from: id(&settings.args_from),
            result_from: id(&settings.result_from),
            id_from: id(&settings.id_from),
        }
    }

    fn is_match(&self, span: &View<'_>) -> bool {
        has_all(span, &self.matches)
    }

    /// The name of the tool or agent.
    fn name<'a>(&self, span: &View<'a>) -> Cow<'a, str> {
        let name = self.name_from.and_then(|key| span.text(key));
        let name = name.filter(|name| !name.is_empty());
        name.unwrap_or(Cow::Borrowed(span.name()))
    }

    fn call<'a>(&self, span: &View<'a>) -> SpanCall<'a> {
        SpanCall {
            name: Some(self.name(span)),
            call_id: self.id_from.and_then(|key| span.text(key)),
            args: self.args_from.and_then(|key| span.raw(key)),
            result: self.result_from.and_then(|key| span.raw(key)),
            failed: !self.error_match.is_empty() && has_all(span, &self.error_match),
            ..SpanCall::default()
        }
    }
}

fn has_all(span: &View<'_>, attributes: &[(KeyId, String)]) -> bool {
    attributes.iter().all(|(key, word)| {
        let text = span.get(*key).and_then(attribute_text);
        text.is_some_and(|text| text == *word)
    })
}

// === Notes ===

// The byte that records a call's source: 0 for none, from 1 for built-in conventions, from `CUSTOM`
// for conventions of the settings, from `NAMED` for `tools.name_attributes`.
const CUSTOM: u8 = 64;
const NAMED: u8 = 128;
const SYNTHESIZED: u8 = u8::MAX;

impl Recogniser {
    /// Encodes the result of recognition. Returns an empty note, so that the span is recognised
    /// again, if the settings have too many conventions or names for a byte.
    pub(super) fn note(&self, recognised: &Recognised<'_>) -> Recognition {
        let in_range = |first: u8, end: u8, position: Option<usize>| {
            let note = u8::try_from(position?).ok()?.checked_add(first)?;
            (note < end).then_some(note)
        };
        let call = match recognised.call {
            None if recognised.synthesized => Some(SYNTHESIZED),
            None => Some(0),
            Some(CallSource::BuiltIn(id)) => Some(id.note()),
            Some(CallSource::Custom(custom)) => in_range(CUSTOM, NAMED, self.custom_idx(custom)),
            Some(CallSource::Named(key)) => {
                let mut all = self.names.iter();
                in_range(NAMED, SYNTHESIZED, all.position(|other| *other == key))
            }
        };
        let Some(call) = call else {
            return Recognition::default();
        };
        let of_convention = |convention: Option<ConventionRef<'_>>| match convention {
            None => Some(0),
            Some(ConventionRef::BuiltIn(id)) => Some(id.note()),
            Some(ConventionRef::Custom(custom)) => in_range(CUSTOM, NAMED, self.custom_idx(custom)),
        };
        let (Some(agent), Some(model)) = (
            of_convention(recognised.agent),
            of_convention(recognised.model),
        ) else {
            return Recognition::default();
        };
        Recognition {
            recogniser_version: self.recogniser_version,
            call,
            agent,
            model,
        }
    }

    fn custom_idx(&self, custom: &CompiledConvention) -> Option<usize> {
        let mut all = self.custom.iter();
        all.position(|other| std::ptr::eq(other, custom))
    }

    fn convention_from_note(&self, note: u8) -> Option<ConventionRef<'_>> {
        match note {
            CUSTOM.. => {
                let custom = self.custom.get(usize::from(note - CUSTOM))?;
                Some(ConventionRef::Custom(custom))
            }
            _ => ConventionId::from_note(note).map(ConventionRef::BuiltIn),
        }
    }

    fn call_from_note(&self, note: u8) -> Option<CallSource<'_>> {
        match note {
            SYNTHESIZED => None,
            NAMED.. => {
                let key = self.names.get(usize::from(note - NAMED))?;
                Some(CallSource::Named(*key))
            }
            CUSTOM.. => {
                let custom = self.custom.get(usize::from(note - CUSTOM))?;
                Some(CallSource::Custom(custom))
            }
            _ => ConventionId::from_note(note).map(CallSource::BuiltIn),
        }
    }
}
