//! Rules of DESIGN 4, one test each.
