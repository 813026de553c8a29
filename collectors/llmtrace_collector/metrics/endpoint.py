"""Expose everything the collector knows as one metrics page.

In Prometheus's text format, or OpenMetrics with exemplars where the scraper asks for it.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response

# Below this size compression is not worth its overhead.
_SMALL: Final = 1_024
_GZIP_LEVEL: Final = 1


class MetricsPage:
    """Responds to `/metrics`. One page is made at a time, in a thread, as it may take a while."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._making = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Answer one scrape in the format that its headers accept."""
        accept = request.headers.get("accept", "")
        packed = "gzip" in request.headers.get("accept-encoding", "")
        async with self._making:
            body, kind, is_packed = await asyncio.to_thread(self._make, accept, packed)
        headers = {"Content-Encoding": "gzip"} if is_packed else {}
        return Response(body, headers={**headers, "Content-Type": kind, "Vary": "Accept-Encoding"})

    def _make(self, accept: str, packed: bool) -> tuple[bytes, str, bool]:
        encode, kind = choose_encoder(accept)
        body: bytes = encode(self._registry)
        if packed and len(body) > _SMALL:
            return gzip.compress(body, _GZIP_LEVEL, mtime=0), kind, True
        return body, kind, False


class OwnMetrics:
    """The collector's own health as metrics.

    Args:
        read: returns the metrics with their present values.
    """

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their present values."""
        return self._read()
