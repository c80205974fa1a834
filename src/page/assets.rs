//! Serves the files of the page.

use std::io::Write;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use text::hex;

/// Allows nothing inline, and nothing from other origins.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

pub(super) fn script() -> &'static str {
    SCRIPT.text
}

pub(super) fn style() -> &'static str {
    STYLE.text
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
}

/// A file of the page. Values that depend on its text are computed when it is first requested.
struct Asset {
    content_type: &'static str,
    text: &'static str,
    gzip: LazyLock<Vec<u8>>,
    etag: LazyLock<HeaderValue>,
}

/// Joins files into an [`Asset`]. Adds line breaks, because a released file may end in a comment
/// without a line break.
macro_rules! asset {
    ($asset:ident, $content_type:literal, $($file:literal)+) => {
        static $asset: Asset = Asset {
            content_type: $content_type,
            text: concat!($(include_str!(concat!("assets/", $file)), "\n"),+),
            gzip: LazyLock::new(|| packed($asset.text)),
            etag: LazyLock::new(|| etag($asset.text)),
        };
    };
}

asset!(INDEX, "text/html; charset=utf-8", "index.html");
// Libraries first, then our own scripts, in the order of their dependencies.
asset!(SCRIPT, "text/javascript; charset=utf-8",
    "vendor/preact.umd.js"
    "vendor/hooks.umd.js"
    "vendor/htm.umd.js"
    "base.js"
    "source.js"
    "parts.js"
    "runs.js"
    "run.js"
    "editor.js"
    "criteria.js"
    "health.js"
    "app.js"
);
asset!(STYLE, "text/css; charset=utf-8", "style.css");
asset!(ICON, "image/svg+xml", "icon.svg");

fn packed(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder
        .write_all(text.as_bytes())
        .and_then(|()| encoder.finish())
        .expect("a vector takes every byte")
}

fn etag(text: &str) -> HeaderValue {
    let tag = format!("\"{}\"", hex(&Sha256::digest(text)[..8]));
    HeaderValue::from_str(&tag).expect("hexadecimal digits")
}

async fn index(headers: HeaderMap) -> Response {
    INDEX.response(&headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match name.as_str() {
        "page.js" => SCRIPT.response(&headers),
        "page.css" => STYLE.response(&headers),
        "icon.svg" => ICON.response(&headers),
        _ => (StatusCode::NOT_FOUND, "the page has no such file\n").into_response(),
    }
}

impl Asset {
    fn response(&'static self, asked: &HeaderMap) -> Response {
        let text = |name| asked.get(name).and_then(|value| value.to_str().ok());
        let etag = &*self.etag;
        let is_known = text(header::IF_NONE_MATCH)
            .zip(etag.to_str().ok())
            .is_some_and(|(tags, etag)| tags.contains(etag));
        let takes_gzip = text(header::ACCEPT_ENCODING).is_some_and(|all| all.contains("gzip"));
        let mut response = match (is_known, takes_gzip) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => {
                ([(header::CONTENT_ENCODING, "gzip")], self.gzip.as_slice()).into_response()
            }
            (false, false) => self.text.into_response(),
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
        headers.insert(header::ETAG, etag.clone());
        response
    }
}
