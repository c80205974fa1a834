//! Replaces a key file while a sidecar runs. After the next reload, requests to every destination
//! must contain the new key. The tests do not check how soon the kubelet writes the file.

use super::super::*;
use super::reloads::{deliver, request, start};
use crate::config::{Config, Protocol};
use crate::register::ReloadOutcome;
use crate::transport::Client;
use crate::transport::tests::peer::{Peer, Reply};

/// Waits until a destination has received this many requests, and returns the key of the last one.
async fn last_key(peer: &Peer, n_requests: usize) -> String {
    let received = peer.has_received(n_requests).await;
    let last = received.last().unwrap();
    last.headers["authorization"].to_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_replaced_in_its_file_is_sent_from_the_next_reload_on() {
    let folder = tempfile::tempdir().unwrap();
    let (path, key) = (
        folder.path().join("spanscore.yaml"),
        folder.path().join("key"),
    );
    std::fs::write(&key, "one").unwrap();
    let (downstream, scores) = (Peer::willing().await, Peer::willing().await);
    let backend = Peer::start(|_, _| Reply::http(200)).await;
    let text = format!(
        "forward:\n  endpoint: http://{}\n  protocol: grpc\n  headers: {{ authorization: \"Bearer \
         ${{file:{key}}}\" }}\nscores:\n  endpoint: http://{}\n  protocol: grpc\n  headers: {{ \
         authorization: \"Score ${{file:{key}}}\" }}\n  writers:\n  - phoenix: {{ endpoint: \
         \"http://{}\", api_key_file: {key} }}\ncriteria:\n- {{ name: one, evaluate: {{ \
         tool_call_order: {{ tool_calls_order: [search] }} }} }}\n",
        downstream.address,
        scores.address,
        backend.address,
        key = key.display(),
    );
    std::fs::write(&path, &text).unwrap();
    let more = [
        ("scores.batch.max_delay", "1ms"),
        ("scores.metrics.enabled", "false"),
        ("scores.event.enabled", "false"),
    ];
    let sidecar = start(&path, &more, None).await;
    let mut config = Config::default();
    config.forward.endpoint = Some(format!("http://{}", sidecar.addresses.grpc.unwrap()));
    config.forward.protocol = Some(Protocol::Grpc);
    let client = Client::new(&config.forward_destination().unwrap(), &Arc::default()).unwrap();
    for (at, secret) in ["one", "two"].into_iter().enumerate() {
        std::fs::write(&key, secret).unwrap();
        if at > 0 {
            let outcome = sidecar.register.reload().await.unwrap();
            let ReloadOutcome::Applied {
                settings,
                needs_restart,
                ..
            } = outcome
            else {
                panic!("{outcome:?}");
            };
            assert_eq!(
                settings,
                ["forward.headers", "scores.headers", "scores.writers"]
            );
            assert_eq!(needs_restart, [""; 0]);
        }
        deliver(&client, request(at as u32 + 1, Some("search"))).await;
        deliver(&client, request(at as u32 + 1, None)).await;
        assert_eq!(
            last_key(&downstream, 2 * at + 2).await,
            format!("Bearer {secret}")
        );
        assert_eq!(last_key(&scores, at + 1).await, format!("Score {secret}"));
        assert_eq!(last_key(&backend, at + 1).await, format!("Bearer {secret}"));
    }

    // If the file is missing, nothing changes: requests still contain the last key.
    std::fs::remove_file(&key).unwrap();
    let outcome = sidecar.register.reload().await.unwrap();
    assert!(matches!(outcome, ReloadOutcome::Refused { .. }));
    deliver(&client, request(9, None)).await;
    assert_eq!(last_key(&downstream, 5).await, "Bearer two");
}
