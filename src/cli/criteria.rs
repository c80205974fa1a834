//! `spanscore criteria`: lists and changes the criteria of a running sidecar over its REST API.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, IF_MATCH};
use hyper::{Method, Request};
use serde_json::{Value, json};
use text::{code, safe_json};
use tokio::runtime::{Builder, Runtime};
use tokio::time;

use super::api::{Api, ApiClient, ApiFailure, PATIENCE, escaped};
use super::{Exit, Streams, terminal};
use crate::config::{self, Config, Problems};
use crate::export::score_line::Clean;
use crate::register::PATTERN_LIMITS;

/// Options of `criteria`.
#[derive(Debug, Args)]
pub(super) struct Criteria {
    /// The operation.
    #[command(subcommand)]
    pub(super) command: CriteriaCommand,
    /// The sidecar to call.
    #[command(flatten)]
    pub(super) api: ApiClient,
}

/// The operations of `criteria`.
#[derive(Debug, Subcommand)]
pub(super) enum CriteriaCommand {
    /// List all active criteria, from files and from the API.
    List {
        /// Output format.
        #[arg(long, value_enum, default_value_t = CriteriaFormat::Human)]
        format: CriteriaFormat,
    },
    /// Show one criterion.
    Get {
        /// Name of the criterion.
        name: String,
        /// Output format.
        #[arg(long, value_enum, default_value_t = CriteriaFormat::Human)]
        format: CriteriaFormat,
    },
    /// Register the criteria of a file: a single criterion, or a list under `criteria:`.
    Put {
        /// YAML or JSON file; - is standard input.
        #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Replace all criteria that were registered through the API, atomically.
        #[arg(long)]
        replace: bool,
        /// Delete the registrations after this time, such as 90s, 15m or 1h.
        #[arg(long, value_name = "TIME")]
        ttl: Option<String>,
        /// Apply the change only if the criterion, or with --replace the set, still has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
        /// Check the criteria without registering them.
        #[arg(long)]
        validate_only: bool,
    },
    /// Delete a criterion that was registered through the API.
    Delete {
        /// Name of the criterion.
        name: String,
        /// Apply the change only if the criterion still has this ETag.
        #[arg(long, value_name = "ETAG")]
        if_match: Option<String>,
    },
}

/// Output formats of `criteria`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CriteriaFormat {
    /// Text for people.
    Human,
    /// The responses of the API.
    Json,
    /// The criteria only, ready for a criteria file.
    Yaml,
}

/// Runs `spanscore criteria`. `config` supplies the default address and token.
pub(super) fn criteria(
    args: &Criteria,
    config: &Config,
    streams: &mut Streams<'_>,
) -> io::Result<Exit> {
    let Some(runtime) = streams.runtime(&mut Builder::new_current_thread())? else {
        return Ok(Exit::NoStart);
    };
    let entered = runtime.enter();
    let api = match Api::new(&args.api, config) {
        Ok(api) => api,
        Err(message) => return streams.complain(&message).map(|()| Exit::Usage),
    };
    drop(entered);
    let mut client = Client {
        api,
        runtime,
        streams,
    };
    let done = match &args.command {
        CriteriaCommand::List { format } => client.list(*format),
        CriteriaCommand::Get { name, format } => client.get(name, *format),
        CriteriaCommand::Put {
            file,
            replace,
            ttl,
            if_match,
            validate_only,
        } => {
            let options = PutOptions {
                ttl: ttl.as_deref(),
                if_match: if_match.as_deref(),
                validate_only: *validate_only,
            };
            client.put(file, *replace, &options)
        }
        CriteriaCommand::Delete { name, if_match } => client.delete(name, if_match.as_deref()),
    };
    match done {
        Ok(()) => Ok(Exit::Fine),
        Err(Failed::Exit(exit)) => Ok(exit),
        Err(Failed::Output(error)) => Err(error),
    }
}

struct Client<'a, 'b> {
    api: Api,
    runtime: Runtime,
    streams: &'a mut Streams<'b>,
}

#[derive(Clone, Copy)]
struct PutOptions<'a> {
    ttl: Option<&'a str>,
    if_match: Option<&'a str>,
    validate_only: bool,
}

enum Failed {
    /// The command failed, and its message was printed.
    Exit(Exit),
    Output(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl Client<'_, '_> {
    fn list(&mut self, format: CriteriaFormat) -> Result<(), Failed> {
        let mut list = self.call(Method::GET, "/v1/criteria", None, b"", Origin::None)?;
        let revision = list["revision"].take();
        let entries: Vec<Value> = match list["criteria"].take() {
            Value::Array(criteria) => criteria,
            _ => Vec::new(),
        };
        let out = &mut *self.streams.out;
        match format {
            CriteriaFormat::Json => {
                let list = json!({ "criteria": entries, "revision": revision });
                writeln!(out, "{}", safe_json(format!("{list:#}")))?;
            }
            CriteriaFormat::Yaml => {
                let criteria: Vec<Value> = entries
                    .into_iter()
                    .map(|mut entry| entry["criterion"].take())
                    .collect();
                write!(out, "{}", config::yaml(&json!({ "criteria": criteria })))?;
            }
            CriteriaFormat::Human => {
                let text = |value: &Value| Clean(value.as_str().unwrap_or_default()).to_string();
                let rows: Vec<[String; 5]> = entries
                    .iter()
                    .map(|entry| {
                        let evaluator = entry["criterion"]["evaluate"]
                            .as_object()
                            .and_then(|evaluate| evaluate.keys().next());
                        let shadows = if entry["shadows"].is_object() {
                            " (replaces the file's)"
                        } else {
                            ""
                        };
                        [
                            text(&entry["name"]),
                            evaluator.cloned().unwrap_or_default(),
                            text(&entry["revision"]),
                            format!("{}{shadows}", text(&entry["source"])),
                            text(&entry["expires_at"]),
                        ]
                    })
                    .collect();
                let heading =
                    ["NAME", "EVALUATOR", "REVISION", "SOURCE", "EXPIRES"].map(str::to_owned);
                let width = |column: usize| {
                    rows.iter()
                        .chain([&heading])
                        .map(|row| row[column].chars().count())
                        .max()
                        .unwrap_or_default()
                };
                let widths = [width(0), width(1), width(2), width(3), width(4)];
                for row in [&heading].into_iter().chain(&rows) {
                    let cells: Vec<String> = row
                        .iter()
                        .zip(widths)
                        .map(|(cell, width)| format!("{cell:width$}"))
                        .collect();
                    writeln!(out, "{}", cells.join("  ").trim_end())?;
                }
            }
        }
        Ok(())
    }

    fn get(&mut self, name: &str, format: CriteriaFormat) -> Result<(), Failed> {
        let entry = self.call(Method::GET, &path_of(name), None, b"", Origin::None)?;
        let out = &mut *self.streams.out;
        match format {
            CriteriaFormat::Json => writeln!(out, "{}", safe_json(format!("{entry:#}")))?,
            CriteriaFormat::Yaml => write!(out, "{}", config::yaml(&entry["criterion"]))?,
            CriteriaFormat::Human => {
                for key in ["revision", "source", "expires_at", "etag"] {
                    if let Some(value) = entry[key].as_str() {
                        writeln!(out, "# {key}: {}", Clean(value))?;
                    }
                }
                write!(out, "{}", config::yaml(&entry["criterion"]))?;
            }
        }
        Ok(())
    }

    fn put(&mut self, file: &Path, replace: bool, options: &PutOptions<'_>) -> Result<(), Failed> {
        let text = self.read(file)?;
        let shown = if file == Path::new("-") {
            "standard input".to_owned()
        } else {
            file.display().to_string()
        };
        let parsed: Value = match config::document(
            &text,
            "a criteria file",
            "write a criterion, or `criteria:` above a list of them",
        ) {
            Ok(parsed) => parsed,
            Err(problems) => return self.refuse(&problems, &shown),
        };
        if replace {
            let done = self.call(
                Method::PUT,
                &format!("/v1/criteria{}", options.query()),
                options.if_match,
                text.as_bytes(),
                Origin::Text(&shown),
            )?;
            let count = |key: &str| done[key].as_array().map_or(0, Vec::len);
            let verb = if options.validate_only { "valid" } else { "replaced" };
            let (added, changed, removed) = (count("added"), count("changed"), count("removed"));
            writeln!(
                self.streams.out,
                "{verb}: {added} added, {changed} changed, {removed} removed"
            )?;
            return Ok(());
        }
        match &parsed["criteria"] {
            Value::Array(items) => self.put_all(&text, items, &shown, options),
            // Send the original text, so that the sidecar reports a mistake at its line.
            _ => {
                let Some(name) = parsed["name"].as_str().filter(|name| !name.is_empty()) else {
                    self.streams
                        .complain(&format!("{shown}: a criterion has no name; add `name: …`"))?;
                    return Err(Failed::Exit(Exit::Usage));
                };
                let entry = self.put_one(name, text.as_bytes(), Origin::Text(&shown), options)?;
                self.tell(name, &entry, options.verb())
            }
        }
    }

    /// Registers a list of criteria. First the sidecar checks each criterion, and a rejection
    /// prevents the whole change. If a later request fails, the criteria registered before it
    /// remain.
    fn put_all(
        &mut self,
        text: &str,
        items: &[Value],
        file: &str,
        options: &PutOptions<'_>,
    ) -> Result<(), Failed> {
        // Parse the file as the sidecar does, so that mistakes are reported at their positions.
        let criteria = match config::criteria(text, PATTERN_LIMITS) {
            Ok(criteria) => criteria,
            Err(problems) => return self.refuse(&problems, file),
        };
        let bodies: Vec<(&str, String)> = (criteria.iter().zip(items))
            .map(|(criterion, item)| (criterion.name.as_str(), item.to_string()))
            .collect();
        let trial = PutOptions {
            validate_only: true,
            ..*options
        };
        let mut valid = Vec::new();
        for (name, body) in &bodies {
            let origin = Origin::Item { file, name };
            valid.push(self.put_one(name, body.as_bytes(), origin, &trial)?);
        }
        if options.validate_only {
            for ((name, _), entry) in bodies.iter().zip(&valid) {
                self.tell(name, entry, options.verb())?;
            }
            return Ok(());
        }
        for (n_stored, (name, body)) in bodies.iter().enumerate() {
            let origin = Origin::Item { file, name };
            match self.put_one(name, body.as_bytes(), origin, options) {
                Ok(entry) => self.tell(name, &entry, options.verb())?,
                Err(failed) => {
                    let names = |bodies: &[(&str, String)]| {
                        let names = bodies.iter().map(|(name, _)| code(name));
                        names.collect::<Vec<_>>().join(", ")
                    };
                    let (stored, left) = bodies.split_at(n_stored);
                    let stored = match stored {
                        [] => "nothing was registered".to_owned(),
                        stored => format!("registered: {}", names(stored)),
                    };
                    self.streams
                        .complain(&format!("{stored}; not registered: {}", names(left)))?;
                    return Err(failed);
                }
            }
        }
        Ok(())
    }

    /// Prints the mistakes in the file. Nothing has been sent to the sidecar.
    fn refuse<T>(&mut self, problems: &Problems, file: &str) -> Result<T, Failed> {
        let text = terminal::rendered(problems, self.streams.err_look);
        let text = text.replace("--> body", &format!("--> {file}"));
        write!(self.streams.err, "{text}")?;
        Err(Failed::Exit(Exit::Usage))
    }

    fn put_one(
        &mut self,
        name: &str,
        body: &[u8],
        origin: Origin<'_>,
        options: &PutOptions<'_>,
    ) -> Result<Value, Failed> {
        let path = format!("{}{}", path_of(name), options.query());
        self.call(Method::PUT, &path, options.if_match, body, origin)
    }

    /// Prints the sidecar's response to an accepted criterion.
    fn tell(&mut self, name: &str, entry: &Value, verb: &str) -> Result<(), Failed> {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        writeln!(
            self.streams.out,
            "{verb}: {}  revision {}  etag \"{}\"",
            Clean(name),
            text("revision"),
            text("etag")
        )?;
        for warning in entry["warnings"].as_array().into_iter().flatten() {
            writeln!(
                self.streams.err,
                "warning: {}",
                Clean(warning.as_str().unwrap_or_default())
            )?;
        }
        Ok(())
    }

    fn delete(&mut self, name: &str, if_match: Option<&str>) -> Result<(), Failed> {
        let deleted = self.call(Method::DELETE, &path_of(name), if_match, b"", Origin::None)?;
        let uncovered = if deleted["uncovered"].is_object() {
            "; the file's criterion is in force again"
        } else {
            ""
        };
        writeln!(self.streams.out, "deleted: {}{uncovered}", Clean(name))?;
        Ok(())
    }

    fn read(&mut self, file: &Path) -> Result<String, Failed> {
        let mut text = String::new();
        let read = if file == Path::new("-") {
            io::stdin().read_to_string(&mut text).map(|_| text)
        } else {
            fs::read_to_string(file)
        };
        match read {
            Ok(text) => Ok(text),
            Err(error) => {
                self.streams
                    .complain(&format!("cannot read `{}`: {error}", file.display()))?;
                Err(Failed::Exit(Exit::Unreadable))
            }
        }
    }

    /// Sends a request that has a JSON response. Prints a message if the request fails. `origin` is
    /// the source of the request's body.
    fn call(
        &mut self,
        method: Method,
        path: &str,
        if_match: Option<&str>,
        body: &[u8],
        origin: Origin<'_>,
    ) -> Result<Value, Failed> {
        let mut request = Request::builder().method(method).uri(path);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/yaml");
        }
        if let Some(tag) = if_match {
            let quoted = if tag == "*" || tag.starts_with('"') {
                tag.to_owned()
            } else {
                format!("\"{tag}\"")
            };
            request = request.header(IF_MATCH, quoted);
        }
        let request = match request.body(Bytes::copy_from_slice(body)) {
            Ok(request) => request,
            Err(error) => {
                self.streams
                    .complain(&format!("invalid request: {error}"))?;
                return Err(Failed::Exit(Exit::Usage));
            }
        };
        let calling = async {
            let body = self.api.call(request).await?.into_body().collect().await;
            let no_response = |reason: String| ApiFailure::NoResponse {
                base: self.api.base().to_owned(),
                reason,
            };
            let body = body
                .map_err(|error| no_response(error.to_string()))?
                .to_bytes();
            serde_json::from_slice(&body)
                .map_err(|error| no_response(format!("the response is not JSON: {error}")))
        };
        let failure = match self
            .runtime
            .block_on(async { time::timeout(PATIENCE, calling).await })
        {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(failure)) => failure,
            Err(_) => ApiFailure::NoResponse {
                base: self.api.base().to_owned(),
                reason: format!("nothing within {} s", PATIENCE.as_secs()),
            },
        };
        let ApiFailure::Refused {
            status, problem, ..
        } = &failure
        else {
            self.streams.complain(&format!(
                "{failure}; is the sidecar running, and is this its `admin.listen`?"
            ))?;
            return Err(Failed::Exit(Exit::NoStart));
        };
        let errors = problem["errors"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        if errors.is_empty() {
            let about = match origin {
                Origin::Item { file, name } => format!("{file}, criterion {}: ", code(name)),
                Origin::Text(_) | Origin::None => String::new(),
            };
            self.streams
                .complain(&format!("{about}{}", Clean(&failure.to_string())))?;
        }
        for error in errors {
            let text = |key: &str| {
                error[key]
                    .as_str()
                    .map(|text| Clean(text).to_string())
                    .unwrap_or_default()
            };
            let remedy = Some(text("remedy"))
                .filter(|remedy| !remedy.is_empty())
                .map(|remedy| format!(": {remedy}"))
                .unwrap_or_default();
            let (line, column) = (&error["line"], &error["column"]);
            let at = match origin {
                Origin::Item { file, name } => format!("{file}, criterion {}", code(name)),
                Origin::Text(_) | Origin::None => {
                    let file = match origin {
                        Origin::Text(file) => file,
                        _ => "body",
                    };
                    let (line, column) = (line.as_u64().unwrap_or(1), column.as_u64().unwrap_or(1));
                    format!("{file}:{line}:{column}")
                }
            };
            self.streams.complain(&format!(
                "{}{remedy}\n  --> {at}  {}",
                text("message"),
                text("pointer")
            ))?;
        }
        Err(Failed::Exit(match status {
            400 | 405 | 413 | 415 => Exit::Usage,
            404 | 409 | 412 => Exit::CriterionFailed,
            _ => Exit::NoStart,
        }))
    }
}

/// The source of a request's body.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// The request has no body.
    None,
    /// The text of a file.
    Text(&'a str),
    /// A criterion of a file, converted to JSON. Line numbers in the JSON are not those of the
    /// file.
    Item { file: &'a str, name: &'a str },
}

impl PutOptions<'_> {
    fn verb(&self) -> &'static str {
        if self.validate_only { "valid" } else { "registered" }
    }

    fn query(&self) -> String {
        let ttl = self.ttl.map(|ttl| format!("ttl={}", escaped(ttl)));
        let pairs: Vec<String> = ttl
            .into_iter()
            .chain(self.validate_only.then(|| "validate_only=true".to_owned()))
            .collect();
        if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) }
    }
}

fn path_of(name: &str) -> String {
    format!("/v1/criteria/{}", escaped(name))
}
