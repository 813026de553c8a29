"""Send OTLP export requests by HTTP."""

from __future__ import annotations

import os
import weakref
import zlib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Any, Final
from urllib.parse import urlsplit

import requests

from llmtrace.exporters.otlp.retry import RetryExhausted, Send
from llmtrace.exporters.otlp.settings import OtlpSettings

_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_OK: Final = range(200, 300)
_GZIP: Final = 16 + zlib.MAX_WBITS
# The fastest level costs half as much as the default one, and still makes rows 8 times smaller.
_LEVEL: Final = 1
_MAX_ANSWER: Final = 1 << 20


def http_sender(settings: OtlpSettings) -> Send:
    """Make what sends a request's bytes over one kept-alive HTTP connection."""
    headers = {
        **settings.headers,
        "content-type": "application/x-protobuf",
        "user-agent": f"llmtrace requests/{requests.__version__}",
    }
    if settings.gzip:
        headers["content-encoding"] = "gzip"
    where = urlsplit(settings.url)
    shown = f"{where.scheme}://{where.netloc.rpartition('@')[2]}{where.path}"
    sessions: dict[int, requests.Session] = {}  # by process: a fork must not share the socket
    # Prepared once, with what the environment says: that is half of the cost of a request.
    ready: requests.PreparedRequest | None = None
    environment: Mapping[str, Any] = {}

    def send(body: bytes) -> bytes:
        nonlocal ready, environment
        session = sessions.get(os.getpid())
        if session is None:
            session = sessions[os.getpid()] = _session(settings)
        try:
            if ready is None:
                # Per request: over a session's, requests prefers what the environment names.
                verify = settings.certificate or True
                environment = session.merge_environment_settings(
                    settings.url, proxies={}, stream=True, verify=verify, cert=None
                )
                ready = session.prepare_request(
                    requests.Request("POST", settings.url, headers=headers)
                )
            request = ready.copy()
            request.prepare_body(_gzip(body) if settings.gzip else body, None)
            response = session.send(
                request,
                timeout=settings.timeout_s,
                allow_redirects=False,  # requests would turn the POST into a GET
                **environment,
            )
            with response:
                answer = response.raw.read(_MAX_ANSWER, decode_content=True) or b""
        except (requests.RequestException, OSError) as error:
            reason = f"{_cause(error)}, sending to {shown}"
            raise RetryExhausted(reason, retryable=_passing(error)) from None
        status = response.status_code
        # A login page, say: whatever sent it took no rows. No protobuf begins like that.
        page = answer.lstrip().startswith(b"<")
        if status in _OK and not page:
            return bytes(answer)
        raise RetryExhausted(
            f"HTTP {status} {'with a web page ' if page else ''}from {shown}",
            retryable=status in _RETRYABLE,
            wait_s=_retry_after(response.headers.get("retry-after")),
        )

    # No more requests are sent: the kept connection is closed rather than left to be collected.
    weakref.finalize(send, _close, sessions).atexit = False
    return send


def _close(sessions: dict[int, requests.Session]) -> None:
    for session in sessions.values():
        session.close()


def _session(settings: OtlpSettings) -> requests.Session:
    session = requests.Session()
    if settings.client_certificate is not None and settings.client_key is not None:
        session.cert = (settings.client_certificate, settings.client_key)
    return session


def _cause(error: BaseException) -> str:
    """Name the innermost cause of an error; its own text would show the URL and its password."""
    while error.__context__ is not None:
        error = error.__context__
    text = error.strerror if isinstance(error, OSError) else None
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _passing(error: Exception) -> bool:
    """Say whether an error may pass: a refused connection may, a wrong certificate does not."""
    return not isinstance(error, requests.exceptions.SSLError | requests.exceptions.InvalidURL)


def _gzip(body: bytes) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return packer.compress(body) + packer.flush()


def _retry_after(text: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return max(0.0, seconds) if isfinite(seconds) else None
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
