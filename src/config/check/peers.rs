//! Checks the sections that describe peers: the endpoint, the protocol, the TLS settings and the
//! headers. Also checks `forward`, `scoring` and the TLS settings of the receiver.

use std::collections::BTreeMap;

use located::{NodeValue, Problem};

use super::Check;
use crate::config::destination::{Endpoint, PeerSection, Shape, first};
use crate::config::forward::{ClientTls, Protocol};
use crate::config::units::Secret;
use crate::config::writers::Writer;

impl Check<'_> {
    pub(super) fn peers(&mut self) {
        let config = self.config;
        let mut all_written = true;
        for peer in config.otlp_peers() {
            self.headers(peer);
            self.client_tls(peer);
            if let Some(Err(message)) = peer
                .endpoint
                .map(|endpoint| Endpoint::parse(endpoint, None))
            {
                let (title, remedy) = message.rsplit_once(": ").unwrap_or((&message, ""));
                self.wrong(&[&format!("{}.endpoint", peer.section)], title, remedy);
                all_written = false;
            }
        }
        if all_written {
            self.peer(&[config.forward_peer()]);
            for shape in Shape::ALL
                .into_iter()
                .filter(|shape| config.is_enabled(*shape))
            {
                self.peer(&config.score_peers(shape));
            }
        }
        self.leaked_headers();
        self.writers();
        for name in config.forward.pass_headers.clone() {
            if !is_header_name(&name) {
                self.wrong(
                    &["forward.pass_headers"],
                    format!("`{name}` is not a header name"),
                    "expected letters, digits and `-`",
                );
            }
        }
        if config.forward.signals.is_empty() && config.forward.endpoint.is_some() {
            self.doubtful(
                &["forward.signals"],
                "`forward.signals` is empty, so nothing is forwarded",
                "list the signals that the backend accepts, such as `[traces]`",
            );
        }
        if !config.scoring.enabled && !config.criteria.is_empty() {
            self.doubtful(
                &["scoring.enabled"],
                "scoring is off, so no criterion is judged",
                "set it to `true`, or leave it out",
            );
        }
        let server = config.receivers.otlp.tls.as_ref();
        if server.is_some_and(|tls| {
            tls.cert_file.as_os_str().is_empty() || tls.key_file.as_os_str().is_empty()
        }) {
            self.wrong(
                &["receivers.otlp.tls"],
                "`receivers.otlp.tls` names an empty path",
                "give `cert_file` and `key_file`",
            );
        }
    }

    /// Checks the endpoint and the protocol that a chain of sections resolves to.
    fn peer(&mut self, chain: &[PeerSection<'_>]) {
        let Some((section, endpoint)) = chain
            .iter()
            .find_map(|peer| peer.endpoint.map(|endpoint| (peer.section, endpoint)))
        else {
            return;
        };
        // If endpoint and protocol both come from `forward`, they were checked there.
        if section == "forward"
            && chain.len() > 1
            && chain[..chain.len() - 1]
                .iter()
                .all(|peer| peer.protocol.is_none())
        {
            return;
        }
        let given = first(chain, |peer| peer.protocol);
        let protocol_section = chain
            .iter()
            .find(|peer| peer.protocol.is_some())
            .map_or(section, |peer| peer.section);
        let (endpoint_key, protocol_key) = (
            format!("{section}.endpoint"),
            format!("{protocol_section}.protocol"),
        );
        match Endpoint::parse(endpoint, given) {
            Err(message) => {
                let (title, remedy) = message.rsplit_once(": ").unwrap_or((&message, ""));
                self.wrong(&[&endpoint_key, &protocol_key], title, remedy);
            }
            Ok((endpoint, protocol)) => {
                let unusual = match (protocol, endpoint.port) {
                    (Protocol::Grpc, 4318) => Some(
                        "port 4318 is usually for HTTP: set the protocol to `http/protobuf`, or \
                         the port to 4317",
                    ),
                    (Protocol::HttpProtobuf, 4317) => Some(
                        "port 4317 is usually for gRPC: set the protocol to `grpc`, or the port \
                         to 4318",
                    ),
                    _ => None,
                };
                if let Some(remedy) = unusual {
                    self.doubtful(
                        &[&endpoint_key, &protocol_key],
                        format!(
                            "`{endpoint_key}` and `{protocol_key}` seem to contradict each \
                                 other"
                        ),
                        remedy,
                    );
                }
                let tls_section = chain
                    .iter()
                    .find(|peer| peer.tls.is_some_and(|tls| *tls != ClientTls::default()))
                    .map(|peer| peer.section);
                if let (false, Some(tls_section)) = (endpoint.tls, tls_section) {
                    let tls_key = format!("{tls_section}.tls");
                    let title =
                        format!("`{tls_key}` is given, but `{endpoint_key}` is not encrypted");
                    self.doubtful(&[&endpoint_key, &tls_key], title, "write `https://`");
                }
            }
        }
    }

    /// Checks the writers. Rejects a second writer of the same kind, because the kind labels a
    /// writer's metrics.
    fn writers(&mut self) {
        let config = self.config;
        let Some(NodeValue::List(items)) = self
            .root
            .find(&["scores", "writers"])
            .map(|node| &node.value)
        else {
            return;
        };
        let items: Vec<_> = items
            .iter()
            .filter(|item| !matches!(item.value, NodeValue::Gone))
            .collect();
        for (writer_idx, (writer, item)) in config.scores.writers.iter().zip(items).enumerate() {
            let (name, peer) = (writer.name(), writer.peer());
            let mut wrong = |key: &str, title: String, remedy: &str| {
                let place = item
                    .find(&[name, key])
                    .or(item.find(&[name]))
                    .map_or(item.place, |node| node.place);
                self.problems
                    .push(Problem::new(title, Some(self.texts.spot(place))).label(remedy));
            };
            if config.scores.writers[..writer_idx]
                .iter()
                .any(|other| other.name() == name)
            {
                wrong(
                    "endpoint",
                    format!("a second writer `{name}`"),
                    "each kind of writer can be given once",
                );
            }
            if let Err(message) = Endpoint::parse_url(&peer.endpoint) {
                let (title, remedy) = message.rsplit_once(": ").unwrap_or((&message, ""));
                wrong("endpoint", title.to_owned(), remedy);
            }
            if peer.timeout.0.is_zero() {
                wrong(
                    "timeout",
                    "`timeout` is zero".to_owned(),
                    "expected a time, such as `5s`",
                );
            }
            let given = peer
                .headers
                .iter()
                .map(|(header, value)| (header.clone(), value.clone()));
            for (header, value) in given.chain(
                writer
                    .credentials()
                    .map(|(header, value)| (header.to_owned(), value)),
            ) {
                if let Some((title, remedy)) = wrong_header(&header, &value) {
                    wrong("headers", title, remedy);
                }
            }
            if item.is_pruned() {
                continue;
            }
            if let Some(key) = writer.unread_key() {
                wrong(
                    key,
                    format!("`{key}` is read in the configuration file only"),
                    "write the writer there",
                );
                continue;
            }
            if matches!(writer, Writer::Langfuse(_))
                && writer.credentials().is_none()
                && !peer.headers.contains_key("authorization")
            {
                wrong(
                    "endpoint",
                    "`langfuse` has no keys".to_owned(),
                    "give `public_key` and `secret_key` or `secret_key_file`",
                );
            }
            if matches!(writer, Writer::Datadog(_))
                && writer.credentials().is_none()
                && !peer.headers.contains_key("dd-api-key")
            {
                wrong(
                    "endpoint",
                    "`datadog` has no key".to_owned(),
                    "give `api_key` or `api_key_file`",
                );
            }
            if let Some(tls) = &peer.tls
                && tls.cert_file.is_some() != tls.key_file.is_some()
            {
                wrong(
                    "tls",
                    "a certificate or a key without the other".to_owned(),
                    "give `cert_file` and `key_file`",
                );
            }
        }
    }

    fn headers(&mut self, peer: PeerSection<'_>) {
        let none = BTreeMap::new();
        for (name, value) in peer.headers.unwrap_or(&none) {
            let key = format!("{}.headers.{name}", peer.section);
            let section = format!("{}.headers", peer.section);
            // A dotted key cannot address a header name that contains a dot.
            let at = if name.contains('.') { &section } else { &key };
            if let Some((title, remedy)) = wrong_header(name, value) {
                self.wrong(&[at], title, remedy);
            }
        }
    }

    fn client_tls(&mut self, peer: PeerSection<'_>) {
        let Some(tls) = peer.tls else { return };
        let key = |name: &str| format!("{}.tls.{name}", peer.section);
        match (&tls.cert_file, &tls.key_file) {
            (Some(_), None) => self.wrong(
                &[&key("cert_file"), &key("key_file")],
                "a certificate without its key",
                format!("give `{}` as well", key("key_file")),
            ),
            (None, Some(_)) => self.wrong(
                &[&key("key_file"), &key("cert_file")],
                "a key without its certificate",
                format!("give `{}` as well", key("cert_file")),
            ),
            _ => {}
        }
        if tls.insecure_skip_verify {
            let title = format!(
                "`{}` accepts any certificate, also an attacker's",
                key("insecure_skip_verify")
            );
            self.doubtful(
                &[&key("insecure_skip_verify")],
                title,
                "for tests only; name the authority in `ca_file` instead",
            );
        }
    }

    /// Warns of headers that destinations on other hosts inherit from `forward`, because such
    /// headers usually contain a key that was meant for one host.
    fn leaked_headers(&mut self) {
        let config = self.config;
        let Some(forward_host) = host_of(config.forward.endpoint.as_deref()) else {
            return;
        };
        if config.forward.headers.is_empty() {
            return;
        }
        for shape in Shape::ALL {
            let chain = config.score_peers(shape);
            let inherits = chain[..2].iter().all(|peer| peer.headers.is_none());
            let Some(peer) = chain[..2].iter().find(|peer| peer.endpoint.is_some()) else {
                continue;
            };
            if inherits && host_of(peer.endpoint).is_some_and(|host| host != forward_host) {
                let remedy = format!(
                    "to send no headers to that endpoint, set `{}.headers: {{}}`",
                    peer.section
                );
                let title = format!(
                    "the headers of `forward` are sent to `{}.endpoint` as well",
                    peer.section
                );
                self.doubtful(&[&format!("{}.endpoint", peer.section)], title, remedy);
            }
        }
    }
}

/// Returns the mistake in a header, and its remedy.
fn wrong_header(name: &str, value: &Secret) -> Option<(String, &'static str)> {
    if !is_header_name(name) {
        Some((
            format!("`{name}` is not a header name"),
            "expected letters, digits and `-`",
        ))
    } else if is_reserved_header(name) {
        Some((
            format!("the header `{name}` belongs to the protocol"),
            "leave it out",
        ))
    } else if !is_header_value(value) {
        Some((
            format!(
                "the value of the header `{name}` contains a line break or another control \
                 character"
            ),
            "remove it",
        ))
    } else {
        None
    }
}

fn host_of(endpoint: Option<&str>) -> Option<String> {
    Endpoint::parse(endpoint?, None)
        .ok()
        .map(|(endpoint, _)| endpoint.host)
}

fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

fn is_header_value(value: &Secret) -> bool {
    value
        .expose()
        .bytes()
        .all(|b| b == b'\t' || (b >= 0x20 && b != 0x7f))
}

/// Returns true for headers that the transport itself sets.
fn is_reserved_header(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let reserved = [
        "content-type",
        "content-length",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "te",
        "host",
        "user-agent",
    ];
    reserved.contains(&name.as_str()) || name.starts_with("grpc-")
}
