"""What do hours of a large fleet leave in Prometheus? Blocks of it, made by promtool.

Each label set has the series that the exporter's own page has after an hour of one kind of
request: histograms of those that succeeded, counters of all outcomes. They grow evenly, so that
what the recording rules make of them is known. The series of single label sets that are summed
up by the rules go back for some minutes alone: without a choice at the top no panel reads them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from llmtrace.budget import DEFAULT
from llmtrace_dashboards.rules.recording_series import ALLOWED, bad_rate, bad_ratio, valid_rate
from llmtrace_dashboards.rules.totals import INTERVAL, P95S, TOTALS, Total, p95_of
from tests.real import history

END: Final = 1_760_000_400  # a whole hour, long ago
HOUR: Final = 3600
RECORDED_S: Final = 30
SLOS: Final = ("e2e", "ttft", "tpot", "availability")
_GROWS: Final = ("_total", "_bucket", "_count", "_sum")
_SHARES: Final = {bad_rate(): 0.05, valid_rate(): 2.5}  # of each SLO and label set, a second
_OF_OUTCOMES: Final = {
    "llmtrace_requests_total", "llmtrace_e2e_seconds_count", "llmtrace_ttft_seconds_count",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fleet:
    """How large it is.

    Attributes:
        sets: label sets of requests; as many of turns, and of tool calls.
        engines: instances whose pages the collector reads.
        hours: how long it has run.
        scrape_s: seconds between two scrapes.
        single_s: how far back the series of single label sets go.
    """

    sets: int
    engines: int
    hours: int
    scrape_s: int
    single_s: int


@dataclass(slots=True)
class _Series:
    """Series by their text, as `name{labels}`, with the value or its growth a second.

    Of those that were scraped also: whether they grow, and how many seconds they go back.
    """

    scraped: dict[str, tuple[float, bool, int]] = field(default_factory=dict)
    recorded: dict[str, float] = field(default_factory=dict)

    def record(self, name: str, labels: Mapping[str, str], rate: float) -> None:
        text = _text(name, labels)
        self.recorded[text] = self.recorded.get(text, 0.0) + rate


def blocks(folder: Path, fleet: Fleet) -> tuple[Path, int]:
    """Make the blocks; return their folder, and how many series there are."""
    data, page = folder / "data", folder / "page.om"
    series = _series(fleet)
    for start in range(END - fleet.hours * HOUR, END, HOUR):
        with page.open("w", encoding="utf-8") as file:
            file.writelines(_lines(series, start, fleet))
            file.write("# EOF\n")
        subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", page, data],
            check=True, capture_output=True,
        )  # fmt: skip
    page.unlink()
    return data, len(series.scraped) + len(series.recorded)


def _lines(series: _Series, start: int, fleet: Fleet) -> Iterator[str]:
    since = END - fleet.hours * HOUR
    # Many series grow alike: what follows the name and labels is written once.
    endings: dict[tuple[float, bool, int], list[str]] = {}
    for text, kind in series.scraped.items():
        if kind not in endings:
            value, grows, back_s = kind
            endings[kind] = [
                f" {value * (at - since) if grows else value:g} {at}\n"
                for at in range(start, start + HOUR, fleet.scrape_s)
                if at >= END - back_s
            ]
        if endings[kind]:
            yield text + text.join(endings[kind])
    for text, value in series.recorded.items():
        yield text + text.join(
            f" {value:g} {at}\n" for at in range(start, start + HOUR, RECORDED_S)
        )


def _series(fleet: Fleet) -> _Series:
    made, whole_s = _Series(), fleet.hours * HOUR
    samples = [(job, name, dict(labels), value) for job, name, labels, value in history.pages()]
    for number in range(fleet.sets):
        chosen = {
            "model": f"m{number % 5}", "route": f"r{number // 5 % 5}",
            "service": f"s{number // 25}", "region": "eu",
        }  # fmt: skip
        own = {**chosen, "agent": f"a{number % 25}", "tool": f"t{number % 25}"}
        target = {"job": "app", "instance": f"i{number}:1"}
        for job, name, labels, value in samples:
            if job == "app" and _is_kept(name, labels) and name != "llmtrace_budget_seconds":
                named = {key: own.get(key, text) for key, text in labels.items()}
                rate = value / HOUR
                back_s = fleet.single_s if name in TOTALS else whole_s
                made.scraped[_text(name, {**named, **target})] = (rate, True, back_s)
                _sum_up(made, name, named, rate)
        for slo in SLOS:
            for name, rate in _SHARES.items():
                labels = {**chosen, "budget": DEFAULT.name, "slo": slo}
                made.record(name, labels, rate)
                _sum_up(made, name, labels, rate)
    for job, name, labels, value in samples:
        if job == "collector" and labels.get("instance", "engine-a:8000") == "engine-a:8000":
            grows = name.endswith(_GROWS)
            for number in range(fleet.engines if "instance" in labels else 1):
                named = {**labels, "instance": f"engine-{number}:8000"}
                rate = value / HOUR if grows else value
                made.scraped[_text(name, named)] = (rate, grows, whole_s)
        if name == "llmtrace_budget_seconds":
            text = _text(name, {**labels, "job": "app", "instance": "i0:1"})
            made.scraped[text] = (value, False, whole_s)
    for slo in SLOS:
        labels = {"budget": DEFAULT.name, "slo": slo}
        made.record(ALLOWED, labels, 0.05)
        for window in ("5m", "1h", "6h"):
            made.record(bad_ratio(window), labels, 0.02)
    made.record(INTERVAL, {}, RECORDED_S)
    _percentiles(made, fleet)
    return made


def _percentiles(made: _Series, fleet: Fleet) -> None:
    """Add the percentiles that the rules would record, as if all were alike."""
    names = {
        "instance": [f"engine-{number}:8000" for number in range(fleet.engines)],
        "agent": [f"a{number}" for number in range(25)],
        "tool": [f"t{number}" for number in range(25)],
    }
    for metric, (label, _) in P95S.items():
        for name in names[label]:
            made.record(p95_of(metric), {label: name}, 0.5)


def _is_kept(name: str, labels: Mapping[str, str]) -> bool:
    agent, tool = labels.get("agent", "planner"), labels.get("tool", "stock")
    if (agent, tool) != ("planner", "stock"):
        return False
    return labels.get("outcome", "success") == "success" or name in _OF_OUTCOMES


def _sum_up(made: _Series, name: str, labels: Mapping[str, str], rate: float) -> None:
    """Add a series to the sums that the recording rules would make of it."""
    total = TOTALS.get(name)
    if total is None or (total.only and labels.get("outcome") != "success"):
        return
    for dimension in ("", *total.by):
        if dimension in labels or not dimension:
            made.record(total.name(dimension), _kept(total, dimension, labels), rate)


def _kept(total: Total, dimension: str, labels: Mapping[str, str]) -> dict[str, str]:
    return {key: labels[key] for key in (*total.own, *filter(None, [dimension])) if key in labels}


def _text(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items() if value)
    return f"{name}{{{inside}}}"
