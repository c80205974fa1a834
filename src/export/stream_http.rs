//! Serves `GET /v1/scores`: a stream of JSON lines (those of `replay --format jsonl`), or of
//! server-sent events for clients that accept them.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hyper::body::Frame;
use judge::evaluate::Verdict;
use percent_encoding::percent_decode_str;
use serde_json::json;
use text::truncated;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::stream::{MAX_RECENT, NextLine, ScoreFilter, ScoreListener, ScoreStream};

/// Time of silence after which an empty line or comment is sent; without heartbeats neither side
/// would notice that the connection is dead.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Size of the frames into which lines are joined, in bytes.
const FRAME_SIZE: usize = 16 << 10;
/// Maximum length of a query's value in bytes: in the worst case, matching a glob takes time
/// proportional to pattern × text.
const MAX_VALUE: usize = 256;
const MAX_VALUES: usize = 16;

pub(super) fn routes(stream: Arc<ScoreStream>) -> Router {
    Router::new()
        .route("/v1/scores", get(scores))
        .with_state(stream)
}

async fn scores(
    State(stream): State<Arc<ScoreStream>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let (filter, n_last) = match read_query(query.as_deref().unwrap_or_default()) {
        Ok(query) => query,
        Err(detail) => return problem(StatusCode::BAD_REQUEST, &detail),
    };
    let listener = match stream.listen(filter, n_last) {
        Ok(listener) => listener,
        Err(detail) => return problem(StatusCode::SERVICE_UNAVAILABLE, &detail),
    };
    let accepts_events = |accept: &HeaderValue| {
        let accept = accept.to_str();
        accept.is_ok_and(|accept| accept.contains("text/event-stream"))
    };
    let format = if headers.get_all(header::ACCEPT).iter().any(accepts_events) {
        StreamFormat::Events
    } else {
        StreamFormat::Lines
    };
    let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let content_type = [
        (header::CONTENT_TYPE, format.content_type()),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (
        content_type,
        Body::new(Stream {
            listener,
            format,
            heartbeat,
        }),
    )
        .into_response()
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let problem =
        json!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail });
    (
        status,
        [(header::CONTENT_TYPE, "application/problem+json")],
        format!("{problem}\n"),
    )
        .into_response()
}

// === the query ===

const PARAMETERS: &str =
    "`criterion`, `label`, `service`, `agent` (each any number of times), `alarms` and `last`";

fn read_query(query: &str) -> Result<(ScoreFilter, usize), String> {
    let (mut filter, mut n_last) = (ScoreFilter::default(), 0);
    if query.split('&').count() > MAX_VALUES {
        return Err(format!("the query has more than {MAX_VALUES} values"));
    }
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decoded(value).ok_or_else(|| {
            format!(
                "the value of `{}` is not percent-encoded UTF-8",
                truncated(key, 60)
            )
        })?;
        match key {
            _ if value.len() > MAX_VALUE => {
                return Err(format!(
                    "the value of `{}` is longer than {MAX_VALUE} bytes",
                    truncated(key, 60)
                ));
            }
            "criterion" => filter.criterion.push(value),
            "service" => filter.service.push(value),
            "agent" => filter.agent.push(value),
            "label" => filter.label.push(label(&value)?),
            "alarms" => match &*value {
                "true" => filter.alarms = true,
                "false" => filter.alarms = false,
                _ => return Err("`alarms` is `true` or `false`".to_owned()),
            },
            "last" => match value.parse() {
                Ok(n) if n <= MAX_RECENT => n_last = n,
                _ => return Err(format!("`last` is a number from 0 to {MAX_RECENT}")),
            },
            _ => {
                return Err(format!(
                    "unknown parameter `{}`; expected {PARAMETERS}",
                    truncated(key, 60)
                ));
            }
        }
    }
    Ok((filter, n_last))
}

fn label(word: &str) -> Result<Verdict, String> {
    Verdict::named(word)
        .ok_or_else(|| "`label` is one of `pass`, `fail`, `not_evaluated`, `error`".to_owned())
}

/// Decodes a percent-encoded text; `+` and `%20` are spaces.
fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(Into::into)
}

// === Stream ===

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamFormat {
    Lines,
    Events,
}

impl StreamFormat {
    fn content_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }

    fn line(self, line: &[u8], out: &mut Vec<u8>) {
        if self == Self::Events {
            out.extend_from_slice(b"data: ");
        }
        out.extend_from_slice(line);
        out.extend_from_slice(if self == Self::Events { b"\n\n" } else { b"\n" });
    }

    fn lost(self, n_lost: u64, out: &mut Vec<u8>) {
        if self == Self::Events {
            out.extend_from_slice(b"event: lost\n");
        }
        self.line(json!({ "lost": n_lost }).to_string().as_bytes(), out);
    }

    fn heartbeat(self) -> &'static [u8] {
        match self {
            Self::Lines => b"\n",
            Self::Events => b":\n\n",
        }
    }
}

struct Stream {
    listener: ScoreListener,
    format: StreamFormat,
    heartbeat: Interval,
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let mut out = Vec::new();
        while out.len() < FRAME_SIZE {
            match this.listener.next(cx.waker()) {
                NextLine::Line(line) => this.format.line(&line, &mut out),
                NextLine::Lost(n_lost) => this.format.lost(n_lost, &mut out),
                NextLine::End if out.is_empty() => return Poll::Ready(None),
                NextLine::End | NextLine::Later => break,
            }
        }
        if out.is_empty() {
            std::task::ready!(this.heartbeat.poll_tick(cx));
            out.extend_from_slice(this.format.heartbeat());
        } else {
            this.heartbeat.reset();
        }
        Poll::Ready(Some(Ok(Frame::data(out.into()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_a_filter() {
        let (filter, n_last) =
            read_query("label=fail&label=error&criterion=a%20b*&service=caf%C3%A9&last=7").unwrap();
        assert_eq!(n_last, 7);
        assert_eq!(
            (filter.label, filter.criterion[0].as_str()),
            (vec![Verdict::Fail, Verdict::Error], "a b*")
        );
        assert_eq!(
            (filter.service[0].as_str(), filter.agent.len()),
            ("café", 0)
        );
        assert!(read_query("alarms=true").unwrap().0.alarms);
        assert_eq!(read_query("").unwrap(), (ScoreFilter::default(), 0));
    }

    #[test]
    fn a_wrong_query_is_refused_with_the_right_ones() {
        let many = "agent=a&".repeat(40);
        let long = format!("agent={}", "*a".repeat(3_000));
        for (query, part) in [
            (
                "labels=fail",
                "unknown parameter `labels`; expected `criterion`",
            ),
            ("label=failed", "one of `pass`, `fail`"),
            ("last=many", "from 0 to 256"),
            ("alarms=yes", "`alarms` is `true` or `false`"),
            ("last=257", "from 0 to 256"),
            ("agent=%c3", "`agent` is not percent-encoded"),
            (&many, "more than 16 values"),
            (&long, "`agent` is longer than 256 bytes"),
        ] {
            let error = read_query(query).unwrap_err();
            assert!(error.contains(part), "{query}: {error}");
        }
    }
}
