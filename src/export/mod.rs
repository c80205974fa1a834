//! Evaluations in, score spans, events and metrics out. Knows how scores are written down; does not know how they came about.
