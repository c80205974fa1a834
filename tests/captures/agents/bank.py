"""The tools of the recorded agents, which note what was really called, and the set-up that all
agents in Python share."""

import atexit
import contextlib
import functools
import importlib.metadata
import json
import os
import threading

# How the scripted model asks for each call: call id, step, and the group of a parallel reply.
PLAN = {
    ("authenticate", "ann"): ("call_r0i0", 1, None),
    ("get_balance", "A-1"): ("call_r1i0", 2, 1),
    ("get_limits", "A-1"): ("call_r1i1", 2, 1),
    ("transfer", 1500): ("call_r3i0", 3, None),
    ("transfer", 900): ("call_r4i0", 4, None),
}
QUESTIONS = os.environ["QUESTIONS"].splitlines()
QUESTION = QUESTIONS[-1]
# What is true of all calls, and of the run.
TRUTH = {
    "agent": "bank_agent",
    "plugin": "",
    "session_id": None,
    "call_ids": True,
    "steps": True,
    "parallel": True,
}
# What a tool that fails raises: some frameworks go on only after an error of their own.
ERROR = ValueError
CALLS = []
TURN = 1
LOCK = threading.Lock()


def noted(name, args, result, error=False):
    call_id, step, group = PLAN[name, next(iter(args.values()))]
    call = {"name": name, "args": args, "result": result, "error": error, "call_id": call_id}
    with LOCK:
        CALLS.append({**call, "step": step, "parallel_group": group, "turn": TURN})


def turns():
    """What the user says, turn by turn."""
    global TURN
    for TURN, question in enumerate(QUESTIONS, 1):
        yield question


def authenticate(user: str) -> dict:
    """Authenticates a user."""
    noted("authenticate", {"user": user}, {"ok": True})
    return {"ok": True}


def get_balance(account: str) -> dict:
    """Reads the balance of an account."""
    noted("get_balance", {"account": account}, {"balance": 5000})
    return {"balance": 5000}


def get_limits(account: str) -> dict:
    """Reads the limit of an account."""
    noted("get_limits", {"account": account}, {"limit": 1000})
    return {"limit": 1000}


def transfer(amount: int, to: str) -> dict:
    """Sends an amount to an account."""
    args = {"amount": amount, "to": to}
    if amount > 1000:
        noted("transfer", args, None, error=True)
        raise ERROR("limit exceeded")
    noted("transfer", args, {"sent": amount})
    return {"sent": amount}


TOOLS = [authenticate, get_balance, get_limits, transfer]
BY_NAME = {tool.__name__: tool for tool in TOOLS}


def as_text(tool):
    """The tool with its result as text."""

    @functools.wraps(tool)
    def wrapped(**args):
        return json.dumps(tool(**args))

    wrapped.__annotations__ = {**tool.__annotations__, "return": str}
    return wrapped


def declared(kind):
    """The tools as OpenAI's `chat` or `responses`, or Anthropic's `messages`, declare them."""
    tools = []
    for tool in TOOLS:
        names = [name for name in tool.__annotations__ if name != "return"]
        types = {name: {"type": "integer" if name == "amount" else "string"} for name in names}
        schema = {"type": "object", "properties": types, "required": names}
        name = {"name": tool.__name__, "description": tool.__doc__}
        if kind == "messages":
            tools.append({**name, "input_schema": schema})
        elif kind == "responses":
            tools.append({"type": "function", **name, "parameters": schema})
        else:
            tools.append({"type": "function", "function": {**name, "parameters": schema}})
    return tools


def called(name, args):
    """Calls a tool for a hand-written loop, and gives its result as text."""
    try:
        return json.dumps(BY_NAME[name](**args))
    except ERROR as error:
        return f"Error: {error}"


def openai_loop(provider=None):
    """A hand-written loop on OpenAI's chat completions, below a span of the provider's."""
    from openai import OpenAI

    client = OpenAI()
    messages = [{"role": "user", "content": QUESTION}]
    span = contextlib.nullcontext()
    if provider:
        span = provider.get_tracer("bank-app").start_as_current_span("POST /chat")
    with span:
        while True:
            reply = client.chat.completions.create(
                model="gpt-4o", messages=messages, tools=declared("chat")
            )
            calls = reply.choices[0].message.tool_calls or []
            if not calls:
                return
            asked = [call.model_dump(include={"id", "type", "function"}) for call in calls]
            messages.append({"role": "assistant", "tool_calls": asked})
            for call in calls:
                content = called(call.function.name, json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


def langchain_agent():
    """An agent of LangChain that goes on after a tool has failed."""
    global ERROR
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool, ToolException
    from langchain_openai import ChatOpenAI

    ERROR = ToolException
    tools = [StructuredTool.from_function(tool, handle_tool_error=True) for tool in TOOLS]
    return create_agent(ChatOpenAI(model="gpt-4o"), tools, name="bank_agent")


def provider():
    """OpenTelemetry's SDK, set up to send to the recorder."""
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": "bank"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def finish():
    """Writes what was really done. An attribute that the run does not have is left out."""
    packages = {name: importlib.metadata.version(name) for name in os.environ["PACKAGES"].split()}
    framework = next(iter(packages))
    # Parallel tools may be entered in any order.
    calls = sorted(CALLS, key=lambda call: call["call_id"])
    for call in calls:
        call["agent"] = TRUTH["agent"]
        call["name"] = TRUTH["plugin"] + call["name"]
        if not TRUTH["call_ids"]:
            call["call_id"] = None
        if not TRUTH["steps"]:
            call["step"] = None
        if not TRUTH["parallel"]:
            call["parallel_group"] = None
    expected = {
        "framework": framework,
        "version": packages[framework],
        "instrumentation": os.environ["INSTRUMENTATION"],
        "scenario": os.environ["SCENARIO"],
        "packages": packages,
        "language": "python",
        "session_id": TRUTH["session_id"],
        "conversation_turns": TURN,
        "tool_calls": calls,
    }
    with open("expected.json", "w") as file:
        json.dump(expected, file, indent=1)


atexit.register(finish)
