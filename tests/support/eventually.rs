//! Waits for an effect of a sidecar or another program by polling, because nothing notifies a test
//! of the effect. Sleeps between polls: spinning would take the processor from the program.

use std::time::Duration;

/// Polls every 10 ms until there is a result. Panics with `what` after a minute; the limit is long
/// because test machines are shared.
pub(crate) async fn eventually<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(Duration::from_secs(60), what, look).await
}

/// Like [`eventually`], with another limit.
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
