# packages: fastmcp opentelemetry-sdk
# instrumentation: FastMCP native; the server's application adds arguments and results to its spans
"""A client of MCP that calls a server's tools; both trace themselves."""

import asyncio
import json

from bank import PLAN, TOOLS, TRUTH, provider

provider = provider()

from fastmcp import Client, FastMCP
from fastmcp.server.middleware import Middleware
from opentelemetry import trace

TRUTH.update(call_ids=False, steps=False, parallel=False)


class Values(Middleware):
    async def on_call_tool(self, context, call_next):
        span = trace.get_current_span()
        arguments = json.dumps(context.message.arguments)
        span.set_attribute("gen_ai.tool.call.arguments", arguments)
        result = await call_next(context)
        content = json.dumps(result.structured_content)
        span.set_attribute("gen_ai.tool.call.result", content)
        return result


server = FastMCP("bank")
server.add_middleware(Values())
for tool in TOOLS:
    server.tool(tool)


async def main():
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "bank_agent"}
    tracer = trace.get_tracer("bank-app")
    with tracer.start_as_current_span("invoke_agent bank_agent", attributes=attributes):
        async with Client(server) as client:
            for name, value in PLAN:
                args = {"authenticate": "user", "transfer": "amount"}.get(name, "account")
                args = {args: value} | ({"to": "B-2"} if name == "transfer" else {})
                await client.call_tool(name, args, raise_on_error=False)


asyncio.run(main())
provider.shutdown()
