"""Mark what a piece of time was spent on, from the application's code.

`stage("gateway")` and `render()` mark the code they enclose, as context manager or decorator, in
the request being recorded. What the wrappers measure themselves needs no marks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from functools import wraps
from typing import Any, Final, Literal, TypeVar, cast, get_args

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_error, wrong_use
from llmtrace.core.recording import Recording
from llmtrace.core.row import OUTCOMES
from llmtrace.instrumentation.trace_decorator import Scalar, labels
from llmtrace.runtime import proxied_request
from llmtrace.runtime.runtime import current, enclosing
from llmtrace.runtime.scope import live

F = TypeVar("F", bound=Callable[..., Any])

# What is left over by definition, or measured by the wrapper, cannot be marked.
Markable = Literal["network", "gateway", "queue", "prefill", "render"]
MARKABLE: Final[tuple[Markable, ...]] = get_args(Markable)
_MAX_NAME: Final = 100


class stage(ContextDecorator):  # noqa: N801 - used like a function: `with llmtrace.stage(…):`
    """Mark the time inside as one stage of the request being recorded.

    In a decorated function, or anything it calls, up to the end of its stream. Outside any
    request, it does nothing. Consumer time is `render` without being marked; after the first
    content it cannot be marked as anything else. As a context manager, a name that cannot be
    marked is logged once and changes nothing: a running request is no place to raise.

    Args:
        name: `network`, `gateway`, `queue`, `prefill` or `render`. `first_chunk` and `decode` are
            what is left over, and cannot be marked.

    Raises:
        ConfigError: where it decorates, for any other name.

    Example:
        >>> import llmtrace
        >>> @llmtrace.stage("gateway")
        ... def check_quota(): ...
        >>> with llmtrace.stage("render"):
        ...     check_quota()
    """

    def __init__(self, name: Markable) -> None:
        self._name = name
        # Tasks and threads may share one mark, so each end looks for its own request's start.
        # The last is when it made consumer time its own, 0 = it did not.
        self._running: list[tuple[Recording | None, int | None, int]] = []

    def _recreate_cm(self) -> stage:
        return stage(self._name)  # a decorator's own one for each call, as calls may overlap

    def __call__(self, function: F) -> F:
        """Mark every call of a function, the awaiting of a coroutine function included.

        Raises:
            ConfigError: there is no such stage to mark, or it is a generator function, whose call
                takes no time.
        """
        if self._name not in MARKABLE:
            raise ConfigError(self._wrong())
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"llmtrace.stage({self._name!r}) cannot mark the generator {function!r}; "
                f"write `with llmtrace.stage({self._name!r}):` in it, enclosing what is meant"
            )
        if not inspect.iscoroutinefunction(function):
            return super().__call__(function)

        @wraps(function)
        async def marked(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                return await function(*args, **kwargs)

        return cast("F", marked)

    def _wrong(self) -> str:
        return f"llmtrace.stage({self._name!r}): the stages to mark are {', '.join(MARKABLE)}"

    def __enter__(self) -> None:
        """Start the mark in the current request."""
        recording, since, began = current.get(), None, 0
        try:
            if self._name not in MARKABLE:
                wrong_use("stage", repr(self._name)[:_MAX_NAME], self._wrong())
            elif recording is not None and not recording.ended:
                if not recording.reading and recording.ttft is None and self._name != "render":
                    began = recording.switch_interval(reading=True)
                since = _free(recording) if recording.reading else None
        except Exception as error:  # noqa: BLE001
            internal_error("stage", error)
        self._running.append((recording, since, began))

    def __exit__(self, *_: object) -> None:
        """End the mark in the request that it began in."""
        here = current.get()
        try:
            mine = [one for one in self._running if one[0] is here] or self._running
            recording, since, began = started = mine[-1]
            self._running.remove(started)
            # Consumer time in which the stream was read after all is as it would be unmarked.
            if recording is None or since is None or began not in (0, recording.wait_started):
                return
            recording.add_mark(self._name, _free(recording) - since)
            if began:
                recording.switch_interval(reading=False)
        except Exception as error:  # noqa: BLE001
            internal_error("stage", error)


def _free(recording: Recording) -> int:
    """Return the time less consumer time and marks so far: no time is to count twice."""
    now = recording.clock()
    marks = (*recording.marked_before.values(), *recording.marked_after.values())
    consumer_time = (recording.wait_started or now) - recording.start - recording.waited
    return now - consumer_time - sum(marks)


def render() -> stage:
    """Mark the time inside as the consumer's own: short for `stage("render")`.

    Needed where rendering happens inside the decorated function and outside the reading of a
    stream, as in a bot that edits its message; between two reads it is seen without a mark.
    """
    return stage("render")


def _state(outcome: object, *recordings: Recording | None) -> None:
    """Note the outcome that the application states for a request."""
    if outcome is None:
        return
    if outcome not in OUTCOMES:
        text = f"llmtrace.annotate(outcome={outcome!r}): the outcomes are {', '.join(OUTCOMES)}"
        wrong_use("annotate", repr(outcome)[:_MAX_NAME], text)
        return
    for recording in recordings:
        if recording is not None and not recording.ended:
            recording.stated = outcome


def annotate(**attributes: Scalar | Sequence[str] | None) -> None:
    """Add `model`, `route`, `tenant` or attributes of your own to the request being recorded.

    For what is known only while it runs, such as the `user`, the `session` and a list of `tags`,
    recorded as `user.id`, `session.id` and `tag.tags`, or `cache_hit`: whether a cache answered
    before any engine was called. `outcome` is one of `success`, `error`, `cancelled`, `truncated`
    and `timeout`: what the application made of it, as where it gives up on a stream and responds
    itself. Outside any request it is for the enclosing turn or tool call, in
    a gateway for the request that passes through. Elsewhere it does nothing. A value that cannot
    be recorded is left out and logged, since a running request is no place to raise.
    """
    recording, relay = enclosing(), proxied_request.current.get()
    inside = current.get()
    if recording is not None and recording.ended:
        recording = None
    scope = None
    if recording is None and (scope := live()) is not None:
        recording = scope.turn()
    if recording is None and scope is None and relay is None:
        return
    for name, value in attributes.items():
        if name == "outcome":
            _state(value, recording, inside)
            continue
        try:
            fields, extra = labels({name: value}, "llmtrace.annotate")
        except ConfigError as error:
            internal_error("annotate", error)
            continue
        if relay is not None and "cache_hit" in fields:
            relay.cache_hit = fields["cache_hit"]
        if recording is not None:
            recording.annotate(fields, extra)
            if inside is not None and inside is not recording and not inside.ended:
                inside.annotate(fields, extra)
        elif scope is not None:
            scope.annotate(fields, extra)
        elif relay is not None:
            relay.fields.update(fields)
            relay.attributes.update(extra)
