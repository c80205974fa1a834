//! Waits for what a sidecar or another program does. Nothing tells a test that it has happened, so
//! the test looks now and then. It never spins: that would take the processor from what it awaits.

use std::time::Duration;

/// Looks every 10 ms until there is an answer, and panics with `what` after a minute: machines are
/// shared.
pub(crate) async fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(Duration::from_secs(60), what, look).await
}

/// Like [`eventually`], for what may take longer than a minute.
pub(crate) async fn within<T>(
    patience: Duration,
    what: &str,
    mut look: impl FnMut() -> Option<T>,
) -> T {
    let looking = async {
        loop {
            if let Some(seen) = look() {
                return seen;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let seen = tokio::time::timeout(patience, looking).await;
    seen.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}

/// Like [`within`], for a test without a runtime.
pub(crate) fn blocking<T>(patience: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(within(patience, what, look))
}
