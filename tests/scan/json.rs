//! OTLP/JSON against its protobuf form.
