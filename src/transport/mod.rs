//! The OTLP client: bytes to a peer, its answer back. Knows protocols and answers; does not know whose bytes they are.
