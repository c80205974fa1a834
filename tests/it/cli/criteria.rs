//! Runs the examples of docs/criteria-api.md against a running sidecar, in the order of the page,
//! and further tests of `spanscore criteria`. Does not run the Python client, which needs installed
//! packages; the tests of `src/register/grpc.rs` cover gRPC.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::program::{Running, told};

const DOCS: &str = include_str!("../../../docs/criteria-api.md");
const CRITERION: &str =
    "name: checkout-order\nevaluate: { tool_call_order: { tool_calls_order: [a, b] } }\n";

/// Starts a sidecar, and writes a `spanscore.yaml` with its admin address to the folder.
fn start(folder: &Path, more: &[&str]) -> (Running, String) {
    fs::write(folder.join("sidecar.yaml"), "criteria: []\n").unwrap();
    let config = folder.join("sidecar.yaml").display().to_string();
    let mut running = Running::start(&[&["-c", &config], more].concat());
    let [_, admin] = running.addresses();
    fs::write(
        folder.join("spanscore.yaml"),
        format!("admin: {{ listen: \"{admin}\" }}\n"),
    )
    .unwrap();
    (running, admin)
}

fn shell(folder: &Path, script: &str) -> (i32, String, String) {
    let programs = Path::new(env!("CARGO_BIN_EXE_spanscore")).parent().unwrap();
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", programs.display());
    told(
        Command::new("bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(folder)
            .env_clear()
            .env("PATH", path)
            .output()
            .unwrap(),
    )
}

#[test]
fn the_examples_of_the_documentation_work_as_they_stand() {
    let folder = tempfile::tempdir().unwrap();
    let (_running, admin) = start(folder.path(), &[]);
    let list = |name: &str| {
        format!(
            "criteria:\n- {}",
            CRITERION
                .replace("checkout-order", name)
                .replace('\n', "\n  ")
        )
    };
    for (file, text) in [
        ("checkout.yaml", CRITERION.to_owned()),
        ("suite.yaml", list("suite")),
        ("all.yaml", list("checkout-order")),
        ("draft.yaml", CRITERION.replace("[a, b]", "[b, a]")),
    ] {
        fs::write(folder.path().join(file), text.trim_end()).unwrap();
    }
    let blocks: Vec<&str> = DOCS
        .split("```sh\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    let (ours, foreign): (Vec<&str>, Vec<&str>) = blocks
        .into_iter()
        .partition(|block| !block.contains("python "));
    assert_eq!(
        (ours.len(), foreign.len()),
        (2, 1),
        "a block for the command line, one for curl, one for Python"
    );
    for block in ours {
        let script = block
            .replace("localhost:13133", &admin)
            .replace("curl ", "curl --silent --show-error --fail-with-body ");
        let (code, out, err) = shell(folder.path(), &script);
        assert_eq!(code, 0, "{script}\n{out}{err}");
        if block.contains("curl") {
            assert!(
                out.contains("\"label\":\"fail\"") && out.contains("\"expires_at\""),
                "{out}"
            );
        } else {
            assert!(
                out.contains("replaced: 0 added, 0 changed, 1 removed")
                    && out.contains("name: checkout-order"),
                "{out}"
            );
        }
    }
}

#[test]
fn the_client_reports_mistakes_with_their_place_and_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "t0ps3cr3t\n").unwrap();
    let (running, admin) = start(
        folder.path(),
        &["--set", &format!("admin.token_file={}", token.display())],
    );
    fs::write(folder.path().join("good.yaml"), CRITERION).unwrap();
    fs::write(
        folder.path().join("wrong.yaml"),
        "name: a\nevaluate:\n  tool_call_ordr: { tool_calls_order: [x] }\n",
    )
    .unwrap();
    fs::write(folder.path().join("broken.yaml"), "name: [\n").unwrap();
    let criteria = |arguments: &str| {
        shell(
            folder.path(),
            &format!("spanscore criteria --token-file token {arguments}"),
        )
    };

    let (code, out, err) = criteria("put good.yaml");
    assert!(
        code == 0 && out.starts_with("registered: checkout-order  revision "),
        "{out}{err}"
    );
    let (code, _, err) = criteria("put wrong.yaml");
    assert!(
        code == 2
            && err.contains("did you mean `tool_call_order`?")
            && err.contains("--> wrong.yaml:3:3  /evaluate/tool_call_ordr"),
        "{err}"
    );
    // If one item of a list is wrong, no item is registered.
    let list = [
        "criteria:",
        "  - name: one",
        "    evaluate: { tool_calls: { disallowed: [rm] } }",
        "  - name: two",
        "    evaluate:",
        "      constraints:",
        "        rules:",
        "          - existence: { a: x, min: 0 }",
    ]
    .join("\n");
    fs::write(folder.path().join("list.yaml"), &list).unwrap();
    let (code, out, err) = criteria("put list.yaml");
    assert!(
        code == 2 && out.is_empty() && err.contains("--> list.yaml:8:37"),
        "{out}{err}"
    );
    assert!(!criteria("list").1.contains("one"));
    fs::write(
        folder.path().join("list.yaml"),
        list.replace("min: 0", "min: 1"),
    )
    .unwrap();
    let (code, out, err) = criteria("put list.yaml --validate-only");
    assert!(
        code == 0 && out.contains("valid: one") && out.contains("valid: two"),
        "{out}{err}"
    );
    // A mistake that only the sidecar can detect rejects the whole list, too.
    let (code, out, err) = criteria("put list.yaml --if-match 000000000000");
    assert!(
        code == 1 && out.is_empty() && err.contains("ETag mismatch"),
        "{out}{err}"
    );
    let (code, out, err) = criteria("put list.yaml");
    assert!(
        code == 0 && out.contains("registered: one") && out.contains("registered: two"),
        "{out}{err}"
    );
    let (code, _, err) = criteria("put broken.yaml");
    assert!(code == 2 && err.contains("--> broken.yaml:"), "{err}");
    assert_eq!(criteria("put missing.yaml").0, 3);
    let (code, _, err) = criteria("get nothing");
    assert!(
        code == 1 && err.contains("no criterion is registered as `nothing`"),
        "{err}"
    );
    let (code, _, err) = criteria("put good.yaml --if-match 000000000000");
    assert!(code == 1 && err.contains("ETag mismatch"), "{err}");
    let (_, yaml, _) = criteria("get checkout-order --format yaml");
    let (code, out, err) = shell(
        folder.path(),
        &format!("spanscore criteria --token-file token put - <<'EOF'\n{yaml}EOF\n"),
    );
    assert!(
        code == 0 && out.contains("registered: checkout-order"),
        "{out}{err}"
    );
    let (_, list, _) = criteria("list");
    assert!(
        list.lines()
            .nth(1)
            .is_some_and(|line| line.starts_with("checkout-order  tool_call_order  ")),
        "{list}"
    );
    let (_, yaml, _) = criteria("list --format yaml");
    assert!(
        yaml.starts_with("criteria:\n") && yaml.contains("name: checkout-order"),
        "{yaml}"
    );

    let address = format!("spanscore criteria --address http://{admin} list");
    let (code, _, err) = shell(folder.path(), &address);
    assert!(
        code == 4 && err.contains("this API requires the token"),
        "{err}"
    );
    drop(running);
    let (code, _, err) = shell(folder.path(), &address);
    assert!(code == 4 && err.contains("no response from"), "{err}");
}

#[test]
fn registrations_outlive_a_restart_with_a_state_file_and_a_hang_up_reloads() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.json").display().to_string();
    fs::write(folder.path().join("good.yaml"), CRITERION).unwrap();
    let (running, _) = start(
        folder.path(),
        &["--state-file", &state, "--set", "reload.interval=0"],
    );
    assert_eq!(
        shell(folder.path(), "spanscore criteria put good.yaml").0,
        0
    );
    // Dropping kills the sidecar (SIGKILL). Everything that it acknowledged must be on disk.
    drop(running);
    let (running, _) = start(
        folder.path(),
        &["--state-file", &state, "--set", "reload.interval=0"],
    );
    let (_, list, _) = shell(folder.path(), "spanscore criteria list");
    assert!(list.contains("checkout-order"), "{list}");
    let text = format!(
        "criteria:\n- {}",
        CRITERION
            .replace("checkout-order", "from-file")
            .replace('\n', "\n  ")
    );
    fs::write(folder.path().join("sidecar.yaml"), text.trim_end()).unwrap();
    running.signal(rustix::process::Signal::HUP);
    // Query until the reload is visible. A reload reads the file at least twice, so it takes a
    // moment.
    let both = (0..500)
        .map(|_| shell(folder.path(), "spanscore criteria list").1)
        .find(|list| list.contains("from-file"));
    assert!(
        both.expect("the hang-up was heard")
            .contains("checkout-order")
    );
}
