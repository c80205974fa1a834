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
    /// The endpoint. Default: the endpoint of `scores`, else of `forward`.
    pub endpoint: Option<String>,
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// Headers to send.
    pub headers: Option<BTreeMap<String, Secret>>,
    /// Compression.
    pub compression: Option<Compression>,
    /// Timeout of one request.
    pub timeout: Option<Duration>,
    /// TLS details.
    pub tls: Option<ClientTls>,
}
