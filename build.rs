//! Compiles the definitions in `proto/` into descriptor sets: OTLP's for `receive/json.rs`, our own
//! for `register/grpc.rs`. Pure Rust: no `protoc` is needed.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const SERVICES: [&str; 3] = [
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
    "opentelemetry/proto/collector/logs/v1/logs_service.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
];

/// Served by the admin port.
const OWN: [&str; 2] = ["spanscore/v1/criteria.proto", "grpc/health/v1/health.proto"];

#[expect(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler
        .include_imports(true)
        .include_source_info(false)
        .open_files(SERVICES)?;
    let mut own = protox::Compiler::new(["proto"])?;
    own.include_imports(true)
        .include_source_info(true)
        .open_files(OWN)?;
    let out_dir = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(
        Path::new(&out_dir).join("otlp_descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    fs::write(
        Path::new(&out_dir).join("spanscore_descriptors.bin"),
        own.encode_file_descriptor_set(),
    )?;
    Ok(())
}
