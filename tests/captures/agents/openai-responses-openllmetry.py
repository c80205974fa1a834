# packages: openai opentelemetry-instrumentation-openai
# instrumentation: openllmetry
"""A hand-written loop on OpenAI's Responses API under OpenLLMetry."""

import json

from bank import QUESTION, TRUTH, called, declared, provider

provider = provider()

from openai import OpenAI
from opentelemetry import trace
from opentelemetry.instrumentation.openai import OpenAIInstrumentor

OpenAIInstrumentor().instrument()
TRUTH["agent"] = None
client = OpenAI()
items = [{"role": "user", "content": QUESTION}]
with trace.get_tracer("bank-app").start_as_current_span("POST /chat"):
    while True:
        reply = client.responses.create(model="gpt-4o", input=items, tools=declared("responses"))
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        items += [call.model_dump() for call in calls]
        for call in calls:
            output = called(call.name, json.loads(call.arguments))
            answer = {"type": "function_call_output", "call_id": call.call_id, "output": output}
            items.append(answer)
provider.shutdown()
