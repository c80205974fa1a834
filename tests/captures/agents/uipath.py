# packages: uipath openai opentelemetry-sdk
# instrumentation: uipath.tracing.traced(span_type="TOOL")
"""A hand-written loop on OpenAI's chat completions, in UiPath's spans."""

from bank import BY_NAME, openai_loop, provider

provider = provider()

from openai.resources.chat.completions import Completions
from uipath.tracing import traced

for name, tool in BY_NAME.items():
    BY_NAME[name] = traced(name=name, span_type="TOOL")(tool)
asked = traced(name="LLM call", run_type="llm", span_type="completion")(
    lambda messages, reply: reply.choices[0].message.model_dump()
)
create = Completions.create


def traced_create(self, **request):
    """Calls the model, and writes the conversation and its reply as a span."""
    reply = create(self, **request)
    asked(messages=request["messages"], reply=reply)
    return reply


Completions.create = traced_create
traced(name="bank_agent", span_type="agentRun")(openai_loop)()
provider.shutdown()
