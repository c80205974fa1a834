# packages: anthropic openinference-instrumentation-anthropic opentelemetry-instrumentation-anthropic
# instrumentation: the SDK's own spans; beside openinference or openllmetry
# scenarios: alone openinference openllmetry below_agent
# env: ANTHROPIC_OPEN_TELEMETRY_TRACES_CONTENT_MODE=content
"""The tool runner of Anthropic's SDK, which traces itself."""

import os

from bank import QUESTION, TOOLS, TRUTH, as_text, provider

provider = provider()

import anthropic
from anthropic import beta_tool
from opentelemetry import trace

scenario = os.environ["SCENARIO"]
if scenario == "openinference":
    from openinference.instrumentation.anthropic import AnthropicInstrumentor

    AnthropicInstrumentor().instrument()
if scenario == "openllmetry":
    from opentelemetry.instrumentation.anthropic import AnthropicInstrumentor

    AnthropicInstrumentor().instrument()


def run():
    runner = anthropic.Anthropic().beta.messages.tool_runner(
        model="claude-sonnet-4-5",
        max_tokens=200,
        tools=[beta_tool(as_text(tool)) for tool in TOOLS],
        messages=[{"role": "user", "content": QUESTION}],
    )
    runner.until_done()


if scenario == "below_agent":
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bank_agent"}
    tracer = trace.get_tracer("bank-app")
    with tracer.start_as_current_span("invoke_agent bank_agent", attributes=attributes):
        run()
else:
    TRUTH["agent"] = "anthropic.messages.tool_runner"
    run()
provider.shutdown()
