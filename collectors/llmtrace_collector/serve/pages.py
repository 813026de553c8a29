"""Serve the HTML pages for people: the request list, one request, and the sign-in form."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from llmtrace.core.errors import LlmtraceError
from llmtrace_collector.config.link_templates import LinkTemplate
from llmtrace_collector.serve import query_params, request_list_query
from llmtrace_collector.serve.page_frame import HEADERS, navigation, page_response, text
from llmtrace_collector.serve.query_params import QueryParamError
from llmtrace_collector.serve.request_facts import gather
from llmtrace_collector.serve.request_list_page import ListView, as_csv, list_html
from llmtrace_collector.serve.request_page import request_html
from llmtrace_collector.serve.store_access import StoreAccess, failure
from llmtrace_collector.store import request_list
from llmtrace_collector.store.request_list import ListQuery, Place

Answer = Callable[[Request], Awaitable[Response]]

# Suggested values are those of the last minutes; they change slowly.
_CHOICES_NS: Final = 900 * 1_000_000_000
_CHOICES_S: Final = 60.0
_SPAN: Final = frozenset({"span"})


class Pages:
    """The request list and the request page.

    Args:
        access: runs their queries.
        links: returns the links to other tools.
        wall: unix seconds.
    """

    def __init__(
        self,
        access: StoreAccess,
        links: Callable[[], Sequence[LinkTemplate]] = tuple,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access = access
        self._links = links
        self._wall = wall
        self._choices: tuple[float, dict[str, list[str]]] = (-_CHOICES_S, {})

    def routes(self) -> list[BaseRoute]:
        """Return the addresses of the pages."""
        return [
            Route("/requests", _answering(self._list)),
            Route("/requests.csv", _answering(self._csv)),
            Route("/requests.json", _answering(self._json)),
            Route("/requests/{id:path}", _answering(self._request)),
        ]

    def _query(self, request: Request) -> ListQuery:
        return request_list_query.list_query(dict(request.query_params), self._wall())

    async def _list(self, request: Request) -> Response:
        query = self._query(request)

        def look() -> ListView:
            store = self._access.store
            rows, following = request_list.listed(store, query)
            total = len(rows)
            # Only counted if these are not all.
            if following is not None or query.after is not None:
                total = max(total, request_list.counted(store, query))
            return ListView(
                query=query,
                given=dict(request.query_params),
                rows=rows,
                following=following,
                total=total,
                choices=self._known(query),
            )

        view = await self._access.ask(look, request)
        if query.name is not None and view.is_all and view.total == 1:
            [row] = view.rows
            return RedirectResponse(f"requests/{row['trace_id']}?span={row['span_id']}", 303)
        return page_response("Requests", list_html(view))

    def _known(self, query: ListQuery) -> dict[str, list[str]]:
        at, found = self._choices
        if time.monotonic() - at >= _CHOICES_S:
            since = max(query.start_ns, query.end_ns - _CHOICES_NS)
            found = request_list.choices(self._access.store, since, query.end_ns)
            self._choices = time.monotonic(), found
        return found

    async def _listed(self, request: Request) -> tuple[list[dict[str, Any]], Place | None]:
        query = self._query(request)
        return await self._access.ask(
            lambda: request_list.listed(self._access.store, query), request
        )

    async def _csv(self, request: Request) -> Response:
        rows, _ = await self._listed(request)
        named = {**HEADERS, "Content-Disposition": 'attachment; filename="requests.csv"'}
        return Response(as_csv(rows), media_type="text/csv; charset=utf-8", headers=named)

    async def _json(self, request: Request) -> Response:
        rows, following = await self._listed(request)
        after = None if following is None else ":".join(map(str, following))
        return JSONResponse({"rows": rows, "after": after}, headers=HEADERS)

    async def _request(self, request: Request) -> Response:
        name = query_params.identifier(request.path_params["id"])
        query_params.known(request.query_params, _SPAN)
        span = request.query_params.get("span")
        facts = await self._access.ask(lambda: gather(self._access.store, name, span), request)
        if facts is None:
            raise NotStoredError(f"no request {name} is stored")
        return page_response(
            facts.row.request_id or facts.row.trace_id, request_html(facts, self._links())
        )


class NotStoredError(QueryParamError):
    """There is no such request in the store."""


def _answering(answer: Answer) -> Answer:
    async def safely(request: Request) -> Response:
        try:
            return await answer(request)
        except (LlmtraceError, TimeoutError) as error:
            status, words = failure(error)
            if isinstance(error, NotStoredError):
                status = 404
            up = "../" * (request.url.path.count("/") - 1)
            body = (
                f'{navigation(up)}<main><h1>{status}</h1><p role="alert">{text(words)}</p></main>'
            )
            return page_response(str(status), body, status)

    return safely
