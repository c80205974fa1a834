//! Tests ports over real sockets: binding, TLS, idle connections and shutdown. The tests do not
//! prove anything about a service's answers.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use rcgen::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::net::TcpSocket;
use tokio::sync::{Notify, oneshot};
use tokio_rustls::TlsConnector;

use super::*;
use crate::config;
use crate::eventually::eventually;
use crate::tls;

const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

fn slots() -> Arc<ConnectionSlots> {
    slots_for(100)
}

fn slots_for(connections: usize) -> Arc<ConnectionSlots> {
    ConnectionSlots::new(ConnectionLimits {
        memory: (64 << 20).into(),
        connections,
        streams: 100,
    })
}

/// A port that holds its requests until they are released.
struct Served {
    address: SocketAddr,
    telemetry: Arc<Telemetry>,
    n_requests: Arc<AtomicUsize>,
    let_go: Arc<Notify>,
    shutdown: oneshot::Sender<()>,
    server: tokio::task::JoinHandle<()>,
}

async fn serve() -> Served {
    serve_with(&slots()).await
}

async fn serve_with(slots: &Arc<ConnectionSlots>) -> Served {
    let telemetry = Arc::new(Telemetry::default());
    let (n_requests, let_go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let service = service_fn({
        let (n_requests, let_go) = (n_requests.clone(), let_go.clone());
        move |_request: Request<Incoming>| {
            let (n_requests, let_go) = (n_requests.clone(), let_go.clone());
            async move {
                n_requests.fetch_add(1, Ordering::Relaxed);
                let_go.notified().await;
                Ok::<_, Infallible>(Response::new(Body::from("done")))
            }
        }
    });
    let port = Port::bind(ANY_PORT, "test.listen", None, slots)
        .await
        .unwrap();
    let address = port.address().unwrap();
    let (shutdown, stop) = oneshot::channel();
    let heartbeat = telemetry.heartbeat("test", Instant::now().into_std());
    let until = async {
        let _ = stop.await;
    };
    let server = tokio::spawn(port.serve(handler(service), until, heartbeat, telemetry.clone()));
    Served {
        address,
        telemetry,
        n_requests,
        let_go,
        shutdown,
        server,
    }
}

#[tokio::test]
async fn a_taken_port_is_an_error_that_names_the_setting_and_the_remedy() {
    let taken = Port::bind(ANY_PORT, "receivers.otlp.grpc.listen", None, &slots())
        .await
        .unwrap();
    let address = taken.address().unwrap();
    let error = Port::bind(address, "receivers.otlp.http.listen", None, &slots())
        .await
        .unwrap_err()
        .to_string();
    let expected = format!(
        "cannot listen on {address} (`receivers.otlp.http.listen`): the port is in use; \
         stop the program that uses it (another spanscore or a Collector?), \
         or choose another port in `receivers.otlp.http.listen`"
    );
    assert_eq!(error, expected);
    let nowhere = Port::bind(
        "192.0.2.1:4317".parse().unwrap(),
        "admin.listen",
        None,
        &slots(),
    )
    .await
    .unwrap_err()
    .to_string();
    assert!(
        nowhere.starts_with(
            "cannot listen on 192.0.2.1:4317 (`admin.listen`): this machine has no such address"
        ),
        "{nowhere}"
    );
}

#[tokio::test]
async fn a_request_that_has_begun_is_answered_after_shutdown_and_no_other_is_taken() {
    for http2 in [false, true] {
        let Served {
            address,
            telemetry,
            n_requests,
            let_go,
            shutdown,
            server,
        } = serve().await;
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .build_http();
        let calling = tokio::spawn(client.get(format!("http://{address}/").parse().unwrap()));
        eventually("a request", || {
            (n_requests.load(Ordering::Relaxed) == 1).then_some(())
        })
        .await;
        let open = [("port", "test.listen")];
        assert_eq!(telemetry.gauge("spanscore_connections_open", &open), 1);
        let mut idle = TcpStream::connect(address).await.unwrap();
        eventually("2 open connections", || {
            (telemetry.gauge("spanscore_connections_open", &open) == 2).then_some(())
        })
        .await;
        shutdown.send(()).unwrap();
        assert_eq!(
            idle.read(&mut [0; 1]).await.unwrap(),
            0,
            "an idle connection is closed at once"
        );
        assert!(
            TcpStream::connect(address).await.is_err(),
            "the port is closed"
        );
        assert!(!server.is_finished());
        let_go.notify_one();
        let answer = calling
            .await
            .unwrap()
            .unwrap()
            .into_body()
            .collect()
            .await
            .unwrap()
            .to_bytes();
        assert_eq!(answer, "done");
        server.await.unwrap();
        eventually("0 open connections", || {
            (telemetry.gauge("spanscore_connections_open", &open) == 0).then_some(())
        })
        .await;
        assert_eq!(
            telemetry.workers(),
            [""; 0],
            "it has come to rest, not died"
        );
    }
}

#[tokio::test]
async fn cutting_the_drain_short_cuts_its_connections_and_counts_as_death() {
    let Served {
        address,
        telemetry,
        n_requests,
        shutdown,
        server,
        ..
    } = serve().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    eventually("a request", || {
        (n_requests.load(Ordering::Relaxed) == 1).then_some(())
    })
    .await;
    shutdown.send(()).unwrap();
    server.abort();
    assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
    assert_eq!(telemetry.unhealthy(Instant::now().into_std()).len(), 1);
}

#[tokio::test]
async fn tls_speaks_both_versions_of_http_and_plain_text_gets_nowhere() {
    let dir = tempfile::tempdir().unwrap();
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert_file, key_file) = (dir.path().join("cert.pem"), dir.path().join("key.pem"));
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, signing_key.serialize_pem()).unwrap();
    let telemetry = Arc::new(Telemetry::default());
    let server_tls = config::ServerTls {
        cert_file: cert_file.clone(),
        key_file,
        client_ca_file: None,
    };
    let server_tls = Arc::new(PortTls::try_new(&server_tls, &telemetry).unwrap());
    let port = Port::bind(ANY_PORT, "test.listen", Some(server_tls), &slots())
        .await
        .unwrap();
    let address = port.address().unwrap();
    let service = service_fn(|request: Request<Incoming>| async move {
        Ok::<_, Infallible>(Response::new(Body::from(format!(
            "{:?}",
            request.version()
        ))))
    });
    let heartbeat = telemetry.heartbeat("test", Instant::now().into_std());
    let server = tokio::spawn(port.serve(
        handler(service),
        std::future::pending(),
        heartbeat,
        telemetry.clone(),
    ));

    let client_tls = config::ClientTls {
        ca_file: Some(cert_file),
        ..Default::default()
    };
    for (alpn, version) in [(&b"h2"[..], "HTTP/2.0"), (b"http/1.1", "HTTP/1.1")] {
        let mut client_config = tls::client_config(&client_tls, &telemetry).unwrap();
        client_config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(address).await.unwrap();
        let stream = TlsConnector::from(Arc::new(client_config))
            .connect("localhost".try_into().unwrap(), stream)
            .await
            .unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn));
        let (io, request) = (
            TokioIo::new(stream),
            Request::get("https://localhost/")
                .body(Full::<Bytes>::default())
                .unwrap(),
        );
        let response = match alpn {
            b"h2" => {
                let (mut sender, connection) =
                    hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                        .await
                        .unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
            _ => {
                let (mut sender, connection) =
                    hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                sender.send_request(request).await.unwrap()
            }
        };
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            version
        );
    }

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    let n_failures = || {
        telemetry.counter(
            "spanscore_tls_handshake_failures_total",
            &[("port", "test.listen")],
        )
    };
    eventually("a failed handshake", || (n_failures() == 1).then_some(())).await;
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_says_nothing_is_closed_after_three_minutes_of_silence() {
    let (near, mut far) = duplex(64);
    let mut watchful = IdleTimeoutStream::new(near);
    let start = Instant::now();
    let speaking = async {
        for _ in 0..3 {
            time::sleep(Duration::from_secs(170)).await;
            far.write_all(b"x").await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let listening = async {
        let mut n_read = 0;
        loop {
            match watchful.read(&mut [0; 8]).await {
                Ok(n) => n_read += n,
                Err(error) => return (n_read, error.kind()),
            }
        }
    };
    let ended = tokio::select! {
        ended = listening => ended,
        () = speaking => unreachable!(),
    };
    assert_eq!(
        (ended, start.elapsed().as_secs()),
        ((3, io::ErrorKind::TimedOut), 3 * 170 + 180)
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_something_goes_out_is_not_silent() {
    let (client, server) = duplex(64);
    let (mut client_in, mut stream) = (client, IdleTimeoutStream::new(server));
    let mut read = [0; 8];
    for _ in 0..4 {
        time::timeout(IDLE_TIMEOUT / 2, stream.read(&mut read))
            .await
            .expect_err("it has nothing to say");
        stream.write_all(b"line").await.unwrap();
        assert_eq!(client_in.read(&mut read).await.unwrap(), 4);
    }
    // A client that does not read is disconnected.
    stream.write_all(&[0; 64]).await.unwrap();
    let stuck = time::timeout(IDLE_TIMEOUT * 2, stream.read(&mut read)).await;
    assert_eq!(
        stuck.expect("closed in time").unwrap_err().kind(),
        io::ErrorKind::TimedOut
    );
}

/// The server stops reading from a client that sends requests and reads no answers, so our buffers
/// and the system's bound the memory.
#[tokio::test(start_paused = true)]
async fn pipelined_requests_wait_for_the_answers_before_them() {
    const ANSWER: usize = 32 << 10;
    let n_requests = Arc::new(AtomicUsize::new(0));
    let service = service_fn({
        let n_requests = n_requests.clone();
        move |_request: Request<Incoming>| {
            n_requests.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(Response::new(Body::from(vec![b'x'; ANSWER]))) }
        }
    });
    let http = http(WINDOW, 100);
    let (mut client, server) = duplex(64 << 10);
    let peer = IpAddr::from([127, 0, 0, 1]);
    let slot = slots().admit(peer, false).unwrap();
    let (server, handler) = (Box::new(server), handler(service));
    let never = std::future::pending();
    let serving =
        tokio::spawn(
            async move { serve_http(&http, slot, never, server, handler, peer, false).await },
        );
    let requests = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(1_000);
    // The first answers fill the duplex stream's buffer; then the server stops reading.
    client.write_all(&requests).await.unwrap();
    eventually("two requests", || {
        (n_requests.load(Ordering::Relaxed) >= 2).then_some(())
    })
    .await;
    // On the paused clock, time advances only when no task can run.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let n_held = n_requests.load(Ordering::Relaxed);
    assert!(n_held <= 5, "{n_held} answers of {ANSWER} bytes are held");
    // Reading the answers unblocks all further requests.
    let mut answers = vec![0; ANSWER];
    while n_requests.load(Ordering::Relaxed) < 1_000 {
        assert!(client.read(&mut answers).await.unwrap() > 0);
    }
    drop(client);
    assert!(!serving.await.unwrap());
}

#[tokio::test]
async fn without_a_free_slot_the_peer_with_most_connections_loses_one() {
    let served = serve_with(&slots_for(2)).await;
    let (address, telemetry) = (served.address, &served.telemetry);
    let connect = async |peer: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket
            .bind(SocketAddr::from(([127, 0, 0, peer], 0)))
            .unwrap();
        socket.connect(address).await.unwrap()
    };
    let opened = async |n: i64| {
        let open = [("port", "test.listen")];
        eventually("open connections", || {
            (telemetry.gauge("spanscore_connections_open", &open) == n).then_some(())
        })
        .await
    };
    let mut oldest = connect(2).await;
    opened(1).await;
    let mut second = connect(2).await;
    opened(2).await;
    let mut other = connect(3).await;
    assert_eq!(oldest.read(&mut [0; 1]).await.unwrap(), 0, "evicted");
    // Both peers have one connection now, and each connection is younger than a second.
    let mut refused = connect(3).await;
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap_or(0), 0, "closed");
    let request = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
    for stays in [&mut second, &mut other] {
        stays.write_all(request).await.unwrap();
    }
    opened(2).await;
    let cut = ["gave_way", "no_slot"].map(|reason| {
        let labels = [("port", "test.listen"), ("reason", reason)];
        telemetry.counter("spanscore_connections_cut_total", &labels)
    });
    assert_eq!(cut, [1, 1]);
}
