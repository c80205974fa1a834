# packages: opentelemetry-sdk
# instrumentation: spans by hand: tool.name, agent.name
"""A scripted agent with spans of its own."""

import json

import bank
from bank import PLAN, TRUTH, provider

provider = provider()
tracer = provider.get_tracer("bank-app")
TRUTH.update(steps=False, parallel=False)
with tracer.start_as_current_span("bank_agent", attributes={"agent.name": "bank_agent"}):
    for (name, value), (call_id, _, _) in PLAN.items():
        args = {"authenticate": "user", "transfer": "amount"}.get(name, "account")
        args = {args: value} | ({"to": "B-2"} if name == "transfer" else {})
        attributes = {"tool.name": name, "tool.call_id": call_id}
        attributes["tool.arguments"] = json.dumps(args)
        try:
            with tracer.start_as_current_span(name, attributes=attributes) as span:
                span.set_attribute("tool.result", json.dumps(bank.BY_NAME[name](**args)))
        except ValueError:
            pass
provider.shutdown()
