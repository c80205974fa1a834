//! Pure. assemble → extract → evaluate as one machine, without a socket or a clock. READ THIS FIRST.
