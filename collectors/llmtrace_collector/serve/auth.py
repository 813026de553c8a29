"""Authenticate readers by the token, if one is set, and check the host name of requests.

Otherwise a page of another site, open in a browser here, could have its own name resolve to this
machine and read the data (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from llmtrace.core.listen_address import LOOPBACK_NAMES, host_of
from llmtrace_collector.config.schema import Address
from llmtrace_collector.receive.auth import Secret, check_token
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.serve import sign_in

_READING: Final = frozenset({"GET", "HEAD"})
_UNKNOWN_HOST: Final = (
    "this host name is not allowed; add it to access.hosts of the collector's configuration"
)


class Guard:
    """Passes requests to an application, or responds with 401 or 421.

    A browser without the token is sent to the form of `sign_in`, and may read after that.

    Args:
        app: the application that is protected.
        token: to be shown as `Authorization: Bearer`; `None` = none is required.
        hosts: host names and addresses that requests may use; `None` = any.
        free: paths for which no token is needed: they reveal nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: Secret,
        hosts: Collection[str] | None,
        free: Collection[str] = (),
    ) -> None:
        self._app = app
        self._token = token
        self._hosts = None if hosts is None else frozenset(host.lower() for host in hosts)
        self._free = frozenset(free)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if its token and host are right, else answer it."""
        if scope["type"] == "http":
            refusal = self._refusal(scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._hosts is not None and host_of(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"error": _UNKNOWN_HOST}, 421)
        if path in self._free:
            return None
        try:
            check_token(headers.get("authorization"), self._token)
        except RejectedError as error:
            reads = scope["method"] in _READING
            if reads and sign_in.is_signed_in(headers.get("cookie"), self._token):
                return None
            if reads and "text/html" in headers.get("accept", ""):
                return _to_sign_in(scope)
            challenge = {"WWW-Authenticate": 'Bearer realm="llmtrace"'}
            return JSONResponse({"error": error.words}, 401, headers=challenge)
        return None


def _to_sign_in(scope: Scope) -> Response:
    """Redirect a browser to the form, and back afterwards; also below a path of a proxy."""
    path = scope.get("raw_path") or scope["path"].encode()
    query = scope.get("query_string", b"")
    following = quote((path.lstrip(b"/") + (b"?" + query if query else b"")).decode("latin-1"))
    up = "../" * (path.count(b"/") - 1)
    return RedirectResponse(f"{up or './'}{sign_in.PATH[1:]}?next={following}", 303)


def hosts_for(address: Address, more: Collection[str]) -> Collection[str] | None:
    """Return the names an address may be reached by; `None` = any.

    A server on all addresses has names that are not known here.
    """
    if not address.is_loopback and not more:
        return None
    return {*LOOPBACK_NAMES, address.host, *more}
