//! Builds the stages, joins them with bounded channels, drains them.
