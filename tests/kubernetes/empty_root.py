"""Runs the image's program as a container runtime would (its root read-only and otherwise empty, its user, resolv.conf and hosts bound in),
in a network of its own with a name server and a backend, and looks whether names resolve, spans and scores arrive, and SIGTERM ends it.

    unshare --net --mount python3 empty_root.py ROOT EXAMPLES

Answers names as a cluster does: only the whole one, found through the search list. Knows nothing of OTLP but how many bytes there are.
"""

import http.server
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT, EXAMPLES = sys.argv[1:]
MAX_SECONDS_TO_READY = 20
BY_DNS, BY_HOSTS = "backend", "scores.test"
WHOLE_NAME = "backend.observability.svc.cluster.local"
PORT = 14318
asked, bodies = [], []


def name_server():
    """Answers A for WHOLE_NAME, nothing for its AAAA, and NXDOMAIN for any other name."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    while True:
        query, client = server.recvfrom(512)
        labels, at = [], 12
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        name, kind = ".".join(labels), struct.unpack(">H", query[at + 1 : at + 3])[0]
        asked.append(name)
        known, has_address = name == WHOLE_NAME, name == WHOLE_NAME and kind == 1
        answer = struct.pack(">2sHHHHH", query[:2], 0x8180 if known else 0x8183, 1, int(has_address), 0, 0) + query[12 : at + 5]
        if has_address:
            answer += struct.pack(">HHHIH4s", 0xC00C, 1, 1, 5, 4, socket.inet_aton("127.0.0.1"))
        server.sendto(answer, client)


class Backend(http.server.BaseHTTPRequestHandler):
    """Takes any OTLP request; an empty body says success."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        bodies.append((self.headers["host"], self.path, self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def sh(*command):
    subprocess.run(command, check=True)


sh("ip", "link", "set", "lo", "up")
sh("mount", "--bind", ROOT, ROOT)
with tempfile.TemporaryDirectory() as folder:
    # What a runtime binds into a container.
    for name, text in {
        "resolv.conf": "nameserver 127.0.0.1\nsearch agents.svc.cluster.local observability.svc.cluster.local\noptions ndots:5\n",
        "hosts": f"127.0.0.1 localhost\n127.0.0.1 {BY_HOSTS}\n",
    }.items():
        source, target = f"{folder}/{name}", f"{ROOT}/etc/{name}"
        with open(source, "w") as file:
            file.write(text)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        sh("mount", "--bind", source, target)
    sh("mount", "--bind", f"{EXAMPLES}", f"{ROOT}/etc/spanscore")
    sh("mount", "-o", "remount,bind,ro", ROOT)

    threading.Thread(target=name_server, daemon=True).start()
    backend = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Backend)
    threading.Thread(target=backend.serve_forever, daemon=True).start()

    command = [shutil.which("chroot"), "--userspec=65532:65532", ROOT, "/spanscore"]
    settings = ["--config", "/etc/spanscore/demo.yaml", "--set", f"forward.endpoint=http://{BY_DNS}:{PORT}", "--set", f"scores.endpoint=http://{BY_HOSTS}:{PORT}"]
    settings += ["--set", "forward.protocol=http/protobuf"]
    begun = time.monotonic()
    variables = {"SSL_CERT_FILE": "/etc/ssl/certs/ca-certificates.crt"}
    sidecar = subprocess.Popen([*command, "run", *settings], env=variables, stderr=subprocess.PIPE, text=True)
    while (probe := subprocess.run([*command, "health"], env=variables, capture_output=True, text=True, timeout=10)).returncode != 0:
        if sidecar.poll() is not None or time.monotonic() - begun > MAX_SECONDS_TO_READY:
            sidecar.kill()
            sys.exit(f"not ready (ended with {sidecar.poll()}; names asked for: {asked}): {probe.stdout}{probe.stderr}\n{sidecar.communicate()[1]}")
        time.sleep(0.02)
    print(f"ready after {time.monotonic() - begun:.2f} s", flush=True)

    recording = sorted(os.listdir(f"{EXAMPLES}/recording"))
    sent = [open(f"{EXAMPLES}/recording/{name}", "rb").read() for name in recording]
    for body in sent:
        request = urllib.request.Request("http://127.0.0.1:4318/v1/traces", body, {"content-type": "application/x-protobuf"})
        assert urllib.request.urlopen(request, timeout=10).status == 200
    print(f"{len(sent)} requests taken", flush=True)
    begun = time.monotonic()
    sidecar.terminate()
    log = sidecar.communicate(timeout=30)[1]
    print(f"ended with {sidecar.returncode} {time.monotonic() - begun:.2f} s after SIGTERM")

    assert sidecar.returncode == 0, log
    originals = [body for host, path, body in bodies if host == f"{BY_DNS}:{PORT}"]
    assert sorted(originals) == sorted(sent), f"{len(originals)} of {len(sent)} requests arrived, or not as they were sent\n{log}"
    assert WHOLE_NAME in asked, f"the name server was asked for {asked}"
    scores = {path for host, path, body in bodies if host == f"{BY_HOSTS}:{PORT}"}
    assert scores == {"/v1/traces", "/v1/logs", "/v1/metrics"}, f"scores arrived at {scores}\n{log}"
    assert "certificate" not in log, log
    print(f"{len(originals)} requests arrived as they were sent, by a name from the search list; spans, events and metrics of scores by /etc/hosts")

    if os.environ.get("FEATURES") == "kafka":
        # The Kafka client is C: it must find a broker by its name and begin TLS, with the authorities of the image.
        broker = socket.create_server(("127.0.0.1", 19093))
        broker.settimeout(MAX_SECONDS_TO_READY)
        settings = ["--set", "kafka.write.enabled=true", "--set", f'kafka.brokers=["{BY_DNS}:19093"]', "--set", "kafka.tls={}", "--set", "log.level=debug"]
        asked.clear()
        writer = subprocess.Popen([*command, "run", *settings], env=variables, stderr=subprocess.PIPE, text=True)
        try:
            connection, _ = broker.accept()
            connection.settimeout(10)
            first = connection.recv(2)
        except TimeoutError:
            writer.kill()
            sys.exit(f"the writer does not connect to its broker (names asked for: {asked}):\n{writer.communicate()[1]}")
        writer.terminate()
        log = writer.communicate(timeout=30)[1]
        assert first == b"\x16\x03" and WHOLE_NAME in asked, (first, asked, log)
        assert "ssl.ca.location" not in log and "certificate" not in log, log
        print("a writer found its broker by a name from the search list, and began TLS")
