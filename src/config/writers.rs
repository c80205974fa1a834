//! `scores.writers`: backends whose own score APIs also receive the scores, and the headers for
//! their API keys.

use std::collections::BTreeMap;
use std::path::PathBuf;

use data_encoding::BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::ClientTls;
use super::units::{Duration, Secret};

/// An entry of `scores.writers`: a backend whose own score API also receives the scores.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Writer {
    /// Span annotations of Arize Phoenix.
    Phoenix(TokenWriter),
    /// Assessments of MLflow.
    Mlflow(TokenWriter),
    /// Scores of Langfuse.
    Langfuse(LangfuseWriter),
    /// External evaluations of Datadog.
    Datadog(DatadogWriter),
}

/// The API that a writer writes to.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriterPeer {
    /// `http(s)://host[:port][/base]`; the path of the API is appended.
    pub endpoint: String,
    /// Further headers to send, by name. Writers inherit none.
    #[serde(default)]
    pub headers: BTreeMap<String, Secret>,
    /// Timeout of one attempt to write.
    #[serde(default = "default_timeout")]
    pub timeout: Duration,
    /// TLS details; an `https://` endpoint needs none.
    #[serde(default)]
    pub tls: Option<ClientTls>,
}

/// An entry `phoenix` or `mlflow` of `scores.writers`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TokenWriter {
    /// The API.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: WriterPeer,
    /// The API key, sent as bearer token; `${env:NAME}` keeps it out of the file.
    pub api_key: Option<Secret>,
    /// A file with the API key.
    pub api_key_file: Option<PathBuf>,
}

/// An entry `langfuse` of `scores.writers`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LangfuseWriter {
    /// The API.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: WriterPeer,
    /// The public key of the project.
    pub public_key: Option<Secret>,
    /// The secret key of the project; `${env:NAME}` keeps it out of the file.
    pub secret_key: Option<Secret>,
    /// A file with the secret key.
    pub secret_key_file: Option<PathBuf>,
}

/// An entry `datadog` of `scores.writers`.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct DatadogWriter {
    /// The API.
    #[serde(rename = "*")]
    #[schemars(flatten)]
    pub peer: WriterPeer,
    /// The API key, sent as `dd-api-key`; `${env:NAME}` keeps it out of the file.
    pub api_key: Option<Secret>,
    /// A file with the API key.
    pub api_key_file: Option<PathBuf>,
    /// Name of the LLM application. Default: the service of the evaluated span, as Datadog itself
    /// does for OpenTelemetry.
    pub ml_app: Option<String>,
}

impl Default for WriterPeer {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            headers: BTreeMap::new(),
            timeout: default_timeout(),
            tls: None,
        }
    }
}

fn default_timeout() -> Duration {
    Duration::from_secs(10)
}

impl Writer {
    /// Returns the key below `scores.writers`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Phoenix(_) => "phoenix",
            Self::Mlflow(_) => "mlflow",
            Self::Langfuse(_) => "langfuse",
            Self::Datadog(_) => "datadog",
        }
    }

    pub(super) fn peer(&self) -> &WriterPeer {
        match self {
            Self::Phoenix(writer) | Self::Mlflow(writer) => &writer.peer,
            Self::Langfuse(writer) => &writer.peer,
            Self::Datadog(writer) => &writer.peer,
        }
    }

    /// Returns the name of the setting, such as `api_key_file`, whose file was not read: only a
    /// path in the configuration file itself is followed, not one from a flag or variable.
    pub(super) fn unread_key(&self) -> Option<&'static str> {
        let (key, file, name) = match self {
            Self::Phoenix(TokenWriter {
                api_key,
                api_key_file,
                ..
            })
            | Self::Mlflow(TokenWriter {
                api_key,
                api_key_file,
                ..
            })
            | Self::Datadog(DatadogWriter {
                api_key,
                api_key_file,
                ..
            }) => (api_key, api_key_file, "api_key_file"),
            Self::Langfuse(LangfuseWriter {
                secret_key,
                secret_key_file,
                ..
            }) => (secret_key, secret_key_file, "secret_key_file"),
        };
        (key.is_none() && file.is_some()).then_some(name)
    }

    /// Returns the header with our credentials, if they are configured.
    pub(super) fn credentials(&self) -> Option<(&'static str, Secret)> {
        match self {
            Self::Phoenix(writer) | Self::Mlflow(writer) => {
                let key = writer.api_key.as_ref()?;
                let value = Secret::new(format!("Bearer {}", key.expose()));
                Some(("authorization", value))
            }
            Self::Langfuse(writer) => {
                let public = writer.public_key.as_ref()?.expose();
                let secret = writer.secret_key.as_ref()?.expose();
                let pair = BASE64.encode(format!("{public}:{secret}").as_bytes());
                Some(("authorization", Secret::new(format!("Basic {pair}"))))
            }
            Self::Datadog(writer) => Some(("dd-api-key", writer.api_key.clone()?)),
        }
    }
}
