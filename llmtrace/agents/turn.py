"""The block `with llmtrace.turn(…)`: one row for all that an agent does for one response.

As a context manager, sync or async, or as a decorator. Requests and tool calls inside are its
children; its row says how their times lie in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar, overload

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from llmtrace.agents.run_in_scope import inside, scoped
from llmtrace.agents.scopes import TurnScope
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.recording import Recording
from llmtrace.core.row import TURN, Row
from llmtrace.instrumentation.streams import cancellation, finalize
from llmtrace.instrumentation.trace_decorator import Scalar, apply_decorator, labels
from llmtrace.runtime.runtime import active
from llmtrace.runtime.scope import KEY, live
from llmtrace.runtime.trace_context import inside as context_of

F = TypeVar("F", bound=Callable[..., Any])

_UNNAMED: Final = "turn"


class TurnBlock:
    """What `llmtrace.turn(…)` returns: a context manager, sync or async, and a decorator."""

    def __init__(self, name: str, turn_labels: dict[str, Any]) -> None:
        self._name = name
        self._labels = turn_labels
        # One object may be entered by several tasks or threads at a time.
        self._running: list[tuple[_Turn, inside]] = []

    def __call__(self, function: F) -> F:
        """Record every call of a function as a turn, whatever kind of function it is."""
        labels(self._labels, "@llmtrace.turn")
        decorated: F = apply_decorator(
            lambda target: scoped(target, self._begin), function, where="llmtrace.turn(…)"
        )
        return decorated

    def __enter__(self) -> Self:
        """Begin the turn."""
        self._enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the turn."""
        self._exit(error)

    async def __aenter__(self) -> Self:
        """Begin the turn."""
        self._enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the turn."""
        self._exit(error)

    def first_content(self) -> None:
        """Say that the application shows its user something now: the turn's `ttft` ends here.

        Without it that is the first content of the turn's last stream. The first call counts, for
        the turn that the code is in and those around it; in a thread that is in none, for the one
        that this object runs.
        """
        self._first_content()

    @fails_open("turn")
    def _first_content(self) -> None:
        here = live()
        turns = [] if here is None else [scope for scope, _ in here.turns()]
        for scope in turns or [run.scope for run, _ in self._running[-1:]]:
            if isinstance(scope, TurnScope):
                scope.first_content()

    def _begin(self, *_: Any) -> _Turn | None:
        return _begin(self._name, self._labels)

    @fails_open("turn")
    def _enter(self) -> None:
        run = self._begin()
        if run is not None:
            scope = inside(run)
            scope.__enter__()
            finalize.prepare()
            self._running.append((run, scope))

    @fails_open("turn")
    def _exit(self, error: BaseException | None) -> None:
        here = live()
        mine = [one for one in self._running if one[0].scope is here] or self._running
        if not mine:  # nothing was recorded
            return
        run, scope = ending = mine[-1]
        self._running.remove(ending)
        scope.__exit__(None, None, None)
        if error is None:
            run.returned(None)
        else:
            run.failed(error)


@overload
def turn(function: F, /) -> F: ...
@overload
def turn(
    name: str,
    *,
    session: str | int | None = None,
    user: str | int | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> TurnBlock: ...
def turn(
    name: Any,
    *,
    session: str | int | None = None,
    user: str | int | None = None,
    tags: Sequence[str] | None = None,
    **attributes: Scalar | None,
) -> Any:
    """Record what is done inside as one turn of an agent: its requests and its tool calls.

    For the function or block that answers once, however many requests that takes. Its row
    (`operation` is `invoke_agent`) has the stages of all of them, overlap counted once, and the
    figures of its tools. A block never raises: what cannot be recorded is left out and logged.

    Args:
        name: the agent's, or what it does: a name that few turns do not share. Used bare, as
            `@llmtrace.turn`, the function's own.
        session: id of the conversation it is part of.
        user: id of whom it is for.
        tags: of its trace. These three hold for what runs inside, too.
        **attributes: `route`, `tenant` and attributes of your own, recorded on its span.

    Example:
        >>> import llmtrace
        >>> from llmtrace.testing import capture
        >>> with capture() as rows:
        ...     with llmtrace.turn("greet", session="s-1"):
        ...         words = list(llmtrace.wrap(iter(["Hello, ", "world"])))
        >>> [row.operation for row in rows], rows[1].parts[0].kind
        (['chat', 'invoke_agent'], 'request')
    """
    turn_labels = {"session": session, "user": user, "tags": tags, **attributes}
    if callable(name) or isinstance(name, staticmethod | classmethod):
        function = getattr(name, "__func__", name)
        return TurnBlock(getattr(function, "__name__", _UNNAMED), turn_labels)(name)
    return TurnBlock(name, turn_labels)


def _begin(name: Any, turn_labels: dict[str, Any]) -> _Turn | None:
    runtime = active()
    if runtime is None:
        return None
    try:
        named = name if isinstance(name, str) and name else _UNNAMED
        if named is not name:
            internal_error("turn", f"llmtrace.turn: name must be text, not {type(name).__name__}")
        fields, attributes = _said(turn_labels)
        above = live()
        recording = runtime.start({**fields, "operation": TURN, "agent": named})
        recording.attributes |= attributes
        return _Turn(recording, TurnScope(recording, runtime.clock, above))
    except Exception as error:  # noqa: BLE001 - the turn runs unrecorded
        internal_error("turn", error)
        return None


def _said(
    turn_labels: dict[str, Any],
) -> tuple[dict[str, Any], dict[str, Scalar | tuple[str, ...]]]:
    """Sort what a turn was given into row fields and attributes; what cannot be is left out."""
    fields: dict[str, Any] = {}
    attributes: dict[str, Scalar | tuple[str, ...]] = {}
    for name, value in turn_labels.items():
        try:
            more, said = labels({name: value}, "llmtrace.turn")
        except ConfigError as error:
            internal_error("turn", str(error))
            continue
        fields |= more
        attributes |= said
    if "session.id" in attributes:
        attributes["gen_ai.conversation.id"] = attributes["session.id"]
    return fields, attributes


class _Turn:
    """One turn while it runs."""

    __slots__ = ("_recording", "context", "scope")

    def __init__(self, recording: Recording, scope: TurnScope) -> None:
        self._recording = recording
        self.scope = scope
        self.context: Context = otel_context.set_value(KEY, scope, context_of(recording.span))
        noted = recording.on_finish

        def finished(row: Row) -> Row:
            row = scope.complete(row)
            return row if noted is None else noted(row)

        recording.on_finish = finished

    def gave(self, item: Any) -> None:
        """What a generator gives is its consumer's."""

    def returned(self, value: Any) -> None:
        """End the turn well, whatever it returned."""
        del value
        self._recording.finish("success", defer=finalize.defer())

    def failed(self, error: BaseException) -> None:
        """End the turn with what it raised."""
        defer = finalize.defer()
        if defer is not None:
            self._recording.finish("cancelled", defer=defer)
        else:
            cancellation.failed(self._recording, error)
