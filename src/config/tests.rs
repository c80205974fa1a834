//! Texts and variables in, configurations or messages out. Snapshots hold what a user sees; they do not prove that a remedy works.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;

/// A folder in memory.
#[derive(Default)]
struct Folder(BTreeMap<PathBuf, String>);

impl Folder {
    fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect())
    }
}

impl Files for Folder {
    fn read(&self, path: &Path) -> Result<String, String> {
        self.0.get(path).cloned().ok_or_else(|| "no such file".to_owned())
    }

    fn list(&self, glob: &str) -> Result<Vec<PathBuf>, String> {
        let pattern = glob::Pattern::new(glob).map_err(|error| error.to_string())?;
        Ok(self.0.keys().filter(|path| pattern.matches_path(path)).cloned().collect())
    }
}

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn load_with(text: &str, variables: &[(&str, &str)], files: &[(&str, &str)]) -> Result<Loaded, Problems> {
    Config::load(&Sources {
        file: Some((Path::new("spanscore.yaml"), text)),
        environment: &environment(variables),
        flags: &[],
        files: &Folder::of(files),
    })
}

fn load(text: &str) -> Result<Loaded, Problems> {
    load_with(text, &[], &[])
}

const TEN_MISTAKES: &str = r#"# A configuration with ten mistakes.
receivers:
  otlp:
    grpc: { enabled: yes, listen: "127.0.0.1" }
    htpp: { enabled: true }
forward:
  endpoint: otel-collector:4317
  protocol: grcp
  timeout: 10 seconds
  signals: [traces, spans]
  queue: { max_size: 64MB }
criteria:
  - name: checkout-order
    evaluate:
      tool_call_ordr: { tool_calls_order: [search, edit] }
  - name: checkout
    treshold: 0.8
    evaluate:
      tool_call_order: { tool_calls_order: search }
  - evaluate: { tool_call_order: { tool_calls_order: [] } }
    threshold: 3
"#;

#[test]
fn probe() {
    for text in [
        TEN_MISTAKES,
        "",
        "a: 1\n",
        "criteria:\n  - x\n  - name: a\n    evaluate: 3\n",
        "graders:\n  - type: tool-calls\n    config:\n      required: [a, {name: b}]\n",
        "forward:\n  endpoint: http://x:4318/v1/traces\n  headers: { authorization: \"Bearer abc\", X: 5, Y: ${env:NO} }\n",
        "criteria:\n- name: a\n  type: uipath-tool-call-order\n  evaluatorConfig: {name: x, strict: true, defaultEvaluationCriteria: {toolCallsOrder: [a, b]}}\n",
    ] {
        println!(
            "=========\n{}",
            match load(text) {
                Ok(l) => format!("{}{}", l.warnings, l.config.to_yaml()),
                Err(p) => p.render(false),
            }
        );
    }
}
