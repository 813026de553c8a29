"""Make a gateway of your own visible in its clients' rows and in the trace.

    from llmtrace import gateway

    app.add_middleware(gateway.Middleware, name="router")  # Starlette, FastAPI
    app = gateway.Middleware(app, name="router")           # anything ASGI

See docs/instrument/gateways.md.
"""

from llmtrace.gateway.middleware import Middleware
from llmtrace.gateway.upstream import cache_hit, upstream
from llmtrace.gateway.websocket_requests import serving

__all__ = ["Middleware", "cache_hit", "serving", "upstream"]
