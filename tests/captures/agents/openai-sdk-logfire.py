# packages: openai logfire
# instrumentation: logfire.instrument_openai()
# scenarios: plain stream
"""A hand-written loop on OpenAI's chat completions under Logfire."""

import json
import os

import logfire
from bank import QUESTION, TRUTH, called, declared
from openai import OpenAI

logfire.configure(send_to_logfire=False, service_name="bank", console=False)
logfire.instrument_openai()
TRUTH["agent"] = None
client = OpenAI()
messages = [{"role": "user", "content": QUESTION}]


def ask():
    tools = declared("chat")
    if os.environ["SCENARIO"] == "plain":
        reply = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
        return reply.choices[0].message.tool_calls or []
    with client.chat.completions.stream(model="gpt-4o", messages=messages, tools=tools) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion().choices[0].message.tool_calls or []


with logfire.span("POST /chat"):
    while calls := ask():
        asked = [call.model_dump(include={"id", "type", "function"}) for call in calls]
        messages.append({"role": "assistant", "tool_calls": asked})
        for call in calls:
            content = called(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
logfire.shutdown()
