"""ASGI middleware that serves the script, takes the beacons and delays the rows they belong to.

`Middleware` wraps any ASGI application. It answers below one path of its own (`/llmtrace/`) and
passes on everything else untouched; a request that the script made is given the page's trace, and
its rows wait for the page's beacon.
"""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs

from opentelemetry import context as otel_context
from opentelemetry import trace as otel_trace
from opentelemetry.context import Context

from llmtrace.browser.beacon import MAX_BYTES, Beacon, read_beacon
from llmtrace.browser.pending_rows import PendingRows
from llmtrace.core.browser_timing import ON_WIRE, flatten
from llmtrace.core.errors import ConfigError, DataError
from llmtrace.core.failopen import count_internal, internal_error
from llmtrace.core.row_fields import FAILED
from llmtrace.core.span import Span
from llmtrace.runtime.runtime import Runtime, active, awaited

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# The page's mark is a private language tag (RFC 5646): a browser never asks another origin's
# permission to send this header, so the mark survives any redirect without breaking it.
HEADER: Final = "content-language"
PARAMETER: Final = "llmtrace"
SPAN_NAME: Final = "llmtrace.browser"

_TAG: Final = "x-llmtrace-"
_MARK: Final = re.compile(
    r"(?![0-]{35})([0-9a-f]{8}(?:-[0-9a-f]{8}){3})-(?![0-]{17})([0-9a-f]{8}-[0-9a-f]{8})"
)
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-([0-9a-f]{2})")
_FIRST_LINE: Final = "// llmtrace in the browser, without its comments. Apache-2.0."
_AS_MODULE: Final = """\
const {fetch, EventSource, configure} = globalThis.llmtrace;
configure({beacon: new URL("beacon", import.meta.url).href});
export {fetch, EventSource, configure};
"""
_MAX_SPANS_PER_S: Final = 50  # of beacons whose request this process does not know
_DAY_S: Final = 86_400


@lru_cache(maxsize=2)
def script(*, module: bool = False) -> str:
    """Return the page's script: for `<script src>`, or with `export`s for `import` if `module`."""
    text = files("llmtrace.browser").joinpath("llmtrace.js").read_text(encoding="utf-8")
    # Comments are half of the file, and a browser needs none of them.
    lines = [line for line in map(str.strip, text.splitlines()) if line[:2] not in {"", "//"}]
    text = "\n".join([_FIRST_LINE, *lines, ""])
    return text + _AS_MODULE if module else text


class Middleware:
    """Serve the page's side of llmtrace, and pass all else to an ASGI application.

    Args:
        app: the application.
        path: below which the script (`llmtrace.js`, `llmtrace.mjs`) and the beacons' address
            (`beacon`) are.
        origins: of pages elsewhere whose beacons are taken too, as `https://shop.example`; `"*"`
            for any. This origin's own always are.
        wait_s: longest that a finished row waits for its page, in seconds; 0 joins nothing here.
        max_pending: pages' requests kept at a time.

    Raises:
        ConfigError: a setting is wrong.

    Example:
        >>> async def app(scope, receive, send): ...
        >>> app = Middleware(app)
    """

    def __init__(
        self,
        app: Application,
        *,
        path: str = "/llmtrace",
        origins: Iterable[str] = (),
        wait_s: float = 30.0,
        max_pending: int = 2000,
    ) -> None:
        if not re.fullmatch(r"(/[\w.~-]+)+", path):
            raise ConfigError(f"path={path!r} must begin with / and not end with it")
        if isinstance(origins, str):
            raise ConfigError(f"origins={origins!r} must be a list, as in origins=[{origins!r}]")
        if not 0 <= wait_s <= _DAY_S or max_pending < 1:
            raise ConfigError(
                f"wait_s={wait_s!r}, max_pending={max_pending!r}: seconds from 0 to {_DAY_S}, "
                "and at least one request to keep"
            )
        self._app = app
        self._path = path
        self._origins = frozenset(origins)
        self._waiting = PendingRows(wait_s=wait_s, max_pending=max_pending)
        self._joins = wait_s > 0
        self._spans = Allowance(_MAX_SPANS_PER_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request below our path; pass on any other."""
        if scope["type"] == "http":
            own = scope["path"].removeprefix(scope.get("root_path", ""))
            if own.startswith(f"{self._path}/"):
                await self._answer(own.removeprefix(f"{self._path}/"), scope, receive, send)
                return
            if (page := _page(scope)) is not None:
                await self._for_page(page, scope, receive, send)
                return
        elif scope["type"] == "lifespan":
            receive = partial(self._until_shutdown, receive)
        await self._app(scope, receive, send)

    async def _for_page(
        self, ids: tuple[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the application inside the page's trace, and have its rows wait for the beacon."""
        attached = pending = token = None
        if (runtime := active()) is not None:
            enclosing = otel_trace.get_current_span().get_span_context()
            if enclosing.is_valid:
                sampled: bool | None = enclosing.trace_flags.sampled
            elif (sampled := _sampled(runtime, ids[0], scope)) is not None:
                attached = otel_context.attach(_inside(*ids, sampled=sampled))
            if self._joins:
                pending = self._waiting.begin(ids[0], sampled=sampled)
                token = awaited.set(partial(self._waiting.row, pending))
        try:
            await self._app(scope, receive, send)
        finally:
            if token is not None and pending is not None:
                awaited.reset(token)
                self._waiting.end(pending)
            if attached is not None:
                otel_context.detach(attached)

    async def _until_shutdown(self, receive: Receive) -> Message:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            self._waiting.release_all()
        return message

    async def _answer(self, name: str, scope: Scope, receive: Receive, send: Send) -> None:
        method = scope["method"]
        if name in {"llmtrace.js", "llmtrace.mjs"} and method in {"GET", "HEAD"}:
            await _send_script(scope, send, module=name.endswith(".mjs"))
        elif name == "beacon" and method in {"POST", "OPTIONS"}:
            await self._take(scope, receive, send)
        else:
            await _respond(send, 404, "nothing here")

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take one beacon, however wrong it is."""
        origin = _header(scope, b"origin")
        allowed = self._allowed(scope, origin)
        cors = [] if allowed is None else _cors(allowed)
        if origin is not None and allowed is None:
            await _respond(send, 403, "beacons of this origin are not taken")
            return
        if scope["method"] == "OPTIONS":
            await _respond(send, 204, "", cors)
            return
        body = await _body(receive)
        if body is None:
            await _respond(send, 413, f"a beacon has at most {MAX_BYTES} bytes", cors)
            return
        try:
            self._taken(read_beacon(body))
        except DataError as error:
            count_internal("browser.bad_beacon")
            await _respond(send, 400, str(error), cors)
        else:
            await _respond(send, 204, "", cors)

    def _allowed(self, scope: Scope, origin: str | None) -> str | None:
        """Return the origin that the response allows; `None` if the beacon's is not allowed."""
        if origin is None:
            return None
        if "*" in self._origins:
            return "*"
        # Behind a proxy that ends TLS the scheme is not known here: the host is what counts.
        host = _header(scope, b"host")
        if origin in self._origins or (host and origin.partition("://")[2] == host):
            return origin
        return None

    def _taken(self, beacon: Beacon) -> None:
        try:
            known = self._waiting.beacon(beacon)
            runtime = active()
            if runtime is None:
                return
            if known is None:
                sampled = runtime.samples_root(beacon.trace_id, SPAN_NAME, {})
            else:
                sampled = known.sampled
            if not sampled:
                return
            if known is None and not self._spans.one():
                count_internal("browser.unknown_dropped")
                return
            ended = runtime.wall() - beacon.age_ns
            span = page_span(beacon, runtime.service, ended)
            runtime.emit_span(span, _inside(beacon.trace_id, beacon.span_id, sampled=True))
        except Exception as error:  # noqa: BLE001 - a beacon must not break the server
            internal_error("browser", error)


def page_span(beacon: Beacon, service: str, ended: int) -> Span:
    """Make the span of a page's own request, the root of its trace, from its beacon.

    It ends at `ended`, in unix nanoseconds by the server's clock.
    """
    browser = beacon.browser
    failed = browser.outcome in FAILED
    return Span(
        name=SPAN_NAME,
        kind="client",
        trace_id=beacon.trace_id,
        span_id=beacon.span_id,
        service=service,
        start=ended - browser.e2e_ns,
        duration_ns=browser.e2e_ns,
        attributes=flatten(browser, ON_WIRE),
        error=(browser.error_type or browser.outcome) if failed else None,
    )


class Allowance:
    """So many a second, and no more."""

    def __init__(self, per_s: float) -> None:
        self._per_s = self._left = per_s
        self._at = time.monotonic()

    def one(self) -> bool:
        """Say whether one more may be had, and take it."""
        now = time.monotonic()
        self._left = min(max(1.0, self._per_s), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def _page(scope: Scope) -> tuple[str, str] | None:
    """Return trace and span id of the page's own span, if the script made this request."""
    tag = _header(scope, HEADER.encode()) or ""
    given: str | None = tag.removeprefix(_TAG) if tag.startswith(_TAG) else None
    if given is None and b"llmtrace=" in scope.get("query_string", b""):
        [given] = parse_qs(scope["query_string"].decode("latin-1")).get(PARAMETER, [None])[:1]
    found = _MARK.fullmatch(given) if given else None
    return None if found is None else (found[1].replace("-", ""), found[2].replace("-", ""))


def _sampled(runtime: Runtime, trace_id: str, scope: Scope) -> bool | None:
    """Return whether the page's trace is sampled, as if this request were its root.

    Returns:
        The page's own `traceparent` decides if it sent one of this trace, else the
        application's sampler; `None` if that cannot be evaluated.
    """
    given = _TRACEPARENT.fullmatch(_header(scope, b"traceparent") or "")
    if given and given[1] == trace_id:
        return bool(int(given[2], 16) & otel_trace.TraceFlags.SAMPLED)
    method, path = scope["method"], scope["path"]
    # What OpenTelemetry's own ASGI instrumentation gives samplers, in both its dialects.
    known = {
        "http.request.method": method, "url.path": path, "url.scheme": scope.get("scheme", "http"),
        "http.method": method, "http.target": path, "http.scheme": scope.get("scheme", "http"),
    }  # fmt: skip
    return runtime.samples_root(trace_id, f"{method} {path}", known)


def _inside(trace_id: str, span_id: str, *, sampled: bool) -> Context:
    """Return the context in which the page's own span is the current one."""
    ids = otel_trace.SpanContext(
        int(trace_id, 16),
        int(span_id, 16),
        is_remote=True,
        trace_flags=otel_trace.TraceFlags(sampled),
    )
    return otel_trace.set_span_in_context(otel_trace.NonRecordingSpan(ids))


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope.get("headers", ()):
        if key.lower() == name:
            return str(value, "latin-1")
    return None


async def _body(receive: Receive) -> bytes | None:
    """Read a body, and stop at the first byte too many."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        body += bytes(message.get("body", b""))
        if len(body) > MAX_BYTES:
            return None
        if not message.get("more_body", False):
            return body


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-allow-methods", b"POST"),
        (b"access-control-allow-headers", b"content-type"),
        (b"access-control-max-age", b"86400"),
        (b"vary", b"origin"),
    ]


async def _respond(
    send: Send, status: int, text: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    body = text.encode()
    length = [(b"content-length", str(len(body)).encode())] if status != _NO_CONTENT else []
    kind = (b"content-type", b"text/plain; charset=utf-8")
    await send(
        {"type": "http.response.start", "status": status, "headers": [kind, *length, *headers]}
    )
    await send({"type": "http.response.body", "body": body})


_NO_CONTENT: Final = 204


@lru_cache(maxsize=2)
def _compressed(*, module: bool) -> bytes:
    return gzip.compress(script(module=module).encode(), mtime=0)


async def _send_script(scope: Scope, send: Send, *, module: bool) -> None:
    headers = [
        (b"content-type", b"text/javascript; charset=utf-8"),
        (b"cache-control", b"public, max-age=3600"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
        # So that a page of another origin can load it as a module.
        (b"access-control-allow-origin", b"*"),
    ]
    body = script(module=module).encode()
    if "gzip" in (_header(scope, b"accept-encoding") or ""):
        body = _compressed(module=module)
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
