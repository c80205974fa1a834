//! Tests who gets a place and who gives one up. Time is tokio's paused clock. Does not prove what a
//! connection really holds; the hostile client measures that.

use std::net::Ipv4Addr;

use super::*;

const AGENT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const CROWD: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

fn slots(connections: usize) -> Arc<ConnectionSlots> {
    ConnectionSlots::new(ConnectionLimits {
        memory: (64 << 20).into(),
        connections,
        streams: 100,
    })
}

/// Admits `n` connections of a peer, a second apart.
async fn admit(slots: &Arc<ConnectionSlots>, peer: IpAddr, n: usize) -> Vec<SlotGuard> {
    let mut guards = Vec::new();
    for _ in 0..n {
        time::advance(Duration::from_secs(1)).await;
        guards.push(slots.admit(peer, false).await.unwrap());
    }
    guards
}

/// Admits one more connection, while the one that is asked to end does so; says which it was and
/// how long that took.
async fn displaced(
    slots: &Arc<ConnectionSlots>,
    peer: IpAddr,
    guards: &mut Vec<SlotGuard>,
) -> Option<(usize, Duration)> {
    let begun = Instant::now();
    let ending = async {
        loop {
            let is_evicted = |guard: &SlotGuard| guard.slot.activity.lock().is_evicted;
            if let Some(at) = guards.iter().position(is_evicted) {
                drop(guards.remove(at));
                break at;
            }
            time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        biased;
        (admitted, at) = async { tokio::join!(slots.admit(peer, false), ending) } => {
            admitted.map(|_| (at, begun.elapsed()))
        }
        () = time::sleep(LONGEST_WAIT * 2) => None,
    }
}

#[tokio::test(start_paused = true)]
async fn connections_take_no_more_than_the_memory_and_the_first_get_wide_windows() {
    let memory = 4 << 20;
    let slots = ConnectionSlots::new(ConnectionLimits {
        memory: memory.into(),
        connections: 1_000,
        streams: 100,
    });
    let mut guards = Vec::new();
    for _ in 0..1_000 {
        guards.extend(slots.try_admit(AGENT, false, Instant::now(), None));
    }
    let n_wide = guards.iter().filter(|guard| guard.is_wide()).count();
    assert_eq!((n_wide, guards.len()), (3, 3 + 23));
    assert!(slots.state.lock().taken <= memory);
    guards.clear();
    assert_eq!(slots.state.lock().taken, 0);
    for _ in 0..1_000 {
        guards.extend(slots.try_admit(AGENT, true, Instant::now(), None));
    }
    assert!(guards.len() < 26, "TLS takes more: {}", guards.len());
}

#[tokio::test(start_paused = true)]
async fn the_peer_with_the_most_connections_gives_up_its_longest_idle_one() {
    let slots = slots(8);
    let _agent = admit(&slots, AGENT, 2).await;
    let mut crowd = admit(&slots, CROWD, 6).await;
    let _busy = crowd[0].request();
    let (at, waited) = displaced(&slots, AGENT, &mut crowd).await.unwrap();
    assert_eq!((at, crowd.len()), (1, 5), "the first is busy");
    assert!(waited < Duration::from_millis(50), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_connection_of_the_heaviest_peer_gives_way_to_another_peer_at_once() {
    let slots = slots(8);
    let mut crowd = admit(&slots, CROWD, 8).await;
    let _busy: Vec<_> = crowd.iter().map(SlotGuard::request).collect();
    let (_, waited) = displaced(&slots, AGENT, &mut crowd).await.unwrap();
    assert!(waited < Duration::from_millis(50), "{waited:?}");
    // Its own connections take turns: a new one waits for a while until one is idle.
    crowd.extend(admit(&slots, CROWD, 1).await);
    let _busy = crowd[7].request();
    let (_, waited) = displaced(&slots, CROWD, &mut crowd).await.unwrap();
    assert!(waited >= PATIENCE && waited < LONGEST_WAIT, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_becomes_idle_makes_place_for_one_that_waits() {
    let slots = slots(2);
    let mut own = admit(&slots, AGENT, 2).await;
    let mut busy: Vec<_> = own.iter().map(SlotGuard::request).collect();
    let answered = async {
        time::sleep(PATIENCE / 4).await;
        drop(busy.remove(1));
        std::future::pending::<()>().await;
    };
    let (at, waited) = tokio::select! {
        displaced = displaced(&slots, AGENT, &mut own) => displaced.unwrap(),
        () = answered => unreachable!(),
    };
    assert_eq!(at, 1);
    assert!(waited < PATIENCE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_crowd_that_waits_is_bounded_and_does_not_wait_forever() {
    let slots = slots(1);
    let _stuck = admit(&slots, CROWD, 1).await;
    let begun = Instant::now();
    let waiting = (0..MAX_WAITING + 10).map(|_| {
        let slots = slots.clone();
        tokio::spawn(async move {
            let refused = slots.admit(CROWD, false).await.is_none();
            (refused, begun.elapsed())
        })
    });
    let mut n_at_once = 0;
    for waiting in waiting.collect::<Vec<_>>() {
        let (refused, waited) = waiting.await.unwrap();
        assert!(refused);
        assert!(waited <= LONGEST_WAIT + PATIENCE, "{waited:?}");
        n_at_once += usize::from(waited < PATIENCE);
    }
    assert_eq!(n_at_once, 10);
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_fewer_connections_does_not_wait_behind_a_crowd() {
    let slots = slots(4);
    let mut crowd = admit(&slots, CROWD, 4).await;
    let _busy: Vec<_> = crowd.iter().map(SlotGuard::request).collect();
    let waits = |peer| {
        let slots = slots.clone();
        tokio::spawn(async move { slots.admit(peer, false).await })
    };
    let waiting: Vec<_> = (0..MAX_WAITING).map(|_| waits(CROWD)).collect();
    time::sleep(Duration::from_millis(10)).await;
    let agent = waits(AGENT);
    time::sleep(Duration::from_millis(10)).await;
    // One of the crowd is asked to end, and one that waits is turned away.
    let is_evicted = |guard: &SlotGuard| guard.slot.activity.lock().is_evicted;
    let at = crowd.iter().position(is_evicted).unwrap();
    drop(crowd.remove(at));
    let admitted = time::timeout(Duration::from_millis(10), agent).await;
    assert!(admitted.unwrap().unwrap().is_some());
    let turned_away = waiting.iter().filter(|waiting| waiting.is_finished());
    assert_eq!(turned_away.count(), 1);
}

#[test]
fn addresses_of_one_ipv6_network_are_one_peer() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(origin(ip("2001:db8::1")), origin(ip("2001:db8::ffff:2")));
    assert_ne!(origin(ip("2001:db8:0:1::1")), origin(ip("2001:db8::1")));
    assert_eq!(origin(ip("::ffff:10.0.0.1")), AGENT);
}
