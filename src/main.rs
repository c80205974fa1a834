//! Turns a command's outcome into an exit code; nothing else.

fn main() {}
