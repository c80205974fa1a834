//! Pure. One open trace: its spans by id, its tops, its timers.
