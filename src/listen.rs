//! A bound port in, connections served until told to stop.
