"""Sends the recorded sessions of all frameworks through a real Collector to three replicas, and compares their verdicts with those of one
process that saw everything. Runs in a network of its own, in which the replicas have the name that the router's configuration gives them.

    unshare --net --mount python3 router.py OTELCOL ROUTER_CONFIG SPANSCORE CAPTURES

Prints one line: how many verdicts there are, how many of them no replica gave, how many were wrong, and how many traces arrived by half.
"""

import collections
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

OTELCOL, CONFIG, SPANSCORE, CAPTURES = sys.argv[1:]
REPLICAS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
WHOLE = "127.0.0.9"
TYPES = {"pb": "application/x-protobuf", "json": "application/json"}
CRITERIA = [
    {"name": "ends", "evaluate": {"constraints": {"rules": [{"existence": {"a": "^(create_order|book_flight|book_trip|send_receipt|publish_report|cancel_booking)$"}}]}}},
    {"name": "few", "evaluate": {"efficiency": {"max_calls": 3}}},
    {"name": "calm", "evaluate": {"constraints": {"rules": [{"absence": {"a": "^get_weather$"}}]}}},
]


def requests():
    """Signal, type and body of every recorded request, in the order of the sessions."""
    for path in sorted(pathlib.Path(CAPTURES).glob("*.zst")):
        rest = subprocess.run(["zstd", "-dc", path], check=True, capture_output=True).stdout
        sessions = collections.defaultdict(list)
        while rest:
            head, rest = rest.split(b"\n", 1)
            name, length = head.decode().rsplit(" ", 1)
            session, file = name.split("/", 1)
            sessions[session].append((file, rest[: int(length)]))
            rest = rest[int(length) + 1 :]
        for session in sessions.values():
            for file, body in sorted(session):
                parts = file.split(".")
                if len(parts) == 3 and parts[1] in ("traces", "logs"):
                    yield parts[1], TYPES[parts[2]], body


def post(address, signal, kind, body):
    request = urllib.request.Request(f"http://{address}:4318/v1/{signal}", body, {"content-type": kind})
    assert urllib.request.urlopen(request, timeout=30).status == 200


def until(what, seconds, is_true):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def answers(address, port=4318, path="/"):
    try:
        urllib.request.urlopen(f"http://{address}:{port}{path}", timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def metric(address, name):
    page = urllib.request.urlopen(f"http://{address}:13133/metrics", timeout=10).read().decode()
    lines = [line.split() for line in page.splitlines() if line.startswith(name)]
    return sum(float(line[-1]) for line in lines if line[0].split("{")[0].endswith("_total"))


class Replica:
    def __init__(self, address, folder):
        self.address, self.out = address, open(f"{folder}/{address}.jsonl", "w+")
        settings = [f"receivers.otlp.grpc.listen={address}:4317", f"receivers.otlp.http.listen={address}:4318", f"admin.listen={address}:13133"]
        # Nothing settles before all requests have come.
        settings += ["assemble.settle=60s", "assemble.settle_remote=60s", "assemble.max_settle=60s", "assemble.inactive=4s", f"criteria={json.dumps(CRITERIA)}"]
        command = [SPANSCORE, "run"] + [word for setting in settings for word in ("--set", setting)]
        self.process = subprocess.Popen(command, stdout=self.out, stderr=subprocess.DEVNULL, env={})
        until(f"{address}", 20, lambda: answers(address, 13133, "/readyz"))

    def verdicts(self):
        """By trace and criterion; ends it."""
        self.process.terminate()
        assert self.process.wait(30) == 0
        self.out.seek(0)
        lines = [json.loads(line) for line in self.out if line.startswith("{")]
        return {(line["trace_id"], line["criterion"]): line["label"] for line in lines}


def main(folder):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    hosts = f"{folder}/hosts"
    pathlib.Path(hosts).write_text("127.0.0.1 localhost\n" + "".join(f"{address} spanscore-gateway\n" for address in REPLICAS))
    subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
    # Its own ports, beside those of the replicas.
    config = pathlib.Path(CONFIG).read_text().replace("0.0.0.0:", "127.0.0.1:")
    pathlib.Path(f"{folder}/router.yaml").write_text(config)
    whole, replicas = Replica(WHOLE, folder), [Replica(address, folder) for address in REPLICAS]
    with open(f"{folder}/router.log", "w+") as log:
        router = subprocess.Popen([OTELCOL, f"--config={folder}/router.yaml"], stdout=log, stderr=log)
        try:
            until("the router", 60, lambda: answers("127.0.0.1"))
            n_items = 0
            for signal, kind, body in requests():
                post(WHOLE, signal, kind, body)
                post("127.0.0.1", signal, kind, body)
                n_items += 1
            taken = "spanscore_receiver_accepted_"
            until("all items at the replicas", 30, lambda: sum(metric(replica.address, taken) for replica in replicas) >= metric(WHOLE, taken))
        except AssertionError:
            log.seek(0)
            print(log.read()[-3000:], file=sys.stderr)
            raise
        finally:
            router.terminate()
            router.wait(30)
    # Halves are counted when they are closed as inactive.
    time.sleep(6)
    n_half = sum(metric(replica.address, "spanscore_traces_half_arrived_total") for replica in replicas)
    used = [int(metric(replica.address, taken)) for replica in replicas]
    truth = {key: label for key, label in whole.verdicts().items() if label != "not_evaluated"}
    given = collections.defaultdict(set)
    for replica in replicas:
        for key, label in replica.verdicts().items():
            given[key].add(label)
    missing = [key for key, label in truth.items() if label not in given[key]]
    wrong = [key for key, label in truth.items() if given[key] - {label, "not_evaluated"}]
    print(json.dumps({"requests": n_items, "items": used, "verdicts": len(truth), "missing": len(missing), "wrong": len(wrong), "half": int(n_half)}))


with tempfile.TemporaryDirectory() as folder:
    main(folder)
