//! Reads values: arguments and results out of their envelopes, the calls and results in a
//! model's messages, Python literals. Knows JSON and text; knows nothing about spans or keys.

pub(crate) mod equality;
pub(crate) mod messages;
pub(crate) mod payload;
pub(crate) mod python;

mod beginning;
mod non_finite;

pub(crate) use messages::{
    AnnouncedCall, Announcement, Conversation, ConversationResult, RepeatedResults,
};
pub(crate) use payload::{Envelope, Raw};
