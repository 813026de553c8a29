"""Account for the requests and tool calls that ran inside a turn or tool call.

A turn's recording keeps its time. Its `TurnScope` keeps what began and ended in it, within bounds,
and computes the turn's figures when it is over.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from llmtrace.agents.data_flow import Fingerprints, prints_of
from llmtrace.agents.turn_stages import Inside, turn_timeline
from llmtrace.core.failopen import internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import Clock
from llmtrace.core.row import TURN, Row
from llmtrace.core.tool_calls import Part, tool_figures
from llmtrace.runtime.scope import INHERITED, RequestSeen, Scope

MAX_TOOLS: Final = 256
MAX_REQUESTS: Final = 256
_MAX_PRINTS: Final = 65_536  # hashes kept at a time, over all calls of a round
_NS: Final = 1_000_000_000


@dataclass(slots=True)
class ToolSeen:
    """A tool call as its turn sees it; times are nanoseconds since the turn began.

    Attributes:
        needs: numbers of the earlier calls whose results its arguments contain.
        needs_spans: the ids of their spans.
        arguments: prints; so is `result`. Kept as long as later calls may need comparing.
    """

    name: str
    number: int
    start: int
    depth: int
    round: int
    span_id: str
    needs: tuple[int, ...] = ()
    needs_spans: tuple[str, ...] = ()
    end: int | None = None
    outcome: str | None = None
    arguments: Fingerprints | None = None
    result: Fingerprints | None = None


class ToolScope(Scope):
    """A tool call while it runs.

    Attributes:
        fields: row fields that are said of it, such as `route`.
        attributes: of the user's own.
    """

    __slots__ = ("attributes", "fields")

    def __init__(self, above: Scope | None) -> None:
        super().__init__(above)
        self.fields: dict[str, Any] = {}
        self.attributes: dict[str, Any] = {}

    def annotate(self, fields: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        """Note row fields, and attributes of the application's own."""
        self.fields.update(fields)
        self.attributes.update(attributes)


class TurnScope(Scope):
    """A turn while it runs.

    Args:
        recording: of the turn; its row gets the figures.
        clock: what the recording's clock is made of.
        above: what it lies in.
    """

    __slots__ = (
        "_active", "_begun", "_busy", "_busy_since", "_calls", "_clock", "_known", "_lock",
        "_numbers", "_origin", "_printed", "_requests", "_round", "_serial", "_shown", "_tools",
        "recording",
    )  # fmt: skip

    def __init__(self, recording: Recording, clock: Clock, above: Scope | None) -> None:
        super().__init__(above)
        self.recording = recording
        self._clock = clock
        self._origin = _begun(recording, clock)
        # Tool calls may begin and end in any thread, and end inside the garbage collector.
        self._lock = threading.RLock()
        self._numbers = count()
        self._requests: list[RequestSeen] = []
        self._tools: list[ToolSeen] = []
        self._calls = 0  # requests to a model, at any depth
        self._round = 0  # how many requests the turn itself has begun
        self._begun = self._active = 0  # tool calls of the turn itself
        self._busy = self._busy_since = self._serial = 0
        self._printed = 0
        self._known: set[int] = set()  # prints of what earlier rounds' calls were given
        self._shown: int | None = None  # when the application said that it showed something

    def turn(self) -> Recording:
        """Return the recording that the scope's row is made of."""
        return self.recording

    def inherited(self) -> dict[str, str | bool | int | float | tuple[str, ...]]:
        """Return the attributes that hold for what runs inside, too."""
        said = self.recording.attributes
        return {name: said[name] for name in INHERITED if name in said}

    def first_content(self) -> None:
        """Note that the user sees something now; the first time counts."""
        with self._lock:
            if self._shown is None and not self.ended:
                self._shown = self._clock() - self._origin

    # --- requests -------------------------------------------------------------------------------

    def request_begins(self, recording: Recording, clock: Clock, depth: int) -> RequestSeen | None:
        """Note that a request, or a turn inside this one, begins; its row follows."""
        turn = recording.info.get("operation") == TURN
        with self._lock:
            if depth == 1 and not turn:
                self._next_round()
            self._calls += not turn
            kept = len(self._requests) < MAX_REQUESTS
            named = recording.info.get("agent" if turn else "model")
            seen = RequestSeen(
                kind="turn" if turn else "request",
                name=named or str(recording.info.get("operation", "chat")),
                number=next(self._numbers),
                start=_begun(recording, clock) - self._origin,
                depth=depth,
                unix=recording.started_unix_ns,
            )
            if kept:
                self._requests.append(seen)
        if kept:
            return seen
        # Without the lock, as all that is not our own: a log has locks, too.
        internal_error("turn.requests", f"more than {MAX_REQUESTS} requests in a turn")
        return None

    def _next_round(self) -> None:
        """Forget what only calls of one round are compared by: the model decides anew."""
        for call in self._tools:
            if call.round == self._round and call.arguments is not None:
                if len(self._known) < _MAX_PRINTS:
                    self._known |= call.arguments.hashes
                call.arguments = call.result = None
        self._round += 1
        self._printed = 0

    # --- tool calls -----------------------------------------------------------------------------

    def tool_begins(self, name: str, span_id: str, arguments: Any, depth: int) -> ToolSeen:
        """Note that a tool call begins, and find out which earlier ones it needs.

        Hashes of all values of its arguments are kept for a while. `depth` is 1 in the turn
        itself.
        """
        own, prints = depth == 1, None
        if own and self._begun < MAX_TOOLS and self._printed < _MAX_PRINTS:
            prints = _look(arguments)  # takes a while
        with self._lock:
            needs = [] if prints is None else self._needs(prints)
            self._printed += 0 if prints is None else prints.size
            now = self._clock() - self._origin
            if own:
                self._begun += 1
                if self._active == 0:
                    self._busy_since = now
                self._active += 1
            kept = len(self._tools) < MAX_TOOLS
            seen = ToolSeen(
                name,
                number=next(self._numbers),
                start=now,
                depth=depth,
                round=self._round,
                span_id=span_id,
                needs=tuple(call.number for call in needs),
                needs_spans=tuple(call.span_id for call in needs),
                arguments=prints,
            )
            if kept:
                self._tools.append(seen)
        if not kept:
            internal_error("turn.tools", f"more than {MAX_TOOLS} tool calls in a turn")
        return seen

    def tool_ends(self, seen: ToolSeen, outcome: str, result: Any) -> None:
        """Note that a tool call ended, and keep the prints of its result."""
        with self._lock:
            seen.end = now = self._clock() - self._origin
            seen.outcome = outcome
            if seen.depth == 1:
                self._serial += now - seen.start
                self._active -= 1
                if self._active == 0:
                    self._busy += now - self._busy_since
        # Only what may still be compared is worth a look. It takes a while, so without the lock.
        compared = seen.arguments is not None and seen.round == self._round and not self.ended
        if not compared or self._printed >= _MAX_PRINTS:
            return
        prints = _look(result)
        with self._lock:
            if prints is not None and seen.round == self._round:
                seen.result = prints
                self._printed += prints.size

    def _needs(self, arguments: Fingerprints) -> list[ToolSeen]:
        """Return the calls of this round whose results show in some arguments.

        A print that was in the arguments of a call that began before the result was there does not
        show that the result was needed.
        """
        calls = [call for call in self._tools if call.round == self._round and call.depth == 1]
        needs = []
        for call in calls:
            if call.result is None or call.end is None:
                continue
            shared = call.result.seen_in(arguments) - self._known
            for other in calls:
                if shared and other.arguments is not None and other.start < call.end:
                    shared -= other.arguments.knows(shared)
            if shared:
                needs.append(call)
        return needs

    # --- the end --------------------------------------------------------------------------------

    def complete(self, row: Row) -> Row:
        """Put into the turn's row what ran inside it. Called once, when it is over."""
        with self._lock:
            self.ended = True
            requests = [one for one in self._requests if not one.withdrawn]
            withdrawn = sum(one.withdrawn for one in self._requests if one.kind == "request")
            calls = self._calls - withdrawn
            tools = self._tools
            self._requests, self._tools, self._known = [], [], set()
            begun, serial, busy = self._begun, self._serial, self._busy
            if self._active:
                busy += max(0, row.e2e_ns - self._busy_since)
        wall = row.e2e_ns
        parts = sorted(
            [
                *(_request_part(one, wall) for one in requests),
                *(_tool(one, wall) for one in tools),
            ],
            key=lambda part: part.number,
        )
        figures = tool_figures(parts)
        if begun > figures.calls:  # not all were kept
            running = sum(one.duration for one in parts if one.kind == "tool" and not one.outcome)
            figures = replace(figures, calls=begun, wall=busy, serial=serial + running)
        first = _first_content(requests) if self._shown is None else self._shown
        timeline = turn_timeline(
            wall,
            (
                Inside(
                    one.start,
                    wall if one.row is None else one.start + one.row.e2e_ns,
                    None if one.row is None else one.row.stages,
                )
                for one in requests
                if one.kind == "request"
            ),
            None if first is None else min(first, wall),
        )
        return replace(
            row,
            timeline=timeline,
            parts=tuple(parts),
            inference_calls=calls,
            tool_calls=figures.calls,
            tool_wall_s=figures.wall / _NS,
            tool_serial_s=figures.serial / _NS,
            tool_critical_path_s=figures.critical_path / _NS,
            tool_serial_loss_s=figures.serial_loss / _NS,
        )


def _look(value: Any) -> Fingerprints | None:
    """Take the prints of a value; `None` if that fails, as it may with an object of any kind."""
    try:
        return prints_of(value)
    except Exception as error:  # noqa: BLE001 - the tool and its span go on
        internal_error("tool.look", error)
        return None


def _begun(recording: Recording, clock: Clock) -> int:
    """Return when a recording began on the clock that its own is made of."""
    # A clock that stood at 0 reads 1 more to the recording; see there.
    return recording.start - (recording.clock is not clock)


def _request_part(seen: RequestSeen, wall: int) -> Part:
    row = seen.row
    end = wall if row is None else min(wall, seen.start + row.e2e_ns)
    return Part(
        kind=seen.kind,
        name=seen.name if row is None else _named(row),
        number=seen.number,
        start=min(seen.start, wall),
        duration=max(0, end - seen.start),
        outcome=None if row is None else row.outcome,
        depth=seen.depth,
    )


def _first_content(requests: list[RequestSeen]) -> int | None:
    """Return when the last stream of a turn that had content had its first."""
    streamed = [
        (one.start, one.row.ttft_ns)
        for one in requests
        if one.kind == "request" and one.row is not None and one.row.ttft_ns is not None
    ]
    return sum(max(streamed)) if streamed else None


def _named(row: Row) -> str:
    return (row.agent if row.is_turn else row.model) or row.operation


def _tool(seen: ToolSeen, wall: int) -> Part:
    end = wall if seen.end is None else min(wall, seen.end)
    return Part(
        kind="tool",
        name=seen.name,
        number=seen.number,
        start=min(seen.start, wall),
        duration=max(0, end - seen.start),
        outcome=seen.outcome,
        depth=seen.depth,
        round=seen.round,
        needs=seen.needs,
    )
