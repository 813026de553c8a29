"""Does `dashboards check` say which panels a Prometheus leaves empty, and why?

A fake answers as a Prometheus would that has the series of some pages; a real one is asked in
tests/real.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from llmtrace.api_clients.prometheus_client import Prometheus
from llmtrace_collector.scrape.prometheus_gaps import NOT_RECORDED, engine_gaps
from llmtrace_collector.signals.exposition_parser import ExpositionParser
from llmtrace_dashboards.boards import dashboards
from llmtrace_dashboards.lint.panel_data import describe, empty_panels, panel_counts
from tests.collector import pages

BEHIND_COLLECTOR = 'llmtrace_target_up{kind="engine"} 1\n'


class Scraped(Prometheus):
    """Answers with the last values of pages, and with no sum or rate of them.

    Args:
        by_instance: the pages, by instance.
    """

    def __init__(self, by_instance: dict[str, str]) -> None:
        super().__init__("http://127.0.0.1:9090")
        self.found: dict[str, list[dict[str, Any]]] = {}
        for instance, text in by_instance.items():
            parser = ExpositionParser(lambda _name: True)
            values = parser.read(text)
            for series, value in zip(parser.series, values, strict=True):
                labels = {"__name__": series.name, "instance": instance, **series.labels}
                one = {"metric": labels, "value": [0, repr(value)]}
                self.found.setdefault(series.name, []).append(one)

    def ask(self, path: str, **parameters: object) -> list[Any]:
        """Return names, or the series of names."""
        if path == "label/__name__/values":
            return list(self.found)
        named = re.fullmatch(r'\{__name__=~"(.+)"\}', str(parameters.get("query")))
        names = named[1].split("|") if named else []
        return [one for name in names for one in self.found.get(name, ())]


def reasons(*, engines_only: bool = True, **by_instance: str) -> dict[str, str]:
    """Return why each empty panel is empty, by its title."""
    server = Scraped(by_instance)
    made = list(dashboards(engines_only=engines_only).values())
    found = empty_panels(server, made, engine_gaps(server).why)
    return {one.panel: one.why for one in found}


@pytest.mark.parametrize(
    ("text", "panel", "why"),
    [
        (pages.scrape("vllm-0.32-metrics.txt"), "Running requests", NOT_RECORDED),
        (pages.scrape("vllm-0.32-metrics.txt"), "Prefix cache hits", NOT_RECORDED),
        (
            pages.scrape("vllm-0.32-metrics.txt"), "Accepted, by position in the draft",
            "vLLM: only when speculative decoding is on",
        ),
        (pages.VLLM_0_6, "Waiting, by reason", "vLLM: from 0.20.0 on"),
        (pages.VLLM_0_6, "Front end: TTFT less queue and prefill",
         "it is TTFT less queue and prefill, and these are not reported"),
        (pages.TGI, "Engine's TTFT, p95 by instance",
         "TGI: TGI does not report it; queue and the prefill of batches are the nearest"),
        (pages.TGI, "Running requests", NOT_RECORDED),
        (pages.LLAMA_CPP, "Queue, p95 by instance", "llama.cpp: not timed"),
        ("up 1\n", "Running requests",
         "no engine's metrics are in this Prometheus: have it scrape the engine's own page"),
        (pages.TGI, "Readings that failed or came late", "only `llmtrace collect` reports it"),
        (BEHIND_COLLECTOR, "Running requests",
         "no target of `llmtrace collect` reports it: `llmtrace doctor ADDRESS` says why"),
        (BEHIND_COLLECTOR, "Power",
         "no GPU exporter's metrics are in this Prometheus: dcgm-exporter has them"),
        (
            pages.scrape("vllm-0.32-metrics.txt")
            + "llmtrace_engine_prefix_cache_hits_tokens_total 0\n"
            + "llmtrace_engine_prefix_cache_queries_tokens_total 0\n",
            "Prefix cache hits",
            "its metrics are there, and none says anything of the last hour",
        ),
    ],
)  # fmt: skip
def test_a_panel_is_empty_for_a_reason(text: str, panel: str, why: str):
    """Rules, a version, a flag, an engine that does not tell, or nothing to read."""
    assert reasons(engine=text)[panel] == why


def test_what_needs_requests_says_so():
    """Boards about requests are empty without an application or a collector."""
    found = reasons(engines_only=False, engine=pages.VLLM_0_6)

    assert found["Percentiles of each stage (do not add)"].startswith("no requests: neither")
    assert "the rules of `llmtrace slo rules`" in found["Requests within budget"]


def test_where_there_are_requests_that_is_no_reason():
    """A panel of something else says what it lacks; and titles have no variable in them."""
    found = reasons(engines_only=False, collector="llmtrace_requests_total 98\n")

    assert not [title for title, why in found.items() if why.startswith("no requests")]
    assert not [title for title in found if "$" in title]
    assert found["A turn takes"] == "no turns of agents were recorded"
    assert found["llmtrace's own errors"].startswith("no internal errors of llmtrace")
    assert found["Stage: queue"] == (
        "llmtrace_stage_duration_seconds_bucket is not there, though requests are"
    )


def test_reasons_are_said_once():
    """A line for each reason, with its panels; and what is scraped."""
    server = Scraped({"vllm-0:8000": pages.VLLM_0_6, "tgi-0:80": pages.TGI})
    gaps = engine_gaps(server)
    made = list(dashboards(engines_only=True).values())
    empty = list(empty_panels(server, made, gaps.why))
    lines = list(describe(empty, panel_counts(made), gaps.engines))

    assert lines[:2] == ["TGI at tgi-0:80", "vLLM at vllm-0:8000"]
    assert "llmtrace / Engine budget: 0 of 10 panels have data" in lines
    budget = lines[lines.index("llmtrace / Engine budget: 0 of 10 panels have data") + 1 :]
    assert len(budget) == 3  # of rules, and of what neither of the two reports
