//! The decoders of untrusted bytes: OTLP as protobuf and as JSON, the values of attributes, bodies
//! of the criteria API. `cargo test` runs each target of `wire`, `json` and `text` on a few
//! thousand inputs; `fuzz/run` runs it for minutes under libFuzzer. `fuzz/README.md` lists them.

#![cfg(test)]

mod captures;
mod generate;
mod oracle;

mod bounds;
mod fields;
mod json;
mod text;
mod wire;
