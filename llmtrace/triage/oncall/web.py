"""The web server that receives alerts and shows reports, on loopback by default.

POST /alerts        Alertmanager's webhook
GET  /              the list of reports
GET  /reports/NAME  one as a page; with .json as data
GET  /healthz       whether it works, and what it counted
"""

from __future__ import annotations

import asyncio
import base64
import hmac
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from html import escape
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from llmtrace.core.errors import DataError
from llmtrace.core.listen_address import LOOPBACK_NAMES, host_of
from llmtrace.display.html_page import document
from llmtrace.display.summary_tables import date_and_zone
from llmtrace.triage.oncall.alert import MAX_BYTES, Alert, read_alerts
from llmtrace.triage.oncall.alert_queue import AlertQueue, Full
from llmtrace.triage.oncall.report_store import Reports
from llmtrace.triage.result import NAMED

_LISTED: Final = 100
# On a phone each report is a paragraph, not a row of a table wider than the screen.
_STYLE: Final = """a { color: inherit; } td { white-space: normal; overflow-wrap: anywhere; }
@media (max-width: 40rem) { tr:has(th) { display: none; } table, tbody, tr, td { display: block; }
  tr { padding: .6rem 0; } td { border: 0; padding: .1rem 0; } }"""
_BODY_S: Final = 30.0
# A sender that is still writing does not see an answer: what is too much is read, and dropped.
_READ_TO_ANSWER: Final = 32 * MAX_BYTES
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    # The pages carry their style inside, and nothing else.
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
}
_REFRESH: Final = {"Refresh": "5"}
Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    queue: AlertQueue, reports: Reports, token: str | None, names: Iterable[str] = ()
) -> Starlette:
    """Make the application.

    Args:
        queue: accepts alerts.
        reports: the reports to show.
        token: required of clients; `None` = any client that reaches the port is allowed.
        names: host names of this server beside loopback's. Without a token no others are accepted,
            because a web page in a browser could make its own host name resolve to this machine.
    """
    guarded = partial(_guarded, token, LOOPBACK_NAMES | {name.lower() for name in names})

    async def index(_request: Request) -> Response:
        unfinished = queue.unfinished()
        page = _index(reports, queue, unfinished)
        return HTMLResponse(page, headers=_REFRESH if unfinished or not reports.names() else {})

    async def report(request: Request) -> Response:
        name = request.path_params["name"]
        if name.endswith(".json"):
            report = reports.content(name.removesuffix(".json"))
            return JSONResponse(report) if report is not None else _none(name)
        page = reports.page(name)
        if page is not None:
            return HTMLResponse(page)
        for alert in queue.unfinished():
            if reports.named(alert) == name:
                return HTMLResponse(_index(reports, queue, [alert]), headers=_REFRESH)
        return _none(name)

    async def health(_request: Request) -> Response:
        # Always 200: reports can still be read, and a restart would not help.
        problem = queue.problem
        state = {"ok": problem is None, "queued": len(queue.unfinished()), **queue.counts}
        return JSONResponse(state if problem is None else {**state, "error": problem})

    return Starlette(
        routes=[
            Route("/alerts", guarded(partial(_take, queue, reports)), methods=["POST"]),
            Route("/", guarded(index)),
            Route("/reports/{name}", guarded(report)),
            Route("/healthz", health),
        ]
    )


def _guarded(token: str | None, called: Collection[str], handler: Handler) -> Handler:
    """Wrap a handler: check the token or host name, and set the headers of every response."""

    async def guard(request: Request) -> Response:
        if token is not None and not _bears(request, token):
            # A browser then prompts for a password: the token, with any user name.
            response: Response = JSONResponse(
                {"error": "authentication required"},
                401,
                {"WWW-Authenticate": 'Bearer, Basic realm="llmtrace", charset="UTF-8"'},
            )
        elif token is None and host_of(request.headers.get("host", "")) not in called:
            response = JSONResponse({"error": "this server has another name"}, 421)
        else:
            response = await handler(request)
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return guard


async def _take(queue: AlertQueue, reports: Reports, request: Request) -> Response:
    # A web page can make a browser send text or forms to any server, but not this type.
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return JSONResponse({"error": "send Content-Type: application/json"}, 415)
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for piece in request.stream():
                size += len(piece)
                if size <= MAX_BYTES:
                    body += piece
                elif size > _READ_TO_ANSWER:
                    break
    except ClientDisconnect:
        return Response(status_code=400)
    except TimeoutError:
        return Response(status_code=408)
    if size > MAX_BYTES:
        return JSONResponse({"error": f"more than {MAX_BYTES} bytes"}, 413)
    try:
        alerts = read_alerts(bytes(body))
        taken = queue.take(alerts)
    except DataError as error:
        return JSONResponse({"error": str(error)}, 400)
    except Full as error:
        return JSONResponse({"error": str(error)}, 503, {"Retry-After": "30"})
    pages = [f"reports/{reports.named(alert)}" for alert in alerts]
    return JSONResponse({"taken": taken, "reports": pages}, 202)


def _bears(request: Request, token: str) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode("utf-8").partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token.encode())


def _none(name: str) -> Response:
    return JSONResponse({"error": f"no report {name[:100]!r}"}, 404)


def _index(reports: Reports, queue: AlertQueue, unfinished: Sequence[Alert]) -> str:
    rows = "".join(
        "<tr><td>being triaged: this page refreshes itself</td>"
        f"<td>{escape(alert.title)}, {date_and_zone(alert.started)}</td><td>-</td><td>-</td></tr>"
        for alert in unfinished
    )
    rows += "".join(map(_row, filter(None, map(reports.content, reports.names()[:_LISTED]))))
    table = (
        "<table><tr><th>report</th><th>alert</th><th></th><th>first causes</th></tr>"
        f"{rows}</table>"
        if rows
        else "<p>None yet. Point an Alertmanager's webhook at /alerts.</p>"
    )
    if (problem := queue.problem) is not None:
        table += f"<p>Not yet: {escape(problem)}</p>"
    if failed := queue.counts["failed"]:
        table += f"<p>Could not be triaged: {failed}. The log of this server says why.</p>"
    body = f'<h1>Triage reports</h1><section><div class="scroll">{table}</div></section>'
    return document("Triage reports", body, _STYLE)


def _row(report: dict[str, Any]) -> str:
    alert, result = Alert(id="", **report["alert"]), report["result"]
    named = [f"{one['id']} ({one['status']})" for one in result["causes"]
             if one["status"] in NAMED]  # fmt: skip
    onset = result.get("onset")
    title = report.get("title", result["verdict"])  # as of this version
    cells = (
        f"{escape(alert.title)}, {date_and_zone(alert.started)}",
        f"began {date_and_zone(onset['best'])}" if onset else "-",
        escape(", ".join(named[:2]) or "-"),
    )
    link = f'<a href="reports/{escape(report["name"])}">{escape(title)}</a>'
    return f"<tr><td>{link}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
