"""Fetch a page from a server that may be slow, hostile or gone, or send far too much.

Within limits of time and size, without redirects, and with one word for each way to fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Collection
from typing import Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from llmtrace.api_clients.http_client import OWN_AUTHORITY, unreachable
from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.core.sanitize import printable

Reason = Literal[
    "connect",  # nothing listens there, or the name does not resolve
    "tls",
    "timeout",
    "http",  # another status than 200
    "size",  # too large
    "encoded",  # compressed, though that was not requested
    "protocol",  # the response is not HTTP, or broke off
    "page",  # the response is not a metrics page
    "token",  # the file with the token cannot be read
    "files",  # a file of its TLS cannot be read
]

_CHUNK: Final = 1 << 16
_LARGE: Final = 1 << 18
_MAX_SHOWN: Final = 200  # characters of an address
# OpenMetrics is not requested: it has the same metrics, with more to parse.
_HEADERS: Final = {
    "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
    # Compressing costs an engine's event loop milliseconds; the network here is a data centre's.
    "Accept-Encoding": "identity",
    "User-Agent": "llmtrace-collector",
}


class FetchError(SourceError):
    """A page could not be fetched.

    Attributes:
        reason: in one word, for a counter.
        status: of the response, if it is the reason.
    """

    def __init__(self, reason: Reason, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.reason: Reason = reason
        self.status = status


def shown(url: str) -> str:
    """Return an address that may be logged: without user, password and query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def checked(url: str, where: str) -> str:
    """Return an address if it is valid.

    Raises:
        ConfigError: it is not `http://` or `https://` with a host.
    """
    try:
        parts = urlsplit(url)
        there = parts.scheme in {"http", "https"} and parts.hostname
        _ = parts.port
    except ValueError:
        there = None
    if not there:
        raise ConfigError(f"{where}: {url!r} is not an address such as http://engine:8000/metrics")
    return url


def make_session() -> aiohttp.ClientSession:
    """Make a session that keeps connections alive: no cookies, no proxies of the environment."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=0, ttl_dns_cache=30),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        trust_env=False,
        headers=_HEADERS,
    )


async def fetch(
    session: aiohttp.ClientSession,
    url: str,
    *,
    timeout_s: float,
    size: int,
    authorization: str | None = None,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    large: asyncio.Semaphore | None = None,
    first_line: bool = False,
    statuses: Collection[int] = (200,),
) -> str:
    """Return a page's text.

    Args:
        session: of `make_session`.
        url: checked already.
        timeout_s: for all of it.
        size: bytes at most.
        authorization: the header of that name; `None` = none.
        tls: of `https://`; `None` = the system's authorities, and no certificate of ours.
        server_name: the name that the certificate must have; `None` = the host in the address.
        large: bounds how many large bodies are in memory at once; ordinary pages do not wait.
        first_line: whether to stop reading after the first line.
        statuses: of responses whose body is the page.

    Raises:
        FetchError: it could not be fetched; the message holds no secret.
    """
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(
                url,
                headers={"Authorization": authorization} if authorization else None,
                allow_redirects=False,
                ssl=True if tls is None else tls,
                server_hostname=server_name,
            ) as answer,
        ):
            if answer.status not in statuses:
                words = f"{shown(url)} answered {answer.status}"
                if (moved := answer.headers.get("Location")) is not None:
                    words += f": name the page itself, {shown(printable(moved))[:_MAX_SHOWN]}"
                raise FetchError("http", words, answer.status)
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise FetchError("encoded", f"{shown(url)} answered compressed: turn that off")
            return await _body(answer, url, size, large, first_line=first_line)
    except TimeoutError:
        raise FetchError("timeout", f"{shown(url)} took longer than {timeout_s:g} s") from None
    except (aiohttp.ClientSSLError, ssl.SSLError) as error:
        why, hint = unreachable(error), OWN_AUTHORITY if tls is None else "see its `ca_file`"
        if "mismatch" in why:
            hint = "if that is the right server, set `server_name` to a name in its certificate"
        raise FetchError("tls", f"{shown(url)}: TLS failed: {why} ({hint})") from error
    except (aiohttp.ClientConnectorError, ConnectionRefusedError) as error:
        raise FetchError("connect", f"{shown(url)}: {how_broken(error)}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise FetchError("protocol", f"{shown(url)}: {how_broken(error)}") from error


def how_broken(error: Exception) -> str:
    """Say why there is no response, in the system's words: asyncio's own repeat the address."""
    if isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError):
        return "the response broke off"
    if not isinstance(error, OSError):
        return "the response is not HTTP"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or "no connection"  # a name that is not known


async def _body(
    answer: aiohttp.ClientResponse,
    url: str,
    size: int,
    large: asyncio.Semaphore | None,
    *,
    first_line: bool,
) -> str:
    body = bytearray()
    held: asyncio.Semaphore | None = None
    try:
        async for chunk in answer.content.iter_chunked(_CHUNK):
            body += chunk
            if first_line and b"\n" in chunk:
                answer.close()
                break
            if len(body) > size:
                answer.close()  # what is still to come is not read
                raise FetchError("size", f"{shown(url)} sent more than {size} bytes")
            if large is not None and held is None and len(body) > _LARGE:
                await large.acquire()
                held = large
        return body.decode("utf-8", errors="replace")
    finally:
        if held is not None:
            held.release()


def read_json(text: str, url: str) -> Any:
    """Parse JSON.

    Raises:
        FetchError: it is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FetchError("page", f"{shown(url)} did not answer JSON") from error
