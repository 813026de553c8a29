"""Find the turn or tool call that the code running now is in.

A request that begins notes itself there; `agents/scopes.py` makes the turn's figures of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from opentelemetry import context as otel_context

from llmtrace.core.recording import Recording
from llmtrace.core.request_clock import Clock
from llmtrace.core.row import Row
from llmtrace.core.tool_calls import PartKind

# In OpenTelemetry's context, so that whatever carries that one carries this along.
KEY: Final = otel_context.create_key("llmtrace-scope")
# Attributes of a turn that also hold for everything inside it.
INHERITED: Final = ("user.id", "session.id", "gen_ai.conversation.id", "tag.tags")

# Row fields of a turn that hold for its requests.
_HELD: Final = ("route", "tenant")

_MAX_DEPTH: Final = 16


@dataclass(slots=True)
class RequestSeen:
    """A request that began in a turn, or a turn inside it."""

    kind: PartKind
    name: str
    number: int
    start: int
    depth: int
    row: Row | None = None
    unix: int = 0
    withdrawn: bool = False


class Scope:
    """A turn or a tool call while it runs.

    Attributes:
        above: what it lies in.
        ended: whether it is over. Code that still runs with its context then belongs to `above`.
    """

    __slots__ = ("above", "ended")

    def __init__(self, above: Scope | None) -> None:
        self.above = above
        self.ended = False

    def turn(self) -> Recording | None:
        """Return the recording of the turn that it is; `None` = it is none."""
        return None

    def request_begins(self, recording: Recording, clock: Clock, depth: int) -> RequestSeen | None:
        """Note that a request begins in it; return where to note its row, if anywhere."""
        del recording, clock, depth
        return None

    def annotate(self, fields: Mapping[str, Any], attributes: Mapping[str, Any]) -> None:
        """Note what the application says of it, unless it is a turn: that has a recording."""
        del fields, attributes

    def around(self) -> Scope | None:
        """Return the innermost enclosing scope that is not over, and drop those that are."""
        while self.above is not None and self.above.ended:
            self.above = self.above.above
        return self.above

    def turns(self) -> Iterator[tuple[Scope, int]]:
        """Yield the turns around what begins here, and how deep in each it lies."""
        scope: Scope | None = self
        for depth in range(1, _MAX_DEPTH):
            if scope is None:
                return
            if scope.turn() is not None and not scope.ended:
                yield scope, depth
            scope = scope.around()


def fields() -> dict[str, Any]:
    """Return the row fields that hold for a request that begins now: of the turn it is in."""
    around = live()
    for scope, _ in () if around is None else around.turns():
        if (turn := scope.turn()) is not None:
            return {name: turn.info[name] for name in _HELD if turn.info.get(name) is not None}
    return {}


def live() -> Scope | None:
    """Return the innermost turn or tool call that the code running now is in."""
    scope = otel_context.get_value(KEY)
    if not isinstance(scope, Scope):
        return None
    return scope.around() if scope.ended else scope


def begins(recording: Recording, clock: Clock) -> None:
    """Note that a request, or a turn, begins in what is around it, on the recording's clock."""
    around = live()
    if around is None:
        return
    turns = [*around.turns()]
    if turns and (turn := turns[0][0].turn()) is not None:
        recording.info["nested"] = True
        said = turn.attributes
        own = {name: value for name, value in said.items() if not name.startswith("langfuse.")}
        recording.attributes = {**own, **recording.attributes}
    seen = [turn.request_begins(recording, clock, depth) for turn, depth in turns]
    recording.on_finish = partial(_note, [one for one in seen if one is not None])


def _note(seen: list[RequestSeen], row: Row) -> Row:
    for one in seen:
        one.row = row
        one.start += row.start - one.unix  # a call may have begun later than its function
    return row


def withdraw(recording: Recording) -> None:
    """Take back that a request began: it is a decorated function around several."""
    noted, recording.on_finish = recording.on_finish, None
    if isinstance(noted, partial) and noted.func is _note:
        for one in noted.args[0]:
            one.withdrawn = True
