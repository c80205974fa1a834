//! Text in, the backends' own score APIs that scores are also written to out: `scores.writers`.
//! Knows the keys, the defaults and how a key becomes a header; does not know what a request looks
//! like.

use std::collections::BTreeMap;
use std::path::PathBuf;

use data_encoding::BASE64;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::ClientTls;
use super::units::{Duration, Secret};

/// An entry of `scores.writers`: a backend whose own scores the evaluations become, beside the
/// score spans.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Writer {
    /// Span annotations of Arize Phoenix.
    Phoenix(PhoenixWriter),
    /// Assessments of MLflow.
    Mlflow(MlflowWriter),
    /// Scores of Langfuse.
    Langfuse(LangfuseWriter),
    /// External evaluations of Datadog.
    Datadog(DatadogWriter),
}

macro_rules! writers {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// `http(s)://host[:port][/base]`, to which the path of the API is appended.
            pub endpoint: String,
            $(
                $(#[$field_doc])*
                #[serde(default)]
                pub $field: $type,
            )*
            /// Headers to send.
            #[serde(default)]
            pub headers: BTreeMap<String, Secret>,
            /// Timeout of one request.
            #[serde(default = "timeout")]
            pub timeout: Duration,
            /// TLS details; an `https://` endpoint needs none.
            #[serde(default)]
            pub tls: Option<ClientTls>,
        }
    )*};
}

writers! {
    /// `phoenix`.
    PhoenixWriter {
        /// Sent as bearer token; `${env:NAME}` keeps it out of the file.
        api_key: Option<Secret>,
        /// A file that holds it.
        api_key_file: Option<PathBuf>,
    }
    /// `mlflow`.
    MlflowWriter {
        /// Sent as bearer token; `${env:NAME}` keeps it out of the file.
        api_key: Option<Secret>,
        /// A file that holds it.
        api_key_file: Option<PathBuf>,
    }
    /// `langfuse`.
    LangfuseWriter {
        /// The public key of the project.
        public_key: Option<Secret>,
        /// The secret key of the project; `${env:NAME}` keeps it out of the file.
        secret_key: Option<Secret>,
        /// A file that holds it.
        secret_key_file: Option<PathBuf>,
    }
    /// `datadog`.
    DatadogWriter {
        /// Sent as `dd-api-key`; `${env:NAME}` keeps it out of the file.
        api_key: Option<Secret>,
        /// A file that holds it.
        api_key_file: Option<PathBuf>,
        /// Name of the LLM application; left out, the service of the evaluated span, as Datadog
        /// itself does for OpenTelemetry.
        ml_app: Option<String>,
    }
}

fn timeout() -> Duration {
    Duration::from_secs(10)
}

/// What every writer says of its peer.
#[derive(Clone, Copy)]
pub(super) struct WriterPeer<'a> {
    pub(super) endpoint: &'a str,
    pub(super) headers: &'a BTreeMap<String, Secret>,
    pub(super) timeout: Duration,
    pub(super) tls: Option<&'a ClientTls>,
}

// === impl Writer ===

impl Writer {
    /// The key below `scores.writers`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Phoenix(_) => "phoenix",
            Self::Mlflow(_) => "mlflow",
            Self::Langfuse(_) => "langfuse",
            Self::Datadog(_) => "datadog",
        }
    }

    pub(super) fn peer(&self) -> WriterPeer<'_> {
        macro_rules! peer {
            ($from:expr) => {
                WriterPeer {
                    endpoint: &$from.endpoint,
                    headers: &$from.headers,
                    timeout: $from.timeout,
                    tls: $from.tls.as_ref(),
                }
            };
        }
        match self {
            Self::Phoenix(writer) => peer!(writer),
            Self::Mlflow(writer) => peer!(writer),
            Self::Langfuse(writer) => peer!(writer),
            Self::Datadog(writer) => peer!(writer),
        }
    }

    /// The key that should have been read from a file, but was not: only the configuration file's
    /// own paths are.
    pub(super) fn unread_key(&self) -> Option<&'static str> {
        match self {
            Self::Phoenix(PhoenixWriter {
                api_key: None,
                api_key_file: Some(_),
                ..
            })
            | Self::Mlflow(MlflowWriter {
                api_key: None,
                api_key_file: Some(_),
                ..
            })
            | Self::Datadog(DatadogWriter {
                api_key: None,
                api_key_file: Some(_),
                ..
            }) => Some("api_key_file"),
            Self::Langfuse(LangfuseWriter {
                secret_key: None,
                secret_key_file: Some(_),
                ..
            }) => Some("secret_key_file"),
            _ => None,
        }
    }

    /// The header that says who we are.
    pub(super) fn credentials(&self) -> Option<(&'static str, Secret)> {
        let bearer = |key: &Secret| {
            (
                "authorization",
                Secret::new(format!("Bearer {}", key.expose())),
            )
        };
        match self {
            Self::Phoenix(PhoenixWriter { api_key, .. })
            | Self::Mlflow(MlflowWriter { api_key, .. }) => api_key.as_ref().map(bearer),
            Self::Langfuse(LangfuseWriter {
                public_key: Some(public),
                secret_key: Some(secret),
                ..
            }) => {
                let pair = format!("{}:{}", public.expose(), secret.expose());
                Some((
                    "authorization",
                    Secret::new(format!("Basic {}", BASE64.encode(pair.as_bytes()))),
                ))
            }
            Self::Langfuse(_) => None,
            Self::Datadog(DatadogWriter { api_key, .. }) => {
                api_key.clone().map(|key| ("dd-api-key", key))
            }
        }
    }
}
