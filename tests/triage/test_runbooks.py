"""Does every cause have a page, and are its queries about metrics that exist?"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.triage.causes import RULES
from llmtrace.triage.causes.engine_flags import REMEDIES
from llmtrace.triage.causes.look_alikes import RELATIONS
from llmtrace.triage.report import runbooks
from llmtrace.triage.result import CAUSES
from llmtrace_collector.metrics import target_metrics
from llmtrace_collector.signals.definitions import SIGNALS

PAGES = Path(__file__).parents[2] / "docs" / "on-call" / "runbooks"
SUFFIX = re.compile(r"(_bucket|_sum|_count)$")
# What the collector tells beside its table of signals.
OTHERS = {"llmtrace_target_up", "llmtrace_engine_frontend_mean_seconds"}


def queries(text: str) -> list[str]:
    """Return the queries of a page."""
    blocks = re.findall(r"```promql\n(.*?)```", text, re.DOTALL)
    return [query for block in blocks for query in block.strip().split("\n\n")]


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_a_page_with_all_its_parts(cause):
    """What it looks like, how to confirm it, what to do now and later; on disk as generated."""
    page = runbooks.page(cause)

    for heading in ("What it looks like", "How to confirm it", "What to do now",
                    "What to do later"):  # fmt: skip
        assert f"## {heading}\n\n" in page
    assert (PAGES / f"{cause}.md").read_text(encoding="utf-8") == page, "run `make docs`"


def test_the_index_lists_them_all():
    """And no page is left over from a cause that is gone."""
    index = (PAGES / runbooks.INDEX).read_text(encoding="utf-8")
    pages = {path.name for path in PAGES.glob("*.md")}

    assert {*re.findall(r"\(([a-z_]+\.md)\) \|", index)} == pages - {runbooks.INDEX}
    assert pages == {runbooks.INDEX, *(f"{cause}.md" for cause in CAUSES)}


def test_tables_speak_of_causes_that_exist():
    """What is behind what, and what to set for what."""
    tables = [RELATIONS[one] for one in ("behind", "behind_if_slow", "behind_if_not_slow")]
    named = {name for one in tables for effect, of in one.items() for name in (effect, *of)}

    assert named | {*REMEDIES} <= {*RULES, "*"}


def test_queries_ask_for_metrics_that_exist():
    """Ours are those of the collector's table and of the SDK."""
    exposed = Path(target_metrics.__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in exposed for name in OTHERS)
    registry = CollectorRegistry()
    PrometheusSink(registry=registry)
    known = {signal.metric for signal in SIGNALS.values()} | OTHERS
    known |= {f"{f.name}{'_total' if f.type == 'counter' else ''}" for f in registry.collect()}
    asked = {
        SUFFIX.sub("", name)
        for cause in CAUSES
        for query in queries(runbooks.page(cause))
        for name in re.findall(r"llmtrace_\w+", query)
    }

    assert asked
    assert asked <= known


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_understands_every_query(tmp_path):
    """Each is a valid expression."""
    rules = [
        {"record": "runbook:query", "labels": {"n": str(n)}, "expr": query}
        for n, query in enumerate(q for c in CAUSES for q in queries(runbooks.page(c)))
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False
    )

    assert len(rules) > 20
    assert done.returncode == 0, done.stdout + done.stderr
