"""The record of one finished request.

A `Row`: the labels of the request, its outcome, and where its time went. A row flattens to plain
JSON (`as_dict`) and comes back (`from_dict`) with the same stages, whichever program wrote it;
everything llmtrace shows is a function over rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from llmtrace.core.attempts import Attempt
from llmtrace.core.browser_timing import Browser
from llmtrace.core.errors import DataError
from llmtrace.core.flat_row import flatten, unflatten
from llmtrace.core.row_fields import OUTCOMES, Outcome, RowFields
from llmtrace.core.row_html import one_row
from llmtrace.core.stages import EngineFigures, Stages, Timeline, split, with_engine
from llmtrace.core.tool_calls import Part

__all__ = [
    "OUTCOMES",
    "TURN",
    "Outcome",
    "Row",
    "blank_row",
    "from_dict",
    "seconds",
    "with_figures",
]

TURN: Final = "invoke_agent"  # the operation of a row that is a turn

_NS: Final = 1_000_000_000
# A consumer that reads within this long of getting the stream has not delayed anything.
_EAGER_NS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Row(RowFields):
    """The record of one finished request. The fields not listed here are those of `RowFields`.

    Attributes:
        timeline: everything measured and reported, uncut.
        attempt_log: the HTTP attempts, where there was more than one or where one failed.
        gap_counts: numbers of gaps between chunks, by the bounds `request_clock.GAP_BOUNDS_NS`;
            only in memory, for the metrics, as is their sum `gap_sum_ns`.
        parts: of a turn: its requests and tool calls. They are exported as spans of their own.
        content: the prompt and response, by attribute name, if the user wants it recorded: on
            the request's span and nowhere else.
        response_headers: of the last response, by lower-case name, as its server or gateway sent
            them (limits, ids, times of their own): `instrumentation.headers.kept_headers` has the
            list.
        browser: what the page measured, where its beacon was joined to this row.
    """

    attempt_log: tuple[Attempt, ...] = ()
    attributes: Mapping[str, str | bool | int | float | tuple[str, ...]] = field(
        default_factory=dict
    )
    response_headers: Mapping[str, str] = field(default_factory=dict)
    browser: Browser | None = None
    parts: tuple[Part, ...] = ()
    content: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    timeline: Timeline
    gap_counts: tuple[int, ...] | None = field(default=None, compare=False, repr=False)
    gap_sum_ns: int | None = field(default=None, compare=False, repr=False)

    if not TYPE_CHECKING:

        def __init__(self, **given: Any) -> None:
            # The generated one sets sixty fields one by one, past the freeze: five times the cost.
            object.__setattr__(self, "__dict__", _checked(blank_row() | given))

    @classmethod
    def of(cls, own: dict[str, Any]) -> Row:
        """Make a row of all its fields by name, which are its own from here on: nothing copied."""
        row = cls.__new__(cls)
        object.__setattr__(row, "__dict__", _checked(own))
        return row

    @cached_property
    def stages(self) -> Stages:
        """The partition of `e2e_ns` into the seven stages."""
        return split(self.timeline)

    @property
    def is_turn(self) -> bool:
        """Whether this is a turn of an agent, with requests and tool calls, and not a request."""
        return self.operation == TURN

    @property
    def stream(self) -> bool:
        """Whether the response came as a stream."""
        return self.timeline.stream

    @property
    def e2e_ns(self) -> int:
        """How long the client waited for the whole response, in nanoseconds."""
        return self.timeline.e2e

    @property
    def e2e_s(self) -> float:
        """How long the client waited for the whole response, in seconds."""
        return self.e2e_ns / _NS

    @property
    def ttft_ns(self) -> int | None:
        """Start to first content, as the consumer experienced it; of a turn, its last stream's."""
        return self.timeline.ttft

    @property
    def ttft_s(self) -> float | None:
        """Start to first content, as the consumer experienced it, in seconds."""
        return seconds(self.timeline.ttft)

    @property
    def ttft_arrival_s(self) -> float | None:
        """The least that `ttft_s` would have been if the consumer had read at once, in seconds.

        Consumer time is subtracted as far as the engine's own figures leave room for it; `None`
        when the consumer was late and nothing bounds when the content arrived. At most it
        is `arrived_by_ns`, where the kernel said that.
        """
        timeline = self.timeline
        if timeline.ttft is None or not timeline.watched or not timeline.stream:
            return None
        if timeline.held_before <= _EAGER_NS:
            return self.ttft_s
        if timeline.written is not None:
            stages = timeline.written
            render = min(timeline.held_before, stages.render or 0)
        else:
            # The wait up to the first content alone: what was rendered after it is not in there.
            stages = split(replace(timeline, e2e=timeline.ttft))
            render = stages.render or 0
        if stages.queue is None or stages.prefill is None:
            return None
        return (timeline.ttft - render) / _NS

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first: (last - first content) / (tokens - 1)."""
        first, last, tokens = self.ttft_ns, self.last_content_ns, self.output_tokens
        if first is None or last is None or tokens is None or tokens <= 1:
            return seconds(self.timeline.tpot)
        return (last - first) / (tokens - 1) / _NS

    @property
    def max_gap_s(self) -> float | None:
        """Longest wait for a chunk after the first, in seconds."""
        return seconds(self.max_gap_ns)

    @property
    def retry_s(self) -> float:
        """Seconds spent in failed attempts and the backoff after them."""
        return (self.timeline.retry_network + self.timeline.retry_gateway) / _NS

    def as_dict(self) -> dict[str, Any]:
        """Flatten to JSON-ready keys: durations in seconds, unknown ones left out."""
        return flatten(self)

    def _repr_html_(self) -> str:
        return one_row(self)


def _checked(own: dict[str, Any]) -> dict[str, Any]:
    if len(own) != len(_FIELDS) or not own.keys() >= _REQUIRED:
        odd = ("lacks", _REQUIRED - own.keys()), ("has no", own.keys() - _FIELDS)
        said = (f"{what} {', '.join(sorted(names))}" for what, names in odd if names)
        raise TypeError(f"a row {' and '.join(said)}")
    return own


_FIELDS: Final = {f.name for f in fields(Row)}
# Fields of a row that its engine may report, too.
_ENGINE_REPORTS: Final = _FIELDS & {f.name for f in fields(EngineFigures)}
_DEFAULTS: Final = {f.name: f.default for f in fields(Row) if f.default is not MISSING}
_MAPPINGS: Final = tuple(f.name for f in fields(Row) if f.default_factory is not MISSING)
_REQUIRED: Final = _FIELDS - _DEFAULTS.keys() - set(_MAPPINGS)


def blank_row() -> dict[str, Any]:
    """Return the fields of a row that need not be given, by name; `Row.of` makes a row of all."""
    row = _DEFAULTS.copy()
    for name in _MAPPINGS:
        row[name] = {}
    return row


def seconds(ns: int | None) -> float | None:
    """Convert nanoseconds to seconds, leaving the unknown unknown."""
    return None if ns is None else ns / _NS


def with_figures(row: Row, figures: EngineFigures) -> Row:
    """Return the row with an engine's figures joined to it, whenever they arrive.

    What the row knows already stays. The engine's count of output tokens is taken for answers that
    came whole: of others the client got fewer.
    """
    reported_fields = {
        name: value
        for name in _ENGINE_REPORTS
        if getattr(row, name) is None and (value := getattr(figures, name)) is not None
    }
    if row.outcome != "success":
        reported_fields.pop("output_tokens", None)
    return replace(row, timeline=with_engine(row.timeline, figures), **reported_fields)


def from_dict(flat: Mapping[str, Any]) -> Row:
    """Rebuild a row from its flat form; unknown keys are ignored.

    The stages are those that are written, as every reader of rows has them. Where the rest of
    what is written leads to them, the row is the one that `Row.as_dict` flattened.

    Raises:
        DataError: a key is missing or holds a value of the wrong kind, or the stages come to more
            than the whole wait; the message names it.
    """
    try:
        return Row(**unflatten(flat))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        lacks = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise DataError(f"not a row: {lacks}") from error
