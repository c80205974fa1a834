//! The files of the page, compressed at their first use. Must not know what they show.

use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::text::hex;

/// The libraries and then our own scripts, in the order in which they need each other.
const SCRIPTS: &[&str] = &[
    include_str!("assets/vendor/preact.umd.js"),
    include_str!("assets/vendor/hooks.umd.js"),
    include_str!("assets/vendor/htm.umd.js"),
    include_str!("assets/vendor/uPlot.iife.min.js"),
    include_str!("assets/base.js"),
    include_str!("assets/source.js"),
    include_str!("assets/parts.js"),
    include_str!("assets/runs.js"),
    include_str!("assets/run.js"),
    include_str!("assets/editor.js"),
    include_str!("assets/criteria.js"),
    include_str!("assets/health.js"),
    include_str!("assets/app.js"),
];
const STYLES: &[&str] = &[
    include_str!("assets/vendor/uPlot.min.css"),
    include_str!("assets/style.css"),
];
const HTML: &str = include_str!("assets/index.html");
const ICON: &str = include_str!("assets/icon.svg");

/// Nothing inline, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// All scripts as one.
pub(super) fn script() -> String {
    joined(SCRIPTS)
}

/// All styles as one.
pub(super) fn style() -> String {
    joined(STYLES)
}

fn joined(parts: &[&str]) -> String {
    // A released file may end in a comment without a line end.
    parts.join("\n")
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
}

/// A file of the page.
struct Asset {
    content_type: &'static str,
    plain: Bytes,
    gzip: Bytes,
    etag: String,
}

static INDEX: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("text/html; charset=utf-8", HTML.to_owned()));
static SCRIPT: LazyLock<Asset> =
    LazyLock::new(|| Asset::new("text/javascript; charset=utf-8", script()));
static STYLE: LazyLock<Asset> = LazyLock::new(|| Asset::new("text/css; charset=utf-8", style()));
static ICON_FILE: LazyLock<Asset> = LazyLock::new(|| Asset::new("image/svg+xml", ICON.to_owned()));

async fn index(headers: HeaderMap) -> Response {
    INDEX.response(&headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match name.as_str() {
        "page.js" => SCRIPT.response(&headers),
        "page.css" => STYLE.response(&headers),
        "icon.svg" => ICON_FILE.response(&headers),
        _ => (StatusCode::NOT_FOUND, "the page has no such file\n").into_response(),
    }
}

impl Asset {
    fn new(content_type: &'static str, text: String) -> Self {
        let plain = Bytes::from(text);
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        // Writing to memory cannot fail; an empty file would only be sent plain.
        let written = encoder.write_all(&plain).and_then(|()| encoder.finish());
        let gzip = Bytes::from(written.unwrap_or_default());
        Self {
            content_type,
            etag: format!("\"{}\"", hex(&Sha256::digest(&plain)[..8])),
            plain,
            gzip,
        }
    }

    fn response(&self, asked: &HeaderMap) -> Response {
        let text = |name| asked.get(name).and_then(|value| value.to_str().ok());
        let is_known = text(header::IF_NONE_MATCH).is_some_and(|tags| tags.contains(&self.etag));
        let takes_gzip = text(header::ACCEPT_ENCODING).is_some_and(|all| all.contains("gzip"));
        let mut response = match (is_known, takes_gzip && !self.gzip.is_empty()) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => {
                ([(header::CONTENT_ENCODING, "gzip")], self.gzip.clone()).into_response()
            }
            (false, false) => self.plain.clone().into_response(),
        };
        let fixed = [
            (header::CONTENT_TYPE, self.content_type),
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ];
        let headers = response.headers_mut();
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(header::ETAG, etag);
        }
        response
    }
}
