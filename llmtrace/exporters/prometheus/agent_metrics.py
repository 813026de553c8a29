"""Count the turns and tool calls of this process, by agent and by tool.

They are not requests, and the metrics of requests do not count them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from llmtrace.core.failopen import internal_error
from llmtrace.core.sanitize import encodable
from llmtrace.exporters.after_fork import restart_after_fork
from llmtrace.exporters.prometheus.aggregate import OTHER, Histogram, mark_of
from llmtrace.exporters.prometheus.buckets import LATENCY_S, Thresholds, edges
from llmtrace.semconv.attributes import CALL_BOUNDS, TOOL_NAME

if TYPE_CHECKING:
    from llmtrace.core.row import Row
    from llmtrace.core.span import Span

_NS: Final = 1_000_000_000
# Turns may take minutes.
_EDGES: Final = tuple(round(bound * _NS) for bound in LATENCY_S)
_COUNTS: Final = ("inference_calls", "tool_calls")
_TOOL_TIMES: Final = ("tool_serial", "tool_wall")  # only their sums are exposed
_MAX_LABEL_SETS: Final = 200


class TurnLabels(NamedTuple):
    """The labels of turns in metrics; empty = not known."""

    agent: str
    route: str
    service: str
    region: str
    outcome: str
    tenant: str
    error_type: str


class ToolLabels(NamedTuple):
    """The labels of tool calls in metrics; empty = not known."""

    tool: str
    service: str
    region: str
    outcome: str
    error_type: str


L = TypeVar("L", TurnLabels, ToolLabels)
K = TypeVar("K", bound=Hashable)
# Histograms of one label set, by what they are of.
Cell = Mapping[str, Histogram]


class _Cells(Generic[L]):
    """Histograms by label set, for any number of threads."""

    def __init__(self, **bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self.restart_in_child()
        restart_after_fork(self)

    def restart_in_child(self) -> None:
        """Count from nothing: what was counted before a fork is the parent's to report."""
        self._lock = threading.Lock()
        self._cells: dict[L, Cell] = {}

    def observe(
        self, labels: L, values: Mapping[str, int], mark: tuple[str, str, int] | None
    ) -> None:
        """Count a turn or tool call; what is not known of it is not observed."""
        with self._lock:
            cell = self._cells.get(labels) or self._cell(labels)
            for name, value in values.items():
                cell[name].observe(value, mark)

    def _cell(self, labels: L) -> Cell:
        labels = type(labels)(*map(encodable, labels))
        if labels not in self._cells and len(self._cells) >= _MAX_LABEL_SETS:
            internal_error(
                "export.metrics.label_sets",
                f"more than {_MAX_LABEL_SETS} agents or tools; more are counted as {OTHER!r}",
            )
            others = [name for name in labels._fields if name not in {"service", "outcome"}]
            labels = labels._replace(**dict.fromkeys(others, OTHER))
        return self._cells.setdefault(labels, self._empty())

    def _empty(self) -> Cell:
        return {name: Histogram(bounds) for name, bounds in self._bounds.items()}

    def by(self, key: Callable[[L], K], *, reset: bool = False) -> dict[K, Cell]:
        """Return what was counted, added up by what `key` makes of the labels."""
        found: dict[K, Cell] = {}
        with self._lock:
            for labels, cell in self._cells.items():
                merged = found.setdefault(key(labels), self._empty())
                for name, histogram in cell.items():
                    merged[name].add(histogram)
            if reset:
                self._cells = {}
        return found


class Agents:
    """Turns and tool calls, counted.

    Attributes:
        turns: their `duration`, their first content, `ttft`, their `inference_calls` and
            `tool_calls` and, of those with tools, what these lost by taking turns, `loss`, their
            time added up, `tool_serial`, and that in which any of them ran, `tool_wall`.
        tools: their `duration`.
    """

    def __init__(self, *, tenants: bool = False, thresholds_s: Thresholds | None = None) -> None:
        self._tenants = tenants
        self.turns: _Cells[TurnLabels] = _Cells(
            duration=_EDGES,
            ttft=edges(thresholds_s or {})["turn_ttft"],
            loss=_EDGES,
            **dict.fromkeys(_TOOL_TIMES, ()),
            **dict.fromkeys(_COUNTS, CALL_BOUNDS),
        )
        self.tools: _Cells[ToolLabels] = _Cells(duration=_EDGES)

    def turn(self, row: Row) -> None:
        """Add a finished turn to the counters and histograms of its labels."""
        labels = TurnLabels(
            row.agent or "",
            row.route or "",
            row.service,
            row.region or "",
            row.outcome,
            (row.tenant or "") if self._tenants else "",
            row.error_type or "",
        )
        values = {"duration": row.e2e_ns}
        if row.ttft_ns is not None:
            values["ttft"] = row.ttft_ns
        values |= {name: n for name in _COUNTS if (n := getattr(row, name)) is not None}
        if row.tool_calls and row.tool_serial_loss_s is not None:
            values["loss"] = round(row.tool_serial_loss_s * _NS)
        if row.tool_serial_s is not None and row.tool_wall_s is not None:
            values["tool_serial"] = round(row.tool_serial_s * _NS)
            values["tool_wall"] = round(row.tool_wall_s * _NS)
        self.turns.observe(labels, values, mark_of(row))

    def span(self, span: Span) -> None:
        """Count a span, if it is of a tool call."""
        attributes = span.attributes
        tool = attributes.get(TOOL_NAME)
        if tool is None:
            return
        labels = ToolLabels(
            str(tool),
            span.service,
            str(attributes.get("llmtrace.region", "")),
            str(attributes.get("llmtrace.outcome", "")),
            str(attributes.get("error.type", "")),
        )
        self.tools.observe(labels, {"duration": span.duration_ns}, None)
