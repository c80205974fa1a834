//! Resolves every default and inheritance of a checked configuration into destinations.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;

use super::Config;
use super::forward::{ClientTls, Compression, Protocol, Signal};
use super::peer::OtlpPeer;
use super::units::{Duration, Secret};
use super::writers::Writer;

/// A peer to send to, OTLP or a backend's own API, with all defaults resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Destination {
    /// The setting or variable that names the destination, for messages: `forward.endpoint`,
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, `scores.span.endpoint`.
    pub origin: String,
    /// `http` or `https`, host, port and base path.
    pub endpoint: Endpoint,
    /// OTLP over gRPC or over HTTP.
    pub protocol: Protocol,
    /// Headers to send, with secrets resolved.
    pub headers: Vec<(String, Secret)>,
    /// Compression of sent requests.
    pub compression: Compression,
    /// Timeout of one request.
    pub timeout: std::time::Duration,
    /// Maximum number of requests in flight. Over gRPC they share a connection.
    pub max_concurrency: usize,
    /// TLS settings.
    pub tls: ClientTls,
    /// Delays between attempts.
    pub retry: Backoff,
}

/// A parsed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// True for `https`.
    pub tls: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// Port. [`Endpoint::parse`] and [`Endpoint::parse_url`] add a missing port.
    pub port: u16,
    /// Base path; empty, or with a leading `/` and without a trailing one.
    pub base_path: String,
}

/// Exponential backoff.
#[derive(Debug, Clone, PartialEq)]
pub struct Backoff {
    /// The first delay.
    pub initial: std::time::Duration,
    /// The factor from one delay to the next.
    pub multiplier: f64,
    /// The maximum delay.
    pub max: std::time::Duration,
}

/// The three shapes in which evaluations are sent over OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// Score spans.
    Span,
    /// `gen_ai.evaluation.result` events.
    Event,
    /// Metrics.
    Metrics,
}

/// The reason why a shape is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Off {
    /// The shape's `enabled` is false.
    Disabled(Shape),
    /// Neither the shape's section, nor `scores`, nor `forward` has an endpoint.
    NoEndpoint(Shape),
    /// The endpoint of `forward`, which the shape inherits, does not accept the shape's signal.
    SignalNotTaken(Shape),
}

impl Shape {
    /// All shapes.
    pub const ALL: [Self; 3] = [Self::Span, Self::Event, Self::Metrics];

    /// Returns the key below `scores`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Span => "span",
            Self::Event => "event",
            Self::Metrics => "metrics",
        }
    }

    /// Returns the OTLP signal of the shape.
    pub fn signal(self) -> Signal {
        match self {
            Self::Span => Signal::Traces,
            Self::Event => Signal::Logs,
            Self::Metrics => Signal::Metrics,
        }
    }
}

impl fmt::Display for Off {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled(shape) => write!(f, "`scores.{}.enabled` is false", shape.as_str()),
            Self::NoEndpoint(shape) => {
                write!(
                    f,
                    "there is no endpoint: set `forward.endpoint`, `scores.endpoint` or \
                     `scores.{}.endpoint`",
                    shape.as_str()
                )
            }
            Self::SignalNotTaken(shape) => write!(
                f,
                "`forward.signals` does not have `{}`: give `scores.{}` an endpoint of its own, \
                 or switch it off",
                shape.signal().as_str(),
                shape.as_str()
            ),
        }
    }
}

impl Endpoint {
    /// Parses `http(s)://host[:port][/base]`. Without a protocol, port 4318 or a path means HTTP,
    /// everything else gRPC. Without a port, `https` means 443 and `http` the protocol's port, 4317
    /// or 4318. The error text has the remedy after its last `: `.
    ///
    /// A bare `host:port` is rejected, as in OpenTelemetry's Java SDK, because SDKs disagree about
    /// its meaning: some use TLS, some do not.
    pub fn parse(text: &str, protocol: Option<Protocol>) -> Result<(Self, Protocol), String> {
        let (tls, authority, base_path) = split(text)?;
        let (host, port) = host_and_port(authority).ok_or_else(|| {
            format!(
                "`{}` is not an endpoint: write `http://host:port`, with an IPv6 address in \
                 brackets",
                text.trim()
            )
        })?;
        if let Some(base) = Signal::ALL
            .iter()
            .find_map(|signal| base_path.strip_suffix(&format!("/v1/{}", signal.as_str())))
        {
            let scheme = if tls { "https" } else { "http" };
            return Err(format!(
                "`/v1/traces` and its like are appended to the endpoint: write \
                 `{scheme}://{authority}{base}`"
            ));
        }
        let is_http = port == Some(4318) || !base_path.is_empty();
        let protocol =
            protocol.unwrap_or(if is_http { Protocol::HttpProtobuf } else { Protocol::Grpc });
        if protocol == Protocol::Grpc && !base_path.is_empty() {
            return Err(format!(
                "gRPC has no path such as `{base_path}`: leave it out, or set the protocol to \
                 `http/protobuf`"
            ));
        }
        let port = port.unwrap_or(match (tls, protocol) {
            (true, _) => 443,
            (false, Protocol::Grpc) => 4317,
            (false, Protocol::HttpProtobuf) => 4318,
        });
        Ok((
            Self {
                tls,
                host,
                port,
                base_path: base_path.to_owned(),
            },
            protocol,
        ))
    }

    /// Parses the base URL of an API other than OTLP; the default port is that of the scheme.
    /// Errors are as for [`Self::parse`].
    pub fn parse_url(text: &str) -> Result<Self, String> {
        let (tls, authority, base_path) = split(text)?;
        let (host, port) = host_and_port(authority).ok_or_else(|| {
            format!(
                "`{}` is not an endpoint: write `https://host`, with an IPv6 address in brackets",
                text.trim()
            )
        })?;
        Ok(Self {
            tls,
            host,
            port: port.unwrap_or(if tls { 443 } else { 80 }),
            base_path: base_path.to_owned(),
        })
    }
}

/// Splits an endpoint into a TLS flag, host with port, and base path.
fn split(text: &str) -> Result<(bool, &str, &str), String> {
    let text = text.trim();
    if text
        .split("://")
        .last()
        .and_then(|rest| rest.split('/').next())
        .is_some_and(|authority| authority.contains('@'))
    {
        return Err(
            "the endpoint contains credentials: send them as a header, such as `authorization`"
                .to_owned(),
        );
    }
    let (tls, rest) = match text.split_once("://") {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (true, rest),
        Some((scheme, rest)) => {
            return Err(format!(
                "`{scheme}` is not a scheme of an endpoint: write `http://{rest}`, or \
                 `https://{rest}` for TLS"
            ));
        }
        None => {
            return Err(format!(
                "`{text}` has no scheme: write `http://{text}`, or `https://{text}` for TLS"
            ));
        }
    };
    if rest.contains(['?', '#']) {
        return Err(format!(
            "`{text}` has a query: write the endpoint without `?` and `#`"
        ));
    }
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let base_path = path.trim_end_matches('/');
    if base_path.chars().any(|c| !c.is_ascii_graphic()) {
        return Err(format!(
            "`{text}` has a path that no URL can have: percent-encode it"
        ));
    }
    Ok((tls, authority, base_path))
}

fn host_and_port(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        (
            host,
            if after.is_empty() { None } else { Some(after.strip_prefix(':')?) },
        )
    } else {
        let (host, port) = authority
            .split_once(':')
            .map_or((authority, None), |(host, port)| (host, Some(port)));
        let is_name = !host.is_empty()
            && host
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
        if !is_name {
            return None;
        }
        (host, port)
    };
    let port = match port {
        Some(port) => Some(port.parse::<u16>().ok().filter(|port| *port > 0)?),
        None => None,
    };
    Some((host.to_owned(), port))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        if self.host.contains(':') {
            write!(
                f,
                "{scheme}://[{}]:{}{}",
                self.host, self.port, self.base_path
            )
        } else {
            write!(
                f,
                "{scheme}://{}:{}{}",
                self.host, self.port, self.base_path
            )
        }
    }
}

// === inheritance between sections ===

/// The keys of a section that describes an OTLP peer.
#[derive(Clone, Copy)]
pub(super) struct PeerSection<'a> {
    pub(super) section: &'static str,
    pub(super) endpoint: Option<&'a str>,
    pub(super) protocol: Option<Protocol>,
    pub(super) headers: Option<&'a BTreeMap<String, Secret>>,
    compression: Option<Compression>,
    timeout: Option<Duration>,
    pub(super) tls: Option<&'a ClientTls>,
}

impl OtlpPeer {
    fn of_section<'a>(&'a self, section: &'static str) -> PeerSection<'a> {
        PeerSection {
            section,
            endpoint: self.endpoint.as_deref(),
            protocol: self.protocol,
            headers: self.headers.as_ref(),
            compression: self.compression,
            timeout: self.timeout,
            tls: self.tls.as_ref(),
        }
    }
}

impl Config {
    /// Returns the destination of the original telemetry; `None` without a `forward.endpoint`.
    pub fn forward_destination(&self) -> Option<Destination> {
        let forward = self.forward_peer();
        forward
            .endpoint
            .map(|endpoint| self.destination(&[forward], "forward", endpoint))
    }

    /// Returns the destination of a shape of scores. Missing keys are inherited from `scores`, and
    /// then from `forward`.
    ///
    /// # Errors
    /// Returns the reason if the shape is not sent.
    pub fn score_destination(&self, shape: Shape) -> Result<Destination, Off> {
        let chain = self.score_peers(shape);
        if !self.is_enabled(shape) {
            return Err(Off::Disabled(shape));
        }
        let Some((section, endpoint)) = chain
            .iter()
            .find_map(|peer| peer.endpoint.map(|endpoint| (peer.section, endpoint)))
        else {
            return Err(Off::NoEndpoint(shape));
        };
        if section == "forward" && !self.forward.signals.contains(&shape.signal()) {
            return Err(Off::SignalNotTaken(shape));
        }
        Ok(self.destination(&chain, section, endpoint))
    }

    /// Returns the destination of the writer at this index of `scores.writers`.
    pub fn writer_destination(&self, writer_idx: usize, writer: &Writer) -> Destination {
        let peer = writer.peer();
        let mut headers: Vec<_> = peer
            .headers
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
            .collect();
        if let Some((name, value)) = writer.credentials()
            && headers.iter().all(|(given, _)| given != name)
        {
            headers.push((name.to_owned(), value));
        }
        Destination {
            origin: format!("scores.writers[{writer_idx}].{}", writer.name()),
            endpoint: Endpoint::parse_url(&peer.endpoint)
                .expect("loading has checked every endpoint"),
            protocol: Protocol::HttpProtobuf,
            headers,
            compression: Compression::None,
            timeout: peer.timeout.0,
            max_concurrency: self.forward.max_concurrency,
            tls: peer.tls.clone().unwrap_or_default(),
            retry: self.backoff(),
        }
    }

    pub(super) fn is_enabled(&self, shape: Shape) -> bool {
        match shape {
            Shape::Span => self.scores.span.enabled,
            Shape::Event => self.scores.event.enabled,
            Shape::Metrics => self.scores.metrics.enabled,
        }
    }

    /// Returns the section of a shape, followed by the sections that it inherits from.
    pub(super) fn score_peers(&self, shape: Shape) -> [PeerSection<'_>; 3] {
        let scores = &self.scores;
        let own = match shape {
            Shape::Span => scores.span.peer.of_section("scores.span"),
            Shape::Event => scores.event.peer.of_section("scores.event"),
            Shape::Metrics => scores.metrics.peer.of_section("scores.metrics"),
        };
        [own, scores.peer.of_section("scores"), self.forward_peer()]
    }

    /// Returns every section that describes an OTLP peer, after the sections that it inherits from.
    pub(super) fn otlp_peers(&self) -> [PeerSection<'_>; 5] {
        let [span, scores, forward] = self.score_peers(Shape::Span);
        let [event, ..] = self.score_peers(Shape::Event);
        let [metrics, ..] = self.score_peers(Shape::Metrics);
        [forward, scores, span, event, metrics]
    }

    pub(super) fn forward_peer(&self) -> PeerSection<'_> {
        let forward = &self.forward;
        PeerSection {
            section: "forward",
            endpoint: forward.endpoint.as_deref(),
            protocol: forward.protocol,
            headers: Some(&forward.headers),
            compression: Some(forward.compression),
            timeout: Some(forward.timeout),
            tls: forward.tls.as_ref(),
        }
    }

    fn destination(&self, chain: &[PeerSection<'_>], section: &str, endpoint: &str) -> Destination {
        let (endpoint, protocol) = Endpoint::parse(endpoint, first(chain, |peer| peer.protocol))
            .expect("loading has checked every endpoint together with its protocol");
        let headers = first(chain, |peer| peer.headers).into_iter().flatten();
        Destination {
            origin: self.origin_of(&format!("{section}.endpoint")),
            endpoint,
            protocol,
            headers: headers
                .map(|(name, value)| (name.to_ascii_lowercase(), value.clone()))
                .collect(),
            compression: first(chain, |peer| peer.compression).unwrap_or_default(),
            timeout: first(chain, |peer| peer.timeout)
                .unwrap_or(self.forward.timeout)
                .0,
            max_concurrency: self.forward.max_concurrency,
            tls: first(chain, |peer| peer.tls).cloned().unwrap_or_default(),
            retry: self.backoff(),
        }
    }

    /// Returns the delays between attempts, from `forward.retry`.
    pub fn backoff(&self) -> Backoff {
        let retry = &self.forward.retry;
        Backoff {
            initial: retry.initial_interval.0,
            multiplier: retry.multiplier,
            max: retry.max_interval.0,
        }
    }
}

/// Returns the value from the first section of the chain that has one.
pub(super) fn first<'a, T>(
    chain: &[PeerSection<'a>],
    pick: impl Fn(&PeerSection<'a>) -> Option<T>,
) -> Option<T> {
    chain.iter().find_map(pick)
}
