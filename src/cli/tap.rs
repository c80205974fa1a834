//! `spanscore tap`: the scores of a running sidecar, as they happen.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, body::Incoming};
use serde_json::{Map, Value};
use tokio::signal;
use tokio::time::sleep;

use super::api::{Api, ApiFailure, escaped};
use super::args::{Tap, TapFormat};
use super::{Exit, Streams};
use crate::config::Config;
use crate::export::score_line::{self, Clean, Colour};

/// First wait before trying again, and the longest; each is twice the one before.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// A sidecar says something every 15 s; one that has been silent for so long is gone without a
/// word.
const LONGEST_SILENCE: Duration = Duration::from_secs(45);
/// A longer line is no line of ours.
const MAX_LINE: usize = 4 << 20;

/// Runs the command.
pub(super) fn tap(args: &Tap, config: &Config, streams: &mut Streams<'_>) -> io::Result<Exit> {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            return streams
                .complain(&format!("cannot start: {error}"))
                .map(|()| Exit::NoStart);
        }
    };
    runtime.block_on(async {
        let api = match Api::new(&args.api, config) {
            Ok(api) => api,
            Err(message) => return streams.complain(&message).map(|()| Exit::Usage),
        };
        tokio::select! {
            exit = follow(&api, args, streams) => exit,
            // What a shell says of a program that Ctrl-C ended.
            _ = signal::ctrl_c() => Ok(Exit::Cut),
        }
    })
}

/// How a stream of scores ended.
enum End {
    /// As many as were asked for have come.
    Enough,
    /// The sidecar stopped, or the connection broke.
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
                    .body(Full::default())
                    .unwrap_or_default(),
            )
            .await
        {
            Ok(response) => {
                match was_connected {
                    true => writeln!(
                        streams.err,
                        "connected again; what was scored meanwhile is not shown"
                    )?,
                    false => writeln!(
                        streams.err,
                        "scores of {} as they come (Ctrl-C ends)",
                        api.base()
                    )?,
                }
                (wait, last, was_connected) = (FIRST_WAIT, 0, true);
                match print(response.into_body(), args.format, &mut left, streams).await? {
                    End::Enough => return Ok(Exit::Fine),
                    End::Lost(reason) => format!("{}: {reason}", api.base()),
                }
            }
            // It has only begun to stop, or as many listen as may.
            Err(error @ ApiFailure::Refused { status: 500.., .. }) if was_connected => {
                error.to_string()
            }
            Err(error @ ApiFailure::NoAnswer { .. }) if was_connected => error.to_string(),
            Err(error @ ApiFailure::NoAnswer { .. }) => {
                return streams
                    .complain(&format!(
                        "{error}; is the sidecar running, and is `admin.listen` the same there?"
                    ))
                    .map(|()| Exit::NoStart);
            }
            Err(error) => return streams.complain(&error.to_string()).map(|()| Exit::NoStart),
        };
        // One word for each time it goes away, not for each try.
        if wait == FIRST_WAIT {
            writeln!(
                streams.err,
                "{}; trying again until it answers",
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
    if last > 0 {
        pairs.push(format!("last={last}"));
    }
    format!(
        "/v1/scores{}{}",
        if pairs.is_empty() { "" } else { "?" },
        pairs.join("&")
    )
}

/// Prints lines until the stream ends or enough have come.
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
            Err(_) => return Ok(End::Lost("it has fallen silent".to_owned())),
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
            return Ok(End::Lost("what comes is no line of scores".to_owned()));
        }
        streams.out.flush()?;
    }
}

/// Was it a score?
fn print_line(line: &[u8], format: TapFormat, streams: &mut Streams<'_>) -> io::Result<bool> {
    let Ok(score) = serde_json::from_slice::<Map<String, Value>>(line) else {
        return Ok(false);
    };
    if let Some(n_lost) = score.get("lost") {
        writeln!(
            streams.err,
            "{n_lost} scores are missing here: they came faster than they are read or kept"
        )?;
        return Ok(false);
    }
    match format {
        TapFormat::Human => streams
            .out
            .write_all(score_line::human_line(&score, Colour::when(streams.colour)).as_bytes())?,
        TapFormat::Jsonl => {
            streams.out.write_all(line)?;
            streams.out.write_all(b"\n")?;
        }
    }
    Ok(true)
}
