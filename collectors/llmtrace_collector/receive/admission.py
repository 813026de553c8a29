"""Admit a request, whatever transport it came by: check it, append it to the spool, count it.

One object for all protocols, so that they share one limit of memory. It belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from llmtrace_collector.receive.counters import Received
from llmtrace_collector.receive.decompress import inflate
from llmtrace_collector.receive.limits import MIB, ReceiveLimits
from llmtrace_collector.receive.otlp_json import from_json
from llmtrace_collector.receive.rejections import RejectedError
from llmtrace_collector.receive.spool import Spool
from llmtrace_collector.receive.validate import Checked, check, check_request

# Parsing this many bytes blocks an event loop for some milliseconds.
_LONG: Final = 1 * MIB
# Too short to be worth a thread, whatever its size after decompression.
_SHORT: Final = 16 << 10
_ANY: Final = 1 << 62
_UNBOUNDED: Final = ReceiveLimits(attributes=_ANY, span_bytes=_ANY, expanded_bytes=_ANY)
_UNPACKING: Final = 2  # at a time: the results count against the limit only afterwards


@dataclass(slots=True)
class Weight:
    """The memory that one request holds so far, in bytes."""

    held: int = 0


class Admission:
    """Checks requests and appends those it accepts to the spool.

    Args:
        spool: where they are appended.
        limits: what is accepted.

    Attributes:
        quarantine: the requests that the store did not take.
    """

    def __init__(self, spool: Spool, limits: ReceiveLimits | None = None) -> None:
        self.limits = limits or ReceiveLimits()
        self.counted = Received()
        self.quarantine = spool.quarantine
        self._spool = spool
        # One at a time, as a hostile body may take much memory once it is parsed.
        self._alone = asyncio.Semaphore(1)
        self._unpacking = asyncio.Semaphore(_UNPACKING)
        self._replaying = asyncio.Lock()  # two at once would store each request twice

    @contextmanager
    def weighing(self) -> Iterator[Weight]:
        """Count the memory of a request until it is answered."""
        weight = Weight()
        try:
            yield weight
        finally:
            self.counted.memory_bytes -= weight.held

    def weigh(self, weight: Weight, size: int) -> None:
        """Add to the memory of a request.

        Raises:
            RejectedError: `overloaded`: all requests together would hold too much.
        """
        if self.counted.memory_bytes + size > self.limits.memory_bytes:
            raise RejectedError("overloaded", "too many requests are in progress; retry later")
        weight.held += size
        self.counted.memory_bytes += size

    async def unpack(self, weight: Weight, body: bytes, encoding: str) -> bytes:
        """Decompress a body, and count the result as its memory.

        Raises:
            RejectedError: it is not compressed as it says, or too large.
        """
        most = self.limits.inflated_bytes
        if len(body) <= _SHORT:
            found = inflate(body, encoding, most)
        else:
            async with self._unpacking:
                found = await asyncio.to_thread(inflate, body, encoding, most)
        self.weigh(weight, len(found))
        return found

    async def take(self, transport: str, body: bytes, *, json: bool = False) -> Checked:
        """Check a request and append it to the spool.

        Args:
            transport: `http`, `grpc` or `beacon`.
            body: decompressed.
            json: whether it is JSON rather than protobuf.

        Returns:
            The part that was kept; the request may be acknowledged.

        Raises:
            RejectedError: nothing of it was kept.
        """
        if json:
            if len(body) > self.limits.json_bytes:
                raise RejectedError("too_large", f"more than {self.limits.json_bytes} B of JSON")
            checked = await self._in_thread(self._check_json, body)
        elif len(body) > _LONG:
            checked = await self._in_thread(self._check, body)
        else:
            checked = self._check(body)
        if checked.spans:
            await self._spool.append(checked.payload, checked.spans, checked.expanded)
        self.counted.requests[transport] += 1
        self.counted.spans[transport] += checked.spans
        self.counted.payload_bytes[transport] += len(body)
        self.counted.rejected_spans.update(checked.rejected)
        return checked

    async def replay(self) -> int:
        """Move the requests in quarantine back to the spool; return how many.

        Those that still cannot be stored return to the quarantine.

        Raises:
            RejectedError: the spool has no room; the rest stays in quarantine.
        """
        quarantine, count = self.quarantine, 0
        async with self._replaying:
            for entry in quarantine.entries():
                payload = quarantine.payload(entry.name)
                if payload is None:
                    continue
                try:
                    # It was accepted once: the present limits do not matter.
                    found = await self._in_thread(lambda body: check(body, _UNBOUNDED), payload)
                except RejectedError:
                    found = Checked(payload, entry.spans)
                await self._spool.append(payload, entry.spans, found.expanded)
                quarantine.remove(entry.name)
                count += 1
        return count

    def refuse(self, transport: str, error: RejectedError) -> None:
        """Count a request that was rejected."""
        self.counted.rejected[transport, error.reason] += 1

    def _check(self, body: bytes) -> Checked:
        return check(body, self.limits)

    def _check_json(self, body: bytes) -> Checked:
        request = from_json(body, self.limits.json_depth)
        return check_request(request, request.SerializeToString(), self.limits)

    async def _in_thread(self, work: Callable[[bytes], Checked], body: bytes) -> Checked:
        async with self._alone:
            return await asyncio.to_thread(work, body)
