"""Authenticate readers: by the token, if one is set, and by the names this machine is known by.

The name is checked because a page of another site, open in a browser here, could otherwise have
its own name resolve to this machine and read along.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from llmtrace.api_clients.listen_address import LOOPBACK_NAMES, host_of
from llmtrace_collector.config.schema import Address
from llmtrace_collector.receive.auth import Secret, check_token
from llmtrace_collector.receive.rejections import RefusedError

_NOT_CALLED_SO: Final = (
    "this collector is not called so; add the name to access.hosts of its configuration"
)


class Guard:
    """Lets requests through to an application, or answers 401 or 421.

    Args:
        app: what is guarded.
        token: to be shown as `Authorization: Bearer`; `None` = none is required.
        hosts: names and addresses it may be addressed by; `None` = any.
        free: paths for which no token is needed: they tell nothing.
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
            headers = Headers(scope=scope)
            refusal = self._refusal(headers, scope["path"])
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: Headers, path: str) -> JSONResponse | None:
        if self._hosts is not None and host_of(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"error": _NOT_CALLED_SO}, 421)
        if path not in self._free:
            try:
                check_token(headers.get("authorization"), self._token)
            except RefusedError as error:
                challenge = {"WWW-Authenticate": 'Bearer realm="llmtrace"'}
                return JSONResponse({"error": error.words}, 401, headers=challenge)
        return None


def hosts_for(address: Address, more: Collection[str]) -> Collection[str] | None:
    """Return the names an address may be reached by; `None` = any.

    A server on all addresses has names that are not known here.
    """
    if not address.is_loopback and not more:
        return None
    return {*LOOPBACK_NAMES, address.host, *more}
