//! The rules of a conformance case, loaded from the text of a configuration file as users write it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use judge::pipeline::Rules;
use serde_json::{Value, json};
use spanscore::config::{Config, Files, Sources};

/// A rule set with one criterion; `fields` are the evaluator's, with its threshold.
pub(crate) fn rules_of_case(id: &str, evaluator: &str, fields: &Value) -> Result<Rules, String> {
    let mut fields = fields.clone();
    let threshold = fields
        .as_object_mut()
        .and_then(|fields| fields.shift_remove("threshold"));
    let mut criterion = json!({ "name": id, "evaluate": { evaluator: fields } });
    if let Some(threshold) = threshold {
        criterion["threshold"] = threshold;
    }
    let text = json!({ "criteria": [criterion] }).to_string();
    let sources = Sources {
        file: Some((Path::new("case.json"), &text)),
        environment: &BTreeMap::new(),
        flags: &[],
        files: &NoFiles,
    };
    let config = Config::load(&sources)
        .map_err(|problems| problems.to_string())?
        .config;
    Ok(Rules::configured(
        config.criteria,
        &config.tools,
        config.explain,
        &config.scores.copy_attributes,
    ))
}

struct NoFiles;

impl Files for NoFiles {
    fn read(&self, path: &Path) -> Result<String, String> {
        Err(format!("a case reads no file, {} either", path.display()))
    }

    fn list(&self, _: &Path, glob: &str) -> Result<Vec<PathBuf>, String> {
        Err(format!("a case names no files, `{glob}` either"))
    }
}
