# packages: litellm opentelemetry-sdk opentelemetry-exporter-otlp-proto-http
# instrumentation: litellm.callbacks=['otel']
"""A loop on LiteLLM; each request is a trace."""

import json
import os
import time

from bank import QUESTION, TRUTH, called, declared

import litellm

os.environ["OTEL_EXPORTER"] = "otlp_http"
os.environ["OTEL_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
litellm.callbacks = ["otel"]
TRUTH["agent"] = None
messages = [{"role": "user", "content": QUESTION}]
while True:
    tools = declared("chat")
    reply = litellm.completion(model="openai/gpt-4o", messages=messages, tools=tools)
    message = reply.choices[0].message
    messages.append(message.model_dump())
    if not message.tool_calls:
        break
    for call in message.tool_calls:
        content = called(call.function.name, json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
time.sleep(6)  # It exports in threads, every five seconds.
