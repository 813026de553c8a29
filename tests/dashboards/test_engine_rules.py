"""Do recording rules make of engines' own series in Prometheus what the collector makes of pages?

promtool loads each page's series as if it had scraped them, evaluates the rules, and compares with
what the collector unifies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from llmtrace_collector.signals.engine_rules import rule_groups
from llmtrace_collector.signals.exposition_parser import ExpositionParser
from llmtrace_collector.signals.normalise import Distribution, Measured, Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from tests.collector import pages

from .promtool import run

# The real scrapes, and a page of every other engine and of what gateways add to them.
PAGES: Final = {
    **{name.removesuffix(".txt"): pages.scrape(name) for name in pages.SCRAPES},
    "vllm-0.6": pages.VLLM_0_6,
    "vllm-0.33": pages.vllm_0_33(),
    "ray": pages.RAY,
    "router": pages.PRODUCTION_STACK,
    "sglang": pages.SGLANG,
    "tgi": pages.TGI,
    "trtllm": pages.TRTLLM,
    "triton": pages.TRITON,
    "llama.cpp": pages.LLAMA_CPP,
    "dynamo": pages.DYNAMO,
    "dynamo-worker": pages.DYNAMO_WORKER,
    "litellm": pages.LITELLM,
    "llm-d": pages.LLM_D,
    "dcgm": pages.DCGM,
}
# In milliseconds, or less another: bounds of buckets are labels, which PromQL cannot compute with.
WITHOUT_BUCKETS: Final = {
    ("triton", "ttft"), ("dynamo", "gateway_overhead"), ("llm-d", "gateway_overhead"),
}  # fmt: skip


def scraped(text: str, instance: str) -> Iterator[dict[str, str]]:
    """Yield the series of a page as a Prometheus has them, in promtool's notation."""
    parser = ExpositionParser(lambda _name: True)
    values = parser.read(text)
    for series, value in zip(parser.series, values, strict=True):
        if value is None or math.isnan(value):
            continue
        labels = {**series.labels, "instance": instance, "job": "engines", "cluster": "c"}
        yield {"series": series.name + written(labels), "values": f"{value!r}x2"}


def written(labels: dict[str, str]) -> str:
    """Write labels as PromQL has them."""
    return "{" + ", ".join(f'{k}="{v}"' for k, v in sorted(labels.items())) + "}"


def expected(one: Measured, instance: str) -> Iterator[dict[str, Any]]:
    """Yield the samples that a unified series is in Prometheus."""
    labels = {**dict(one.labels), "instance": instance, "job": "engines", "cluster": "c"}
    name = one.signal.metric
    if not isinstance(one.value, Distribution):
        yield {"labels": written({"__name__": name, **labels}), "value": one.value}
        return
    for suffix, value in (("_sum", one.value.sum), ("_count", one.value.count)):
        yield {"labels": written({"__name__": name + suffix, **labels}), "value": value}
    for bound, count in zip(one.value.bounds, one.value.counts, strict=True):
        if (
            bound == math.inf and (instance, one.signal.name) not in WITHOUT_BUCKETS
        ):  # others are written as each engine does
            where = {"__name__": f"{name}_bucket", "le": "+Inf", **labels}
            yield {"labels": written(where), "value": count}


def test_rules_make_of_series_what_the_collector_makes_of_pages(tmp_path: Path):
    """Every signal of every engine, with its labels and in its unit; and nothing more."""
    inputs, wanted = [], []
    for instance, text in PAGES.items():
        inputs += scraped(text, instance)
        for one in Normaliser(builtin_profiles()).read(text).measured:
            wanted += expected(one, instance)
    rules = tmp_path / "engines.yaml"
    rules.write_text(json.dumps({"groups": rule_groups(builtin_profiles())}))
    query = (
        '{__name__=~"llmtrace_.+", __name__!~"llmtrace_target_.+|.+_frontend_.+", le=~"|[+]Inf"}'
    )
    test = {
        "rule_files": [rules.name],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": inputs,
                "promql_expr_test": [
                    {"expr": query, "eval_time": "30s", "exp_samples": wanted},
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(json.dumps(test))
    run("check", "rules", rules)
    run("test", "rules", tmp_path / "test.yaml")
