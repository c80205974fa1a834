//! Certificate files in, rustls configurations out, read again when the files change.
