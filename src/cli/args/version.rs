//! The text of `--version`: the commit, profile and features of the build.

use std::sync::LazyLock;

/// Text such as `0.1.0 (commit 0123456789ab, profile dist, features mimalloc)`. deploy/build.sh
/// sets the commit and the profile, because cargo does not provide them.
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
