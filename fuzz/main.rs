//! Tests the decoders of untrusted bytes: OTLP as protobuf and as JSON, the values of attributes,
//! calls of the API, segments of the journal. `cargo test` runs each target of `wire`, `json`,
//! `text`, `admin` and `journal` on its stored inputs, if it has any, and on 600 to 4,000 others;
//! `fuzz/run` runs a target for minutes under libFuzzer. `fuzz/README.md` lists the targets.

#![cfg(test)]

mod captures;
mod corpus;
mod generate;
mod oracle;

mod admin;
mod bounds;
mod fields;
mod journal;
mod json;
mod text;
mod wire;
