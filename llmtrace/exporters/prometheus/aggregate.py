"""Count the rows of this process, by label set.

Cumulative histograms and counters in exact integer nanoseconds, from which the Prometheus and the
OpenTelemetry metrics are made.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import add
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from llmtrace.core.failopen import internal_error
from llmtrace.core.request_clock import GAP_BOUNDS_NS
from llmtrace.core.sanitize import encodable
from llmtrace.core.stages import PARTITION, STAGES, Network
from llmtrace.exporters.after_fork import restart_after_fork
from llmtrace.exporters.prometheus.buckets import BANDS_NS, PROMPT_BANDS, Thresholds, edges
from llmtrace.semconv.attributes import TOKEN_BOUNDS

if TYPE_CHECKING:
    from llmtrace.core.row import Row

_NS: Final = 1_000_000_000
_PHASES: Final = tuple(phase for phase, _ in Network().parts())

OTHER: Final = "other"
_NO_DETAILS: Final = ("", "", "", "")
# Rows are counted in batches of this size, or when the totals are read: one by one, between two
# requests, the same work takes several times as long, as it is not in the processor's caches.
_TOGETHER: Final = 32
# The last 7 bytes of a trace id are the random ones.
_RANDOM: Final = 1 << 56

K = TypeVar("K", bound=Hashable)
Mark = tuple[str, str, int]  # trace id, span id, unix ns of the end


class Labels(NamedTuple):
    """The labels of rows in metrics; empty = not known."""

    model: str
    route: str
    service: str
    region: str
    outcome: str
    tenant: str
    operation: str
    provider: str
    server: str
    error_type: str


class Histogram:
    """Counts of values by bucket, their sum, and the last request that fell into each.

    Attributes:
        edges: upper bounds, which belong to their buckets; the last bucket has none.
        counts: values in each bucket.
        total: sum of the values.
        exemplars: the last value in each bucket and the request it came from.
    """

    __slots__ = ("counts", "edges", "exemplars", "total")

    def __init__(self, edges: Sequence[int]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.exemplars: list[tuple[int, Mark] | None] = [None] * (len(edges) + 1)
        self.total = 0

    @property
    def count(self) -> int:
        """The number of values that were added."""
        return sum(self.counts)

    def observe(self, value: int, mark: Mark | None) -> None:
        """Add one value, with an exemplar of its bucket if `mark` is given."""
        bucket = bisect_left(self.edges, value)
        self.counts[bucket] += 1
        self.total += value
        if mark is not None:
            self.exemplars[bucket] = (value, mark)

    def add(self, other: Histogram) -> None:
        """Add everything that another histogram with the same edges holds."""
        for bucket, count in enumerate(other.counts):
            if count:
                self.counts[bucket] += count
                mine, theirs = self.exemplars[bucket], other.exemplars[bucket]
                if theirs is not None and (mine is None or mine[1][2] < theirs[1][2]):
                    self.exemplars[bucket] = theirs
        self.total += other.total


def fold(histogram: Histogram, bounds: Sequence[int]) -> list[int]:
    """Count by fewer bounds, all of which must be among the histogram's own."""
    wanted = set(bounds)
    counts, running = [], 0
    for edge, count in zip(histogram.edges, histogram.counts, strict=False):
        running += count
        if edge in wanted:
            counts.append(running)
            running = 0
    counts.append(running + histogram.counts[-1])
    return counts


_COUNTED: Final = (
    "requests", "cached_tokens", "cache_write_tokens", "reasoning_tokens", "retries", "client",
    "lag", "cache_hits", "streamed",
)  # fmt: skip


class Cell:
    """Everything counted for one label set.

    Attributes:
        bands: nanoseconds spent in each stage, by how long the request took in all: for each of
            `BANDS_NS` and one for what is longer, a sum for each stage.
        stage_sources: requests by the source of each of `STAGES`; `None` = it is not known.
        by_prompt: of requests that know both, nanoseconds to the first content and how many they
            are, by the length of the prompt: for each of `PROMPT_BANDS` and one for longer ones.
        phases: nanoseconds in each sub-phase of `network`, where an HTTP hook reported it.
        client: nanoseconds of the application's own before its requests were handed over.
        lag: nanoseconds for which data had been here before the client read it, at least.
        retries: HTTP attempts after the first.
        cache_hits: requests that a response cache is known to have answered.
        streamed: requests whose response was a stream.
    """

    __slots__ = (
        "bands", "by_prompt", "cache_hits", "cache_write_tokens", "cached_tokens", "client", "e2e",
        "gaps", "input_tokens", "lag", "output_tokens", "phases", "reasoning_tokens", "requests",
        "retries", "stage_sources", "stages", "streamed", "tpot", "ttft",
    )  # fmt: skip

    def __init__(self, bounds: Mapping[str, Sequence[int]], *, ours: bool) -> None:
        self.requests = self.cached_tokens = self.retries = self.client = self.lag = 0
        self.cache_hits = self.streamed = self.cache_write_tokens = self.reasoning_tokens = 0
        self.e2e = Histogram(bounds["e2e"])
        self.ttft = Histogram(bounds["ttft"])
        self.tpot = Histogram(bounds["tpot"])
        self.gaps = Histogram(GAP_BOUNDS_NS)
        self.input_tokens = Histogram(TOKEN_BOUNDS)
        self.output_tokens = Histogram(TOKEN_BOUNDS)
        stages = PARTITION if ours else ()
        self.stages = {stage: Histogram(bounds[stage]) for stage in stages}
        self.bands = [[0] * len(PARTITION) for _ in range(len(BANDS_NS) + 1)]
        self.by_prompt = [[0, 0] for _ in range(len(PROMPT_BANDS) + 1)]
        self.stage_sources: dict[tuple[str | None, ...], int] = {}
        self.phases: dict[str, int] = {}

    def observe(self, row: Row, mark: Mark | None) -> None:
        """Count one row. What it does not know is not observed, so that counts show coverage."""
        timeline = row.timeline
        self.requests += 1
        self.e2e.observe(timeline.e2e, mark)
        if timeline.ttft is not None:
            self.ttft.observe(timeline.ttft, mark)
            if row.gap_counts is not None:
                self._gaps(row, row.gap_counts)
        if row.prompt_tokens is not None:
            self.input_tokens.observe(row.prompt_tokens, mark)
            self.cached_tokens += row.cached_tokens or 0
            self.cache_write_tokens += row.cache_write_tokens or 0
        if row.output_tokens is not None:
            self.output_tokens.observe(row.output_tokens, mark)
            self.reasoning_tokens += row.reasoning_tokens or 0
        self.retries += row.attempts - 1
        if self.stages:
            self._ours(row, mark)

    def _ours(self, row: Row, mark: Mark | None) -> None:
        """Count what OpenTelemetry's metrics do not have."""
        if (tpot := row.tpot_s) is not None:
            self.tpot.observe(round(tpot * _NS), mark)
        if row.prompt_tokens is not None and row.timeline.ttft is not None:
            shown = self.by_prompt[bisect_left(PROMPT_BANDS, row.prompt_tokens)]
            shown[0] += row.timeline.ttft
            shown[1] += 1
        stages = row.stages
        band = self.bands[bisect_left(BANDS_NS, row.timeline.e2e)]
        for place, (name, histogram) in enumerate(self.stages.items()):
            if (ns := getattr(stages, name)) is not None:
                histogram.observe(ns, mark)
                band[place] += ns
        self.cache_hits += row.cache_hit is True
        self.streamed += row.stream
        by_stage = tuple(map(stages.sources.get, STAGES))
        self.stage_sources[by_stage] = self.stage_sources.get(by_stage, 0) + 1
        self.client += stages.client or 0
        self.lag += row.client_lag_ns or 0
        network, phases = row.timeline.network, self.phases
        for phase in _PHASES:
            if (ns := getattr(network, phase)) is not None:
                phases[phase] = phases.get(phase, 0) + ns

    @property
    def sources(self) -> dict[tuple[str, str], int]:
        """Requests by stage and its source."""
        found: dict[tuple[str, str], int] = {}
        for by_stage, count in self.stage_sources.items():
            for stage, source in zip(STAGES, by_stage, strict=True):
                if source is not None:
                    found[stage, source] = found.get((stage, source), 0) + count
        return found

    @property
    def unknown(self) -> dict[str, int]:
        """Requests for which a stage is not known, by stage."""
        found = dict.fromkeys(PARTITION, 0)  # what is unattributed always is
        for by_stage, count in self.stage_sources.items():
            for stage, source in zip(STAGES, by_stage, strict=True):
                if source is None:
                    found[stage] += count
        return found

    def _gaps(self, row: Row, gap_counts: Sequence[int]) -> None:
        if row.chunks > 1:
            self.gaps.counts[:] = map(add, self.gaps.counts, gap_counts)
            self.gaps.total += row.gap_sum_ns or 0

    def add(self, other: Cell) -> None:
        """Add everything another cell of the same aggregate counted."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("e2e", "ttft", "tpot", "gaps", "input_tokens", "output_tokens"):
            getattr(self, name).add(getattr(other, name))
        for stage, histogram in other.stages.items():
            self.stages[stage].add(histogram)
        for name in ("bands", "by_prompt"):
            for mine, theirs in zip(getattr(self, name), getattr(other, name), strict=True):
                mine[:] = map(add, mine, theirs)
        for by_stage, count in other.stage_sources.items():
            self.stage_sources[by_stage] = self.stage_sources.get(by_stage, 0) + count
        for phase, ns in other.phases.items():
            self.phases[phase] = self.phases.get(phase, 0) + ns


class Aggregate:
    """Cells by label set, for any number of threads.

    Args:
        thresholds_s: seconds by metric (`e2e`, `ttft`, `tpot`, `inter_chunk_gap`) or stage, made
            bucket bounds so that the share within each is exact.
        ours: count what OpenTelemetry's GenAI metrics do not have, too: stages, `tpot`, `phases`.
        tenants: keep tenants apart too.
        details: keep operation, provider, server and error type apart too.
        max_label_sets: beyond these, rows of new label sets are counted together under `other`, by
            service; those of more services than that together, too.
        turns: called with each turn among the rows; turns are not requests.

    Raises:
        ConfigError: a threshold is for no known metric or stage, or is no duration.
    """

    def __init__(
        self,
        *,
        thresholds_s: Thresholds | None = None,
        ours: bool = True,
        tenants: bool = False,
        details: bool = True,
        max_label_sets: int = 100,
        turns: Callable[[Row], None] = lambda _turn: None,
    ) -> None:
        self._edges = edges(thresholds_s or {})
        self._ours = ours
        self._tenants = tenants
        self._details = details
        self._max = max_label_sets
        self._turns = turns
        self.restart_in_child()
        restart_after_fork(self)

    def restart_in_child(self) -> None:
        """Count from nothing: what was counted before a fork is the parent's to report."""
        self._lock = threading.Lock()
        self._cells: dict[Labels, Cell] = {}
        self._services: set[str] = set()  # with rows under `other`
        self._waiting: deque[Row] = deque()

    def add(self, row: Row) -> None:
        """Count one row, at the latest when the totals are read."""
        self._waiting.append(row)
        if len(self._waiting) >= _TOGETHER:
            with self._lock:
                self._count()

    def _count(self) -> None:
        """Count the rows that wait; the calling code holds the lock."""
        waiting = self._waiting
        while waiting:
            row = waiting.popleft()
            try:
                if row.is_turn:
                    self._turns(row)
                else:
                    self._observe(row)
            except Exception as error:  # noqa: BLE001 - one bad row must not cost the others
                internal_error("export.metrics", error)

    def _observe(self, row: Row) -> None:
        labels: Any = (  # finds what `Labels` would, and is made sooner
            row.model or "",
            row.route or "",
            row.service,
            row.region or "",
            row.outcome,
            (row.tenant or "") if self._tenants else "",
            *(
                (row.operation, row.provider or "", row.server or "", row.error_type or "")
                if self._details
                else _NO_DETAILS
            ),
        )
        (self._cells.get(labels) or self._cell(labels)).observe(row, mark_of(row))

    def _cell(self, values: Sequence[str]) -> Cell:
        labels = Labels(*map(encodable, values))
        if labels not in self._cells and len(self._cells) >= self._max:
            internal_error(
                "export.metrics.label_sets",
                f"more than {self._max} label sets; further ones are counted as {OTHER!r}",
            )
            # A client's random model names must not hide the services that come later.
            others = Labels(*[OTHER] * len(labels))._replace(outcome=labels.outcome)
            if labels.service in self._services or len(self._services) < self._max:
                self._services.add(labels.service)
                others = others._replace(service=labels.service)
            labels = others
        if (cell := self._cells.get(labels)) is None:
            cell = self._cells[labels] = Cell(self._edges, ours=self._ours)
        return cell

    def by(self, key: Callable[[Labels], K], *, reset: bool = False) -> dict[K, Cell]:
        """Return what was counted, added up by what `key` makes of the labels.

        Args:
            key: the labels to keep apart.
            reset: start counting anew, for receivers that want differences.
        """
        found = self.cells(key, reset=reset)
        return {wanted: self.merged(cells) for wanted, cells in found.items()}

    def cells(self, key: Callable[[Labels], K], *, reset: bool = False) -> dict[K, list[Cell]]:
        """Return the cells themselves, which go on counting, by what `key` makes of the labels."""
        with self._lock:
            self._count()
            cells = list(self._cells.items())
            if reset:
                self._cells = {}
        found: dict[K, list[Cell]] = {}
        for labels, cell in cells:
            found.setdefault(key(labels), []).append(cell)
        return found

    def merged(self, cells: Sequence[Cell]) -> Cell:
        """Return what some of its cells have counted by now, added up."""
        merged = Cell(self._edges, ours=self._ours)
        with self._lock:
            for cell in cells:
                merged.add(cell)
        return merged


def mark_of(row: Row) -> Mark | None:
    """Return what an exemplar says of a row; `None` if the user's sampling drops its trace."""
    written = row.weight <= 1 or int(row.trace_id[-14:], 16) * row.weight < _RANDOM
    return (row.trace_id, row.span_id, row.start + row.timeline.e2e) if written else None
