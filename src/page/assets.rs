//! The files of the page, as the build script compressed them. Must not know what they show.

use std::sync::OnceLock;

use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use crate::text::{hex, unpacked};

/// Nothing inline, and nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

/// The libraries and our own scripts as one.
pub(super) fn script() -> String {
    unpacked(SCRIPT.gzip)
}

/// All styles as one.
pub(super) fn style() -> String {
    unpacked(STYLE.gzip)
}

pub(super) fn routes() -> Router {
    Router::new()
        .route("/", get(index))
        .route("/page/{file}", get(file))
}

/// A file of the page.
struct Asset {
    content_type: &'static str,
    gzip: &'static [u8],
    /// The entity tag, made when the file is first asked for.
    etag: OnceLock<HeaderValue>,
}

/// A file that the build script compressed.
macro_rules! asset {
    ($content_type:literal, $file:literal) => {
        Asset {
            content_type: $content_type,
            gzip: include_bytes!(concat!(env!("OUT_DIR"), "/", $file)),
            etag: OnceLock::new(),
        }
    };
}

static INDEX: Asset = asset!("text/html; charset=utf-8", "index.html.gz");
static SCRIPT: Asset = asset!("text/javascript; charset=utf-8", "page.js.gz");
static STYLE: Asset = asset!("text/css; charset=utf-8", "page.css.gz");
static ICON: Asset = asset!("image/svg+xml", "icon.svg.gz");

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
    fn response(&self, asked: &HeaderMap) -> Response {
        let text = |name| asked.get(name).and_then(|value| value.to_str().ok());
        let etag = self.etag.get_or_init(|| {
            let tag = format!("\"{}\"", hex(&Sha256::digest(self.gzip)[..8]));
            HeaderValue::from_str(&tag).expect("hexadecimal digits")
        });
        let is_known = text(header::IF_NONE_MATCH)
            .zip(etag.to_str().ok())
            .is_some_and(|(tags, etag)| tags.contains(etag));
        let takes_gzip = text(header::ACCEPT_ENCODING).is_some_and(|all| all.contains("gzip"));
        let mut response = match (is_known, takes_gzip) {
            (true, _) => StatusCode::NOT_MODIFIED.into_response(),
            (false, true) => ([(header::CONTENT_ENCODING, "gzip")], self.gzip).into_response(),
            (false, false) => unpacked(self.gzip).into_response(),
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
