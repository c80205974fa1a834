//! The original bytes to the downstream. Knows queues and answers; does not look into the bytes.
