//! Recognises a span as a tool call, agent run or model call. Tries the conventions in order when
//! the span arrives, and stores the result with the span, so that closing the trace does not try
//! them again.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashSet;
use otlp::span::{KeyId, KeySet, Recognition, Retention};

use super::convention::{Convention, SpanCall};
use super::conventions::{ConventionId, candidates, tool_name};
use super::expectation_keys::{ExpectationKeys, SpanExpectationPolicy};
use super::keys;
use super::stored_keys::stored_keys;
use super::view::{View, attribute_text};
use super::watch::AlarmWatch;
use crate::extract::settings::{CustomConvention, SpanKind, Tools};

/// The compiled settings of `tools`, built once per configuration.
#[derive(Debug, Clone)]
pub struct Recogniser {
    pub(crate) tools: Tools,
    keys: KeySet,
    /// The keys of `tools.name_attributes`.
    names: Vec<KeyId>,
    ignored: HashSet<String>,
    custom: Vec<CompiledConvention>,
    /// Attributes that selectors read, and those that scores copy.
    readable: Vec<(KeyId, Arc<str>)>,
    expectation_keys: ExpectationKeys,
    pub(crate) reads_usage: bool,
    /// The calls that can raise an alarm; `None` if no criterion raises alarms.
    watch: Option<Arc<AlarmWatch>>,
    /// The version of `tools`, counted from 1; 0 once the counter has overflowed. A stored
    /// recognition of another version is outdated.
    recogniser_version: u8,
    stored_since: StoredSince,
}

/// The recogniser version since which the scan has stored every attribute that `tools` names. A
/// span scanned earlier may be a call that cannot be recognised.
#[derive(Debug, Clone, Copy)]
struct StoredSince {
    /// The first version under which the scan stored all these attributes from the start.
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

/// A convention that recognised a span.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ConventionRef<'a> {
    BuiltIn(ConventionId),
    Custom(&'a CompiledConvention),
    /// The attribute of `tools.name_attributes` that contains the name of a call's tool.
    Named(KeyId),
}

// The numbers of a `Recognition`: 0 for none, from 1 for built-in conventions, from `CUSTOM` for
// conventions of the settings, from `NAMED` for `tools.name_attributes`.
const CUSTOM: u16 = 1 << 8;
const NAMED: u16 = 1 << 12;
/// The number of a call that the framework invented (`tool.synthesized`).
const SYNTHESIZED: u16 = u16::MAX;

impl Recogniser {
    /// Maximum number of conventions of the settings.
    pub const MAX_CONVENTIONS: usize = (NAMED - CUSTOM) as usize;
    /// Maximum number of `tools.name_attributes`.
    pub const MAX_NAME_ATTRIBUTES: usize = (SYNTHESIZED - NAMED) as usize;

    /// Compiles the settings. `readable` lists the attributes that selectors read, and those that
    /// scores copy. Keys of `previous` retain their ids, so that spans scanned earlier remain
    /// readable.
    pub fn new<'a>(
        tools: &Tools,
        readable: impl IntoIterator<Item = &'a str>,
        previous: Option<&Self>,
    ) -> Self {
        let readable: Vec<&str> = readable.into_iter().collect();
        let previous_keys = previous.map(|previous| &previous.keys);
        let mut keys = stored_keys(tools, readable.iter().copied(), previous_keys);
        let mut names = tools.attributes();
        let are_kept = |since: &StoredSince| {
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
        let known_since = previous.map(|previous| previous.stored_since);
        let stored_since = known_since.filter(are_kept).unwrap_or(StoredSince {
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
            .take(Self::MAX_CONVENTIONS)
            .collect();
        let names = tools.name_attributes.iter();
        let names = names.filter_map(|name| keys.id(name));
        Self {
            tools: tools.clone(),
            names: names.take(Self::MAX_NAME_ATTRIBUTES).collect(),
            ignored: tools.ignore.iter().cloned().collect(),
            custom,
            keys,
            readable,
            expectation_keys,
            reads_usage: previous.is_some_and(|previous| previous.reads_usage),
            watch: None,
            recogniser_version,
            stored_since,
        }
    }

    /// Sets the policy for expectations that runs state about themselves.
    pub fn with_span_expectations(mut self, policy: SpanExpectationPolicy) -> Self {
        self.expectation_keys = ExpectationKeys::add(&mut self.keys, policy);
        self
    }

    /// Reads the token counts of models if `is_read` is true. A later `with_usage(false)` has no
    /// effect.
    pub fn with_usage(mut self, is_read: bool) -> Self {
        if is_read && !self.reads_usage {
            for key in keys::usage_keys() {
                self.keys.add(key, Retention::Value);
            }
        }
        self.reads_usage |= is_read;
        self
    }

    /// Sets the calls that can raise an alarm.
    pub fn with_watch(self, watch: Option<Arc<AlarmWatch>>) -> Self {
        Self { watch, ..self }
    }

    pub(super) fn watches(&self, found: Recognition, span: &View<'_>) -> bool {
        let Some(watch) = &self.watch else {
            return false;
        };
        match self.source(found.call) {
            Some(source) => watch.watches(source.call(span).name.as_deref()),
            None if is_synthesized(found) => watch.watches(None),
            None => found.model != 0 && watch.watches_models(),
        }
    }

    /// Returns a copy that also reads the attributes in `further`, but watches no calls and has the
    /// default policy for expectations.
    pub fn also_reading<'a>(&'a self, further: impl IntoIterator<Item = &'a str>) -> Self {
        let readable = self.readable.iter().map(|(_, name)| &**name);
        Self::new(&self.tools, readable.chain(further), Some(self))
    }

    /// Returns the keys that the scan must store.
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
        (1..self.stored_since.version).contains(&note.recogniser_version)
    }

    pub(crate) fn ignores(&self, name: &str) -> bool {
        self.ignored.contains(name)
    }

    /// Returns the recognition stored on arrival. Tries the conventions again if there is none (for
    /// a log record), if `tools` has changed since, or if the version counter has overflowed.
    pub(crate) fn recall(&self, span: &View<'_>, note: Recognition) -> Recognition {
        if note.recogniser_version == 0 || note.recogniser_version != self.recogniser_version {
            return self.recognise(span);
        }
        note
    }

    pub(super) fn recognise(&self, span: &View<'_>) -> Recognition {
        let custom = |kind: SpanKind| {
            let is_one = |custom: &CompiledConvention| custom.kind == kind && custom.is_match(span);
            number(CUSTOM, self.custom.iter().position(is_one))
        };
        let mut found = Recognition {
            recogniser_version: self.recogniser_version,
            call: custom(SpanKind::Tool),
            agent: custom(SpanKind::Agent),
            model: 0,
        };
        if found.call == 0 {
            found.model = custom(SpanKind::Model);
        }
        let is_custom_run = found.agent != 0;
        candidates(span).for_each(|id| ask(&mut found, id, span));
        if found.call == 0 && found.model == 0 && !is_custom_run {
            let is_named = |&key: &KeyId| tool_name::is_named_in(span, key);
            found.call = number(NAMED, self.names.iter().position(is_named));
            if found.call != 0 {
                found.agent = 0;
            }
        }
        if found.call != 0 && span.is_true(keys::SYNTHESIZED) {
            found.call = SYNTHESIZED;
        }
        found
    }

    /// Returns the convention with this number; `None` for an invented call and for 0.
    pub(crate) fn source(&self, number: u16) -> Option<ConventionRef<'_>> {
        match number {
            NAMED.. => self
                .names
                .get(usize::from(number - NAMED))
                .copied()
                .map(ConventionRef::Named),
            CUSTOM.. => self
                .custom
                .get(usize::from(number - CUSTOM))
                .map(ConventionRef::Custom),
            _ => ConventionId::from_number(number).map(ConventionRef::BuiltIn),
        }
    }

    /// Returns the name of the convention that recognised the call, else of the first that
    /// recognised a run or model; empty if none did.
    pub(crate) fn convention(&self, found: Recognition) -> &str {
        let source = self.source(found.call).or_else(|| {
            let others = [found.agent, found.model]
                .into_iter()
                .filter(|&number| number != 0);
            let first = others.min_by_key(|&number| if number < CUSTOM { number } else { 0 });
            self.source(first?)
        });
        source.map_or("", ConventionRef::name)
    }
}

fn number(first: u16, position: Option<usize>) -> u16 {
    position.map_or(0, |position| first + position as u16)
}

pub(crate) fn is_synthesized(found: Recognition) -> bool {
    found.call == SYNTHESIZED
}

/// Adds the roles that this built-in convention recognises. A role that an earlier convention
/// recognised stays, and a span is never both a call and a model span.
fn ask(found: &mut Recognition, id: ConventionId, span: &View<'_>) {
    let convention: &Convention = id.get();
    if found.call != 0 || found.model != 0 {
        if found.agent == 0 && convention.is_agent_run(span) {
            found.agent = id.number();
        }
        return;
    }
    let roles = convention.roles(span);
    if found.agent == 0 && roles.agent_run {
        found.agent = id.number();
    }
    if roles.call {
        found.call = id.number();
    } else if roles.model {
        found.model = id.number();
    }
}

impl<'a> ConventionRef<'a> {
    pub(crate) fn built_in(self) -> Option<ConventionId> {
        match self {
            Self::BuiltIn(id) => Some(id),
            Self::Custom(_) | Self::Named(_) => None,
        }
    }

    pub(crate) fn agent_run<'s>(self, span: &View<'s>) -> Option<Cow<'s, str>> {
        match self {
            Self::BuiltIn(id) => id.get().agent_run(span),
            Self::Custom(custom) => Some(custom.name(span)),
            Self::Named(_) => None,
        }
    }

    pub(crate) fn call<'s>(self, span: &View<'s>) -> SpanCall<'s> {
        match self {
            Self::BuiltIn(id) => id.get().call(span),
            Self::Custom(custom) => custom.call(span),
            Self::Named(key) => tool_name::named_in(span, key),
        }
    }

    fn name(self) -> &'a str {
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
