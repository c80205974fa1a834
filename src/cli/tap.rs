//! `spanscore tap`: streams the scores of a running sidecar, and reconnects if the stream breaks.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::BodyExt;
use hyper::{Request, body::Incoming};
use serde_json::{Map, Value};
use tokio::runtime::Builder;
use tokio::signal;
use tokio::time::sleep;

use super::api::{Api, ApiClient, ApiFailure, escaped};
use super::{Exit, Streams};
use crate::config::Config;
use crate::export::score_line::{self, Clean};

/// Options of `tap`.
#[derive(Debug, Args)]
pub(super) struct Tap {
    /// The sidecar to call.
    #[command(flatten)]
    pub(super) api: ApiClient,
    /// Output format.
    #[arg(long, value_enum, default_value_t = TapFormat::Human)]
    pub(super) format: TapFormat,
    /// Only criteria whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(super) criterion: Vec<String>,
    /// Only scores with this label (repeatable).
    #[arg(long, value_name = "LABEL", value_parser = ["pass", "fail", "not_evaluated", "error"])]
    pub(super) label: Vec<String>,
    /// Only services whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(super) service: Vec<String>,
    /// Only agents whose name matches (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(super) agent: Vec<String>,
    /// Print alarms of runs that are still open, instead of scores.
    #[arg(long)]
    pub(super) alarms: bool,
    /// Start with the last N scores that the sidecar remembers.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    #[arg(value_parser = clap::value_parser!(u16).range(..=256))]
    pub(super) last: u16,
    /// Stop after N scores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) count: Option<u64>,
}

/// Output formats of `tap`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TapFormat {
    /// Text for people.
    Human,
    /// One JSON object per score, as in `replay --format jsonl`.
    Jsonl,
}

/// Delay before the first reconnect. Each further delay is twice the previous one.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// Maximum delay before a reconnect.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Silence after which a connection counts as lost; a sidecar sends something every 15 s.
const LONGEST_SILENCE: Duration = Duration::from_secs(45);
/// Maximum bytes of a line. Lines that sidecars send are shorter.
const MAX_LINE: usize = 4 << 20;

pub(super) fn tap(args: &Tap, config: &Config, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let Some(runtime) = streams.runtime(&mut Builder::new_current_thread())? else {
        return Ok(Exit::NoStart);
    };
    runtime.block_on(async {
        let api = match Api::new(&args.api, config) {
            Ok(api) => api,
            Err(message) => return streams.complain(&message).map(|()| Exit::Usage),
        };
        tokio::select! {
            exit = follow(&api, args, streams) => exit,
            // Shells report this exit code for a program that Ctrl-C killed.
            _ = signal::ctrl_c() => Ok(Exit::Cut),
        }
    })
}

/// The reason why a stream of scores ended.
enum End {
    /// The requested number of scores was printed.
    Enough,
    /// The stream broke, fell silent or was no stream of scores. The text is the reason.
    Lost(String),
}

async fn follow(api: &Api, args: &Tap, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let mut left = args.count;
    let mut last = args.last;
    let mut wait = FIRST_WAIT;
    let mut was_connected = false;
    loop {
        let reason = match api
            .call(
                Request::get(path(args, last))
                    .body(Bytes::new())
                    .unwrap_or_default(),
            )
            .await
        {
            Ok(response) => {
                if was_connected {
                    writeln!(
                        streams.err,
                        "reconnected; scores from the interruption are not shown"
                    )?
                } else {
                    writeln!(
                        streams.err,
                        "streaming {} from {} (Ctrl-C to stop)",
                        if args.alarms { "alarms" } else { "scores" },
                        api.base()
                    )?
                }
                (wait, last, was_connected) = (FIRST_WAIT, 0, true);
                match print(response.into_body(), args.format, &mut left, streams).await? {
                    End::Enough => return Ok(Exit::Fine),
                    End::Lost(reason) => format!("{}: {reason}", api.base()),
                }
            }
            // The sidecar is stopping, or its maximum number of clients is connected.
            Err(error @ ApiFailure::Refused { status: 500.., .. }) if was_connected => {
                error.to_string()
            }
            Err(error @ ApiFailure::NoResponse { .. }) if was_connected => error.to_string(),
            Err(error @ ApiFailure::NoResponse { .. }) => {
                return streams
                    .complain(&format!(
                        "{error}; is the sidecar running with this `admin.listen`?"
                    ))
                    .map(|()| Exit::NoStart);
            }
            Err(error) => return streams.complain(&error.to_string()).map(|()| Exit::NoStart),
        };
        // Print one message for each outage, not for each attempt.
        if wait == FIRST_WAIT {
            writeln!(
                streams.err,
                "{}; retrying until it responds",
                Clean(&reason)
            )?;
        }
        sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

fn path(args: &Tap, last: u16) -> String {
    let filters = [
        ("criterion", &args.criterion),
        ("label", &args.label),
        ("service", &args.service),
        ("agent", &args.agent),
    ];
    let mut pairs: Vec<String> = filters
        .iter()
        .flat_map(|(key, values)| {
            values
                .iter()
                .map(move |value| format!("{key}={}", escaped(value)))
        })
        .collect();
    if args.alarms {
        pairs.push("alarms=true".to_owned());
    }
    if last > 0 {
        pairs.push(format!("last={last}"));
    }
    format!(
        "/v1/scores{}{}",
        if pairs.is_empty() { "" } else { "?" },
        pairs.join("&")
    )
}

/// Prints lines until the stream ends or the requested number of scores is printed.
async fn print(
    mut body: Incoming,
    format: TapFormat,
    left: &mut Option<u64>,
    streams: &mut Streams<'_>,
) -> io::Result<End> {
    let mut text = Vec::new();
    loop {
        let frame = match tokio::time::timeout(LONGEST_SILENCE, body.frame()).await {
            Ok(Some(Ok(frame))) => frame.into_data().unwrap_or_else(|_| Bytes::new()),
            Ok(None) => return Ok(End::Lost("the sidecar has stopped".to_owned())),
            Ok(Some(Err(error))) => {
                return Ok(End::Lost(format!("the connection broke ({error})")));
            }
            Err(_) => return Ok(End::Lost("no data within the expected time".to_owned())),
        };
        text.extend_from_slice(&frame);
        let mut done = 0;
        while let Some(len) = text[done..].iter().position(|byte| *byte == b'\n') {
            let line = &text[done..done + len];
            done += len + 1;
            if print_line(line, format, streams)? {
                *left = left.map(|left| left - 1);
                if *left == Some(0) {
                    streams.out.flush()?;
                    return Ok(End::Enough);
                }
            }
        }
        text.drain(..done);
        if text.len() > MAX_LINE {
            return Ok(End::Lost(
                "the response is not a stream of scores".to_owned(),
            ));
        }
        streams.out.flush()?;
    }
}

/// Prints a line; returns true if it was a score or an alarm.
fn print_line(line: &[u8], format: TapFormat, streams: &mut Streams<'_>) -> io::Result<bool> {
    let Ok(score) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return Ok(false);
    };
    if let Some(n_lost) = score.get("lost") {
        writeln!(
            streams.err,
            "{n_lost} scores were skipped: they arrived faster than they could be read"
        )?;
        return Ok(false);
    }
    match format {
        TapFormat::Human => streams
            .out
            .write_all(score_line::human_line(&score, streams.look).as_bytes())?,
        TapFormat::Jsonl => {
            streams.out.write_all(line)?;
            streams.out.write_all(b"\n")?;
        }
    }
    Ok(true)
}
