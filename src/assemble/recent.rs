//! Pure. Recently closed traces, remembered so that a late span is known to be late.
