#!/usr/bin/env python3
"""Records sessions of real agent frameworks again, with the newest releases, and says what changed.

    python3 record.py [--folder FOLDER] [--spanscore PROGRAM] [--write] [NAME...]

Each program in `agents/` is an agent on one framework. It is installed in FOLDER/NAME, runs there
against the scripted model of `model.py`, and sends to a receiver on loopback. `spanscore inspect`
then shows what it extracts from the old and the new recording, and each is compared with what its
agent says that it did. Without --write nothing in this folder changes. Needs python3 with `venv`, npm, and zstd. The folder's path can get
into stack traces, and so into a recording: it should say nothing about you."""

import argparse
import gzip
import http.server
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

import model

HERE = pathlib.Path(__file__).resolve().parent
AGENTS = HERE / "agents"
EXTENSIONS = {"py": "python", "mjs": "javascript"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("/srv/agent"))
    built = HERE.parent.parent / "target/debug/spanscore"
    parser.add_argument("--spanscore", default=built, help="the program (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="change the captures")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    programs = sorted(path for path in AGENTS.iterdir() if not path.stem.startswith("bank"))
    known = {path.stem: path for path in programs if path.suffix[1:] in EXTENSIONS}
    if unknown := set(arguments.names) - set(known):
        parser.error(f"no agent is called {', '.join(sorted(unknown))}")
    if not shutil.which(arguments.spanscore):
        parser.error(f"cannot run {arguments.spanscore}: run `cargo build`, or use --spanscore")
    failed = []
    for name in arguments.names or known:
        try:
            record(known[name], arguments.folder / name, arguments)
        except Exception as error:
            failed.append(name)
            print(f"{name}: {error}", flush=True)
    sys.exit(f"not recorded: {', '.join(failed)}" if failed else 0)


def record(program, folder, arguments):
    head = header(program)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(program, folder / f"agent{program.suffix}")
    shutil.copy(AGENTS / f"bank{program.suffix}", folder)
    command = install(program, folder, head["packages"])
    stored = HERE / f"{program.stem}.zst"
    old = unpacked(stored) if stored.exists() else {}
    new = dict(old)
    for scenario in head.get("scenarios", "bank").split():
        new[scenario] = run(command, folder, head, scenario)
        what_changed(
            arguments.spanscore, program.stem, scenario, old.get(scenario), new[scenario]
        )
    if arguments.write:
        data = b"".join(
            f"{scenario}/{file} {len(body)}\n".encode() + body + b"\n"
            for scenario, files in sorted(new.items())
            for file, body in sorted(files.items())
        )
        zstd = ["zstd", "-q", "-19", "-f", "-o", str(stored)]
        subprocess.run(zstd, input=data, check=True)


def header(program):
    """The lines `# key: value` at the top of a program."""
    lines = re.findall(r"^(?:#|//) (\w+): (.*)$", program.read_text(), re.MULTILINE)
    return dict(lines)


def install(program, folder, packages):
    quiet = {"check": True, "stdout": subprocess.DEVNULL}
    if program.suffix == ".mjs":
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--legacy-peer-deps"]
        is_pinned = re.compile(".+@").match
        packages = [
            name if is_pinned(name) else f"{name}@latest" for name in packages.split()
        ]
        subprocess.run([*npm, *packages], cwd=folder, **quiet)
        return ["node", f"agent{program.suffix}"]
    if not (folder / "bin").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], **quiet)
    packages = packages.split() + ["opentelemetry-exporter-otlp-proto-http"]
    subprocess.run([folder / "bin/pip", "install", "-q", "--upgrade", *packages], **quiet)
    return [folder / "bin/python", f"agent{program.suffix}"]


def run(command, folder, head, scenario):
    """The requests of one scenario by file name, with what the agent says that it did."""
    requests = {}
    lock = threading.Lock()

    class Receiver(http.server.BaseHTTPRequestHandler):
        def log_message(self, *args):
            pass

        def do_POST(self):
            size = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(size)
            if self.headers.get("transfer-encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            kind = "json" if "json" in self.headers.get("content-type", "") else "pb"
            signal = self.path.rsplit("/", 1)[-1]
            with lock:
                if signal in ("traces", "logs"):
                    requests[f"{len(requests) + 1:03}.{signal}.{kind}"] = body
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    scripted = model.serve(0)
    for server in (receiver, scripted):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    otlp = f"http://127.0.0.1:{receiver.server_port}"
    api = f"http://127.0.0.1:{scripted.server_port}"
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OTEL_EXPORTER_OTLP_ENDPOINT": otlp,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_NODE_RESOURCE_DETECTORS": "none",
        "OTEL_RESOURCE_ATTRIBUTES": "host.name=agent,host.id=agent",
        "OPENAI_BASE_URL": f"{api}/v1",
        "OPENAI_API_BASE": f"{api}/v1",
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_BASE_URL": api,
        "ANTHROPIC_API_KEY": "none",
        # Programs that would report to their makers.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "TRACELOOP_TELEMETRY": "false",
        "HAYSTACK_TELEMETRY_ENABLED": "False",
        "CREWAI_DISABLE_TELEMETRY": "true",
        "AGNO_TELEMETRY": "false",
        "PACKAGES": re.sub(r"(?<=\S)@\S+|\[\S+\]", "", head["packages"]),
        "INSTRUMENTATION": head["instrumentation"],
        "SCENARIO": scenario,
        "QUESTIONS": "\n".join(model.CHAT if scenario == "chat" else model.CHAT[-1:]),
        **dict(word.split("=", 1) for word in head.get("env", "").split()),
    }
    expected = folder / "expected.json"
    expected.unlink(missing_ok=True)
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, timeout=120, capture_output=True, text=True
        )
    finally:
        receiver.shutdown()
        scripted.shutdown()
    if done.returncode or not requests or not expected.exists():
        raise RuntimeError(f"{scenario} sent {len(requests)} requests\n{done.stderr[-1500:]}")
    return {**requests, "expected.json": expected.read_bytes()}


def unpacked(path):
    """The files of a capture by scenario."""
    data = subprocess.run(["zstd", "-qdc", path], check=True, capture_output=True).stdout
    scenarios = {}
    while data:
        head, data = data.split(b"\n", 1)
        place, size = head.decode().rsplit(" ", 1)
        scenario, file = place.split("/", 1)
        scenarios.setdefault(scenario, {})[file] = data[: int(size)]
        data = data[int(size) + 1 :]
    return scenarios


def what_changed(spanscore, name, scenario, old, new):
    """Prints the releases that changed, what spanscore now gets right or wrong, and the words that
    appear or no longer do."""
    wrong = mistakes(spanscore, new)
    if old is None:
        lines = ["recorded for the first time"] + [f"wrong: {mistake}" for mistake in sorted(wrong)]
        return print(f"{name}/{scenario}: {'; '.join(lines)}", flush=True)
    was, now = (json.loads(files["expected.json"]) for files in (old, new))
    lines = []
    for package in sorted({*was["packages"], *now["packages"]}):
        releases = [of.get("packages", {}).get(package) for of in (was, now)]
        if releases[0] != releases[1]:
            lines.append(f"{package} {releases[0]} -> {releases[1]}")
    if was["tool_calls"] != now["tool_calls"]:
        lines.append("the agent called other tools")
    was_wrong = mistakes(spanscore, old)
    lines += [f"now wrong: {mistake}" for mistake in sorted(wrong - was_wrong)]
    lines += [f"now right: {mistake}" for mistake in sorted(was_wrong - wrong)]
    before, after = words(old), words(new)
    lines += [f"no longer: {word}" for word in sorted(before - after)]
    lines += [f"new: {word}" for word in sorted(after - before)]
    print(f"{name}/{scenario}: {'; '.join(lines) or 'nothing changed'}", flush=True)


def mistakes(spanscore, files):
    """What spanscore extracts from the requests and the agent did not do, or the other way round."""
    expected = json.loads(files["expected.json"])
    truth = expected["tool_calls"]
    with tempfile.TemporaryDirectory() as folder:
        for file, body in files.items():
            if file != "expected.json":
                pathlib.Path(folder, file).write_bytes(body)
        inspect = [spanscore, "inspect", "--format", "jsonl", folder]
        done = subprocess.run(inspect, check=True, capture_output=True, cwd=folder)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    lines = [line for line in lines if line["tool_calls"]]
    extracted = [call for line in lines for call in line["tool_calls"]]
    session = expected.get("session_id")
    found = set()
    if session and any(line["session"] != session for line in lines):
        found.add(f"a session is not {session}")
    steps = [step_of_agent(truth, call) for call in truth]
    for call, step in zip(truth, steps):
        call["step"] = step
        same_name = [other for other in extracted if other["name"] == call["name"]]
        same = [other for other in same_name if other["args"] == call["args"]]
        if not same_name:
            found.add(f"{call['name']} is missing")
            continue
        other = (same or same_name)[0]
        extracted.remove(other)
        for field in ("args", "result", "error", "agent", "call_id", "step"):
            if call.get(field) is not None and other[field] != call[field]:
                found.add(f"{field} of {call['name']} is {other[field]!r}, not {call[field]!r}")
    return found | {f"{call['name']} was not called" for call in extracted}


def step_of_agent(truth, call):
    """How many replies asked the agent for calls before, since the user's message."""
    if call.get("step"):
        own = [of for of in truth if (of["agent"], of["turn"]) == (call["agent"], call["turn"])]
        return len({of["step"] for of in own if of["step"] < call["step"]})


def words(files):
    """The keys of attributes, and words that look like them. A key has no digits but numbers of
    messages, which count as one."""
    found = set()
    for file, body in files.items():
        if file != "expected.json":
            keys = re.findall(rb"[a-z_]+(?:\.[a-zA-Z0-9_]+){1,8}", body)
            found |= {re.sub(r"\d+", "N", key.decode()) for key in keys}
    return found


if __name__ == "__main__":
    main()
