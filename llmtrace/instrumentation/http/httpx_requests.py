"""Record requests of httpx and httpx2 as rows of their own.

Those to models, of an instrumented library or client, that no enclosing client records already.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakSet

from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.instrumentation.headers import propagation
from llmtrace.instrumentation.http import httpx_bodies, llm_requests
from llmtrace.instrumentation.llm_sdks import patch

# The earlier value of each header that we set on a request; `None` = none.
Before = dict[str, str | None]
Begun = tuple[llm_requests.LlmRequest, Before]

_recorded: set[str] = set()  # libraries whose requests are recorded
_clients: WeakSet[Any] = WeakSet()  # clients whose requests are recorded


def records(target: Any) -> bool:
    """Return whether the requests of a library, by its name, or of one client are recorded."""
    return target in (_recorded if isinstance(target, str) else _clients)


def record(target: Any) -> Callable[[], None]:
    """Record the requests to models of a library, by its name, or of one client.

    Returns:
        The function that undoes it. It does not keep a client alive.
    """
    if isinstance(target, str):
        _recorded.add(target)
        return partial(_recorded.discard, target)
    _clients.add(target)
    reference = weakref.ref(target)

    def undo() -> None:
        if (alive := reference()) is not None:
            _clients.discard(alive)

    return undo


def begin(client: str, sender: Any, request: Any) -> Begun | None:
    """Begin recording a request if it calls a model; return its earlier values of our headers."""
    if request.method != "POST" or not (client in _recorded or sender in _clients):
        return None
    try:
        url = request.url
        body = getattr(request, "_content", None)
        post = llm_requests.begin(client, url.host, url.port, url.path, body)
    except Exception as error:  # noqa: BLE001 - the request goes out unrecorded
        internal_error("http.post", error)
        return None
    if post is None:
        return None
    if "x-stainless-lang" in request.headers:
        _check_bypass(request)
    before: Before = {}
    try:
        added = propagation.outgoing(post.recording, request.headers, url.host)
        before = {name: request.headers.get(name) for name in added}
        request.headers.update(added)
    except Exception as error:  # noqa: BLE001 - the request goes out as it was
        internal_error("http.post", error)
    return post, before


@fails_open("http.post")
def _check_bypass(request: Any) -> None:
    """Report a request of an instrumented SDK that its instrumentation has not seen."""
    version = request.headers.get("x-stainless-package-version", "")
    if patch.bypassed(request.url.path, version):
        internal_error(
            "sdk.bypassed",
            f"a request of the SDK in version {version} did not go through its `request`, which "
            "llmtrace instruments; it is recorded as plain HTTP, without its token counts",
        )


def take_back(request: Any, before: Before) -> None:
    """Restore a request's headers: if it is sent again, that is another row."""
    for name, value in before.items():
        request.headers.pop(name, None)
        if value is not None:
            request.headers[name] = value


def deliver(post: llm_requests.LlmRequest, response: Any, *, stream: bool) -> None:
    """Time the reading of a response from here on, or end the row."""
    recording = post.recording
    recording.calling = False
    try:
        stream = stream and not hasattr(response, "_content")  # a transport may have read it all
        kind = response.headers.get("content-type", "")
        if not response.is_success:  # a redirect that is not followed is no response either
            body = None if stream else response.content
            llm_requests.rejected(post, response.status_code, body, ends=not stream)
            if stream:
                httpx_bodies.watch_error_body(recording, response)
        elif stream:
            llm_requests.opened(post, kind)
        else:
            llm_requests.unary_response(post, response.content, kind)
    except Exception as error:  # noqa: BLE001
        internal_error("http.post", error)
        recording.finish("success")
