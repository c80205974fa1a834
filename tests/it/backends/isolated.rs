//! Runs a test in its own network namespace, and finds the folder of the backends. The test program
//! starts itself again inside the namespace, because moving a running process there needs unsafe
//! code.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// This variable is set inside the namespace.
const INSIDE: &str = "TEST_BACKENDS_INSIDE";

/// Runs `check` in a new network namespace, or prints why it cannot. `check` gets the folder of the
/// backends; `needs` is a file that must be in that folder.
pub(crate) fn isolated(test: &str, needs: &str, check: fn(&Path)) {
    let folder = folder();
    if variable(INSIDE).is_some() {
        return check(&folder);
    }
    let needed = folder.join(needs);
    if !needed.is_file() {
        let remedy = "run tests/backends/install.sh, or name its folder in TEST_BACKENDS";
        return skip(
            test,
            &format!("{} is not there: {remedy}", needed.display()),
        );
    }
    // An ordinary user needs a user namespace, too.
    let kinds = [&["--net"][..], &["--user", "--map-root-user", "--net"]];
    let Some(kind) = kinds.iter().find(|kind| {
        unshare(kind, "ip link set lo up")
            .status()
            .is_ok_and(|status| status.success())
    }) else {
        return skip(
            test,
            "no network namespace can be made here: it takes `unshare`, `ip` and the right to use \
             them",
        );
    };
    let status = unshare(kind, "ip link set lo up && exec \"$0\" \"$@\"")
        .arg(env::current_exe().unwrap())
        .args([&format!("backends::{test}"), "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .status()
        .unwrap();
    assert!(
        status.success(),
        "{test} failed inside its network namespace: {status}"
    );
}

fn unshare(kind: &[&str], script: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(kind).args(["--", "sh", "-c", script]);
    command
}

fn folder() -> PathBuf {
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("TEST_BACKENDS")
        .or_else(|| Some(cache()?.join("spanscore-backends")))
        .unwrap_or_else(|| PathBuf::from("spanscore-backends"))
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is a test of its own process, which nobody hands variables to"
)]
fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).map(PathBuf::from)
}

/// Writes directly to the standard error of the process, because the test runner hides the output
/// of a passing test.
fn skip(test: &str, why: &str) {
    let line = format!("\nSKIPPED {test}: {why}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
