# packages: litellm opentelemetry-sdk
# instrumentation: litellm.callbacks = ["otel"], below a span of the application
# scenarios: agent_span web_span
"""A loop on LiteLLM below an agent's span, or below that of a web framework."""

import json
import os
import time

from bank import QUESTION, TRUTH, called, declared, provider

provider = provider()

import litellm
from opentelemetry import trace

os.environ["OTEL_EXPORTER"] = "otlp_http"
os.environ["OTEL_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"]
litellm.callbacks = ["otel"]
scenario = os.environ["SCENARIO"]
attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bank_agent"}
name = "invoke_agent bank_agent"
if scenario == "web_span":
    name, attributes = "POST /chat", {"http.request.method": "POST", "http.route": "/chat"}
    TRUTH["agent"] = None
messages = [{"role": "user", "content": QUESTION}]
with trace.get_tracer("bank-app").start_as_current_span(name, attributes=attributes):
    while True:
        tools = declared("chat")
        reply = litellm.completion(model="openai/gpt-4o", messages=messages, tools=tools)
        message = reply.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            function = call.function
            result = called(function.name, json.loads(function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
time.sleep(1)  # LiteLLM makes its spans in threads.
provider.shutdown()
