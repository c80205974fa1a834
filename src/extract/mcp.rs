//! Pure. The Model Context Protocol's clients and servers: `tools/call` is a tool call, also in the
//! server's process. A span in, the call it is out. `jsonrpc.request.id` numbers the requests of a
//! connection and is no call id of a model.

use std::borrow::Cow;

use super::convention::{Call, Convention, View, is, no_agent_run, no_model, text};
use super::keys;

pub(super) const MCP: Convention = Convention {
    name: "mcp",
    marks: keys::bit(keys::MCP_METHOD),
    is_call,
    call,
    agent_run: no_agent_run,
    is_model: no_model,
};

fn is_call(span: &View<'_>) -> bool {
    is(span, keys::MCP_METHOD, "tools/call")
}

fn call<'a>(span: &View<'a>) -> Call<'a> {
    Call {
        // The SDK's own client span `MCP send tools/call X` has no attribute with the name.
        name: text(span, keys::GEN_AI_TOOL_NAME)
            .or_else(|| Some(Cow::Borrowed(span.name().rsplit_once("tools/call ")?.1))),
        ..Call::default()
    }
}
