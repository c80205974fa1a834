//! Pure. The evaluator `tool_call_order`.
