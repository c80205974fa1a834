//! Tests which connections get and lose slots, on tokio's paused clock. Only `tests/hostile`
//! measures the memory of a connection.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;

const AGENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CROWD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
const A_SECOND: Duration = Duration::from_secs(1);

fn slots(memory: usize, connections: usize) -> Arc<ConnectionSlots> {
    ConnectionSlots::new(ConnectionLimits {
        memory: memory.into(),
        connections,
        streams: 100,
    })
}

/// Admits `n` connections of a peer at successive moments.
async fn admit(slots: &Arc<ConnectionSlots>, peer: IpAddr, n: usize) -> Vec<Arc<ConnectionSlot>> {
    let mut admitted = Vec::new();
    for _ in 0..n {
        tokio::time::advance(A_SECOND / 100).await;
        admitted.push(slots.admit(peer, false).unwrap());
    }
    admitted
}

/// Ends the first connection that is evicted, and returns its position.
async fn evicted(admitted: &mut Vec<Arc<ConnectionSlot>>) -> Option<usize> {
    for (at, slot) in admitted.iter().enumerate() {
        let is_evicted = tokio::time::timeout(Duration::ZERO, slot.evicted()).await;
        if is_evicted.is_ok() {
            admitted.remove(at);
            return Some(at);
        }
    }
    None
}

#[tokio::test]
async fn connections_take_no_more_than_the_memory_and_the_first_get_wide_windows() {
    let memory = 4 << 20;
    let slots = &slots(memory, 1_000);
    let all = |tls| (0..1_000).map_while(move |_| slots.admit(AGENT, tls));
    let plain: Vec<_> = all(false).collect();
    let n_wide = plain.iter().filter(|slot| slot.is_wide).count();
    assert_eq!((n_wide, plain.len()), (3, 3 + 23));
    assert!(slots.budget.n_bytes() <= memory);
    drop(plain);
    let with_tls: Vec<_> = all(true).collect();
    assert!(with_tls.len() < 26, "TLS takes more: {}", with_tls.len());
}

#[tokio::test(start_paused = true)]
async fn the_peer_with_most_connections_gives_up_its_longest_idle_one_at_once() {
    let slots = slots(64 << 20, 8);
    let mut agent = admit(&slots, AGENT, 2).await;
    let mut crowd = admit(&slots, CROWD, 6).await;
    let _busy = crowd[0].request();
    agent.extend(admit(&slots, AGENT, 1).await);
    assert_eq!(evicted(&mut crowd).await, Some(1), "the first is busy");
    let _all_busy: Vec<_> = crowd.iter().map(ConnectionSlot::request).collect();
    agent.extend(admit(&slots, AGENT, 1).await);
    assert_eq!(evicted(&mut crowd).await, Some(0));
    // Both peers have four connections.
    assert!(slots.admit(AGENT, false).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_takes_the_slot_of_one_of_its_peer_that_stood_still_or_is_closed() {
    let slots = slots(64 << 20, 3);
    let mut own = admit(&slots, AGENT, 3).await;
    assert!(slots.admit(AGENT, false).is_none());
    let _stuck = own[0].request();
    tokio::time::advance(A_SECOND).await;
    drop(own[1].request());
    for at in [2, 0] {
        own.extend(slots.admit(AGENT, false));
        assert_eq!(evicted(&mut own).await, Some(at), "an idle one first");
    }
    assert!(slots.admit(AGENT, false).is_none());
}
