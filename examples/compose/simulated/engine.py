"""The demo's simulated engine on port 8000, for `docker compose --profile simulated up`."""

from __future__ import annotations

import sys

import uvicorn

from llmtrace.simulator.api.asgi_app import make_app, make_service

if __name__ == "__main__":
    host, port = sys.argv[1].rsplit(":", 1)
    uvicorn.run(make_app(make_service()), host=host, port=int(port), ws="none")
