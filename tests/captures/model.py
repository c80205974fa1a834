"""A scripted model on loopback: OpenAI's chat completions and responses and Anthropic's messages,
streamed or not. The number of tool results in a request says which reply follows, so that what an
agent does is known. Imported by record.py; by itself: `python3 model.py PORT`."""

import http.server
import itertools
import json
import re
import sys

# The calls of each reply. The first transfer fails in the tool.
SCRIPT = [
    [("authenticate", {"user": "ann"})],
    [("get_balance", {"account": "A-1"}), ("get_limits", {"account": "A-1"})],
    [("transfer", {"amount": 1500, "to": "B-2"})],
    [("transfer", {"amount": 900, "to": "B-2"})],
]
# What the user says in a chat, turn by turn. The first turn makes the calls of the first reply, the
# last one all others; elsewhere the last one is all that is said.
CHAT = ["I am ann, sign me in.", "Thank you. Is B-2 mine?", "Send 1500 to B-2."]
TEXT = "Done: 900 were sent to B-2."
MODEL = "gpt-4o-2024-08-06"
NUMBERS = itertools.count(1)
# What a stored answer had seen, for requests that go on from it.
SEEN = {}


def next_calls(n_results, offered, request):
    """The calls after so many results, with their ids; none where the turn is over."""
    if not offered:
        return []
    if offered == ["transfer_to_agent"]:
        return [("call_t", "transfer_to_agent", {"agent_name": "bank_agent"})]
    seen = 0
    words = json.dumps(request)
    for calls in SCRIPT[:1] if CHAT[0] in words and CHAT[-1] not in words else SCRIPT:
        if n_results <= seen:
            # Semantic Kernel offers a tool under its own name with a plugin's in front.
            named = lambda name: next((it for it in offered if it.endswith(f"-{name}")), name)
            return [
                (f"call_r{n_results}i{i}", named(name), args)
                for i, (name, args) in enumerate(calls)
            ]
        seen += len(calls)
    if "final_answer" in offered:
        return [("call_last", "final_answer", {"answer": TEXT})]
    return []


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, reply):
        body = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, events, named):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for event in events:
            if named:
                self.wfile.write(f"event: {event['type']}\n".encode())
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        if not named:
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def do_POST(self):
        size = int(self.headers.get("content-length") or 0)
        request = json.loads(self.rfile.read(size) or b"{}")
        if self.path.endswith("/chat/completions"):
            self.chat_completion(request)
        elif self.path.endswith("/responses"):
            self.response(request)
        elif self.path.endswith("/messages"):
            self.message(request)
        else:
            self.send_error(404)

    def chat_completion(self, request):
        messages = request.get("messages", [])
        offered = [tool["function"]["name"] for tool in request.get("tools") or []]
        n_results = sum(message.get("role") == "tool" for message in messages)
        # smolagents writes calls and results as text, and of a call that failed only the error.
        written = json.dumps(messages[1:])
        n_written = written.count("Calling tools:")
        if "limit exceeded" in written:
            n_written = 4 if "call_r4i0" in written else 3
        n_results = n_results or sum(len(calls) for calls in SCRIPT[:n_written])
        content = TEXT
        system = json.dumps(messages[:1])
        if not offered and "next_tool_name" in system:
            content = dspy_step(json.dumps(messages))
        elif not offered and "## answer ##" in system:
            content = f"[[ ## reasoning ## ]]\nok\n\n[[ ## answer ## ]]\n{TEXT}\n"
        calls = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for id, name, args in next_calls(n_results, offered, request)
        ]
        reason = "tool_calls" if calls else "stop"
        usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
        head = {"id": f"chatcmpl-{next(NUMBERS)}", "created": 1_700_000_000, "model": MODEL}
        if not request.get("stream"):
            message = {"role": "assistant", "content": None if calls else content}
            if calls:
                message["tool_calls"] = calls
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return self.answer(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )

        def chunk(delta, reason=None):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            return {**head, "object": "chat.completion.chunk", "choices": [choice]}

        events = [chunk({"role": "assistant", "content": None if calls else ""})]
        for index, call in enumerate(calls):
            name, args = call["function"]["name"], call["function"]["arguments"]
            first = {**call, "index": index, "function": {"name": name, "arguments": ""}}
            events.append(chunk({"tool_calls": [first]}))
            half = len(args) // 2
            for part in (args[:half], args[half:]):
                rest = {"index": index, "function": {"arguments": part}}
                events.append(chunk({"tool_calls": [rest]}))
        if not calls:
            events += [chunk({"content": content[:9]}), chunk({"content": content[9:]})]
        events.append(chunk({}, reason))
        if (request.get("stream_options") or {}).get("include_usage"):
            events.append({**chunk({}), "choices": [], "usage": usage})
        self.stream(events, named=False)

    def response(self, request):
        items = request.get("input")
        items = items if isinstance(items, list) else []
        results = [item for item in items if item.get("type") == "function_call_output"]
        n_results = SEEN.get(request.get("previous_response_id"), 0) + len(results)
        offered = [tool.get("name") for tool in request.get("tools") or []]
        output = [
            {
                "type": "function_call",
                "id": id.replace("call", "fc"),
                "call_id": id,
                "name": name,
                "arguments": json.dumps(args),
                "status": "completed",
            }
            for id, name, args in next_calls(n_results, offered, request)
        ]
        number = next(NUMBERS)
        if not output:
            text = {"type": "output_text", "text": TEXT, "annotations": []}
            output = [
                {
                    "type": "message",
                    "id": f"msg_{number:04d}",
                    "role": "assistant",
                    "status": "completed",
                    "content": [text],
                }
            ]
        SEEN[f"resp_{number:04d}"] = n_results
        response = {
            "id": f"resp_{number:04d}",
            "object": "response",
            "created_at": 1_700_000_000,
            "status": "completed",
            "model": MODEL,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": request.get("tools") or [],
            "error": None,
            "incomplete_details": None,
            "instructions": request.get("instructions"),
            "metadata": {},
            "text": {"format": {"type": "text"}},
            "usage": {
                "input_tokens": 11,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": 7,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": 18,
            },
        }
        if not request.get("stream"):
            return self.answer(response)
        events = []

        def event(type, **fields):
            events.append({"type": type, "sequence_number": len(events), **fields})

        started = {**response, "status": "in_progress", "output": [], "usage": None}
        event("response.created", response=started)
        for index, item in enumerate(output):
            place = {"output_index": index, "item_id": item["id"]}
            if item["type"] == "function_call":
                empty = {**item, "arguments": "", "status": "in_progress"}
                event("response.output_item.added", output_index=index, item=empty)
                args = item["arguments"]
                event("response.function_call_arguments.delta", **place, delta=args)
                event(
                    "response.function_call_arguments.done",
                    **place,
                    arguments=args,
                    name=item["name"],
                )
            else:
                empty = {**item, "content": [], "status": "in_progress"}
                part = item["content"][0]
                place["content_index"] = 0
                event("response.output_item.added", output_index=index, item=empty)
                event("response.content_part.added", **place, part={**part, "text": ""})
                event("response.output_text.delta", **place, delta=TEXT, logprobs=[])
                event("response.output_text.done", **place, text=TEXT, logprobs=[])
                event("response.content_part.done", **place, part=part)
            event("response.output_item.done", output_index=index, item=item)
        event("response.completed", response=response)
        self.stream(events, named=True)

    def message(self, request):
        contents = [message.get("content") for message in request.get("messages", [])]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        n_results = sum(block.get("type") == "tool_result" for block in blocks)
        offered = [tool.get("name") for tool in request.get("tools") or []]
        # A request can go on from an earlier answer, and then repeats neither messages nor tools.
        before = SEEN.get((request.get("thread") or {}).get("previous_message_id"), (0, []))
        n_results, offered = n_results + before[0], offered or before[1]
        number = next(NUMBERS)
        SEEN[f"msg_{number:04d}"] = (n_results, offered)
        content = [
            {"type": "tool_use", "id": id, "name": name, "input": args}
            for id, name, args in next_calls(n_results, offered, request)
        ]
        reason = "tool_use" if content else "end_turn"
        content = content or [{"type": "text", "text": TEXT}]
        message = {
            "id": f"msg_{number:04d}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": 11, "output_tokens": 7},
        }
        if not request.get("stream"):
            return self.answer(message)
        started = {**message, "content": [], "stop_reason": None}
        events = [{"type": "message_start", "message": started}]
        for index, block in enumerate(content):
            if block["type"] == "tool_use":
                empty = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            else:
                empty = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": TEXT}
            events.append({"type": "content_block_start", "index": index, "content_block": empty})
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": reason, "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 7}})
        events.append({"type": "message_stop"})
        self.stream(events, named=True)


def dspy_step(messages):
    """The answer to DSPy's prompt for a step; the observations in it are numbered."""
    plan = [call for calls in SCRIPT for call in calls]
    step = len(set(re.findall(r"observation_(\d+)", messages)))
    name, args = plan[step] if step < len(plan) else ("finish", {})
    return (
        f"[[ ## next_thought ## ]]\nstep {step}\n\n[[ ## next_tool_name ## ]]\n{name}\n\n"
        f"[[ ## next_tool_args ## ]]\n{json.dumps(args)}\n\n[[ ## completed ## ]]\n"
    )


def serve(port):
    return http.server.ThreadingHTTPServer(("127.0.0.1", port), Model)


if __name__ == "__main__":
    serve(int(sys.argv[1])).serve_forever()
