"""Serve the contents of the store over HTTP: the read API.

For programs that would otherwise open the store, which only this process may. Results are bounded,
and streamed where they are large. docs/operate/collector.md describes each address.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.receive import Admission
from llmtrace_collector.receive.otlp_http import JSON, media_type
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.serve import arrow, query_params
from llmtrace_collector.serve.events import read_events
from llmtrace_collector.serve.live_view import LiveView
from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.serve.routes import ADDRESSES
from llmtrace_collector.serve.store_access import PATIENCE_S, StoreAccess, failure
from llmtrace_collector.store import Store, read

NDJSON: Final = "application/x-ndjson"
Given = Mapping[str, str]  # the parameters of a request
Answer = Callable[[Request], Awaitable[Response]]
GetAnswer = Callable[[Request, Given], Awaitable[Response]]

_TIME: Final = frozenset({"start", "end"})
_FILTERS: Final = frozenset(read.FILTERS)
_MAX_ROWS: Final = 5_000_000
_DEFAULT_ROWS: Final = 10_000
_MAX_SIGNALS: Final = 20_000_000
_MAX_LISTED: Final = 10_000
_MAX_SLOW: Final = 1_000
_MAX_STEPS: Final = 60 * 24 * 31
# Rows per piece of a response: large enough that threads cost little, small enough to begin soon.
_AT_ONCE: Final = 1_000
_BUSY: Final = 503
_MAX_BODY: Final = 1 << 20


class Api:
    """The read API. A few queries run at a time; one that waits too long gets a 503.

    Args:
        store: that is read.
        live_view: makes the live view.
        admission: has the requests in quarantine; `None` = there are none.
        catch_up: see `StoreAccess`.

    Attributes:
        access: runs the queries of these addresses and of the pages.
    """

    def __init__(
        self,
        store: Store,
        live_view: LiveView,
        *,
        admission: Admission | None = None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._live_view = live_view
        self._admission = admission
        self.access = StoreAccess(store, catch_up)

    def mount(self) -> Mount:
        """Return its routes, below /api/v1."""
        return Mount(
            "/api/v1",
            routes=[
                Route("/", self._answering(self._index)),
                self._get("/rows", self._rows, _TIME | _FILTERS | {"limit", "after"}),
                self._get("/signals", self._signals, _TIME | {"instance", "signal", "limit"}),
                self._get("/facts", self._facts, {"at"}),
                self._get("/events", self._events, _TIME | {"limit"}),
                Route("/events", self._answering(self._add_events), methods=["POST"]),
                self._get("/stages", self._stages, _TIME | _FILTERS | {"step", "of"}),
                self._get("/traces/{trace_id}", self._trace),
                self._get("/requests/{id}", self._request),
                self._get("/slowest", self._slowest, _TIME | _FILTERS | {"limit", "by"}),
                self._get("/coverage", self._coverage, _TIME),
                self._get("/quarantine", self._quarantined),
                Route("/quarantine", self._answering(self._replay), methods=["POST"]),
                self._get("/live", self._live, {"budget"}),
            ],
        )

    def _get(self, path: str, answer: GetAnswer, names: Collection[str] = ()) -> Route:
        """Make the route of a GET that takes these parameters, and no others."""

        async def checked(request: Request) -> Response:
            given = dict(request.query_params)
            query_params.known(given, names)
            return await answer(request, given)

        return Route(path, self._answering(checked), methods=["GET"])

    def _answering(self, answer: Answer) -> Answer:
        async def safely(request: Request) -> Response:
            try:
                response = await answer(request)
            except (LlmtraceError, TimeoutError) as error:
                status, words = failure(error)
                return _error(status, words, {"Retry-After": "5"} if status == _BUSY else None)
            response.headers["Cache-Control"] = "no-store"
            response.headers["X-Content-Type-Options"] = "nosniff"
            return response

        return safely

    async def _index(self, request: Request) -> Response:
        del request
        return JSONResponse({"addresses": {path: words for path, _, words in ADDRESSES}})

    async def _rows(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _DEFAULT_ROWS, _MAX_ROWS)
        after = query_params.cursor(given.get("after"))
        filters = query_params.texts(given, _FILTERS)

        def ask() -> Iterator[Mapping[str, Any]]:
            return read.rows(self._store, *when, filters, limit=limit, after=after)

        return await self._stream(request, ask, "rows")

    async def _signals(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _MAX_SIGNALS, _MAX_SIGNALS)
        named = query_params.texts(given, {"instance", "signal"})

        def ask() -> Iterator[Mapping[str, Any]]:
            return islice(read.signals(self._store, when.start_ns, when.end_ns, **named), limit)

        return await self._stream(request, ask, "signals")

    async def _facts(self, request: Request, given: Given) -> Response:
        at = query_params.moment(given.get("at"), "at", time.time())
        return JSONResponse(await self.access.ask(lambda: read.facts(self._store, at), request))

    async def _events(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _MAX_LISTED, _MAX_LISTED)
        found = await self.access.ask(
            lambda: [*islice(read.events(self._store, *when), limit)], request
        )
        return JSONResponse({"events": found})

    async def _add_events(self, request: Request) -> Response:
        if not _is_json(request):
            return _error(415, "send events as Content-Type: application/json")
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE_S):
                async for piece in request.stream():
                    body += piece
                    if len(body) > _MAX_BODY:
                        return _error(413, f"more than {_MAX_BODY} bytes of events", close=True)
        except TimeoutError:
            return _error(408, f"the body took {PATIENCE_S:g} s", close=True)
        events = read_events(bytes(body), round(time.time() * 1e9))
        await self.access.ask(lambda: self._store.insert_events(events))
        return JSONResponse({"stored": len(events)}, 201)

    async def _stages(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        step = query_params.number(given, "step", 60, 86_400)
        if (when.end_ns - when.start_ns) / 1e9 / step > _MAX_STEPS:
            raise QueryParamError(f"step: more than {_MAX_STEPS} steps; take a larger one")
        filters = query_params.texts(given, _FILTERS)
        of = query_params.some(given, "of", read.MEASURED)
        found = await self.access.ask(
            lambda: read.stage_percentiles(self._store, *when, filters, step_s=step, of=of),
            request,
        )
        return JSONResponse({"step_s": step, "points": found})

    async def _trace(self, request: Request, _: Given) -> Response:
        wanted = query_params.trace_id(request.path_params["trace_id"])
        found = await self.access.ask(lambda: read.trace(self._store, wanted), request)
        if not found["rows"] and not found["spans"]:
            return _error(404, f"no trace {wanted} is stored")
        return JSONResponse(found)

    async def _request(self, request: Request, _: Given) -> Response:
        name = query_params.identifier(request.path_params["id"])
        found = await self.access.ask(lambda: read.request(self._store, name), request)
        if not found:
            return _error(404, f"no request {name} is stored")
        return JSONResponse({"rows": found})

    async def _slowest(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", 20, _MAX_SLOW)
        by = query_params.one_of(given, "by", read.SLOWEST_BY)
        filters = query_params.texts(given, _FILTERS)
        found = await self.access.ask(
            lambda: read.slowest(self._store, *when, filters, by=by, limit=limit), request
        )
        return JSONResponse({"rows": found})

    async def _coverage(self, request: Request, given: Given) -> Response:
        when = query_params.between(given, time.time())
        found = await self.access.ask(lambda: read.coverage(self._store, *when), request)
        return JSONResponse(found)

    async def _live(self, _: Request, given: Given) -> Response:
        return JSONResponse((await self._live_view.look(given.get("budget"))).as_json())

    async def _quarantined(self, *_: object) -> Response:
        found = [] if self._admission is None else self._admission.quarantine.entries()
        return JSONResponse({"requests": [asdict(one) for one in found]})

    async def _replay(self, request: Request) -> Response:
        if not _is_json(request):
            return _error(415, "send {} as Content-Type: application/json")
        try:
            count = 0 if self._admission is None else await self._admission.replay()
        except RejectedError as error:
            return _error(503, error.words, {"Retry-After": "5"})
        return JSONResponse({"replayed": count}, 202)

    async def _stream(
        self, request: Request, ask: Callable[[], Iterator[Mapping[str, Any]]], what: str
    ) -> Response:
        """Respond with a stream of objects, in the requested format."""
        if arrow.MEDIA_TYPE in request.headers.get("accept", ""):
            kind, encode = arrow.MEDIA_TYPE, arrow.encoder(what)
        else:
            kind, encode = NDJSON, _ndjson
        pieces = encode(ask())
        # The first piece before the response begins: an error can still be reported.
        first = await self.access.ask(lambda: next(pieces, b""), request)
        return StreamingResponse(self._pieces(first, pieces), media_type=kind)

    async def _pieces(self, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
        piece = first
        while piece:
            yield piece
            piece = await self.access.ask(lambda: next(rest, b""))


def _is_json(request: Request) -> bool:
    """Return whether the body is JSON, which other sites' pages, unlike forms, cannot send."""
    return media_type(request.headers) == JSON


def _ndjson(found: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    rest = iter(found)
    while rows := [*islice(rest, _AT_ONCE)]:
        yield "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _error(
    status: int, words: str, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> Response:
    more = {"Connection": "close"} if close else {}
    return JSONResponse({"error": words}, status, headers={**(headers or {}), **more})
