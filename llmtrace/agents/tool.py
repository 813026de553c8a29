"""The decorator `@llmtrace.tool`: each call of an agent's tool becomes a span.

A function, a coroutine function, a generator or an async generator stays what it is. Requests that
it makes are its children; the enclosing turn notes when it ran, and whether it had to wait.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast, overload

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from llmtrace.agents.run_in_scope import scoped
from llmtrace.agents.scopes import ToolScope, ToolSeen, TurnScope
from llmtrace.core.content import ARGUMENTS, RESULT, tool_content
from llmtrace.core.error_outcomes import outcome_of
from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import fails_open, internal_error
from llmtrace.core.row import Outcome
from llmtrace.core.row_fields import WIRE_NAMES
from llmtrace.core.span import Span, Value
from llmtrace.instrumentation.streams import finalize
from llmtrace.instrumentation.trace_decorator import Scalar, apply_decorator, labels
from llmtrace.runtime.runtime import Runtime, active, closed, enclosing, opened
from llmtrace.runtime.scope import KEY, live
from llmtrace.runtime.trace_context import inside as context_of
from llmtrace.semconv import attributes as wire
from llmtrace.semconv.convert import reserved

F = TypeVar("F", bound=Callable[..., Any])

# A parameter of this name holds the id that the model gave the call.
_CALL_ID: Final = "tool_call_id"
_MAX_ID: Final = 128
# Items of a generator that later calls are compared with.
_MAX_ITEMS: Final = 64
Attribute = Scalar | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Tool:
    """The arguments of the decorator and the names of its function's parameters."""

    name: str
    parameters: tuple[str, ...]  # those that can be given by position
    fields: Mapping[str, Any]
    attributes: Mapping[str, Attribute]


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, **attributes: Scalar | None) -> Callable[[F], F]: ...
def tool(function: Any = None, /, *, name: str | None = None, **attributes: Scalar | None) -> Any:
    """Record each call of a function as a call of an agent's tool.

    Each is a span inside the turn (`llmtrace.turn`) or request around it, and the parent of the
    requests it makes. Arguments and results are looked at for what of one is in the other, and
    recorded only if `llmtrace.init` is set to. A parameter named `tool_call_id` is recorded as
    the id of the call. Without `llmtrace.init` the function runs as if it were not decorated.

    Args:
        function: when used bare: a function, sync or async, or a generator function, whose call
            lasts from the first read to the end.
        name: the tool's name; default: the function's.
        **attributes: recorded on the span under their own names.

    Raises:
        ConfigError: at decoration, for something that cannot be decorated or recorded.

    Example:
        >>> import llmtrace
        >>> from llmtrace.testing import capture
        >>> @llmtrace.tool
        ... def search(query):
        ...     return f"3 pages about {query}"
        >>> with capture() as rows, llmtrace.turn("answer"):
        ...     found = search("tea")
        >>> found, rows[0].tool_calls
        ('3 pages about tea', 1)
    """
    if name is not None and not isinstance(name, str):
        raise ConfigError(f"@llmtrace.tool: name must be a string, not {type(name).__name__}")
    fields, extra = labels(dict(attributes), "@llmtrace.tool")

    def decorate(target: Any) -> Any:
        return _decorated(target, name, fields, extra)

    hint = "; write @llmtrace.tool or @llmtrace.tool(name=…)"
    apply = partial(apply_decorator, decorate, where="@llmtrace.tool", hint=hint)
    return apply if function is None else apply(function)


def _decorated(
    target: Any, name: str | None, fields: Mapping[str, Any], attributes: Mapping[str, Attribute]
) -> Any:
    named = name or str(getattr(target, "__name__", type(target).__name__))
    traced = _Tool(named, _parameters(target), fields, attributes)

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
        return _begin(traced, args, kwargs)

    return scoped(target, begin)


def _parameters(target: Any) -> tuple[str, ...]:
    """Name the parameters that arguments given by position are for, as far as that is known."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):  # of a function in C
        return ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(one.name for one in parameters if one.kind in by_position)


def _begin(traced: _Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    runtime = active()
    if runtime is None:
        return None
    try:
        return _Call(runtime, traced, _named(traced, args, kwargs))
    except Exception as error:  # noqa: BLE001 - the tool runs unrecorded
        internal_error("tool", error)
        return None


def _named(traced: _Tool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, less the object that a method is of."""
    given = dict(zip(traced.parameters, args, strict=False))
    if traced.parameters[:1] in {("self",), ("cls",)}:
        given.pop(traced.parameters[0], None)
    if rest := args[len(traced.parameters) :]:
        given["args"] = rest
    return {**given, **kwargs}


class _Call:
    """One call of a tool while it runs."""

    __slots__ = (
        "__weakref__", "_arguments", "_content", "_ended", "_identity", "_items", "_runtime",
        "_scope", "_seen", "_start_unix_ns", "_tool", "context", "start",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, traced: _Tool, arguments: dict[str, Any]) -> None:
        around = live()
        self._runtime = runtime
        self._tool = traced
        self._ended = False
        self._items: list[Any] = []
        self._scope = scope = ToolScope(around)
        scope.fields |= traced.fields
        scope.attributes |= traced.attributes
        self._start_unix_ns = runtime.wall()
        self._identity = identity = runtime.open_span(
            f"{wire.EXECUTE_TOOL} {traced.name}", "internal", self._start_unix_ns, _around()
        )
        call_id = arguments.get(_CALL_ID)
        if isinstance(call_id, str):
            scope.attributes[wire.TOOL_CALL_ID] = call_id[:_MAX_ID]
        self._content: dict[str, str] = {}
        self._record(ARGUMENTS, arguments)
        self._seen: list[tuple[TurnScope, ToolSeen]] = []
        self.context: Context = otel_context.set_value(KEY, scope, identity.context)
        for turn, depth in () if around is None else around.turns():
            if not isinstance(turn, TurnScope):
                continue
            if not self._seen:
                scope.attributes |= turn.inherited()
            seen = turn.tool_begins(traced.name, identity.span_id, [*arguments.values()], depth)
            self._seen.append((turn, seen))
        self.start = runtime.clock()
        opened(self)

    def gave(self, item: Any) -> None:
        """Note one of the items that a generator gives: all of them are its result."""
        looked_at = self._seen or self._content
        if looked_at and len(self._items) < _MAX_ITEMS:
            self._items.append(item)

    def returned(self, value: Any) -> None:
        """End the tool call with what the function returned."""
        self._end("success", None, [*self._items, value] if self._items else value)

    def failed(self, error: BaseException) -> None:
        """End the tool call with the exception that was raised."""
        outcome, error_type = outcome_of(error)
        self._end(outcome, error_type, self._items)

    def end(self, outcome: Outcome) -> None:
        """End it where its code will not: with the process."""
        self._end(outcome, None, self._items)

    @fails_open("tool")
    def _end(self, outcome: Outcome, error_type: str | None, result: Any) -> None:
        if self._ended:
            return
        self._ended = self._scope.ended = True
        closed(self)
        duration_ns = max(0, self._runtime.clock() - self.start)
        for turn, seen in self._seen:
            turn.tool_ends(seen, outcome, result)
        self._record(RESULT, result)
        identity = self._identity
        span = Span(
            name=f"{wire.EXECUTE_TOOL} {self._tool.name}",
            trace_id=identity.trace_id,
            span_id=identity.span_id,
            parent_span_id=identity.parent_span_id,
            service=self._runtime.service,
            start=self._start_unix_ns,
            duration_ns=duration_ns,
            attributes=self._attributes(outcome, error_type),
            error=_error_text(outcome, error_type),
        )
        defer = finalize.defer()
        if defer is None:
            self._runtime.close_span(identity, span)
        else:
            defer(cast("Any", span), partial(self._runtime.close_span, identity))

    def _record(self, name: str, value: Any) -> None:
        """Record arguments or a result, if the settings record content and the span is written."""
        policy = self._runtime.content
        if policy is not None and self._identity.sampled:
            text = tool_content(policy, value)
            if text is not None:
                self._content[name] = text

    def _attributes(self, outcome: Outcome, error_type: str | None) -> dict[str, Value]:
        scope = self._scope
        fields = {**self._runtime.labels, **scope.fields, "outcome": outcome}
        if error_type is not None:
            fields["error_type"] = error_type
        out: dict[str, Value] = {
            name: value for name, value in scope.attributes.items() if not reserved(name)
        }
        out |= {WIRE_NAMES[key]: value for key, value in fields.items() if key in WIRE_NAMES}
        out |= {
            WIRE_NAMES["operation"]: wire.EXECUTE_TOOL,
            wire.TOOL_NAME: self._tool.name,
            wire.TOOL_TYPE: "function",
            **self._content,
        }
        for turn, seen in self._seen[:1]:
            out[WIRE_NAMES["agent"]] = turn.recording.info["agent"]
            out[wire.TOOL_ROUND] = seen.round
            if seen.needs_spans:
                out[wire.TOOL_NEEDS] = seen.needs_spans
        return out


def _around() -> Context | None:
    """Return what holds the call's parent, where that is a request whose span is not current."""
    recording = enclosing()
    if recording is None or recording.ended or recording.span.span is not None:
        return None
    return context_of(recording.span)


def _error_text(outcome: Outcome, error_type: str | None) -> str | None:
    """Say in words that a tool failed; a cancelled one did what its client wanted."""
    if outcome in {"success", "cancelled"}:
        return None
    return f"the tool failed: {error_type}"
