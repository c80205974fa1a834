//! Compiles the definitions in `proto/`: OTLP's to tables for `receive/json.rs` and to descriptors
//! for its tests, our own to descriptors and messages for `register/grpc.rs`. Pure Rust: no `protoc`
//! is needed. Compresses files that the program contains.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::{env, fs};

use flate2::Compression;
use flate2::write::GzEncoder;
use protox::prost_reflect::prost_types::{DescriptorProto, FileDescriptorSet};
use protox::prost_reflect::{DescriptorPool, FieldDescriptor, Kind, MessageDescriptor};

const OTLP_SERVICES: [&str; 3] = [
    "opentelemetry/proto/collector/trace/v1/trace_service.proto",
    "opentelemetry/proto/collector/logs/v1/logs_service.proto",
    "opentelemetry/proto/collector/metrics/v1/metrics_service.proto",
];

/// The services of the admin port.
const OWN_SERVICES: [&str; 2] = ["spanscore/v1/criteria.proto", "grpc/health/v1/health.proto"];

/// The libraries and then our own scripts, in the order in which they need each other.
const SCRIPTS: [&str; 13] = [
    "src/page/assets/vendor/preact.umd.js",
    "src/page/assets/vendor/hooks.umd.js",
    "src/page/assets/vendor/htm.umd.js",
    "src/page/assets/vendor/uPlot.iife.min.js",
    "src/page/assets/base.js",
    "src/page/assets/source.js",
    "src/page/assets/parts.js",
    "src/page/assets/runs.js",
    "src/page/assets/run.js",
    "src/page/assets/editor.js",
    "src/page/assets/criteria.js",
    "src/page/assets/health.js",
    "src/page/assets/app.js",
];
const STYLES: [&str; 2] = [
    "src/page/assets/vendor/uPlot.min.css",
    "src/page/assets/style.css",
];

const OWN_PACKAGE: &str = "spanscore.v1";

#[expect(
    clippy::disallowed_methods,
    reason = "cargo speaks to build scripts through the environment"
)]
fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    let out_dir = env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    let out_dir = Path::new(&out_dir);

    let mut otlp = protox::Compiler::new(["proto"])?;
    otlp.include_imports(true)
        .include_source_info(false)
        .open_files(OTLP_SERVICES)?;
    fs::write(
        out_dir.join("otlp_descriptors.bin"),
        otlp.encode_file_descriptor_set(),
    )?;
    fs::write(
        out_dir.join("otlp_messages.rs"),
        tables(&otlp.descriptor_pool()),
    )?;

    let mut own = protox::Compiler::new(["proto"])?;
    own.include_imports(true)
        .include_source_info(true)
        .open_files(OWN_SERVICES)?;
    fs::write(
        out_dir.join("spanscore_descriptors.bin"),
        own.encode_file_descriptor_set(),
    )?;
    generate_messages(own.file_descriptor_set(), out_dir)?;
    pack(&["src/config/schema.json"], &out_dir.join("schema.json.gz"))?;
    pack(
        &["src/register/openapi.yaml"],
        &out_dir.join("openapi.yaml.gz"),
    )?;
    pack(
        &["src/page/assets/index.html"],
        &out_dir.join("index.html.gz"),
    )?;
    pack(&["src/page/assets/icon.svg"], &out_dir.join("icon.svg.gz"))?;
    pack(&SCRIPTS, &out_dir.join("page.js.gz"))?;
    pack(&STYLES, &out_dir.join("page.css.gz"))
}

/// Compresses files into one, one after the other, as small as they can be.
fn pack(files: &[&str], packed: &Path) -> Result<(), Box<dyn Error>> {
    let mut encoder = GzEncoder::new(fs::File::create(packed)?, Compression::best());
    for file in files {
        println!("cargo::rerun-if-changed={file}");
        encoder.write_all(&fs::read(file)?)?;
        // A released file may end in a comment without a newline.
        encoder.write_all(b"\n")?;
    }
    encoder.finish()?;
    Ok(())
}

/// Writes messages as the table `MESSAGES` of `receive/json/definitions.rs`.
fn tables(pool: &DescriptorPool) -> String {
    let messages: Vec<_> = pool.all_messages().collect();
    let mut tables = "pub(super) static MESSAGES: &[OtlpMessage] = &[\n".to_owned();
    for message in &messages {
        tables += &format!("OtlpMessage {{ name: {:?}, fields: &[\n", message.name());
        for field in message.fields() {
            tables += &format!(
                "OtlpField {{ name: {:?}, json_name: {:?}, number: {}, kind: OtlpKind::{}, is_list: {}, \
                 has_presence: {} }},\n",
                field.name(),
                field.json_name(),
                field.number(),
                kind(&field, &messages),
                field.is_list(),
                field.supports_presence(),
            );
        }
        tables += "] },\n";
    }
    tables + "];\n"
}

fn kind(field: &FieldDescriptor, messages: &[MessageDescriptor]) -> String {
    match field.kind() {
        Kind::Double => "Double".to_owned(),
        Kind::Int32 => "Int32".to_owned(),
        Kind::Sint32 => "Sint32".to_owned(),
        Kind::Int64 => "Int64".to_owned(),
        Kind::Sfixed64 => "Sfixed64".to_owned(),
        Kind::Uint32 => "Uint32".to_owned(),
        Kind::Fixed32 => "Fixed32".to_owned(),
        Kind::Uint64 => "Uint64".to_owned(),
        Kind::Fixed64 => "Fixed64".to_owned(),
        Kind::Bool => "Bool".to_owned(),
        Kind::String => "String".to_owned(),
        Kind::Bytes => "Bytes".to_owned(),
        Kind::Enum(values) => {
            let values: Vec<_> = values
                .values()
                .map(|value| (value.name().to_owned(), value.number()))
                .collect();
            format!("Enum(&{values:?})")
        }
        Kind::Message(message) => {
            let place = messages.iter().position(|known| *known == message);
            format!("Message({})", place.expect("the pool has all messages"))
        }
        other => panic!("OTLP has a field of a new type, {other:?}: teach it to receive/json"),
    }
}

/// Generates the messages of [`OWN_PACKAGE`]. Those that a document holds, a criterion or a
/// trajectory, also get the JSON form of configuration files from serde: fields under their names,
/// without those that have their default.
fn generate_messages(files: FileDescriptorSet, out_dir: &Path) -> Result<(), Box<dyn Error>> {
    let mut config = prost_build::Config::new();
    config
        .out_dir(out_dir)
        .btree_map(["."])
        .compile_well_known_types()
        .extern_path(".google.protobuf", "::prost_types")
        .extern_path(".opentelemetry.proto", "::opentelemetry_proto::tonic");
    let own = files
        .file
        .iter()
        .filter(|file| file.package() == OWN_PACKAGE);
    for message in own.flat_map(|file| &file.message_type) {
        if is_in_documents(message.name()) {
            derive_serde(message, &mut config);
        }
    }
    config.compile_fds(files)?;
    Ok(())
}

/// Requests, responses and registrations are envelopes around documents.
fn is_in_documents(message: &str) -> bool {
    let is_envelope = message.ends_with("Request") || message.ends_with("Response");
    !is_envelope && !matches!(message, "Registration" | "Shadowed")
}

fn derive_serde(message: &DescriptorProto, config: &mut prost_build::Config) {
    const DERIVE: &str = "#[derive(serde::Serialize, serde::Deserialize)]";
    let path = format!(".{OWN_PACKAGE}.{}", message.name());
    // A pair in documents: `grpc/json.rs` implements serde for it.
    if message.name() == "Count" {
        return;
    }
    if matches!(message.name(), "Evaluator" | "Rule") {
        config
            .message_attribute(&path, DERIVE)
            .message_attribute(&path, "#[serde(transparent)]")
            .enum_attribute(&path, DERIVE)
            .enum_attribute(&path, "#[serde(rename_all = \"snake_case\")]");
        return;
    }
    config
        .message_attribute(&path, DERIVE)
        .message_attribute(&path, "#[serde(default, deny_unknown_fields)]");
    for field in &message.field {
        let path = format!("{path}.{}", field.name());
        config.field_attribute(
            &path,
            "#[serde(skip_serializing_if = \"super::json::is_default\")]",
        );
        let json = match field.type_name() {
            ".google.protobuf.Value" => "#[serde(with = \"super::json::value\")]",
            ".google.protobuf.Struct" => "#[serde(with = \"super::json::object\")]",
            _ => continue,
        };
        config.field_attribute(&path, json);
    }
}
