//! Reads values: unwraps arguments and results, finds the calls and results in a model's messages,
//! and parses Python literals. Independent of spans and attribute keys.

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
