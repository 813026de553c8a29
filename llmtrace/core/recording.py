"""The recording of one running request, from which its `Row` is made.

A `Recording` is the request's clock, the facts that are known of it so far, and its state: is a
client inside its call, does the consumer have the stream, is it over? Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from llmtrace.core.attempt_clock import AttemptClock
from llmtrace.core.content import Content
from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.failopen import internal_error
from llmtrace.core.gap_slots import written
from llmtrace.core.request_clock import REASONING, TEXT, TOOL_CALL, Clock, since
from llmtrace.core.row import Outcome, Row, blank_row
from llmtrace.core.stages import EngineFigures, Network, Reported, StageName, Timeline, better

# Takes a finished row whose outcome is not settled yet, and what to give it to when it is.
Defer = Callable[[Row, Callable[[Row], None]], None]

# Reports of the engine's time that are kept: one of each source there may be, and then some.
_MAX_REPORTS: Final = 16


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


class Recording(AttemptClock):
    """One request while it runs.

    Args:
        emit: gets the finished row, once. Called in the thread that ended the request.
        info: row fields known from the start; instrumentation may add to it until the end.
        clock: monotonic nanoseconds.
        wall: unix nanoseconds, read once.
    """

    __slots__ = (
        "__weakref__", "_emit", "attributes", "call_began", "call_ended", "calling", "content",
        "engine", "expects_finish", "failure", "function", "gateway", "hops",
        "in_decorated_function", "info", "joined", "labels", "no_gateway_seen", "on_finish",
        "on_stream_end", "open", "outgoing", "reads_bytes", "span", "stated", "stream",
        "usage_hidden", "waits",
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
        super().__init__(clock, wall)
        self.stream = False
        self.gateway: Reported | None = None
        self.hops: dict[str, Any] = {}  # what each gateway on the way reported of itself
        self.no_gateway_seen = False  # no gateway shows in the answer's headers
        self.engine: list[EngineFigures] = []
        # llmtrace requested usage: its extra chunk is not for the client.
        self.usage_hidden = False
        self.expects_finish = False  # the protocol ends an answer with a finish reason
        self.failure: tuple[Outcome, str | None] | None = None
        self.stated: Outcome | None = None  # the outcome that the application states
        self.joined = False  # a client's call records into this recording already
        self.calling = False  # a client is inside its call: HTTP requests made now belong to it
        # Headers to add to the call's requests, and the HTTP client that sends them.
        self.outgoing: tuple[Any, Mapping[str, str]] | None = None
        self.open = False  # the consumer has the stream, and it has not ended
        self.reads_bytes = False  # the stream is read as bytes: no client parses it into chunks
        self.in_decorated_function = False  # one still runs around the stream
        # The name of that function, and its fields and attributes.
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

    # --- facts ----------------------------------------------------------------------------------

    def opened(self) -> None:
        """Note that the consumer has the stream: from here on its time is its own."""
        self.stream = self.open = True
        self.switch_interval(reading=False)

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

    # --- the end --------------------------------------------------------------------------------

    def call_begins(self) -> None:
        """Note that a decorated function begins a call; the first one counts."""
        now = self.switch_interval(reading=True)
        self.call_ended = None
        if self.call_began is None:
            self.call_began = CallBegan(now, self.waited, self.marked_before.copy())

    def becomes_its_call(self) -> None:
        """Give the time before the first call to the decorated function, and record that call."""
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

    def disown(self) -> None:
        """Go on without a row: the row belongs to the process that this one was forked from."""
        self._emit = self._emit and (lambda *_: None)

    @property
    def ended(self) -> bool:
        """Whether the row has been made."""
        return self._emit is None

    def left(self) -> Recording:
        """Note that a decorated function is over; return its span or its row, to be ended."""
        function = self.function or self
        function.in_decorated_function = False
        return function

    def ends_unseen(self, end: Callable[[], None]) -> None:
        """End as of the last read, unless one is under way: when it was abandoned is not known."""
        clock, last = self.clock, self.mark
        if not self.reading:
            self.clock = lambda: last
        end()
        self.clock = clock  # a decorated function may go on

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
        if self.stream and self.info.get("finish_reason") is None:
            self.finish("cancelled", error_type, defer)
        else:
            self.finish("success", defer=defer)

    def failed(self, error: BaseException) -> None:
        """End the request as failed, with the exception that was raised."""
        self.finish(*outcome_of(error))

    def finish(
        self, outcome: Outcome, error_type: str | None = None, defer: Defer | None = None
    ) -> None:
        """End the request, or only its stream while a decorated function still runs around it."""
        reading, self.open = self.open and self.stream, False
        if not self.in_decorated_function:
            if outcome == "cancelled" and reading and self.info.get("finish_reason"):
                outcome, error_type = "success", None  # delivered whole, however reading it ends
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
            self.add_gap(self.waited - self.waited_at_content)
        return now

    def _row(self, outcome: Outcome, error_type: str | None) -> Row:
        now = self._stop(outcome)
        network = self.network()
        last = self.attempts[-1] if self.attempts else None
        if last is not None and self.last_failed(last, outcome):
            self.charge(last, now)
            # Its phases are charged with it. Apart from that, a request that was rejected took no
            # network time: known to be none.
            network = Network() if last.status is None else Network(client_wait=0)
        elif last is not None and (self.attempt_log or last.error is not None):
            self.keep_attempt(last, now)
        row = blank_row()
        row["timeline"] = self._timeline(now, network)
        row["start"] = self.started_unix_ns
        row["outcome"], row["error_type"] = outcome, error_type
        if last is not None:
            row["http_status"] = last.status
            row["attempts"] = len(self.attempts) + self.attempts_forgotten
            row["attempt_log"] = log = tuple(self.attempt_log)
            again = (one.status for one in reversed(log[:-1]) if one.status is not None)
            row["retried_status"] = next(again, None)
        self._times(row, None if last is None else last.answered)
        row["attributes"] = self.attributes.copy()
        if self.content is not None:
            row["content"] = self.content.attributes(self.info.get("finish_reason"))
        row.update(self.info)
        return Row.of(row)

    def _timeline(self, now: int, network: Network) -> Timeline:
        """Return what was measured and reported of the request, which is over now."""
        queue = prefill = decode = frontend = kv_transfer = None
        # Inline, as `with_engine` would cost some 10 µs a row. A response from a cache may hold
        # the figures of the request that it was made for.
        for figures in () if self.info.get("cache_hit") else self.engine:
            queue, prefill = better(queue, figures.queue), better(prefill, figures.prefill)
            decode, frontend = better(decode, figures.decode), better(frontend, figures.frontend)
            kv_transfer = better(kv_transfer, figures.kv_transfer)
        ttft, held = self.ttft, self.consumer_time
        return Timeline(
            e2e=since(self.start, now),
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

    def _times(self, row: dict[str, Any], answered: int | None) -> None:
        """Note in the row how many chunks came, and when what happened."""
        start, ttft, firsts = self.start, self.ttft, self.firsts
        gap_counts = tuple(self.gap_counts)
        gaps = sum(gap_counts)
        if ttft is not None:
            row["chunks"] = 1 + gaps
            row["gap_sum_ns"] = self.waited_at_content - (ttft - self.held_before)
        if gaps:
            row["burst_chunks"] = gap_counts[0]
        if self.gap_slots:
            row["max_gap_ns"] = self.max_gap
            row["gaps"] = written(self.slot_ns, self.gap_slots)
        row["gap_counts"] = gap_counts
        arrival = self.arrival
        if arrival is not None:
            row["client_lag_ns"] = arrival.lag
        happened = (
            answered, self.first_byte, self.first_event,
            firsts[TEXT], firsts[REASONING], firsts[TOOL_CALL], self.last_content or None,
            None if arrival is None else arrival.by,
        )  # fmt: skip
        for name, at in zip(_HAPPENED, happened, strict=True):
            if at is not None:
                row[name] = since(start, at)


# How a stream ends that does not show the failure inside it.
_NO_FAILURE: Final = frozenset({"success", "cancelled", "truncated"})


# When what happened, in the row: from its start.
_HAPPENED: Final = (
    "answered_ns", "first_byte_ns", "first_event_ns",
    "first_text_ns", "first_reasoning_ns", "first_tool_call_ns", "last_content_ns",
    "arrived_by_ns",
)  # fmt: skip
