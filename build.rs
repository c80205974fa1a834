//! Compiles OTLP's definitions in `proto/` into one descriptor set, which `receive/json.rs` embeds. Pure Rust: no `protoc` is needed.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const SERVICES: [&str; 3] = [
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
    "opentelemetry/proto/collector/logs/v1/logs_service.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
];

#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(false).open_files(SERVICES)?;
    let out_dir = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    fs::write(Path::new(&out_dir).join("otlp_descriptors.bin"), compiler.encode_file_descriptor_set())?;
    Ok(())
}
