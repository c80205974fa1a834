//! Reads the clock that all processes of a machine share.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

pub(crate) fn monotonic_nanos() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns the instant at which the monotonic clock shows this many nanoseconds.
pub(crate) fn instant_at(nanos: u64) -> Instant {
    #[expect(
        clippy::disallowed_methods,
        reason = "a load generator keeps time by itself"
    )]
    let now = Instant::now();
    now + Duration::from_nanos(nanos.saturating_sub(monotonic_nanos()))
}

pub(crate) fn pause(duration: Duration) {
    #[expect(
        clippy::disallowed_methods,
        reason = "between two looks at another process there is nothing to wait on"
    )]
    std::thread::sleep(duration);
}
