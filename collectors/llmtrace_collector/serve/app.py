"""Put the web application together: which part answers at which address.

/                  the live page
/requests/...      the request list, and the page of one request
/sign-in           the form that browsers show the token by
/metrics           for Prometheus
/api/v1/...        the read API (docs/operate/collector.md)
/healthz, /readyz  for orchestrators that start and watch this process
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from llmtrace.display.colours import STAGE_COLOURS
from llmtrace_collector.metrics.endpoint import MetricsPage
from llmtrace_collector.receive.auth import Secret
from llmtrace_collector.serve import sign_in
from llmtrace_collector.serve.auth import Guard
from llmtrace_collector.serve.page_frame import csp_hash

# Paths that need no token: orchestrators have none, and people enter it in the form.
FREE: Final = ("/healthz", "/readyz", sign_in.PATH)
_SCRIPT: Final = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_STYLE: Final = re.compile(r"<style>(.*?)</style>", re.DOTALL)
_COLOURS: Final = "/* stages */"


def live_page() -> tuple[str, str]:
    """Return the page and its Content-Security-Policy: its own script and style, nothing else."""
    text = files("llmtrace_collector.serve").joinpath("live.html").read_text(encoding="utf-8")
    colours = " ".join(f"--{stage}: {colour};" for stage, colour in STAGE_COLOURS.items())
    text = text.replace(_COLOURS, colours)
    hashes = {
        kind: " ".join(map(csp_hash, wanted.findall(text)))
        for kind, wanted in (("script-src", _SCRIPT), ("style-src", _STYLE))
    }
    allowed = "; ".join(f"{kind} {listed}" for kind, listed in hashes.items())
    return text, (
        f"default-src 'none'; {allowed}; connect-src 'self'; img-src data:; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    )


def make_app(
    registry: CollectorRegistry,
    api: BaseRoute | Mount,
    why_not_ready: Callable[[], str | None],
    *,
    pages: Sequence[BaseRoute] = (),
    token: Secret = None,
    hosts: frozenset[str] | None = None,
    notes: Callable[[], Mapping[str, Any]] = dict,
) -> ASGIApp:
    """Make the application.

    Args:
        registry: of all metrics.
        api: the routes of the read API.
        why_not_ready: returns why it is not ready, in words; `None` = it is.
        pages: the routes of the request list and the request page.
        token: readers must show it; `None` = none is needed.
        hosts: host names that requests may use; `None` = any.
        notes: returns what `/readyz` says besides, by name.
    """
    page, policy = live_page()

    async def show(request: Request) -> Response:
        del request
        return HTMLResponse(page, headers={"Content-Security-Policy": policy, **_HEADERS})

    async def healthz(request: Request) -> Response:
        del request
        return JSONResponse({"status": "alive"})

    async def readyz(request: Request) -> Response:
        del request
        reason = why_not_ready()
        if reason is None:
            return JSONResponse({"status": "ready", **notes()})
        return JSONResponse({"status": "not ready", "reason": reason, **notes()}, 503)

    app = Starlette(
        routes=[
            Route("/", show),
            Route("/metrics", MetricsPage(registry).answer),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route(sign_in.PATH, sign_in.SignIn(token).answer, methods=["GET", "POST"]),
            *pages,
            api,
        ],
        exception_handlers={404: _not_found, 405: _not_found, 500: _failed},
    )
    return Guard(app, token=token, hosts=hosts, free=FREE)


_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def _not_found(request: Request, error: Exception) -> Response:
    status = getattr(error, "status_code", 404)
    words = "no such path" if status == 404 else f"{request.method} is not allowed here"  # noqa: PLR2004
    return JSONResponse({"error": f"{words}; see /api/v1/"}, status)


async def _failed(request: Request, error: Exception) -> Response:
    # The server logs the error: Starlette raises it again once this is sent.
    del request, error
    return JSONResponse({"error": "an error in the collector; its log has it"}, 500)
