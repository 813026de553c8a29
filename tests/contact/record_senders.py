"""Record what other instrumentations send of one streamed and one failed call.

    python -m tests.contact.record_senders [--packages FOLDER] [NAME ...]

The calls are made to the simulated engine, in the environment of scripts/install_contact.py. Each
sender's requests are kept in OTLP's JSON in tests/collector/data/senders, by which
tests/collector/test_senders.py tests the collector. FOLDER holds packages that are not in that
environment:

    opentelemetry        what `pip install --no-deps --pre --target` puts there of
                         opentelemetry-instrumentation-genai-openai, opentelemetry-util-genai,
                         opentelemetry-proto-json, opentelemetry-exporter-otlp-json-common and
                         opentelemetry-exporter-otlp-json-http
    strands, strands-openllmetry
                         `pip install --target` of strands-agents[otel,openai] and
                         opentelemetry-instrumentation-openai
    vercel-ai            `npm install --prefix` of ai, @ai-sdk/openai, @opentelemetry/sdk-node and
                         @opentelemetry/exporter-trace-otlp-proto
"""

from __future__ import annotations

import argparse
import gzip
import http.server
import json
import os
import subprocess
import threading
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from llmtrace.simulator.server import ServerConfig, serve
from tests.contact.senders import SENDERS
from tests.contact.test_contact import environment

ROOT: Final = Path(__file__).parents[2]
FIXTURES: Final = ROOT / "tests" / "collector" / "data" / "senders"
IN_NODE: Final = {"vercel-ai": ["node", "tests/contact/send_vercel_ai.cjs"]}
_IDS: Final = ("traceId", "spanId", "parentSpanId")
# What differs from machine to machine, and is of no use to the tests.
_DROPPED: Final = ("process.", "host.", "os.", "service.instance.id", "code.", "service.version")


def in_json(message: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return a request as OTLP writes it in JSON: ids in hex, enums as numbers."""
    flat: dict[str, Any] = MessageToDict(message, use_integers_for_enums=True)
    for resource in flat.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                for holder in (span, *span.get("links", ())):
                    for name in _IDS:
                        if name in holder:
                            holder[name] = b64decode(holder[name]).hex()
    return flat


def _trimmed(request: dict[str, Any]) -> dict[str, Any]:
    """Drop what is of the machine that recorded it."""
    for resource in request.get("resourceSpans", ()):
        holders = [resource["resource"]]
        holders += [span for scope in resource["scopeSpans"] for span in scope["spans"]]
        for holder in holders:
            kept = [a for a in holder.get("attributes", ()) if not a["key"].startswith(_DROPPED)]
            holder["attributes"] = kept
        for span in holders[1:]:
            for event in span.get("events", ()):
                event["attributes"] = [
                    a for a in event.get("attributes", ()) if a["key"] != "exception.stacktrace"
                ]
    return request


@contextmanager
def receiving() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Take OTLP traces over HTTP; yield the address, and the requests that came, as JSON."""
    found: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def _body(self) -> bytes:
            if "content-length" in self.headers:
                return self.rfile.read(int(self.headers["content-length"]))
            # In chunks, as Node sends it.
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size + 2)[:-2])
            self.rfile.readline()
            return b"".join(parts)

        def do_POST(self) -> None:
            body = self._body()
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            if self.path == "/v1/traces":
                if "json" in self.headers["content-type"]:
                    found.append(json.loads(body))
                else:
                    found.append(in_json(ExportTraceServiceRequest.FromString(body)))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def record(name: str, packages: Path | None) -> Path:
    """Record one sender's requests; return the file."""
    path = os.pathsep.join(map(str, filter(None, (ROOT, packages))))
    python = [environment(), "-m", "tests.contact.senders", name]
    variables = {"PYTHONPATH": path, "NODE_PATH": f"{packages}/node_modules"}
    variables |= {"OTEL_SERVICE_NAME": name}
    with serve(ServerConfig(model="sim")) as engine, receiving() as (address, found):
        subprocess.run(
            [*IN_NODE.get(name, python), engine.root],
            env={**os.environ, **variables, "OTEL_EXPORTER_OTLP_ENDPOINT": address},
            cwd=ROOT, check=True, timeout=120,
        )  # fmt: skip
    file = FIXTURES / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    lines = (json.dumps(_trimmed(one), separators=(",", ":")) + "\n" for one in found)
    file.write_text("".join(lines), encoding="utf-8")
    return file


def main() -> None:
    """Record the senders that are named, else all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--packages", type=Path)
    parser.add_argument("names", nargs="*", default=[*SENDERS, *IN_NODE])
    given = parser.parse_args()
    for name in given.names:
        print(record(name, given.packages))


if __name__ == "__main__":
    main()
