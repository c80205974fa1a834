//! Tests proposed criteria. For every capture, proposes criteria from its runs. The criteria must
//! judge those runs, and the same runs with other ids, and none may fail. The page must propose the
//! criteria that `init` writes. Does not prove which criteria should be proposed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use judge::evaluate::{Explain, Verdict, judge};
use judge::extract::Trajectory;
use regex::{Captures, Regex};
use spanscore::cli::configuration::Disk;
use spanscore::config::{self, Config, Sources};
use tempfile::TempDir;

use crate::support::captures::{self, Scenario};
use crate::support::program::{Running, http, is_acknowledged, run};
use crate::support::sidecars::replayed;

/// Returns the same scenario with other ids. Every id in its texts that contains a letter is
/// replaced by one of the same length.
fn next_run(scenario: &Scenario) -> Scenario {
    let uuid = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}";
    let ids = Regex::new(&format!(r"{uuid}|\b[0-9a-f]{{16}}\b|\b[0-9a-f]{{32}}\b")).unwrap();
    let other = |body: &[u8]| -> Vec<u8> {
        // Decode each byte as one character, so that the lengths in the protobuf stay valid.
        let text: String = body.iter().map(|byte| char::from(*byte)).collect();
        let replaced = ids.replace_all(&text, |found: &Captures<'_>| {
            // Do not replace a number, because it may be a time.
            if found[0].bytes().all(|byte| byte.is_ascii_digit()) {
                return found[0].to_owned();
            }
            let digits = found[0].chars().map(|c| match c {
                '0'..='8' | 'a'..='e' | 'A'..='E' => char::from(c as u8 + 1),
                '9' => '0',
                'f' => 'a',
                'F' => 'A',
                c => c,
            });
            digits.collect::<String>()
        });
        replaced.chars().map(|c| c as u8).collect()
    };
    Scenario {
        name: scenario.name.clone(),
        expected: scenario.expected.clone(),
        requests: scenario
            .requests
            .iter()
            .map(|(file, body)| (file.clone(), other(body)))
            .collect(),
    }
}

fn read(scenario: &Scenario) -> Vec<Arc<Trajectory>> {
    replayed(&scenario.requests).1
}

/// Loads the configuration that `init` writes, as `run` does.
fn loaded(text: &str) -> Config {
    let sources = Sources {
        file: Some((Path::new("spanscore.yaml"), text)),
        environment: &BTreeMap::new(),
        flags: &[],
        files: &Disk,
    };
    let loaded = Config::load(&sources).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
    loaded.config
}

/// Returns the number of runs with calls that the criteria of a configuration select, and true if
/// none of them fails.
fn judged(text: &str, runs: &[Arc<Trajectory>]) -> (usize, bool) {
    let criteria: Vec<_> = loaded(text).criteria.into_iter().map(Arc::new).collect();
    let with_calls = runs.iter().filter(|run| !run.tool_calls.is_empty());
    let evaluations = with_calls.map(|run| judge(&criteria, run, &Explain::default()));
    let evaluations: Vec<_> = evaluations.filter(|judged| !judged.is_empty()).collect();
    let fails = evaluations
        .iter()
        .flatten()
        .any(|evaluation| !matches!(evaluation.verdict, Verdict::Pass | Verdict::NotEvaluated));
    (evaluations.len(), !fails)
}

#[test]
fn what_is_proposed_judges_the_run_it_came_from_and_the_next_one() {
    let mut n_renamed = 0;
    for scenario in captures::scenarios() {
        let first: Vec<Arc<Trajectory>> = read(&scenario);
        let next = read(&next_run(&scenario));
        n_renamed += usize::from(
            first
                .iter()
                .zip(&next)
                .any(|(first, next)| first.session != next.session),
        );
        let owned: Vec<Trajectory> = first.iter().map(|run| Trajectory::clone(run)).collect();
        let written = config::starter(Some(&owned));
        let n_selected = judged(&written, &first);
        assert!(n_selected.1, "{}\n{written}", scenario.name);
        assert_eq!(judged(&written, &next), n_selected, "{}", scenario.name);
        // Check the proposal that `run` prints for a single run, too.
        for (run, next) in owned.iter().zip(&next) {
            let Some(proposal) = config::proposal(std::slice::from_ref(run)) else {
                continue;
            };
            for again in [&Arc::new(run.clone()), next] {
                assert_eq!(
                    judged(&proposal, std::slice::from_ref(again)),
                    (1, true),
                    "{}\n{proposal}",
                    scenario.name
                );
            }
        }
    }
    assert!(
        n_renamed > 0,
        "no capture holds an id: the test proves nothing"
    );
}

/// Returns the trace id of the scenario's only run; `None` if there are several, if the run made no
/// calls or its root has not ended, or if not all requests are traces in protobuf.
fn only_run(scenario: &Scenario) -> Option<String> {
    let is_sent = |(file, _): &(String, Vec<u8>)| file.ends_with(".traces.pb");
    let runs = read(scenario);
    let [run] = &runs[..] else {
        return None;
    };
    let is_whole = run.completeness.as_str() == "root_ended" && !run.tool_calls.is_empty();
    (is_whole && scenario.requests.iter().all(is_sent)).then(|| run.trace_id.to_string())
}

/// Reads the stream of judged runs until this trace appears.
fn wait_until_judged(admin: &str, trace_id: &str) {
    // Maximum number of lines to read. This many lines are sent in ten minutes without a run.
    const MOST_LINES: usize = 80;
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(
        stream,
        "GET /v1/runs/events?since=0 HTTP/1.0\r\nhost: {admin}\r\n\r\n"
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().take(MOST_LINES);
    let is_named = lines.any(|line| line.unwrap().contains(trace_id));
    assert!(is_named, "{trace_id} is judged");
}

#[test]
fn the_page_proposes_what_init_writes_of_the_same_trace() {
    const FRAMEWORKS: [&str; 3] = ["langgraph-openinference/", "pydantic-ai/", "agno/"];
    let settings = [
        "--set",
        "explain.values=true",
        "--set",
        "assemble.settle=50ms",
    ];
    let mut sidecar = Running::start(&settings);
    let [otlp, admin] = sidecar.addresses();
    let scenarios = captures::scenarios();
    for framework in FRAMEWORKS {
        let of_framework = scenarios
            .iter()
            .filter(|one| one.name.starts_with(framework));
        let (scenario, trace_id) = of_framework
            .filter_map(|scenario| Some((scenario, only_run(scenario)?)))
            .next()
            .unwrap_or_else(|| panic!("{framework} has a scenario of one run"));

        let folder = TempDir::new().unwrap();
        let mut files = Vec::new();
        for (file, body) in &scenario.requests {
            let path = folder.path().join(file);
            std::fs::write(&path, body).unwrap();
            files.push(path.to_str().unwrap().to_owned());
        }
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let (code, written, err) = run(&[&["init", "-o", "-", "--from"], &files[..]].concat());
        assert_eq!((code, err.as_str()), (0, ""));
        let start = written.find("\ncriteria:").expect(&written) + 1;

        // The concatenated requests form one request.
        let requests = scenario.requests.iter().map(|(_, body)| &body[..]);
        let whole: Vec<u8> = requests.collect::<Vec<_>>().concat();
        assert!(is_acknowledged(&otlp, &whole), "{}", scenario.name);
        wait_until_judged(&admin, &trace_id);
        let answer = http(&admin, &format!("GET /v1/runs/{trace_id}/criterion"), &[]);
        let (_, proposed) = answer.split_once("\r\n\r\n").expect(&answer);
        assert_eq!(proposed, &written[start..], "{}", scenario.name);
        assert!(proposed.contains("max_calls:"), "{proposed}");
    }
}
