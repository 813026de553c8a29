"""Expose the aggregate of all rows to Prometheus.

A collector over the aggregate, in the application's registry: nothing is written twice, and a
scrape sees every request up to now. `prometheus_client`'s multi-process mode does not see it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from llmtrace.core.errors import ConfigError, needs_extra
from llmtrace.core.failopen import internal_error, internal_errors, logger
from llmtrace.core.row import OUTCOMES
from llmtrace.core.span import Span
from llmtrace.exporters.prometheus.agent_metrics import Agents
from llmtrace.exporters.prometheus.aggregate import Aggregate, Cell, Histogram
from llmtrace.exporters.prometheus.buckets import BANDS_NS, PROMPT_BANDS, Thresholds, edges, limits

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

    from llmtrace.core.row import Row

with needs_extra("the Prometheus exporter", "prometheus", "prometheus-client"):
    from prometheus_client import REGISTRY, start_http_server
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )
    from prometheus_client.samples import Exemplar
    from prometheus_client.utils import floatToGoString

LABELS: Final = ("model", "route", "service", "region", "outcome")
TURN_LABELS: Final = ("agent", "route", "service", "region", "outcome")
TOOL_LABELS: Final = ("tool", "service", "region", "outcome")
MAX_LABEL_SETS: Final = 100
_NS: Final = 1e9
_F = TypeVar("_F", CounterMetricFamily, HistogramMetricFamily)


class PrometheusSink:
    """A sink whose counts a Prometheus registry collects.

    Args:
        thresholds_s: bucket bounds to add; see `Aggregate`.
        budget_seconds: what each budget, by name, allows each stage; shown as a gauge.
        tenants: label by tenant too.
        max_label_sets: of requests, exposed one by one; further ones are counted as `other`, by
            service. A page costs about 10 ms and 60 kB for each, in the application's process.
        registry: where to register; llmtrace's collector there before is replaced.

    Raises:
        ConfigError: a threshold is wrong.
    """

    every_row: bool = True
    every_span: bool = True  # of tool calls

    def __init__(
        self,
        *,
        thresholds_s: Thresholds | None = None,
        budget_seconds: Mapping[str, Mapping[str, float]] | None = None,
        tenants: bool = False,
        max_label_sets: int = MAX_LABEL_SETS,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._budgets = budget_seconds or {}
        self._agents = Agents(tenants=tenants, thresholds_s=thresholds_s)
        self._aggregate = Aggregate(
            thresholds_s=thresholds_s,
            tenants=tenants,
            details=False,
            max_label_sets=max_label_sets,
            turns=self._agents.turn,
        )
        # What alerts need of an outcome; of streams that are cut off, at what age.
        none = limits(thresholds_s or {})
        self._none = {"ttft": none["ttft"], "e2e": none["e2e"]}
        self._none_truncated = {**self._none, "e2e": edges(thresholds_s or {})["e2e"]}
        self._kept: dict[tuple[str, ...], _Kept] = {}
        self._labels = (*LABELS, "tenant") if tenants else LABELS
        self._turn_labels = (*TURN_LABELS, "tenant") if tenants else TURN_LABELS
        self._registry: CollectorRegistry = REGISTRY if registry is None else registry
        self._server: tuple[Any, Any] | None = None
        self._register()

    def _register(self) -> None:
        before = _registered.get(id(self._registry))
        if before is not None:
            before.close()
        try:
            self._registry.register(self)
        except ValueError as error:
            msg = f"the registry has metrics of these names already: {error}"
            raise ConfigError(msg) from error
        _registered[id(self._registry)] = self

    def write(self, row: Row | Span) -> None:
        """Count one row, or the span of a tool call."""
        try:
            if isinstance(row, Span):
                self._agents.span(row)
            else:
                self._aggregate.add(row)
        except Exception as error:  # noqa: BLE001 - the application must not notice
            internal_error("export.prometheus", error)

    def flush(self, timeout_s: float) -> bool:
        """Do nothing: a scrape sees every row already."""
        del timeout_s
        return True

    def serve(self, port: int, addr: str = "127.0.0.1") -> int:
        """Serve /metrics from a daemon thread. Return the port, which 0 leaves to the system.

        Raises:
            ConfigError: the port cannot be had.
        """
        try:
            self._server = start_http_server(port, addr, registry=self._registry)
        except (OSError, OverflowError) as error:
            msg = f"prometheus:{port}: cannot serve on {addr}:{port}: {error}; take another port"
            raise ConfigError(msg) from error
        bound: int = self._server[0].server_port
        logger.info("llmtrace: metrics on http://%s:%d/metrics", addr, bound)
        return bound

    def close(self) -> None:
        """Stop serving and leave the registry."""
        server, self._server = self._server, None
        if server is not None:
            server[0].shutdown()
            server[0].server_close()
        if _registered.get(id(self._registry)) is self:
            del _registered[id(self._registry)]
            self._registry.unregister(self)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, so that registering does not collect."""
        return self._families().all()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand."""
        families = self._families()
        found = self._aggregate.cells(attrgetter(*self._labels))
        found |= {labels: [] for labels in _without_requests(found)}
        self._kept = {labels: self._samples(labels, cells) for labels, cells in found.items()}
        for kept in self._kept.values():
            for name, samples in kept.samples.items():
                getattr(families, name).samples += samples
        for labels, turns in self._agents.turns.by(attrgetter(*self._turn_labels)).items():
            families.fill_turns(labels, turns)
        for labels, tools in self._agents.tools.by(attrgetter(*TOOL_LABELS)).items():
            _add(families.tool, labels, tools["duration"])
        for budget, stages in self._budgets.items():
            for stage, seconds in stages.items():
                edge_ns = round(seconds * _NS)
                families.budget.add_metric((budget, stage, _bound(edge_ns)), edge_ns / _NS)
        for kind, count in internal_errors().items():
            families.errors.add_metric((kind,), count)
        return families.all()

    def _samples(self, labels: tuple[str, ...], cells: Sequence[Cell]) -> _Kept:
        """Make the samples of one label set, or take the last page's, if nothing has changed."""
        counted = [(cell, cell.requests) for cell in cells]
        kept = self._kept.get(labels)
        if kept is not None and kept.counted == counted:
            return kept
        families = self._families()
        if cells:
            families.fill(labels, self._aggregate.merged(cells))
        else:
            cut = labels[LABELS.index("outcome")] == "truncated"
            families.fill_none(labels, self._none_truncated if cut else self._none)
        made = {name: family.samples for name, family in vars(families).items() if family.samples}
        return _Kept(counted, made)

    def _families(self) -> _Families:
        return _Families(self._labels, self._turn_labels)


# Which sink a registry has, so that a second `init` takes the place of the first.
_registered: dict[int, PrometheusSink] = {}


class _Kept(NamedTuple):
    """The samples of one label set, by family, and how many requests each of its cells had."""

    counted: list[tuple[Cell, int]]
    samples: Mapping[str, list[Any]]


class _Families:
    """The metric families of one scrape."""

    def __init__(self, labels: Sequence[str], turn_labels: Sequence[str]) -> None:
        self._measured(labels)
        self._counted(labels)
        self._of_turns(turn_labels)

    def _measured(self, labels: Sequence[str]) -> None:
        histogram = _with_labels(HistogramMetricFamily, labels)
        self.stage = histogram(
            "llmtrace_stage_duration_seconds",
            "Time a request spent in a stage. Requests whose stage is not known are not in it.",
            "stage",
        )
        self.ttft = histogram("llmtrace_ttft_seconds", "Start of the call to its first content.")
        self.tpot = histogram("llmtrace_tpot_seconds", "Time of an output token after the first.")
        self.e2e = histogram("llmtrace_e2e_seconds", "Start of the call to its end.")
        self.gap = histogram(
            "llmtrace_inter_chunk_gap_seconds", "Wait for a chunk after the first."
        )

    def _counted(self, labels: Sequence[str]) -> None:
        counter = _with_labels(CounterMetricFamily, labels)
        self.requests = counter("llmtrace_requests", "Requests, by how they ended.")
        self.tokens = counter(
            "llmtrace_tokens",
            "Tokens, where the server reported them; cached_input is a part of input.",
            "type",
        )
        self.unknown = counter(
            "llmtrace_stage_unknown", "Requests for which a stage could not be known.", "stage"
        )
        self.source = counter(
            "llmtrace_stage_source",
            "Requests for which a stage is known, by source.",
            "stage",
            "source",
        )
        self.anatomy = counter(
            "llmtrace_anatomy_seconds",
            "Time in each stage, by how long its request took in all: above `over`, up to `le`.",
            "stage",
            "over",
            "le",
        )
        self.prompt_ttft = counter(
            "llmtrace_prompt_ttft_seconds",
            "Time to first content, by tokens of the prompt: above `over`, up to `le`.",
            "over",
            "le",
        )
        self.prompt_requests = counter(
            "llmtrace_prompt_ttft_requests",
            "Requests whose time to first content and prompt tokens are known, by the latter.",
            "over",
            "le",
        )
        self._around(labels)

    def _around(self, labels: Sequence[str]) -> None:
        """Make those of what lies around the engine: network, client, retries, caches."""
        counter = _with_labels(CounterMetricFamily, labels)
        self.phase = counter(
            "llmtrace_network_phase_seconds",
            "Time in each sub-phase of the network stage, where observed.",
            "phase",
        )
        self.client = counter(
            "llmtrace_unattributed_client_seconds",
            "Unattributed time that was the application's own, before requests were handed over.",
        )
        self.lag = counter(
            "llmtrace_client_lag_seconds",
            "Waits for which data had arrived, and a busy client had not read it yet; at least.",
        )
        self.retries = counter("llmtrace_retries", "HTTP attempts after a request's first.")
        self.cache_hits = counter(
            "llmtrace_cache_hits", "Requests that a response cache answered."
        )
        self.streamed = counter(
            "llmtrace_streamed_requests",
            "Requests whose response was a stream; the others were unary.",
        )

    def _of_turns(self, turn_labels: Sequence[str]) -> None:
        histogram = _with_labels(HistogramMetricFamily, turn_labels)
        counter = _with_labels(CounterMetricFamily, turn_labels)
        self.turn = histogram(
            "llmtrace_turn_duration_seconds",
            "How long a turn of an agent took. Turns are no requests.",
        )
        self.turn_ttft = histogram(
            "llmtrace_turn_ttft_seconds", "Start of a turn to the first content that its user saw."
        )
        self.loss = histogram(
            "llmtrace_turn_tool_serial_loss_seconds",
            "What independent tool calls of a turn lost by taking turns.",
        )
        self.tool_serial = counter(
            "llmtrace_turn_tool_seconds", "Time of all tool calls of turns, added up."
        )
        self.tool_wall = counter(
            "llmtrace_turn_tool_wall_seconds", "Time of turns while any of their tool calls ran."
        )
        self.tool = HistogramMetricFamily(
            "llmtrace_tool_duration_seconds", "How long a tool call took.", labels=TOOL_LABELS
        )
        self.budget = GaugeMetricFamily(
            "llmtrace_budget_seconds",
            "What a latency budget allows a stage; bound is the bucket bound that it became.",
            labels=("budget", "stage", "bound"),
        )
        self.errors = CounterMetricFamily(
            "llmtrace_internal_errors",
            "Things lost or broken inside llmtrace itself.",
            labels=("kind",),
        )

    def all(self) -> Iterator[Metric]:
        """Yield the metric families for a scrape."""
        yield from vars(self).values()

    def fill_none(self, labels: tuple[str, ...], bounds: Mapping[str, Sequence[int]]) -> None:
        """Add zeros for a label set that has had no request, by these bounds alone."""
        self.requests.add_metric(labels, 0)
        for family, name in ((self.e2e, "e2e"), (self.ttft, "ttft")):
            family.add_metric(labels, [*((_bound(ns), 0) for ns in bounds[name]), ("+Inf", 0)], 0)

    def fill(self, labels: tuple[str, ...], cell: Cell) -> None:
        """Add the samples of one label set."""
        self.requests.add_metric(labels, cell.requests)
        _add(self.e2e, labels, cell.e2e)
        _add(self.ttft, labels, cell.ttft)
        _add(self.tpot, labels, cell.tpot)
        _add(self.gap, labels, cell.gaps)
        # A stage that was never known has no series: most would be of what no server reports.
        known = {stage: one for stage, one in cell.stages.items() if any(one.counts)}
        for stage, histogram in known.items():
            _add(self.stage, (*labels, stage), histogram)
        for stage, count in cell.unknown.items():
            self.unknown.add_metric((*labels, stage), count)
        for (stage, source), count in cell.sources.items():
            self.source.add_metric((*labels, stage, source), count)
        for (over, le), band in zip(_BANDS, cell.bands, strict=True):
            # Empty bands too: a counter that begins above 0 has no increase.
            for stage, ns in zip(cell.stages, band, strict=True):
                if stage in known:
                    self.anatomy.add_metric((*labels, stage, over, le), ns / _NS)
        for (over, le), (ns, count) in zip(_PROMPT_BANDS, cell.by_prompt, strict=True):
            self.prompt_ttft.add_metric((*labels, over, le), ns / _NS)
            self.prompt_requests.add_metric((*labels, over, le), count)
        for phase, ns in cell.phases.items():
            self.phase.add_metric((*labels, phase), ns / _NS)
        self.client.add_metric(labels, cell.client / _NS)
        self.lag.add_metric(labels, cell.lag / _NS)
        self.retries.add_metric(labels, cell.retries)
        self.cache_hits.add_metric(labels, cell.cache_hits)
        self.streamed.add_metric(labels, cell.streamed)
        for kind, tokens in (
            ("input", cell.input_tokens.total),
            ("cached_input", cell.cached_tokens),
            ("output", cell.output_tokens.total),
        ):
            self.tokens.add_metric((*labels, kind), tokens)

    def fill_turns(self, labels: tuple[str, ...], turns: Mapping[str, Histogram]) -> None:
        """Add the samples of one label set of turns."""
        _add(self.turn, labels, turns["duration"])
        _add(self.turn_ttft, labels, turns["ttft"])
        _add(self.loss, labels, turns["loss"])
        self.tool_serial.add_metric(labels, turns["tool_serial"].total / _NS)
        self.tool_wall.add_metric(labels, turns["tool_wall"].total / _NS)


def _with_labels(family: type[_F], labels: Sequence[str]) -> Callable[..., _F]:
    """Return what makes metric families of these labels, and of further ones that it is given."""
    return lambda name, meaning, *more: family(name, meaning, labels=(*labels, *more))


def _without_requests(known: Collection[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the label sets that differ from a known one in the outcome alone.

    They are exposed at 0 before the first request ends so: a counter that begins above 0 has no
    increase, and the first errors of a model would be in no rate and in no alert.
    """
    place = LABELS.index("outcome")
    for before, after in dict.fromkeys((one[:place], one[place + 1 :]) for one in known):
        for outcome in OUTCOMES:
            if (labels := (*before, outcome, *after)) not in known:
                yield labels


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    running = 0
    buckets: list[Any] = []
    bounds = [*(_bound(edge) for edge in histogram.edges), "+Inf"]
    for bound, count, last in zip(bounds, histogram.counts, histogram.exemplars, strict=True):
        running += count
        exemplar = None
        if last is not None:
            value, (trace_id, _, unix_ns) = last
            exemplar = Exemplar({"trace_id": trace_id}, value / _NS, unix_ns / _NS)
        buckets.append((bound, running, exemplar))
    family.add_metric(labels, buckets, histogram.total / _NS)


def _bound(edge_ns: int) -> str:
    """Write a bound as every Prometheus client does, so that a query's `le` can name it."""
    return str(floatToGoString(edge_ns / _NS))  # type: ignore[no-untyped-call]


_EDGES: Final = ("0.0", *map(_bound, BANDS_NS), "+Inf")
_BANDS: Final = tuple(pairwise(_EDGES))
_PROMPT_BANDS: Final = tuple(pairwise(("0", *map(str, PROMPT_BANDS), "+Inf")))
