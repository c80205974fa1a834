//! The keys that describe an OTLP peer, shared by all sections of `scores`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::forward::{ClientTls, Compression, Protocol};
use super::units::{Duration, Secret};

/// An OTLP peer as a section of `scores` describes it. Missing keys are inherited.
#[derive(Debug, Clone, Default, Deserialize, Serialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OtlpPeer {
    /// `http(s)://host:port`, for HTTP also with a base path. Default: the endpoint of `scores`,
    /// else of `forward`.
    pub endpoint: Option<String>,
    /// Protocol. Default: that of `scores`, else of `forward`, else by the endpoint's port and
    /// path.
    pub protocol: Option<Protocol>,
    /// Headers to send, by name; `{}` sends none. Default: those of `scores`, else of `forward`.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression. Default: that of `scores`, else of `forward`.
    pub compression: Option<Compression>,
    /// Timeout of one attempt. Default: that of `scores`, else of `forward`.
    pub timeout: Option<Duration>,
    /// TLS details. Default: those of `scores`, else of `forward`.
    pub tls: Option<ClientTls>,
}
