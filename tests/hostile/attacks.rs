//! Defines the attacks of all cases. An attack continues until it is stopped.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::downstream::Behaviour;
use crate::payloads::{
    alias_bomb, all_but_a_byte, begun_handshake, bomb, bulky_runs, closing_traces, continuations,
    empty_data, large_headers, large_question, late_calls, long_results, long_run, nested,
    nested_json, rapid_reset, short_runs, slow_criterion, smuggled, stalled_window,
    unfinished_frame, unfinished_headers, waiting_traces,
};
use crate::sidecar::{LongRunExport, Setup, Target};
use crate::wire::{PING, SETTINGS, frame, post, preface, spans};

type Doing = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) type Attack = fn(Target) -> Doing;

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) attack: Attack,
    pub(crate) setup: Setup,
}

fn case(name: &'static str, setup: Setup, attack: Attack) -> Case {
    Case {
        name,
        attack,
        setup,
    }
}

pub(crate) fn cases() -> Vec<Case> {
    let plain = PLAIN
        .iter()
        .map(|(name, attack)| case(name, Setup::default(), *attack));
    let judging = |n_criteria| Setup {
        n_criteria,
        settings: &["assemble.settle=100ms"],
        ..Setup::default()
    };
    let tls = Setup {
        tls: true,
        ..Setup::default()
    };
    let mut cases: Vec<Case> = plain.collect();
    cases.extend([
        case("unfinished TLS handshakes", tls, |to| {
            let config = to.tls.clone().expect("TLS is set up");
            let (part, whole) = (
                begun_handshake(&config, false),
                begun_handshake(&config, true),
            );
            let acts = [stuck(part), stuck(whole)];
            both(
                many(&to, 400, to.http, acts[0].clone()),
                many(&to, 400, to.grpc, acts[1].clone()),
            )
        }),
        case("short runs, 300 criteria", judging(300), |to| {
            many(&to, 1, to.http, each(short_runs()))
        }),
        case("a long run, 200 criteria", judging(200), |to| {
            many(&to, 1, to.http, each(long_run()))
        }),
        case("late calls, 100 criteria", judging(100), |to| {
            many(&to, 1, to.http, each(late_calls()))
        }),
        case(
            "slow patterns",
            Setup {
                has_slow_patterns: true,
                settings: &["assemble.settle=100ms", "expectations.from_spans=full"],
                ..Setup::default()
            },
            |to| {
                both(
                    many(&to, 1, to.admin, each(vec![slow_criterion()])),
                    many(&to, 1, to.http, each(long_results())),
                )
            },
        ),
        case(
            "open traces",
            Setup {
                long_run: Some(LongRunExport::AsSpansEnd),
                ..Setup::default()
            },
            |to| many(&to, 2, to.http, each(waiting_traces())),
        ),
        case(
            "closing traces",
            Setup {
                long_run: Some(LongRunExport::AtTheEnd),
                settings: &["assemble.settle=100ms"],
                ..Setup::default()
            },
            |to| many(&to, 2, to.http, each(closing_traces())),
        ),
        case(
            "a full journal",
            Setup {
                journal: true,
                may_queue: true,
                ..Setup::default()
            },
            |to| {
                both(
                    behave(to.clone(), Behaviour::Silent),
                    many(&to, 4, to.http, each(bulky_runs())),
                )
            },
        ),
        case(
            "idle, 1,024 descriptors",
            Setup {
                n_descriptors: Some(1_024),
                ..Setup::default()
            },
            |to| many(&to, 1_500, to.http, stuck(Vec::new())),
        ),
    ]);
    let downstreams: [(&'static str, Attack); 5] = [
        ("a downstream's 100 without end", |to| {
            behave(to, Behaviour::Continue)
        }),
        ("a downstream's 103 without end", |to| {
            behave(to, Behaviour::EarlyHints)
        }),
        ("a slow downstream", |to| behave(to, Behaviour::Slow)),
        ("a downstream's huge answers", |to| {
            behave(to, Behaviour::Huge)
        }),
        ("a downstream without answers", |to| {
            behave(to, Behaviour::Silent)
        }),
    ];
    let queueing = Setup {
        may_queue: true,
        ..Setup::default()
    };
    cases.extend(downstreams.map(|(name, attack)| case(name, queueing, attack)));
    cases
}

/// Cases in which the sidecar has the usual configuration.
const PLAIN: &[(&str, Attack)] = &[
    ("nothing", |_| Box::pin(std::future::pending())),
    ("pipelining traces", |to| {
        many(&to, 4, to.http, pipelined(post("/v1/traces", "", &[])))
    }),
    ("pipelining livez", |to| {
        many(&to, 2, to.admin, pipelined(GET_LIVEZ.to_vec()))
    }),
    ("pipelining metrics", |to| {
        many(&to, 2, to.admin, pipelined(GET_METRICS.to_vec()))
    }),
    ("scrapers that do not read", |to| {
        many(&to, 30, to.admin, stuck(GET_METRICS.to_vec()))
    }),
    ("listeners that do not read", |to| {
        many(&to, 8, to.admin, stuck(GET_SCORES.to_vec()))
    }),
    ("pages that do not read", |to| {
        many(&to, 40, to.admin, stuck(get("/v1/runs/events")))
    }),
    ("a thousand pages", |to| {
        many(&to, 1_000, to.admin, opened_page())
    }),
    ("unfinished headers", |to| {
        many(&to, 400, to.http, stuck(unfinished_headers()))
    }),
    ("idle connections", |to| {
        many(&to, 900, to.http, stuck(Vec::new()))
    }),
    ("idle connections, admin", |to| {
        many(&to, 900, to.admin, stuck(Vec::new()))
    }),
    ("unfinished frames", |to| {
        many(&to, 125, to.grpc, stuck(unfinished_frame()))
    }),
    ("streams with large headers", |to| {
        many(&to, 10, to.grpc, stuck(large_headers("")))
    }),
    ("compressed streams", |to| {
        many(&to, 30, to.grpc, stuck(large_headers("zstd")))
    }),
    ("slow bodies", |to| {
        many(&to, 8, to.http, stuck(all_but_a_byte(8 << 20)))
    }),
    ("many slow bodies", |to| {
        many(&to, 64, to.http, stuck(all_but_a_byte(1 << 20)))
    }),
    ("slow bodies, one address", |to| {
        let act = abandoned(all_but_a_byte(4 << 20));
        many_from(INNOCENT, &to, 32, to.http, act)
    }),
    ("gzip bombs", |to| many(&to, 4, to.http, each(vec![bomb()]))),
    ("dense spans", |to| {
        let request = post("/v1/traces", "", &spans(250_000, false));
        many(&to, 4, to.http, each(vec![request]))
    }),
    ("one-span traces", |to| {
        let request = post("/v1/traces", "", &spans(100_000, true));
        many(&to, 2, to.http, each(vec![request]))
    }),
    ("deep nesting, protobuf", |to| {
        let request = post("/v1/traces", "", &nested());
        many(&to, 4, to.http, each(vec![request]))
    }),
    ("deep nesting, JSON", |to| {
        many(&to, 4, to.http, each(vec![nested_json()]))
    }),
    ("smuggling", |to| {
        many(&to, 8, to.http, each(vec![smuggled()]))
    }),
    ("rapid reset", |to| {
        many(&to, 4, to.grpc, flood(rapid_reset()))
    }),
    ("CONTINUATION flood", |to| {
        many(&to, 4, to.grpc, flood(continuations()))
    }),
    ("SETTINGS flood", |to| {
        let settings = frame(SETTINGS, 0, 0, &[]).repeat(5_000);
        many(&to, 4, to.grpc, flood(settings))
    }),
    ("PING flood", |to| {
        let pings = frame(PING, 0, 0, &[0; 8]).repeat(3_000);
        many(&to, 4, to.grpc, flood(pings))
    }),
    ("empty DATA flood", |to| {
        many(&to, 4, to.grpc, flood(empty_data()))
    }),
    ("window stall", |to| {
        many(&to, 30, to.grpc, stuck(stalled_window()))
    }),
    ("large questions to the API", |to| {
        many(&to, 4, to.admin, each(vec![large_question()]))
    }),
    ("alias bomb by the API", |to| {
        many(&to, 4, to.admin, each(vec![alias_bomb()]))
    }),
];

const GET_LIVEZ: &[u8] = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
const GET_METRICS: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
const GET_SCORES: &[u8] = b"GET /v1/scores HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";

/// The attackers' address, except in `slow bodies, one address`.
const ATTACKER: [u8; 4] = [127, 0, 0, 2];
const INNOCENT: [u8; 4] = [127, 0, 0, 1];

/// The behaviour of an attacker on one connection.
type Act =
    Arc<dyn Fn(TcpStream) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> + Send + Sync>;

/// Runs `act` on `n` times `target.scale` connections. When an act ends, opens a new connection and
/// runs `act` again.
fn many(target: &Target, n: usize, to: SocketAddr, act: Act) -> Doing {
    many_from(ATTACKER, target, n, to, act)
}

/// Like [`many`], from this address.
fn many_from(from: [u8; 4], target: &Target, n: usize, to: SocketAddr, act: Act) -> Doing {
    let n = n * target.scale;
    Box::pin(async move {
        let mut attackers = JoinSet::new();
        for _ in 0..n {
            let act = Arc::clone(&act);
            attackers.spawn(async move {
                loop {
                    if let Ok(stream) = connect(from, to).await {
                        // Ignore errors: the attacker connects again.
                        let _ = act(stream).await;
                    }
                    sleep(Duration::from_millis(20)).await;
                }
            });
        }
        attackers.join_all().await;
    })
}

fn both(one: Doing, other: Doing) -> Doing {
    Box::pin(async {
        tokio::join!(one, other);
    })
}

/// Makes the downstream behave like this until the attack is stopped.
fn behave(to: Target, behaviour: Behaviour) -> Doing {
    Box::pin(async move {
        let _reset = to.downstream.behave(behaviour);
        std::future::pending().await
    })
}

async fn connect(from: [u8; 4], to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    socket.connect(to).await
}

/// Sends these bytes and then nothing, and reads nothing.
fn stuck(bytes: Vec<u8>) -> Act {
    let bytes: Arc<[u8]> = bytes.into();
    Arc::new(move |mut stream| {
        let bytes = Arc::clone(&bytes);
        Box::pin(async move {
            stream.write_all(&bytes).await?;
            loop {
                sleep(Duration::from_millis(200)).await;
                let mut byte = [0; 1];
                let peeked = timeout(Duration::from_millis(1), stream.peek(&mut byte)).await;
                if matches!(peeked, Ok(Ok(0) | Err(_))) {
                    return Ok(());
                }
            }
        })
    })
}

/// Sends these bytes, waits for a moment, and closes the connection.
fn abandoned(bytes: Vec<u8>) -> Act {
    let bytes: Arc<[u8]> = bytes.into();
    Arc::new(move |mut stream| {
        let bytes = Arc::clone(&bytes);
        Box::pin(async move {
            // The timeout ends the attempt even if the sidecar stops reading.
            let _ = timeout(Duration::from_millis(50), async {
                stream.write_all(&bytes).await?;
                stream.read(&mut [0; 1]).await
            })
            .await;
            Ok(())
        })
    })
}

/// Acts like a browser with an open page: loads its files, then polls runs about twice a second and
/// reads the answers.
fn opened_page() -> Act {
    Arc::new(move |mut stream| {
        Box::pin(async move {
            let mut answer = vec![0; 64 << 10];
            let paths = ["/", "/page/page.js", "/page/page.css", "/v1/page"];
            let paths = paths
                .into_iter()
                .chain(["/v1/runs?limit=1000"].into_iter().cycle());
            for path in paths {
                stream.write_all(&get(path)).await?;
                // Assume that an answer is complete when nothing arrives for 500 ms.
                while let Ok(read) =
                    timeout(Duration::from_millis(500), stream.read(&mut answer)).await
                {
                    if read? == 0 {
                        return Ok(());
                    }
                }
            }
            Ok(())
        })
    })
}

/// Sends this request repeatedly, and reads nothing.
fn pipelined(request: Vec<u8>) -> Act {
    flood(request.repeat(1_000))
}

/// Sends these bytes repeatedly, after the preface if they are HTTP/2, and reads nothing.
fn flood(bytes: Vec<u8>) -> Act {
    let is_http1 = bytes.starts_with(b"GET") || bytes.starts_with(b"POST");
    let bytes: Arc<[u8]> = bytes.into();
    Arc::new(move |mut stream| {
        let bytes = Arc::clone(&bytes);
        Box::pin(async move {
            if !is_http1 {
                stream.write_all(&preface()).await?;
            }
            loop {
                stream.write_all(&bytes).await?;
            }
        })
    })
}

/// Sends these requests in turn, repeatedly, and reads the answers.
fn each(requests: Vec<Vec<u8>>) -> Act {
    let requests: Arc<[Vec<u8>]> = requests.into();
    Arc::new(move |mut stream| {
        let requests = Arc::clone(&requests);
        Box::pin(async move {
            let mut answer = vec![0; 64 << 10];
            for request in requests.iter().cycle() {
                stream.write_all(request).await?;
                if stream.read(&mut answer).await? == 0 {
                    break;
                }
            }
            Ok(())
        })
    })
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").into_bytes()
}
