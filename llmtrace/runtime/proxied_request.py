"""The self time of this process for a request that it passes on as a gateway.

The self time of a `ProxiedRequest` is the time up to the first content it sends in which it waited
neither for its upstream calls nor for its client. Work done while a response was under way, which
had to be waited for in any case, cost no time. Pure but for the clock; the gateway's middleware
makes one for each request, and the calls recorded inside report to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.overlap import covered
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import Clock, RequestClock
from llmtrace.core.span import Value
from llmtrace.core.stages import StageName

current: ContextVar[ProxiedRequest | None] = ContextVar("llmtrace_proxied_request", default=None)

# A shorter wait does not count: the data had already arrived and only had to be read.
_REAL_NS: Final = 1_000_000
# After so many waits before the first content, as where a response is read to its end first, the
# time between the further waits of a call counts as waiting.
_MAX_WAITS: Final = 4096
# Calls of one request beyond this are timed, and nothing else.
_MAX_CALLS: Final = 64
# What a process may do inside a call without waiting on its upstream.
_OWN_MARKS: Final = frozenset({"gateway", "render"})


class WaitIntervals:
    """When one call waited, as intervals on the monotonic clock, in nanoseconds.

    The time between two waits is included if the second was a real one: then the response was
    under way all the while.
    """

    __slots__ = ("_apart", "_closed", "_since")

    def __init__(self) -> None:
        self._closed: list[tuple[int, int]] = []
        self._since: int | None = None
        self._apart = False  # what lies before the open one is known to be no wait

    def begin(self, at: int) -> None:
        """Note that it waits from here on; a call that waits already goes on waiting."""
        if self._since is None:
            self._since = at

    def end(self, at: int) -> None:
        """Note that a wait has ended."""
        since, self._since = self._since, None
        apart, self._apart = self._apart, False
        if since is None or at <= since:
            return
        under_way = at - since >= _REAL_NS and not apart
        if self._closed and (under_way or len(self._closed) >= _MAX_WAITS):
            since = self._closed.pop()[0]
        self._closed.append((since, at))

    def interrupt(self, since: int, until: int) -> None:
        """Note that of a wait that is still going on, the time between was none."""
        if self._since is not None and self._since <= since:
            self.end(since)
            self.begin(until)
            self._apart = True

    def drop(self) -> None:
        """Forget them: the call failed, and its time is the gateway's own."""
        self._closed.clear()
        self._since = None

    @property
    def span(self) -> tuple[int, int] | None:
        """From the first wait's beginning to the last one's end; `None` = it never waited."""
        begun = self._closed[0][0] if self._closed else self._since
        ended = self._since or (self._closed[-1][1] if self._closed else None)
        return None if begun is None or ended is None else (begun, ended)

    def within(self, start: int, end: int) -> Iterable[tuple[int, int]]:
        """Yield the intervals, the one still open too, as far as they lie between two times."""
        open_one = () if self._since is None else ((self._since, end),)
        for begun, ended in (*self._closed, *open_one):
            if max(begun, start) < min(ended, end):
                yield max(begun, start), min(ended, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTime:
    """The time of a request up to its first content, in nanoseconds.

    `own`, `upstream` and `caller` add up to it exactly.

    Attributes:
        own: what the process spent itself.
        upstream: waiting on upstream calls; those side by side count once.
        caller: waiting for the rest of the request, and on no upstream meanwhile.
        beside: the part of `own` while a response was under way, or had arrived and was not read.
    """

    own: int
    upstream: int
    caller: int
    beside: int = 0

    def knowing(self, behind: int) -> SelfTime:
        """Return the same, knowing how long the upstream worked before its first content, in ns.

        What is missing of that overlapped with the process's own work, and cost no further time.
        """
        hidden = min(self.beside, max(0, behind - self.upstream))
        return SelfTime(
            own=self.own - hidden,
            upstream=self.upstream + hidden,
            caller=self.caller,
            beside=self.beside - hidden,
        )


class ProxiedRequest:
    """One request on its way through this process.

    Args:
        clock: monotonic nanoseconds.
        request_id: the caller's, or one of ours.

    Attributes:
        spent: once the first content is sent; until then `None`.
        cache_hit: whether it was answered from a cache, where the application says so.
        cache_kind: what kind of cache, where it says so.
        calls: the upstream calls that llmtrace records.
        blind: the waits of calls it is notified of and does not record.
        fields: row fields the application gave (`route`, `tenant`).
        attributes: other attributes of the request.
    """

    __slots__ = (
        "_ids", "attributes", "blind", "cache_hit", "cache_kind", "calls", "clock", "fields",
        "receiving", "request_id", "spent", "start",
    )  # fmt: skip

    def __init__(self, clock: Clock, request_id: str) -> None:
        self.clock = clock
        self.start = clock()
        self.request_id = request_id
        self.receiving = WaitIntervals()
        self.calls: list[Recording] = []
        self.spent: SelfTime | None = None
        self.cache_hit: bool | None = None
        self.cache_kind: str | None = None
        self.fields: dict[str, Any] = {}
        self.attributes: dict[str, Value] = {}
        self.blind: list[WaitIntervals] = []
        self._ids = 0

    def next_request_id(self) -> str:
        """Return the id of the next upstream call: the request's own, numbered after the first."""
        self._ids += 1
        return self.request_id if self._ids == 1 else f"{self.request_id}-{self._ids}"

    def upstream(self) -> WaitIntervals:
        """Return what to note the waits of an upstream call on that llmtrace cannot see."""
        waits = WaitIntervals()
        if self.spent is None and len(self.blind) < _MAX_WAITS:
            self.blind.append(waits)
        return waits

    def calls_upstream(self, recording: Recording) -> None:
        """Watch the waits of a call that has just begun to be recorded, until content is sent."""
        if self.spent is not None or len(self.calls) >= _MAX_WAITS:
            return
        recording.waits = waits = WaitIntervals()
        if recording.wait_started:
            waits.begin(recording.wait_started)
        recording.__class__ = _Watched
        self.calls.append(recording)

    def withdraw(self, recording: Recording) -> None:
        """Take back that a call began: it is a decorated function around several."""
        if recording in self.calls:
            self.calls.remove(recording)
            recording.waits = None

    @property
    def seen(self) -> bool:
        """Whether any upstream call was seen; without, self time and waiting are one."""
        return bool(self.calls or self.blind)

    def elapsed(self, now: int) -> SelfTime:
        """Split the time up to now into self time, upstream and client."""
        waited = [part for waits in self.blind for part in waits.within(self.start, now)]
        under_way = []
        for call in self.calls:
            parts = [*call.waits.within(max(self.start, _sent(call)), now)]
            waited += parts
            if parts:
                under_way.append((parts[0][0], parts[-1][1]))
        upstream = covered(waited)
        waited += self.receiving.within(self.start, now)
        both = covered(waited)
        return SelfTime(
            own=max(0, now - self.start) - both,
            upstream=upstream,
            caller=both - upstream,
            beside=covered([*waited, *under_way]) - both,
        )

    def finalize(self, now: int) -> SelfTime:
        """Split the time up to the first content, which is sent now; only the first call does."""
        if self.spent is None:
            self.spent = self.elapsed(now)
            for call in self.calls:
                call.__class__ = Recording  # its waits matter no more
            del self.calls[_MAX_CALLS:]
        return self.spent


def _sent(call: Recording) -> int:
    """Return when a call's request began to go out; what lies before was done here.

    That is when its last attempt did: the time of earlier attempts is lost time.
    """
    if not call.attempts:
        return call.start  # it was not seen on HTTP
    last = call.attempts[-1]
    if last.send_started is not None:
        return last.send_started
    # With word of the connection and none of the sending, it is still being made.
    return last.started if last.first_wire is None or last.answered else call.clock()


# The slot itself, which the class below covers.
_WAIT_STARTED: Final = vars(RequestClock)["wait_started"]


class _Watched(Recording):
    """A recording whose waits are noted one by one.

    A class of the same layout, so that other recordings, and those whose gateway has sent its
    first content, pay nothing for it.
    """

    __slots__ = ()

    @property
    def wait_started(self) -> int:
        return _WAIT_STARTED.__get__(self)  # type: ignore[no-any-return]

    @wait_started.setter
    def wait_started(self, at: int) -> None:
        _WAIT_STARTED.__set__(self, at)
        waits = self.waits
        if waits is not None:
            if at:
                waits.begin(at)
            else:
                waits.end(self.mark)

    def add_mark(self, stage: StageName, ns: int) -> None:
        """Note an explicit mark; time marked as the process's own is not waiting."""
        super().add_mark(stage, ns)
        if stage in _OWN_MARKS and self.waits is not None:
            now = self.clock()
            self.waits.interrupt(now - ns, now)

    def end(self, outcome: Any, *args: Any, **kwargs: Any) -> None:
        """Make the row; the time of a call that failed is lost time, and not waiting."""
        super().end(outcome, *args, **kwargs)
        if outcome != "success" and self.ttft is None and self.waits is not None:
            self.waits.drop()
