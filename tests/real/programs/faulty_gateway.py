"""How does a gateway behave that is slow, strict or unreliable, for real?

`python faulty_gateway.py PORT UPSTREAM` relays `/v1/...` to an engine, as it comes. What it does
to requests on the way is set while it runs, by `POST /mode` with the fields of `Mode` as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from dataclasses import dataclass, fields
from typing import Any, Final

from aiohttp import ClientSession, ClientTimeout, web

_HOP: Final = {"host", "content-length", "transfer-encoding", "connection", "accept-encoding"}
_ERROR: Final = b'data: {"error": {"message": "engine failed", "type": "server_error"}}\n\n'


@dataclass
class Mode:
    """What it does: works so long, tells of it, refuses what is too much, breaks off answers."""

    work_s: float = 0.0
    tells: bool = True
    rate: float = 0.0  # requests a second; 0 = no limit
    retry_after_s: float = 1.0
    break_share: float = 0.0


class Gateway:
    """One gateway, and what it counted."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.mode = Mode()
        self.tokens, self.filled = 1.0, time.monotonic()
        self.session: ClientSession | None = None
        self.refused = 0

    async def set_mode(self, request: web.Request) -> web.Response:
        """Take new settings."""
        given = await request.json()
        self.mode = Mode(**{f.name: given[f.name] for f in fields(Mode) if f.name in given})
        return web.json_response({"refused": self.refused})

    def _may_pass(self) -> bool:
        if not self.mode.rate:
            return True
        now = time.monotonic()
        self.tokens = min(2.0, self.tokens + self.mode.rate * (now - self.filled))
        self.filled = now
        if self.tokens < 1:
            self.refused += 1
            return False
        self.tokens -= 1
        return True

    async def relay(self, request: web.Request) -> web.StreamResponse:
        """Pass a request on and its answer back."""
        began = time.perf_counter()
        if not self._may_pass():
            refusal: dict[str, Any] = {"error": {"message": "rate limit", "type": "rate_limit"}}
            later = {"Retry-After": f"{self.mode.retry_after_s:g}"}
            return web.json_response(refusal, status=429, headers=later)
        body = await request.read()
        if self.mode.work_s:
            await asyncio.sleep(self.mode.work_s * random.uniform(0.7, 1.4))
        breaks = random.random() < self.mode.break_share
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        assert self.session is not None
        own_ms = (time.perf_counter() - began) * 1000
        async with self.session.post(
            self.upstream + request.path, data=body, headers=headers
        ) as answer:
            kept_headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP}
            if self.mode.tells:
                kept_headers["Server-Timing"] = f"gateway;dur={own_ms:.3f}"
            response = web.StreamResponse(status=answer.status, headers=kept_headers)
            await response.prepare(request)
            left = random.randint(3, 20) if breaks else -1
            with contextlib.suppress(ConnectionResetError):  # who asked has left
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                    left -= 1
                    if left == 0:
                        await response.write(_ERROR)
                        break
                await response.write_eof()
            return response


async def make_app(upstream: str) -> web.Application:
    """Make the application."""
    gateway = Gateway(upstream)
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/mode", gateway.set_mode)
    app.router.add_post("/v1/{rest:.*}", gateway.relay)

    async def open_session(_app: web.Application) -> Any:
        async with ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False) as s:
            gateway.session = s
            yield

    app.cleanup_ctx.append(open_session)
    return app


if __name__ == "__main__":
    web.run_app(make_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), print=None)
