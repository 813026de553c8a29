"""A generation in Langfuse, with its stages under it, and the user it was made for.

With LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY set it goes to your project; without, to an
endpoint in here that prints what Langfuse would get.
"""

from __future__ import annotations

import gzip
import os
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import openai
from engine import endpoint
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import llmtrace


class PrintsObservations(BaseHTTPRequestHandler):
    """Stands for Langfuse: prints each observation it is sent."""

    def do_POST(self) -> None:
        """Take one export."""
        body = gzip.decompress(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for span in resource.scope_spans[0].spans:
                values = {one.key: one.value for one in span.attributes}
                kind = values["langfuse.observation.type"].string_value
                ms = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e6
                indent = "  " if span.parent_span_id else ""
                print(
                    f"{indent}{kind:10} {span.name:20} {ms:7.1f} ms  "
                    f"user {values['user.id'].string_value}"
                )

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@llmtrace.trace(route="greeting", tags=["example"])
def greet(client: openai.OpenAI, model: str, user: str, session: str) -> None:
    llmtrace.annotate(user=user, session=session)
    for _ in client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=10, stream=True
    ):
        pass


stand_in = None
if "LANGFUSE_PUBLIC_KEY" not in os.environ:
    print("(no LANGFUSE_PUBLIC_KEY: sending to an endpoint of this program's own)")
    stand_in = HTTPServer(("127.0.0.1", 0), PrintsObservations)
    Thread(target=stand_in.serve_forever, daemon=True).start()
    os.environ |= {
        "LANGFUSE_PUBLIC_KEY": "pk-lf-none",
        "LANGFUSE_SECRET_KEY": "sk-lf-none",
        "LANGFUSE_BASE_URL": f"http://127.0.0.1:{stand_in.server_port}",
    }

llmtrace.init("langfuse-example", exporters=["langfuse"])
with endpoint() as (url, model):
    key = os.environ.get("OPENAI_API_KEY", "none")
    greet(openai.OpenAI(base_url=url, api_key=key), model, "ada", "session-1")
llmtrace.shutdown()
if stand_in is not None:
    stand_in.shutdown()
    stand_in.server_close()
