//! The text of `--version`: which commit was built, how, and with what.

use std::sync::LazyLock;

/// `0.1.0 (commit 0123456789ab, profile dist, features mimalloc)`. The build sets the first two
/// (deploy/build.sh); a build by cargo alone knows neither.
pub(super) static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    let features = [
        ("kafka", cfg!(feature = "kafka")),
        ("mimalloc", cfg!(feature = "mimalloc")),
    ];
    let features: Vec<&str> = features
        .iter()
        .filter_map(|(name, is_on)| is_on.then_some(*name))
        .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    format!(
        "{} (commit {}, profile {}, features {features})",
        env!("CARGO_PKG_VERSION"),
        option_env!("BUILD_COMMIT").unwrap_or("unknown"),
        option_env!("BUILD_PROFILE").unwrap_or("unknown"),
    )
});
