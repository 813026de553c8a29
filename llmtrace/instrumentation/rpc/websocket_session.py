"""Split the messages of one WebSocket into requests, and time each of them.

A request begins with the message that carries it, and ends with the last message of its response.
A read may time out or be cancelled: that ends the request only if no further read follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.attempt_clock import LiveAttempt
from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import NOTHING
from llmtrace.core.row import Outcome
from llmtrace.instrumentation import join_call
from llmtrace.instrumentation.http import tcp_info
from llmtrace.instrumentation.llm_sdks import chunks
from llmtrace.instrumentation.streams import cancellation, finalize
from llmtrace.instrumentation.streams.cancellation import Cancellation
from llmtrace.instrumentation.streams.chunk_timing import Classify
from llmtrace.runtime.runtime import Runtime, active

# A connection that is used this soon was opened for that request; else it was opened ahead.
_AT_ONCE_NS: Final = 1_000_000_000
# How long after a read that timed out or was cancelled the next one may begin.
_PATIENCE_S: Final = 1.0
# Longest message in parts that is kept to be read as a whole.
_MAX_LENGTH: Final = 1 << 20
# Outcome of a request in a decorated function that ends before the response does.
_LEFT: Final[tuple[Outcome, None]] = ("cancelled", None)


@dataclass(frozen=True, slots=True)
class Protocol:
    """How messages are classified. Each function is given one message.

    Attributes:
        classify: notes what a received message reports, and returns its kind.
        asks: whether a message sent begins a request; `None` = any that is sent when no response
            is under way.
        done: whether a received one is the last; `None` = the one that reports a finish reason.
        begins: whether a received one is a response's first; `None` = there is no such mark.
        ends_by_close: whether a response ends by closing the connection.
        apart: whether the message that reports a finish reason never carries content.
    """

    classify: Classify
    asks: Callable[[Any], bool] | None = None
    done: Callable[[Any], bool] | None = None
    begins: Callable[[Any], bool] | None = None
    ends_by_close: bool = False
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection whose opening was timed, and that has not been used yet.

    Attributes:
        recording: the one it was opened for.
        filled: the fields that opening it set there.
        attempt: its phases.
        at: when it was open, on the recording's clock.
        marked: the sum of the recording's marks by then, in nanoseconds.
    """

    recording: Recording
    filled: set[str]
    attempt: LiveAttempt
    at: int
    marked: int

    def at_once(self) -> bool:
        """Return whether it is so recent that it was opened for the current request."""
        recording = self.recording
        if recording.ended or recording.in_decorated_function:  # a function may do other things
            return False
        return recording.clock() - self.at <= _AT_ONCE_NS

    def unused(self) -> None:
        """Note that it was opened for no request; a function's recording goes on."""
        if not (self.recording.in_decorated_function or self.recording.ended):
            self.recording.forget()


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A read that ended without a message, and the outcome if it was the last one."""

    at: int
    outcome: Cancellation | tuple[Outcome, str | None]


class Parts:
    """A message in parts, for protocols that can only read it as a whole.

    Attributes:
        recording: of the request that was running when its last part came.
        at: when that was, on the recording's clock.
        waited: what the recording had waited by then, in nanoseconds.
    """

    __slots__ = ("_parts", "_size", "at", "recording", "waited")

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._size = 0
        self.recording: Recording | None = None
        self.at = self.waited = 0

    def add(self, part: Any) -> None:
        """Keep one more part; a message that is too long is discarded."""
        self._size += len(part)
        if self._size <= _MAX_LENGTH:
            self._parts.append(part)
        else:
            self._parts.clear()

    @property
    def message(self) -> Any:
        """Return the whole message; `None` = it was too long to be kept."""
        return type(self._parts[0])().join(self._parts) if self._parts else None


class Conversation:
    """The requests on one connection, one after the other.

    Args:
        protocol: how its messages are classified.
        info: row fields every request on it carries.
        attributes: of the user's own.
    """

    __slots__ = (
        "_apart", "_attempt", "_attributes", "_classify", "_done", "_filled", "_given_up", "_info",
        "_protocol", "_readers", "_recording", "_stale", "opened",
    )  # fmt: skip

    def __init__(
        self, protocol: Protocol, info: Mapping[str, Any], attributes: Mapping[str, Any]
    ) -> None:
        self._protocol = protocol
        self._classify, self._done, self._apart = protocol.classify, protocol.done, protocol.apart
        self._info = dict(info)
        self._attributes = attributes
        self._recording: Recording | None = None
        self._filled: set[str] = set()
        self._attempt: LiveAttempt | None = None
        self._given_up: _GivenUp | None = None
        self._readers = 0
        self._stale = False  # messages belong to a response that was given up
        self.opened: Opened | None = None
        finalize.prepare()

    def __del__(self) -> None:
        self.left()

    def add_info(self, fields: Mapping[str, Any]) -> None:
        """Note row fields that the connection gives."""
        self._info = {**fields, **self._info}

    def start(self, runtime: Runtime) -> tuple[Recording, set[str]]:
        """Start a recording, or take that of the enclosing decorated function."""
        recording, filled = join_call.join(runtime, self._info)
        recording.attributes.update(self._attributes)
        return recording, filled

    # --- sending --------------------------------------------------------------------------------

    def sending(self, message: Any) -> bool:
        """Note that a message is sent; return whether it begins a request."""
        try:
            runtime = active()
            if runtime is None or not self._asks(message):
                return False
            self._supersede()
            self._begin(runtime)
        except Exception as error:  # noqa: BLE001 - the message is sent unrecorded
            internal_error("websocket", error)
            return False
        return True

    def _asks(self, message: Any) -> bool:
        if self._protocol.asks is not None:
            return bool(self._protocol.asks(message))
        recording = self._recording
        if recording is None or recording.ended or self._given_up is not None:
            return True
        # A message sent before anything was received is part of the same request.
        return recording.first_event is not None

    def _begin(self, runtime: Runtime) -> None:
        opened, self.opened = self.opened, None
        outer = join_call.enclosing_recording()
        if opened is not None and outer is None and opened.at_once():
            recording, self._filled = opened.recording, opened.filled
        else:
            recording, self._filled = self.start(runtime)
            if opened is not None and opened.recording is not recording:
                opened.unused()
        recording.stream = True
        if recording.in_decorated_function:
            recording.failure = _LEFT
        if opened is not None and opened.recording is recording:
            self._attempt = attempt = opened.attempt
            # Time between the opening and the request was the client's own.
            marked = sum(recording.marked_before.values()) - opened.marked
            since = recording.clock() - opened.at - marked
            recording.client = (recording.client or 0) + max(0, since)
        else:
            self._attempt = attempt = recording.attempt()
            attempt.dns = attempt.connect = attempt.tls = attempt.handshake = 0
            attempt.first_wire = attempt.started
            attempt.status = _SWITCHED
        attempt.send_started = recording.clock()
        self._given_up = None
        self._recording = recording

    def sent(self) -> None:
        """Note that the message that begins a request was sent."""
        recording, attempt = self._recording, self._attempt
        if recording is None or attempt is None or recording.ended:
            return  # the response has ended already
        try:
            recording.opened()
            attempt.sent = True
            if attempt.send_started is not None:
                attempt.send = recording.mark - attempt.send_started
            if self._readers:
                recording.wait_started = recording.mark
        except Exception as error:  # noqa: BLE001
            internal_error("websocket", error)

    def not_sent(self, error: BaseException) -> None:
        """End a request whose message did not go out."""
        recording = self._over()
        if recording is not None:
            if self._attempt is not None:
                self._attempt.status = None
            join_call.failed(recording, self._filled, error)

    # --- reading --------------------------------------------------------------------------------

    def wait_starts(self) -> None:
        """Note that a read of a message begins."""
        self._readers += 1
        recording = self._recording
        if recording is not None and not recording.wait_started:
            self._given_up = None
            try:
                recording.wait_started = recording.clock()
            except Exception as error:  # noqa: BLE001 - the message comes untimed
                internal_error("record", error)

    def got(self, connection: Any, message: Any) -> None:
        """Note a received message, and when it came."""
        self._readers -= 1
        recording = self._recording
        if recording is None:
            return
        try:
            now = recording.switch_interval(reading=False)
            self._note(connection, recording, message, now)
        except Exception as error:  # noqa: BLE001 - the message is passed on anyway
            internal_error("websocket", error)

    def _note(self, connection: Any, recording: Recording, message: Any, now: int) -> None:
        if self._stale and self._of_another(message):
            return
        if recording.first_event is None:
            self._look(connection, recording, now)
        kind = self._classify(recording, message)
        recording.event(kind)
        if self._done is None:
            if (kind <= NOTHING or not self._apart) and _over(recording):
                self._finished()
        elif self._done(message):
            self._finished()

    def parts(self) -> Parts | None:
        """Return the collector of a message's parts; `None` = each counts by itself."""
        return None if self._classify is chunks.anything else Parts()

    def got_part(self, connection: Any, parts: Parts | None, part: Any) -> None:
        """Note a received part of a message."""
        if parts is None:
            self.got(connection, part)
            return
        self.wait_stops()
        try:
            parts.add(part)
            parts.recording = recording = self._recording
            if recording is not None:
                parts.at, parts.waited = recording.mark, recording.waited
        except Exception as error:  # noqa: BLE001 - the part is passed on anyway
            internal_error("websocket", error)

    def completed(self, connection: Any, parts: Parts | None) -> None:
        """Note that a message is complete: its time is that of the last part."""
        self.wait_stops()
        recording = self._recording
        if parts is None or recording is None or recording is not parts.recording:
            return
        try:
            # The read after the last part was no wait.
            recording.mark, recording.waited = parts.at, parts.waited
            if (message := parts.message) is not None:
                self._note(connection, recording, message, parts.at)
        except Exception as error:  # noqa: BLE001
            internal_error("websocket", error)

    @fails_open("websocket")
    def wait_stops(self) -> None:
        """Note that no read is under way any more."""
        self._readers -= 1
        recording = self._recording
        if recording is not None and not recording.ended:
            recording.switch_interval(reading=False)

    def _of_another(self, message: Any) -> bool:
        """Return whether a message still belongs to the response that was given up."""
        begins = self._protocol.begins
        self._stale = begins is not None and not begins(message)
        return self._stale

    def _look(self, connection: Any, recording: Recording, now: int) -> None:
        attempt = self._attempt
        if attempt is not None:
            attempt.answered = now
            tcp_info.answered(recording, attempt, socket_of(connection))

    def _finished(self) -> None:
        recording = self._over()
        if recording is not None:
            recording.finish("success")

    def broke(self, error: BaseException) -> None:
        """Note that a read ended with an error."""
        self._readers -= 1
        recording = self._recording
        if recording is None or recording.ended:
            return
        try:
            if type(error).__name__ == "ConcurrencyError":
                return  # another reader goes on
            if isinstance(error, Exception) and not isinstance(error, TimeoutError):
                self._lost(error)
                return
            recording.switch_interval(reading=False)
            if not isinstance(error, asyncio.CancelledError):
                self._given_up = _GivenUp(recording.mark, outcome_of(error))
                return
            self._given_up = given_up = _GivenUp(recording.mark, cancellation.seen(error))
            loop = asyncio.get_running_loop()
            loop.call_later(_PATIENCE_S, self._given_up_for_good, given_up)
        except Exception as broken:  # noqa: BLE001
            internal_error("websocket", broken)

    def _lost(self, error: Exception) -> None:
        """End the running request with the connection's error."""
        recording = self._over()
        if recording is None:
            return
        frame = getattr(error, "rcvd", None) or getattr(error, "sent", None)
        code = getattr(frame, "code", None)
        if isinstance(code, int):
            recording.attributes["websocket.close_code"] = int(code)
        if type(error).__name__ == "ConnectionClosedOK":
            whole = self._protocol.ends_by_close or recording.info.get("finish_reason") is not None
            recording.finish("success" if whole else "truncated")
        else:
            recording.failed(error)

    def _given_up_for_good(self, given_up: _GivenUp) -> None:
        if self._given_up is given_up:
            self.left()

    # --- the end --------------------------------------------------------------------------------

    @fails_open("websocket")
    def left(self) -> None:
        """End the running request: the connection is being closed or garbage collected."""
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.unused()
        given_up = self._given_up
        recording = self._over()
        if recording is None:
            return
        if given_up is None:
            finalize.abandon(recording)
            return
        if recording.ttft is not None:
            # The wait before a time-out is a gap too.
            recording.add_gap(recording.waited - recording.waited_at_content)
        _as_of(recording, given_up.at)
        if isinstance(given_up.outcome, Cancellation):
            cancellation.end(recording, given_up.outcome)
        else:
            recording.finish(*given_up.outcome)

    def _supersede(self) -> None:
        """End a request whose response is still under way: the next one begins."""
        recording = self._recording
        if recording is None or recording.ended:
            return
        self._stale = True
        if self._given_up is None and not recording.reading:
            # When the consumer stopped is not known; it last took a message at the mark.
            _as_of(recording, recording.mark)
        self.left()

    def _over(self) -> Recording | None:
        """Take the running request's recording; `None` = there was none."""
        recording, self._recording = self._recording, None
        self._given_up = None
        if recording is None or recording.ended:
            return None
        if recording.failure is _LEFT:
            recording.failure = None
        return recording


# The HTTP status of a WebSocket's accepted handshake.
_SWITCHED: Final = 101


def socket_of(connection: Any) -> Any:
    """Return the socket of a connection; `None` if it has none that can be read."""
    transport = getattr(connection, "transport", None)
    if transport is not None:
        return transport.get_extra_info("socket")
    return getattr(connection, "socket", None)


def _over(recording: Recording) -> bool:
    """Return whether the last message reported how the response ended."""
    failure = recording.failure
    finished = recording.info.get("finish_reason") is not None
    return finished or (failure is not None and failure is not _LEFT)


def _as_of(recording: Recording, at: int) -> None:
    """Make a recording end at an earlier time; in a function that runs on it ends now."""
    if not recording.in_decorated_function:
        recording.clock = lambda: at
