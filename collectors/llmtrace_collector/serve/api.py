"""Serve what is in the store over HTTP: the read API.

Everything a program needs that would otherwise open the store: this process alone may. Results are
bounded, and streamed where they are large. docs/operate/collector.md describes each address.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.receive import Admission
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.serve import arrow, query_params
from llmtrace_collector.serve.events import read_events
from llmtrace_collector.serve.live_view import LiveView
from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.serve.routes import ADDRESSES
from llmtrace_collector.serve.store_access import PATIENCE_S, StoreAccess, failure
from llmtrace_collector.store import Store, read

NDJSON: Final = "application/x-ndjson"
Answer = Callable[[Request], Awaitable[Response]]

_TIME: Final = frozenset({"start", "end"})
_FILTERS: Final = frozenset(read.FILTERS)
_MAX_ROWS: Final = 5_000_000
_DEFAULT_ROWS: Final = 10_000
_MAX_SIGNALS: Final = 20_000_000
_MAX_LISTED: Final = 10_000
_MAX_SLOW: Final = 1_000
_MAX_MINUTES: Final = 60 * 24 * 31
# Rows handed on at a time: large enough that threads cost little, small enough to begin soon.
_AT_ONCE: Final = 1_000
_BUSY: Final = 503
_MAX_BODY: Final = 1 << 20


class Api:
    """The read API. So many queries run at a time; one that waits too long gets a 503.

    Args:
        store: that is read.
        live_view: makes the live view.
        admission: has the requests in quarantine; `None` = there are none.
        catch_up: as of `StoreAccess`.

    Attributes:
        access: runs the queries of these addresses, and of the pages.
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
                Route("/rows", self._answering(self._rows)),
                Route("/signals", self._answering(self._signals)),
                Route("/facts", self._answering(self._facts)),
                Route("/events", self._answering(self._events), methods=["GET"]),
                Route("/events", self._answering(self._tell), methods=["POST"]),
                Route("/stages", self._answering(self._stages)),
                Route("/traces/{trace_id}", self._answering(self._trace)),
                Route("/requests/{id}", self._answering(self._request)),
                Route("/slowest", self._answering(self._slowest)),
                Route("/coverage", self._answering(self._coverage)),
                Route("/quarantine", self._answering(self._quarantined), methods=["GET"]),
                Route("/quarantine", self._answering(self._replay), methods=["POST"]),
                Route("/live", self._answering(self._live)),
            ],
        )

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

    async def _rows(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME | _FILTERS | {"limit", "after"})
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _DEFAULT_ROWS, _MAX_ROWS)
        after = query_params.cursor(given.get("after"))
        filters = query_params.texts(given, _FILTERS)

        def ask() -> Iterator[Mapping[str, Any]]:
            return read.rows(
                self._store, when.start_ns, when.end_ns, filters, limit=limit, after=after
            )

        return await self._stream(request, ask, "rows")

    async def _signals(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME | {"instance", "signal", "limit"})
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _MAX_SIGNALS, _MAX_SIGNALS)
        named = query_params.texts(given, frozenset({"instance", "signal"}))

        def ask() -> Iterator[Mapping[str, Any]]:
            found = read.signals(self._store, when.start_ns, when.end_ns, **named)
            return islice(found, limit)

        return await self._stream(request, ask, "signals")

    async def _facts(self, request: Request) -> Response:
        query_params.known(request.query_params, frozenset({"at"}))
        given = dict(request.query_params)
        at = query_params.moment(given.get("at"), "at", time.time())
        return JSONResponse(await self.access.ask(lambda: read.facts(self._store, at), request))

    async def _events(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME | {"limit"})
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", _MAX_LISTED, _MAX_LISTED)
        found = await self.access.ask(
            lambda: [*islice(read.events(self._store, when.start_ns, when.end_ns), limit)], request
        )
        return JSONResponse({"events": found})

    async def _tell(self, request: Request) -> Response:
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

    async def _stages(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME | _FILTERS | {"step", "of"})
        when = query_params.between(given, time.time())
        step = query_params.number(given, "step", 60, 86_400)
        if (when.end_ns - when.start_ns) / 1e9 / step > _MAX_MINUTES:
            raise QueryParamError(f"step: more than {_MAX_MINUTES} steps; take a larger one")
        filters = query_params.texts(given, _FILTERS)
        of = query_params.some(given, "of", read.MEASURED)
        found = await self.access.ask(
            lambda: read.stage_percentiles(
                self._store, when.start_ns, when.end_ns, filters, step_s=step, of=of
            ),
            request,
        )
        return JSONResponse({"step_s": step, "points": found})

    async def _trace(self, request: Request) -> Response:
        wanted = query_params.trace_id(request.path_params["trace_id"])
        query_params.known(request.query_params, frozenset())
        found = await self.access.ask(lambda: read.trace(self._store, wanted), request)
        if not found["rows"] and not found["spans"]:
            return _error(404, f"no trace {wanted} is stored")
        return JSONResponse(found)

    async def _request(self, request: Request) -> Response:
        name = query_params.identifier(request.path_params["id"])
        query_params.known(request.query_params, frozenset())
        found = await self.access.ask(lambda: read.request(self._store, name), request)
        if not found:
            return _error(404, f"no request {name} is stored")
        return JSONResponse({"rows": found})

    async def _slowest(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME | _FILTERS | {"limit", "by"})
        when = query_params.between(given, time.time())
        limit = query_params.number(given, "limit", 20, _MAX_SLOW)
        by = given.get("by", "e2e")
        if by not in read.SLOWEST_BY:
            raise QueryParamError(f"by: {by[:64]!r} is not one of {', '.join(read.SLOWEST_BY)}")
        filters = query_params.texts(given, _FILTERS)
        found = await self.access.ask(
            lambda: read.slowest(
                self._store, when.start_ns, when.end_ns, filters, by=by, limit=limit
            ),
            request,
        )
        return JSONResponse({"rows": found})

    async def _coverage(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, _TIME)
        when = query_params.between(given, time.time())
        return JSONResponse(
            await self.access.ask(
                lambda: read.coverage(self._store, when.start_ns, when.end_ns), request
            )
        )

    async def _live(self, request: Request) -> Response:
        given = dict(request.query_params)
        query_params.known(given, frozenset({"budget"}))
        return JSONResponse((await self._live_view.look(given.get("budget"))).as_json())

    async def _quarantined(self, request: Request) -> Response:
        query_params.known(request.query_params, frozenset())
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
        """Answer with as many objects as there are, in the form that is requested."""
        if arrow.MEDIA_TYPE in request.headers.get("accept", ""):
            kind, encode = arrow.MEDIA_TYPE, arrow.encoder(what)
        else:
            kind, encode = NDJSON, _ndjson
        pieces = encode(ask())
        # The first piece before the answer begins: an error can still be reported.
        first = await self.access.ask(lambda: next(pieces, b""), request)
        return StreamingResponse(self._pieces(first, pieces), media_type=kind)

    async def _pieces(self, first: bytes, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
        piece = first
        while piece:
            yield piece
            piece = await self.access.ask(lambda: next(rest, b""))


def _is_json(request: Request) -> bool:
    """Say whether JSON comes: other sites' pages can send text and forms here, but not that."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    return kind == "application/json"


def _ndjson(found: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    rest = iter(found)
    while rows := [*islice(rest, _AT_ONCE)]:
        yield "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _error(
    status: int, words: str, headers: Mapping[str, str] | None = None, *, close: bool = False
) -> Response:
    more = {"Connection": "close"} if close else {}
    return JSONResponse({"error": words}, status, headers={**(headers or {}), **more})
