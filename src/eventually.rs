//! Tests wait here for what runs beside them and tells nobody. They look now and then and never
//! spin, which would take the processor from what they wait for.

use std::time::Duration;

/// Looks every 10 ms until there is an answer, and panics with `what` after a minute: machines are
/// shared.
pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let seen = tokio::time::timeout(Duration::from_secs(60), looking).await;
    seen.unwrap_or_else(|_| panic!("not within a minute: {what}"))
}
