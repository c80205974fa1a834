//! Checks the values of a configuration that was parsed: their ranges, and whether they contradict
//! each other.

mod journal;
mod kafka;
mod peers;
mod threads;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use judge::evaluate::Scope;
use judge::extract::Recogniser;
use located::{MapEntry, Node, NodeValue, Problem, Problems, Spot, Texts};

use super::runtime::OWN_USE;
use super::units::{Amount, Threads};
use super::{Config, PageLink};

const REQUEST_SIZE: &str = "receivers.otlp.max_request_size";
const IN_FLIGHT: &str = "receivers.otlp.max_in_flight";

/// Reports values that are out of range or contradict each other.
pub(super) fn check(
    config: &Config,
    root: &Node,
    texts: &Texts,
    problems: &mut Problems,
    warnings: &mut Problems,
) {
    let mut check = Check {
        config,
        root,
        texts,
        problems,
        warnings,
    };
    check.listeners();
    check.shared_traces();
    check.counts();
    check.factors();
    check.memory();
    check.trace_size();
    check.threads();
    check.journal();
    check.kafka();
    check.times();
    check.links();
    check.peers();
    check.conventions();
    check.criteria();
}

struct Check<'a> {
    config: &'a Config,
    root: &'a Node,
    texts: &'a Texts,
    problems: &'a mut Problems,
    warnings: &'a mut Problems,
}

impl Check<'_> {
    /// Reports a mistake at the first key. Reports nothing if any of the keys was removed because
    /// of another mistake: its default was not intended.
    fn wrong(&mut self, keys: &[&str], title: impl Into<String>, remedy: impl Into<String>) {
        if !self.is_pruned(keys) {
            self.problems
                .push(Problem::new(title, self.spot(keys[0])).label(remedy));
        }
    }

    fn doubtful(&mut self, keys: &[&str], title: impl Into<String>, remedy: impl Into<String>) {
        if !self.is_pruned(keys) {
            self.warnings
                .push(Problem::warning(title, self.spot(keys[0])).label(remedy));
        }
    }

    fn is_pruned(&self, keys: &[&str]) -> bool {
        keys.iter()
            .any(|key| self.root.is_pruned_at(&key.split('.').collect::<Vec<_>>()))
    }

    /// Returns the position of a key's value, or of the nearest parent section in a file.
    fn spot(&self, key: &str) -> Option<Spot> {
        let mut path: Vec<&str> = key.split('.').collect();
        while !path.is_empty() {
            if let Some(entry) = self.root.find_entry(&path) {
                let is_written =
                    matches!(entry.value.value, NodeValue::Scalar(_)) && !entry.value.is_null();
                return Some(self.texts.spot(if is_written {
                    entry.value.place
                } else {
                    entry.key_place
                }));
            }
            path.pop();
        }
        None
    }

    fn is_given(&self, key: &str) -> bool {
        self.root
            .find(&key.split('.').collect::<Vec<_>>())
            .is_some_and(|node| !node.is_null())
    }

    fn shared_traces(&mut self) {
        let peers = self.config.assemble.peers.as_deref();
        let is_wrong = |peers: &str| {
            let is_file = peers.starts_with('/');
            peers.is_empty() || !is_file && peers.contains(|c: char| "/: ".contains(c))
        };
        if peers.is_some_and(is_wrong) {
            self.wrong(
                &["assemble.peers"],
                "`assemble.peers` is not a host name",
                "expected the name of a headless Service without scheme and port, such as \
                 `spanscore-gateway`, or the path of a file",
            );
        }
    }

    fn listeners(&mut self) {
        let otlp = &self.config.receivers.otlp;
        let reads = self.config.kafka.read.enabled;
        if !otlp.grpc.enabled && !otlp.http.enabled && !reads {
            let keys = ["receivers.otlp.http.enabled", "receivers.otlp.grpc.enabled"];
            self.wrong(
                &keys,
                "both receivers are disabled",
                "spanscore would receive nothing: enable `receivers.otlp.grpc` or \
                 `receivers.otlp.http`",
            );
        }
        let listeners = [
            (
                "receivers.otlp.grpc.listen",
                otlp.grpc.listen,
                otlp.grpc.enabled,
            ),
            (
                "receivers.otlp.http.listen",
                otlp.http.listen,
                otlp.http.enabled,
            ),
            ("admin.listen", self.config.admin.listen, true),
        ];
        let enabled: Vec<(&str, SocketAddr)> = listeners
            .into_iter()
            .filter(|(_, _, enabled)| *enabled)
            .map(|(key, address, _)| (key, address))
            .collect();
        for (idx, (key, address)) in enabled.iter().enumerate() {
            let same = enabled[..idx].iter().find(|(_, other)| {
                let overlap = other.ip() == address.ip()
                    || other.ip().is_unspecified()
                    || address.ip().is_unspecified();
                address.port() != 0 && other.port() == address.port() && overlap
            });
            if let Some((other, _)) = same {
                let (at, its) = if self.is_given(key) { (*key, *other) } else { (*other, *key) };
                let title = format!(
                    "`{key}` and `{other}` have the same port {}",
                    address.port()
                );
                self.wrong(
                    &[at, its],
                    title,
                    format!("`{its}` uses this port, too: choose another one"),
                );
            }
        }
        for origin in otlp.http.cors_allowed_origins.clone() {
            if origin != "*" && !origin.contains("://") {
                let title = format!("`{origin}` is not an origin");
                self.wrong(
                    &["receivers.otlp.http.cors_allowed_origins"],
                    title,
                    format!("write `https://{origin}`, or `*` for any"),
                );
            }
        }
    }

    fn links(&mut self) {
        for link in self.config.admin.links.clone() {
            let remedy = if !link.url.starts_with("http://") && !link.url.starts_with("https://") {
                "write an address that begins with `http://` or `https://`".to_owned()
            } else if let Some(unknown) = unknown_placeholder(&link.url) {
                let known = PageLink::PLACEHOLDERS.map(|name| format!("`{{{name}}}`"));
                format!(
                    "unknown placeholder `{{{unknown}}}`; the placeholders are {}",
                    known.join(", ")
                )
            } else {
                continue;
            };
            let title = format!("`{}` is not a valid link for `{}`", link.url, link.name);
            self.wrong(&["admin.links"], title, remedy);
        }
    }

    fn counts(&mut self) {
        let Config {
            receivers,
            assemble,
            tools,
            expectations,
            explain,
            scores,
            journal,
            kafka,
            ..
        } = self.config;
        let counts = [
            ("assemble.span_limit", assemble.span_limit),
            ("assemble.size_limit", assemble.size_limit.0),
            ("assemble.open.max_traces", assemble.open.max_traces),
            ("assemble.session.max_size", assemble.session.max_size.0),
            (REQUEST_SIZE, receivers.otlp.max_request_size.0),
            ("scores.batch.max_evaluations", scores.batch.max_evaluations),
            ("scores.metrics.max_services", scores.metrics.max_services),
            ("scores.metrics.max_agents", scores.metrics.max_agents),
            ("tools.max_value_size", tools.max_value_size),
            ("tools.max_messages_size", tools.max_messages_size),
            ("explain.max_value_length", explain.max_value_length),
            ("expectations.max_size", expectations.max_size.0),
            ("journal.max_size", journal.max_size.0),
            (
                "kafka.write.max_message_size",
                kafka.write.max_message_size.0,
            ),
        ];
        for (key, count) in counts {
            if count == 0 {
                self.wrong(&[key], format!("`{key}` is 0"), "expected 1 or more");
            }
        }
        let max_concurrency = self.config.forward.max_concurrency;
        if !(1..=256).contains(&max_concurrency) {
            self.wrong(
                &["forward.max_concurrency"],
                format!("`forward.max_concurrency` is {max_concurrency}"),
                "expected a number from 1 to 256",
            );
        }
    }

    fn factors(&mut self) {
        let sample_pass = self.config.scores.span.sample_pass;
        if !(0.0..=1.0).contains(&sample_pass) {
            self.wrong(
                &["scores.span.sample_pass"],
                format!("`scores.span.sample_pass` is {sample_pass}"),
                "expected a share from 0 to 1",
            );
        }
        let multiplier = self.config.forward.retry.multiplier;
        if !(1.0..=100.0).contains(&multiplier) {
            self.wrong(
                &["forward.retry.multiplier"],
                format!("`forward.retry.multiplier` is {multiplier}"),
                "expected a number from 1 to 100",
            );
        }
    }

    fn memory(&mut self) {
        let Config {
            receivers,
            forward,
            scoring,
            assemble,
            scores,
            kafka,
            memory,
            ..
        } = self.config;
        let sizes = [
            (IN_FLIGHT, receivers.otlp.max_in_flight),
            ("forward.queue.max_size", forward.queue.max_size),
            ("scoring.queue", scoring.queue),
            ("assemble.open.max_size", assemble.open.max_size),
            ("assemble.recent.max_size", assemble.recent.max_size),
            ("scores.queue.max_size", scores.queue.max_size),
            ("kafka.write.queue.max_size", kafka.write.queue.max_size),
        ];
        let mut given = 0_usize;
        for (key, amount) in sizes {
            if let Amount::Bytes(size) = amount {
                given = given.saturating_add(size.0);
                if size.0 == 0 && key != "assemble.recent.max_size" {
                    self.wrong(
                        &[key],
                        format!("`{key}` is 0"),
                        "nothing would fit: give a size, or `auto`",
                    );
                }
            }
        }
        if self.is_given(REQUEST_SIZE)
            && let Amount::Bytes(in_flight) = receivers.otlp.max_in_flight
            && in_flight < receivers.otlp.max_request_size
        {
            self.doubtful(
                &[REQUEST_SIZE, IN_FLIGHT],
                format!("`{REQUEST_SIZE}` is more than `{IN_FLIGHT}`"),
                "no request can be larger than all requests together",
            );
        }
        if let Amount::Bytes(limit) = memory.limit {
            if limit.0 < OWN_USE + (8 << 20) {
                self.wrong(
                    &["memory.limit"],
                    format!("`memory.limit` is {limit}"),
                    "spanscore itself uses 24MiB: give at least 32MiB, better 64MiB",
                );
            } else if given > limit.0 - OWN_USE {
                let title = "the sizes given add up to more than `memory.limit` less 24MiB for \
                    spanscore itself";
                self.doubtful(
                    &["memory.limit"],
                    title,
                    "raise it, or set the sizes to `auto`",
                );
            }
        }
    }

    /// Checks that one trace cannot evict all others.
    fn trace_size(&mut self) {
        let (assemble, scoring) = (&self.config.assemble, &self.config.scoring);
        let Amount::Bytes(open) = assemble.open.max_size else {
            return;
        };
        if !self.is_given("assemble.size_limit") {
            return;
        }
        let size_limit = assemble.size_limit.0;
        let most = |size: usize| super::ByteSize(size / 1024 * 1024);
        if size_limit > open.0 / 4 {
            self.wrong(
                &["assemble.size_limit", "assemble.open.max_size"],
                "`assemble.size_limit` is more than a quarter of `assemble.open.max_size`",
                format!(
                    "one trace could evict all others: set at most {}",
                    most(open.0 / 4)
                ),
            );
        } else if let Threads::Count(n_threads) = scoring.threads
            && let half = open.0 / n_threads.max(1) / 2
            && size_limit > half
        {
            let title = "`assemble.size_limit` is more than half of one thread's share of \
                         `assemble.open.max_size`";
            let remedy = format!("lower `scoring.threads`, or set at most {}", most(half));
            self.wrong(&["assemble.size_limit", "scoring.threads"], title, remedy);
        }
    }

    fn times(&mut self) {
        let Config {
            forward,
            assemble,
            scores,
            shutdown,
            ..
        } = self.config;
        let retry = &forward.retry;
        let times = [
            ("forward.timeout", Some(forward.timeout)),
            (
                "forward.retry.initial_interval",
                Some(retry.initial_interval),
            ),
            ("forward.retry.max_interval", Some(retry.max_interval)),
            ("assemble.settle", Some(assemble.settle)),
            ("assemble.max_settle", Some(assemble.max_settle)),
            ("assemble.settle_remote", Some(assemble.settle_remote)),
            ("assemble.inactive", Some(assemble.inactive)),
            ("assemble.expired", Some(assemble.expired)),
            ("assemble.session.inactive", Some(assemble.session.inactive)),
            ("scores.timeout", scores.peer.timeout),
            ("scores.span.timeout", scores.span.peer.timeout),
            ("scores.event.timeout", scores.event.peer.timeout),
            ("scores.metrics.timeout", scores.metrics.peer.timeout),
            ("scores.metrics.interval", Some(scores.metrics.interval)),
            ("scores.batch.max_delay", Some(scores.batch.max_delay)),
            ("shutdown.deadline", Some(shutdown.deadline)),
        ];
        for (key, time) in times {
            if time.is_some_and(|time| time.0.is_zero()) {
                self.wrong(
                    &[key],
                    format!("`{key}` is zero"),
                    "expected a time, such as `5s`",
                );
            }
        }
        let pairs = [
            (
                ("shutdown.quiet", shutdown.quiet),
                ("shutdown.deadline", shutdown.deadline),
            ),
            (
                ("forward.retry.initial_interval", retry.initial_interval),
                ("forward.retry.max_interval", retry.max_interval),
            ),
            (
                ("assemble.settle", assemble.settle),
                ("assemble.max_settle", assemble.max_settle),
            ),
            (
                ("assemble.inactive", assemble.inactive),
                ("assemble.expired", assemble.expired),
            ),
        ];
        for ((short_key, short), (long_key, long)) in pairs {
            if short > long {
                let (at, other) = if self.is_given(short_key) {
                    (short_key, long_key)
                } else {
                    (long_key, short_key)
                };
                self.wrong(
                    &[at, other],
                    format!("`{short_key}` ({short}) is longer than `{long_key}` ({long})"),
                    format!("`{long_key}` would always expire first: make `{short_key}` shorter"),
                );
            }
        }
    }

    fn conventions(&mut self) {
        let tools = &self.config.tools;
        let counts = [
            (
                "tools.conventions",
                tools.conventions.len(),
                Recogniser::MAX_CONVENTIONS,
            ),
            (
                "tools.name_attributes",
                tools.name_attributes.len(),
                Recogniser::MAX_NAME_ATTRIBUTES,
            ),
        ];
        for (path, n, max) in counts.into_iter().filter(|(_, n, max)| n > max) {
            let title = format!("`{path}` has {n} entries, and at most {max} are possible");
            self.wrong(&[path], title, "remove or merge entries");
        }
        let mut seen = std::collections::BTreeSet::new();
        for convention in &self.config.tools.conventions {
            let name = &convention.name;
            if convention.matches.is_empty() {
                let title = format!("the convention `{name}` matches every span");
                self.wrong(
                    &["tools.conventions"],
                    title,
                    "give `match` an attribute that only tool calls have",
                );
            }
            if !seen.insert(name) {
                self.wrong(
                    &["tools.conventions"],
                    format!("two conventions are named `{name}`"),
                    "give each its own name",
                );
            }
        }
    }

    fn criteria(&mut self) {
        let Some(NodeValue::List(items)) = self.root.find(&["criteria"]).map(|node| &node.value)
        else {
            return;
        };
        let written = written(items);
        let mut seen = BTreeMap::new();
        for (criterion, item) in self.config.criteria.iter().zip(written) {
            let place = item.find(&["name"]).map_or(item.place, |name| name.place);
            let warnings = criterion.warnings();
            for warning in warnings.into_iter().filter(|_| !item.is_pruned()) {
                let field = field_of(item, criterion.evaluate.name(), &warning);
                self.warnings.push(Problem::warning(
                    format!("criterion `{}`: {warning}", criterion.name),
                    Some(
                        self.texts
                            .spot(field.map_or(place, |entry| entry.key_place)),
                    ),
                ));
            }
            if criterion.scope == Scope::Session && !item.is_pruned() {
                let place = item.find(&["scope"]).map_or(place, |scope| scope.place);
                let spot = Some(self.texts.spot(place));
                if let Some((title, remedy)) = self.config.why_no_sessions() {
                    self.problems.push(Problem::new(title, spot).label(remedy));
                } else if !self.config.assemble.session.whole {
                    let title = format!(
                        "criterion `{}`: no session passes without `assemble.session.whole`",
                        criterion.name
                    );
                    let remedy = "set it to `true` if all turns of each session reach this \
                                  process; violations are found without it";
                    self.warnings
                        .push(Problem::warning(title, spot).label(remedy));
                }
            }
            if let Some(first) = seen.get(criterion.name.as_str()) {
                let problem = Problem::new(
                    format!("a second criterion is named `{}`", criterion.name),
                    Some(self.texts.spot(place)),
                );
                self.problems
                    .push(problem.label(format!("the first is at {}", self.texts.short(*first))));
            } else {
                seen.insert(criterion.name.as_str(), place);
            }
        }
    }
}

/// Returns the items of a list that no earlier mistake has removed.
pub(super) fn written(items: &[Node]) -> impl Iterator<Item = &Node> {
    items
        .iter()
        .filter(|item| !matches!(item.value, NodeValue::Gone))
}

/// Returns the field of a criterion that a warning names first, such as `threshold` or
/// `rules[1].response`.
fn field_of<'a>(item: &'a Node, evaluator: &str, warning: &str) -> Option<&'a MapEntry> {
    let field = warning.split('`').nth(1)?;
    // The keys of `where` are paths, which have dots themselves.
    let (above, path) = match field.split_once(".where.") {
        Some((above, path)) => (above, vec!["where", path]),
        None => (field, Vec::new()),
    };
    let keys = above.split(['.', '[', ']']).filter(|key| !key.is_empty());
    let keys: Vec<&str> = keys.chain(path).collect();
    item.find_entry(&[field])
        .or_else(|| item.find_entry(&[&["evaluate", evaluator], keys.as_slice()].concat()))
}

fn unknown_placeholder(url: &str) -> Option<&str> {
    let names = url
        .split('{')
        .skip(1)
        .map(|rest| rest.split('}').next().unwrap_or(rest));
    let mut unknown = names.filter(|name| !PageLink::PLACEHOLDERS.contains(name));
    unknown.next()
}
