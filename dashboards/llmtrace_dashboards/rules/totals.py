"""Record the sums that panels read as long as nothing is chosen at the top of a dashboard.

With hundreds of label sets, a histogram's buckets are tens of thousands of series, and a graph
that adds them up at each of its points takes Prometheus many seconds. The sums over all label
sets are a few hundred series. What is chosen by model, route, service or region is still added up
from the metrics themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from llmtrace_dashboards.rules.recording_series import (
    BASE,
    DIMENSIONS,
    Recorded,
    bad_rate,
    valid_rate,
)

# How often recorded series get a sample, in seconds: exists as long as the rules are loaded.
INTERVAL: Final = "llmtrace_recording_interval_seconds"
_SUCCEEDED: Final = 'outcome="success"'


@dataclass(frozen=True, slots=True)
class Total:
    """A metric whose sum over all label sets is recorded.

    Attributes:
        metric: a counter, a series of a histogram, or a recorded rate.
        own: the labels that are kept.
        by: labels by each of which, one at a time, it is recorded as well.
        only: matchers of what is recorded; empty = everything.
    """

    metric: str
    own: tuple[str, ...]
    by: tuple[str, ...] = ()
    only: str = ""

    def name(self, dimension: str = "", base: str = BASE) -> str:
        """Name the recorded series, by one more label or by none.

        Example:
            >>> TOTALS["llmtrace_requests_total"].name("model")
            'model_outcome:llmtrace_requests:rate5m'
        """
        level = "_".join(filter(None, (dimension, *self.own)))
        _, _, plain = self.metric.removesuffix(f":rate{BASE}").rpartition(":")
        return f"{level}:{plain.removesuffix('_total')}:rate{base}"

    def rules(self, base: str, dimensions: Sequence[str]) -> Iterator[Recorded]:
        """Yield the rules that record it by each of some labels, over windows of `base`."""
        metric = self.metric.removesuffix(BASE) + base if self.recorded else self.metric
        for dimension in dimensions:
            named = 'tenant!=""' if dimension == "tenant" else ""
            where = ", ".join(filter(None, (self.only, named)))
            each = f"{metric}{{{where}}}" if where else metric
            if not self.recorded:
                each = f"rate({each}[{base}])"
            labels = ", ".join(filter(None, (dimension, *self.own)))
            words = f"Of all label sets, by {labels}."
            yield Recorded(self.name(dimension, base), f"sum by ({labels}) ({each})", words)

    @property
    def recorded(self) -> bool:
        """Whether it is a recorded rate, and not a counter."""
        return ":" in self.metric


# Counters by outcome and these labels; the second column: of which outcomes, if not of all.
_COUNTERS: Final = (
    ("", "", "e2e_seconds_sum e2e_seconds_count inter_chunk_gap_seconds_count"),
    ("", "", "retries_total client_lag_seconds_total cache_hits_total streamed_requests_total"),
    ("le", _SUCCEEDED, "inter_chunk_gap_seconds_bucket"),
    ("phase", "", "network_phase_seconds_total"),
    ("type", "", "tokens_total"),
    ("stage", _SUCCEEDED,
     "stage_duration_seconds_sum stage_duration_seconds_count stage_unknown_total"),
    ("stage source", _SUCCEEDED, "stage_source_total"),
    ("stage le", _SUCCEEDED, "stage_duration_seconds_bucket"),
    ("stage over le", _SUCCEEDED, "anatomy_seconds_total"),
    ("over le", _SUCCEEDED, "prompt_ttft_seconds_total prompt_ttft_requests_total"),
    ("agent", "",
     "turn_duration_seconds_count turn_tool_seconds_total turn_tool_wall_seconds_total"),
    ("agent le", _SUCCEEDED, "turn_duration_seconds_bucket"),
    ("agent", _SUCCEEDED,
     "turn_tool_serial_loss_seconds_sum turn_tool_serial_loss_seconds_count"),
    ("tool", "", "tool_duration_seconds_sum tool_duration_seconds_count"),
    ("tool le", _SUCCEEDED, "tool_duration_seconds_bucket"),
)  # fmt: skip
_ALL: Final = (
    Total("llmtrace_requests_total", ("outcome",), (*DIMENSIONS, "tenant")),
    Total("llmtrace_e2e_seconds_bucket", ("outcome", "le"), (*DIMENSIONS, "tenant"), _SUCCEEDED),
    Total("llmtrace_ttft_seconds_bucket", ("outcome", "le"), DIMENSIONS, _SUCCEEDED),
    Total("llmtrace_tpot_seconds_bucket", ("outcome", "le"), DIMENSIONS, _SUCCEEDED),
    *(Total(f"llmtrace_{name}", ("outcome", *own.split()), only=only)
      for own, only, names in _COUNTERS for name in names.split()),
    Total(bad_rate(), ("budget", "slo"), DIMENSIONS),
    Total(valid_rate(), ("budget", "slo"), DIMENSIONS),
)  # fmt: skip
TOTALS: Final = {total.metric: total for total in _ALL}


# Percentiles of which a graph has a line for each of something: computed when they are recorded,
# and not at each point of the graph from dozens of buckets for each line.
P95S: Final = {
    **{
        f"llmtrace_engine_{what}_seconds": ("instance", "")
        for what in ("ttft", "queue", "prefill", "itl")
    },
    "llmtrace_turn_duration_seconds": ("agent", _SUCCEEDED),
    "llmtrace_tool_duration_seconds": ("tool", _SUCCEEDED),
}


def p95_of(metric: str, base: str = BASE) -> str:
    """Name the recorded 95th percentile of a histogram, by the label of `P95S`.

    Example:
        >>> p95_of("llmtrace_tool_duration_seconds")
        'tool:llmtrace_tool_duration_seconds:p95_rate5m'
    """
    return f"{P95S[metric][0]}:{metric}:p95_rate{base}"


def _p95s(base: str) -> Iterator[Recorded]:
    for metric, (label, only) in P95S.items():
        buckets = f"{metric}_bucket{f'{{{only}}}' if only else ''}"
        expression = f"histogram_quantile(0.95, sum by ({label}, le) (rate({buckets}[{base}])))"
        yield Recorded(p95_of(metric, base), expression, f"The 95th percentile by {label}.")


def totals(base: str, interval_s: float) -> Iterator[Recorded]:
    """Yield all rules that record sums over label sets, and percentiles; `totals_by` has the rest.

    Rates are over `base`, a window; the rules are evaluated every `interval_s` seconds.
    """
    for total in _ALL:
        if total.recorded:
            # The sum over everything is recorded with it: longer windows are made of that.
            yield from total.rules(base, total.by)
        else:
            yield from total.rules(base, ("",) if "le" in total.own else ("", *total.by))
    yield from _p95s(base)
    yield Recorded(INTERVAL, f"vector({interval_s:g})", "How often all of these are recorded.")


def totals_by(base: str) -> Iterator[Recorded]:
    """Yield the rules that record histograms by model, route and so on.

    They read each bucket of each label set once more for each label, and are read by tables over
    the whole time shown alone: once in `base` is enough.
    """
    for total in _ALL:
        if "le" in total.own:
            yield from total.rules(base, total.by)
