"""The recording of one running request, from which its `Row` is made.

A `Recording` keeps a running split of one request's time into waiting and consumer time, and a few
marks. Its size does not grow with the stream. Standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from llmtrace.core.arrival import LOOK_NS, Arrival
from llmtrace.core.attempts import MAX_ATTEMPTS, Attempt, keep
from llmtrace.core.content import Content
from llmtrace.core.error_codes import code_of
from llmtrace.core.failopen import internal_error
from llmtrace.core.row import Outcome, Row, blank_row
from llmtrace.core.stages import EngineFigures, Network, Reported, StageName, Timeline, better

Clock = Callable[[], int]
# Takes a finished row whose outcome is not settled yet, and what to give it to when it is.
Defer = Callable[[Row, Callable[[Row], None]], None]

# What a chunk carries. Only the kinds above NOTHING are content.
PIECE: Final = -2  # no event yet: a part of one, or a comment
HIDDEN: Final = -1  # requested by llmtrace, not by the client: must not reach it
NOTHING: Final = 0
TEXT: Final = 1
REASONING: Final = 2
TOOL_CALL: Final = 3
OTHER: Final = 4

# Upper bounds of the inter-chunk gap histogram, in nanoseconds. The OpenTelemetry GenAI bounds
# (10 ms doubling to 82 s) are all among them; below 10 ms and around 30-50 ms they are finer,
# because that is where decode steps are.
GAP_BOUNDS_NS: Final = tuple(
    ms * 1_000_000
    for ms in (
        1, 2, 5, 8, 10, 15, 20, 25, 30, 40, 50, 80, 100, 160, 250, 320, 500, 640, 1_000, 1_280,
        2_560, 5_120, 10_240, 20_480, 40_960, 81_920,
    )
)  # fmt: skip

# Reports of the engine's time that are kept: one of each source there may be, and then some.
_MAX_REPORTS: Final = 16


@dataclass(slots=True)
class LiveAttempt:
    """One HTTP attempt as it goes: monotonic nanoseconds, `None` until it happened."""

    started: int
    first_wire: int | None = None
    phase_started: int = 0
    dns: int | None = None
    connect: int | None = None
    tunnel: int = 0  # what a proxy took to connect on, after `connect` and before TLS
    tls: int | None = None
    handshake: int | None = None
    send_started: int | None = None
    send: int | None = None
    rtt: Reported | None = None
    sent: bool = False
    answered: int | None = None
    status: int | None = None
    under_way: bool = False  # sent by one HTTP library, which may use another for it
    ended: int | None = None  # where it failed: by an error's headers, or by an exception
    error: str | None = None
    retry_after: int | None = None


@dataclass(frozen=True, slots=True)
class CallBegan:
    """What had been measured of a decorated function when its first call began.

    Attributes:
        at: on the recording's clock.
        waited: nanoseconds of waiting before it.
        marked: nanoseconds marked before it, by stage.
    """

    at: int
    waited: int
    marked: Mapping[StageName, int]


class Recording:
    """One request while it runs.

    Every nanosecond since `start` is either waited (blocked in the call or in a read) or
    consumer time (the consumer has the stream and is busy with something else). Only the waiting
    is added up; the rest is consumer time, so the two make the whole however the request ends.

    Args:
        emit: gets the finished row, once. Called in the thread that ended the request.
        info: row fields known from the start; instrumentation may add to it until the end.
        clock: monotonic nanoseconds.
        wall: unix nanoseconds, read once.
    """

    __slots__ = (
        "__weakref__", "_emit", "arrival", "attempt_log", "attempts", "attempts_forgotten",
        "attributes", "call_began", "call_ended", "calling", "client", "clock", "content",
        "engine", "expects_finish", "failure", "first_byte", "first_event", "firsts",
        "function", "gap_counts", "gateway", "held_before", "hops", "in_decorated_function",
        "info", "joined", "labels", "last_content", "mark", "marked_after", "marked_before",
        "max_gap", "no_gateway_seen", "on_finish", "on_stream_end", "open", "outgoing",
        "read_began", "reads_bytes", "retry_gateway", "retry_network", "span", "start",
        "started_unix_ns", "stated", "stream", "ttft", "usage_hidden", "wait_started", "waited",
        "waited_at_content", "waits",
    )  # fmt: skip

    def __init__(
        self,
        emit: Callable[[Recording, Row], None],
        info: dict[str, Any],
        *,
        clock: Clock = time.perf_counter_ns,
        wall: Clock = time.time_ns,
    ) -> None:
        self._emit: Callable[[Recording, Row], None] | None = emit
        self.info = info
        self.attributes: dict[str, str | bool | int | float | tuple[str, ...]] = {}
        self.clock = clock
        self.started_unix_ns = wall()
        self.start = self.mark = clock()
        # 0 means that no wait is open, so a clock that starts there reads 1 more.
        if self.start == 0:
            self.clock = lambda: clock() + 1
            self.start = self.mark = 1
        self.wait_started = self.start  # 0: no wait is open
        self.waited = 0
        self.read_began = self.start  # of the last read, where it is not one of many alike
        self.arrival: Arrival | None = None  # where the kernel says when the data came
        self.stream = False
        self.ttft: int | None = None
        self.held_before = 0
        self.waited_at_content = 0
        self.last_content = 0
        self.max_gap = -1
        self.gap_counts = [0] * (len(GAP_BOUNDS_NS) + 1)
        self.first_byte: int | None = None
        self.first_event: int | None = None
        self.firsts: list[int | None] = [None] * 5
        self.attempts: list[LiveAttempt] = []
        self.attempts_forgotten = 0
        self.attempt_log: list[Attempt] = []  # attempts that are over
        # From the start to the first attempt, less consumer time and marks; None: no attempt seen.
        self.client: int | None = None
        self.retry_network = self.retry_gateway = 0
        self.gateway: Reported | None = None
        self.hops: dict[str, Any] = {}  # what each gateway on the way reported of itself
        self.no_gateway_seen = False  # no gateway shows in the answer's headers
        self.engine: list[EngineFigures] = []
        self.marked_before: dict[StageName, int] = {}
        self.marked_after: dict[StageName, int] = {}
        self.usage_hidden = (
            False  # llmtrace requested usage: its extra chunk is not for the client
        )
        self.expects_finish = False  # the protocol ends an answer with a finish reason
        self.failure: tuple[Outcome, str | None] | None = None
        self.stated: Outcome | None = None  # what the application says it came to
        self.joined = False  # a client's call records into this recording already
        self.calling = False  # a client is inside its call: what goes over the wire is ours
        # Headers to add to the call's requests, and the HTTP client that sends them.
        self.outgoing: tuple[Any, Mapping[str, str]] | None = None
        self.open = False  # the consumer has the stream, and it has not ended
        self.reads_bytes = False  # the stream is read as bytes: no client parses it into chunks
        self.in_decorated_function = (
            False  # a decorated function is still running around the stream
        )
        # What the decorated function around the stream is called, and its fields and attributes.
        self.labels: tuple[str, dict[str, Any], dict[str, Any]] | None = None
        self.call_began: CallBegan | None = None  # a client's call, in a decorated function
        self.call_ended: int | None = None
        # The decorated function's own recording, once it is no request but a span around several.
        self.function: Recording | None = None
        self.on_stream_end: Callable[[Outcome, str | None], None] | None = None
        self.span: Any = None
        self.on_finish: Callable[[Row], Row] | None = None  # has a last say in the row
        self.content: Content | None = None  # the prompt and response, if they are recorded
        self.waits: Any = None  # when it waits, one by one, while a gateway has to know

    # --- time -----------------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        """Whether a call or read blocks right now."""
        return self.wait_started != 0

    def switch_interval(self, *, reading: bool) -> int:
        """Close the running interval and begin the next, wait or consumer time; return now."""
        now = self.clock()
        if self.wait_started:
            self.waited += now - self.wait_started
            self.read_began = self.wait_started
        self.mark = now
        self.wait_started = now if reading else 0
        return now

    @property
    def consumer_time(self) -> int:
        """Consumer time so far, in nanoseconds; a wait that goes on began at `wait_started`."""
        return (self.wait_started or self.mark) - self.start - self.waited

    def opened(self) -> None:
        """Note that the consumer has the stream: from here on its time is its own."""
        self.stream = self.open = True
        self.switch_interval(reading=False)

    def event(self, kind: int) -> None:
        """Note what arrived at the last boundary."""
        arrival = self.arrival
        if arrival is not None and self.mark - self.read_began > LOOK_NS:
            arrival.read(self.read_began, self.mark)
        if kind > NOTHING and self.ttft is not None and self.firsts[kind] is not None:
            self.add_content_chunk()
            return
        if kind == PIECE:
            return
        now = self.mark
        if self.first_event is None:
            self.first_event = now
        if kind <= NOTHING:
            return
        self.firsts[kind] = now
        if self.ttft is not None:
            self.add_content_chunk()
            return
        self.ttft = _since(self.start, now)
        self.held_before = self.consumer_time
        self.last_content = now
        self.waited_at_content = self.waited
        if arrival is not None:
            arrival.first_content(now)

    def add_content_chunk(self) -> None:
        """Note one more chunk with content. `timed_reads.timed_reads` has this in line."""
        gap = self.waited - self.waited_at_content
        self.gap_counts[bisect_left(GAP_BOUNDS_NS, gap)] += 1
        self.max_gap = max(self.max_gap, gap)
        self.waited_at_content = self.waited
        self.last_content = self.mark

    def add_mark(self, stage: StageName, ns: int) -> None:
        """Note an explicit mark. Inside the consumer's own time it is render already."""
        marks = self.marked_before if self.ttft is None else self.marked_after
        marks[stage] = marks.get(stage, 0) + max(0, ns)

    def annotate(self, fields: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        """Note row fields and attributes that the application adds while it runs."""
        self.info.update(fields)
        self.attributes.update(attributes)
        if self.labels is not None:
            name, row_fields, span_attributes = self.labels
            kept = {key: value for key, value in fields.items() if key != "cache_hit"}
            self.labels = name, {**row_fields, **kept}, {**span_attributes, **attributes}

    @property
    def on_the_wire(self) -> bool:
        """Whether an HTTP call made right now belongs to this request.

        An SDK's own does; in a decorated function, any up to the first content.
        """
        own = self.in_decorated_function and not self.joined and self.ttft is None
        return self._emit is not None and (self.calling or own)

    def add_engine_figures(self, figures: EngineFigures) -> None:
        """Note a report of the engine's time. A server may repeat itself without end."""
        if not self.engine or (len(self.engine) < _MAX_REPORTS and figures not in self.engine):
            self.engine.append(figures)

    # --- attempts -------------------------------------------------------------------------------

    def attempt(self) -> LiveAttempt:
        """Begin an HTTP attempt; a failed one before it is charged to the side that failed it."""
        now = self.clock()
        last = self.attempts[-1] if self.attempts else None
        if last is not None and (last.status is None or last.status >= _HTTP_ERROR):
            self._charge(last, now)
        else:
            # The first, or an earlier call of a decorated function that went well: all the time
            # up to here was the client's own.
            marked = sum(self.marked_before.values()) if self.marked_before else 0
            retried = self.retry_network + self.retry_gateway
            self.client = _since(self.start + self.consumer_time + marked + retried, now)
            self.attempts.clear()
            self.attempts_forgotten = 0
        attempt = LiveAttempt(now)
        self.attempts.append(attempt)
        if len(self.attempts) > MAX_ATTEMPTS:
            del self.attempts[0]
            self.attempts_forgotten += 1
        return attempt

    def _charge(self, failed: LiveAttempt, now: int) -> None:
        """Charge a failed attempt and its backoff to the answering gateway, or to the network."""
        if failed.status is None:
            self.retry_network += now - failed.started
        else:
            self.retry_gateway += now - failed.started
        self._tried(failed, now)

    def _tried(self, attempt: LiveAttempt, now: int) -> None:
        """Keep what an attempt came to; the time since it failed was backoff."""
        ended = now if attempt.ended is None else min(now, attempt.ended)
        duration = max(0, ended - attempt.started)
        one = Attempt(
            start_ns=max(0, attempt.started - self.start),
            duration_ns=duration,
            backoff_ns=max(0, now - attempt.started - duration),
            status=attempt.status,
            error_type=attempt.error,
            retry_after_ns=attempt.retry_after,
        )
        keep(self.attempt_log, one)

    def _network(self) -> Network:
        """Sub-phases of the attempt that carried the answer, from its waiting for a connection."""
        last = self.attempts[-1] if self.attempts else None
        if last is None or last.first_wire is None:  # the HTTP library reported nothing
            return Network()
        return Network(
            client_wait=last.first_wire - last.started,
            dns=last.dns,
            connect=None if last.connect is None else last.connect + last.tunnel,
            tls=last.tls,
            handshake=last.handshake,
            send=last.send,
            rtt=None if last.rtt is None else last.rtt.ns,
            rtt_source=None if last.rtt is None else last.rtt.source,
        )

    # --- the end --------------------------------------------------------------------------------

    def call_begins(self) -> None:
        """Note that a decorated function begins a call; the first one counts."""
        now = self.switch_interval(reading=True)
        self.call_ended = None
        if self.call_began is None:
            self.call_began = CallBegan(now, self.waited, self.marked_before.copy())

    def becomes_its_call(self) -> None:
        """Leave to the decorated function what was its own, and be its first call alone."""
        began = self.call_began
        self.in_decorated_function = False
        if began is None:
            return
        before = began.at - self.start
        held, marked = before - began.waited, sum(began.marked.values())
        self.start, self.started_unix_ns = began.at, self.started_unix_ns + before
        self.waited -= began.waited
        if self.ttft is not None:
            self.ttft = max(0, self.ttft - before)
            self.held_before = max(0, self.held_before - held)
            self.waited_at_content = max(0, self.waited_at_content - began.waited)
        if self.client is not None:
            self.client = max(0, self.client - (began.waited - marked))
        for stage, ns in began.marked.items():
            self.marked_before[stage] -= ns
        self.attempt_log = [
            replace(one, start_ns=max(0, one.start_ns - before)) for one in self.attempt_log
        ]
        ended = self.call_ended
        if ended is not None:
            self.clock = lambda: ended
            self.end("success")  # or as it failed

    def forget(self) -> None:
        """End without a row: there was no request after all."""
        self._emit = None
        self.switch_interval(reading=False)

    @property
    def ended(self) -> bool:
        """Whether the row has been made."""
        return self._emit is None

    def left(self) -> Recording:
        """Note that a decorated function is over; return its span or its row, to be ended."""
        function = self.function or self
        function.in_decorated_function = False
        return function

    def exhausted(self) -> None:
        """End a stream read to its end: a success, unless its finish reason is missing."""
        cut = self.expects_finish and self.info.get("finish_reason") is None
        self.finish("truncated" if cut else "success")

    def abandoned(self, defer: Defer | None = None, error_type: str | None = None) -> None:
        """End a stream that the consumer closed, broke out of, or dropped.

        Args:
            defer: gets the row first, with what takes it on.
            error_type: what to call it, if the stream had not ended.
        """
        if self.in_decorated_function and self.stream and not self.open:
            return  # it has ended; the function around it goes on
        finished = not self.stream or self.info.get("finish_reason") is not None
        if finished:
            self.finish("success", defer=defer)
        else:
            self.finish("cancelled", error_type, defer)

    def failed(self, error: BaseException) -> None:
        """End the request as failed, with the exception that was raised."""
        self.finish(*outcome_of(error))

    def finish(
        self, outcome: Outcome, error_type: str | None = None, defer: Defer | None = None
    ) -> None:
        """End the request, or only its stream while a decorated function still runs around it."""
        self.open = False
        if not self.in_decorated_function:
            self.end(outcome, error_type, defer)
        elif not self.ended:
            if self.failure is None and outcome != "success":
                self.failure = (outcome, error_type)
            try:
                self.call_ended = self._stop(outcome)
                notify, self.on_stream_end = self.on_stream_end, None
                if notify is not None:
                    notify(outcome, error_type)
            except Exception as error:  # noqa: BLE001 - a clock that breaks must not reach the app
                internal_error("record", error)

    def end(
        self, outcome: Outcome, error_type: str | None = None, defer: Defer | None = None
    ) -> None:
        """Make the row and hand it on. Only the first call does anything; none raises.

        With `defer`, the finished row goes there instead, together with what takes it on.
        """
        emit, self._emit = self._emit, None
        if emit is None:
            return
        try:
            if self.failure is not None and outcome in _NO_FAILURE:
                outcome, error_type = self.failure
            if self.stated not in (None, outcome):
                outcome, error_type = self.stated, None
            row = self._row(outcome, error_type)
            if self.on_finish is not None:
                try:
                    row = self.on_finish(row)
                except Exception as error:  # noqa: BLE001 - better a row that lacks something
                    internal_error("record", error)
            if defer is None:
                emit(self, row)
            else:
                defer(row, partial(emit, self))
        except Exception as error:  # noqa: BLE001 - the application must not notice
            internal_error("record", error)

    def _stop(self, outcome: Outcome) -> int:
        """Close the last interval of the stream. Return the time."""
        blocked = self.reading
        now = self.switch_interval(reading=False)
        if blocked and self.ttft is not None and outcome != "success":
            # The wait before a break is a gap too, or an idle time-out could not be proven.
            self.max_gap = max(self.max_gap, self.waited - self.waited_at_content)
        return now

    def _row(self, outcome: Outcome, error_type: str | None) -> Row:
        now = self._stop(outcome)
        network = self._network()
        last = self.attempts[-1] if self.attempts else None
        if last is not None and self._last_failed(last, outcome):
            self._charge(last, now)
            # Its phases are charged with it. Apart from that, a request that was rejected took no
            # network time: known to be none.
            network = Network() if last.status is None else Network(client_wait=0)
        elif last is not None and (self.attempt_log or last.error is not None):
            self._tried(last, now)
        queue = prefill = decode = frontend = kv_transfer = None
        # What a cache kept may hold the figures of the request it was made by.
        for figures in () if self.info.get("cache_hit") else self.engine:
            queue, prefill = better(queue, figures.queue), better(prefill, figures.prefill)
            decode, frontend = better(decode, figures.decode), better(frontend, figures.frontend)
            kv_transfer = better(kv_transfer, figures.kv_transfer)
        start, ttft, held, firsts = self.start, self.ttft, self.consumer_time, self.firsts
        gap_counts = tuple(self.gap_counts)
        gaps = sum(gap_counts)
        timeline = Timeline(
            e2e=_since(start, now),
            ttft=ttft,
            client=self.client,
            held_before=held if ttft is None else self.held_before,
            held_after=0 if ttft is None else held - self.held_before,
            network=network,
            retry_network=self.retry_network,
            retry_gateway=self.retry_gateway,
            gateway=self.gateway,
            queue=queue,
            prefill=prefill,
            engine_decode=decode,
            frontend=frontend,
            kv_transfer=kv_transfer,
            marked_before=self.marked_before.copy(),  # a mark may end after the row
            marked_after=self.marked_after.copy(),
            stream=self.stream,
        )
        row = blank_row()
        row["timeline"] = timeline
        row["start"] = self.started_unix_ns
        row["outcome"], row["error_type"] = outcome, error_type
        if last is not None:
            row["http_status"] = last.status
            row["attempts"] = len(self.attempts) + self.attempts_forgotten
            row["attempt_log"] = tuple(self.attempt_log)
        if ttft is not None:
            row["chunks"] = 1 + gaps
            row["gap_sum_ns"] = self.waited_at_content - (ttft - self.held_before)
        if gaps:
            row["burst_chunks"] = gap_counts[0]
        if self.max_gap >= 0:
            row["max_gap_ns"] = self.max_gap
        row["gap_counts"] = gap_counts
        arrival = self.arrival
        if arrival is not None:
            row["client_lag_ns"] = arrival.lag
        happened = (
            None if last is None else last.answered, self.first_byte, self.first_event,
            firsts[TEXT], firsts[REASONING], firsts[TOOL_CALL], self.last_content or None,
            None if arrival is None else arrival.by,
        )  # fmt: skip
        for name, at in zip(_HAPPENED, happened, strict=True):
            if at is not None:
                row[name] = _since(start, at)
        row["attributes"] = self.attributes.copy()
        if self.content is not None:
            row["content"] = self.content.attributes(self.info.get("finish_reason"))
        row.update(self.info)
        return Row.of(row)

    def _last_failed(self, last: LiveAttempt, outcome: Outcome) -> bool:
        """Say whether the request ended with its last attempt's failure, or in its backoff."""
        if self.ttft is not None or outcome == "success":
            return False
        if last.status is not None:
            return last.status >= _HTTP_ERROR
        # Time that ran out once the request was sent passed on the server, not on the way.
        return outcome == "error" or (outcome == "timeout" and not last.sent)


_HTTP_ERROR: Final = 400
# How a stream ends that does not show the failure inside it.
_NO_FAILURE: Final = frozenset({"success", "cancelled", "truncated"})


# When what happened, in the row: from its start.
_HAPPENED: Final = (
    "answered_ns", "first_byte_ns", "first_event_ns",
    "first_text_ns", "first_reasoning_ns", "first_tool_call_ns", "last_content_ns",
    "arrived_by_ns",
)  # fmt: skip


def _since(start: int, at: int) -> int:
    """Return how long after the start something happened."""
    return at - start if at > start else 0  # a clock may go backwards


def outcome_of(error: BaseException) -> tuple[Outcome, str | None]:
    """Name how a request ended from what was raised: the outcome and the error's type.

    That is the provider's own code for it, if the error carries one, else its class.
    """
    kinds = type(error).__mro__
    if isinstance(error, GeneratorExit):
        return "cancelled", None
    if _ran_out_of_time(error, kinds):
        return "timeout", type_name(error)
    if not isinstance(error, Exception):  # CancelledError, KeyboardInterrupt, SystemExit
        return "cancelled", type_name(error)
    names = {kind.__name__ for kind in kinds}
    if "RpcError" in names and (status := _grpc_status(error)) is not None:
        return outcome_of_status(status)
    if "FutureCancelledError" in names:  # gRPC's, of which it is an ordinary exception
        return "cancelled", type_name(error)
    if isinstance(error, TimeoutError) or any("Timeout" in name for name in names):
        return "timeout", type_name(error)
    return "error", code_of(error) or type_name(error)


def _ran_out_of_time(error: BaseException, kinds: tuple[type, ...]) -> bool:
    """Say whether a bare exception is a deadline's: gevent's by class, trio's by its scope."""
    for kind in kinds:
        named = kind.__module__.partition(".")[0], kind.__name__
        if named == ("gevent", "Timeout"):
            return True
        if named == ("trio", "Cancelled"):
            source = getattr(error, "source", None)  # from trio 0.31 on
            return _trio_deadline_passed() if source is None else source == "deadline"
    return False


def _trio_deadline_passed() -> bool:
    """Say whether the deadline of a scope around trio's running task has passed."""
    trio: Any = sys.modules["trio"]
    try:
        now = trio.current_time()
        status = trio.lowlevel.current_task()._cancel_status  # noqa: SLF001
        while status is not None:
            if status._scope.deadline <= now:  # noqa: SLF001
                return True
            status = status._parent  # noqa: SLF001
    except (AttributeError, RuntimeError):  # another version's insides, or no task
        pass
    return False


def outcome_of_status(status: str) -> tuple[Outcome, str]:
    """Name how a gRPC call ended from the name of its status; a plain end is no error to name."""
    return _GRPC_OUTCOMES.get(status, "error"), status


_GRPC_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "CANCELLED": "cancelled",
    "DEADLINE_EXCEEDED": "timeout",
}


def _grpc_status(error: Any) -> str | None:
    code = getattr(error, "code", None)  # of an RpcError that is a call, and not bare
    name = getattr(code() if callable(code) else None, "name", None)
    return name if isinstance(name, str) else None


def type_name(error: BaseException) -> str:
    """Name an exception's class as OpenTelemetry's `error.type` does."""
    kind = type(error)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


# Random 8-byte words in hex that are not used yet. From the operating system: an application may
# seed `random`, and needs its own sequence undisturbed.
_words: deque[str] = deque()
_WORDS_AT_ONCE: Final = 256
_NO_WORD: Final = "0" * 16

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_words.clear)


def random_id(size: int) -> str:
    """Make a random id of `size` bytes in hex: 16 for a trace, 8 for a span, 24 for both."""
    try:
        if size == 8:  # noqa: PLR2004
            return _words.pop()
        return "".join([_words.pop() for _ in range(size // 8)])
    except IndexError:
        drawn = os.urandom(8 * _WORDS_AT_ONCE).hex()
        words = [drawn[at : at + 16] for at in range(0, len(drawn), 16)]
        _words.extend([word for word in words if word != _NO_WORD])  # which would be no id
        return random_id(size)
