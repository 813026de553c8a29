"""Can an engineer argue with the evidence: are figures and units in it, before and after?

The text of a few findings, word for word. A change here is a change of what people read at night.
"""

# ruff: noqa: E501 - lines are as long as people see them

from __future__ import annotations

import pytest

from llmtrace.triage.causes.engine_flags import flags
from llmtrace.triage.evidence import format_figures
from llmtrace.triage.result import Finding

from . import hand_made
from .incidents import quiet

GOLDEN = {
    "queue_saturation": """\
queue_saturation: confirmed, 19 points
 +0 queue p50 6.9 ms → 1,044 ms, p95 35 ms → 4,194 ms
 +6 requests waiting for capacity p50 0 → 13.9, p95 0 → 16.9
+10 vllm-0 runs 64 of at most 64
 +3 requests 2 → 3 a second, to each engine 0.66 → 0.975 a second
  > Add capacity: start replicas; until they are up, shed or defer what can wait. On this engine: raise `--max-num-seqs` if KV usage leaves room; shed early with `--max-num-queued-reqs` (responds 503).
""",
    "kv_exhaustion": """\
kv_exhaustion: confirmed, 29 points
 +0 queue p50 6.9 ms → 1,391 ms, p95 35 ms → 5,727 ms; decode p50 2.92 s → 3.01 s, p95 5.84 s → 5.97 s
 +6 KV usage p50 0.405 → 0.978, p95 0.449 → 0.992
+10 preemptions: 0 → 181 in equal time
+10 requests wait, the cache is full and the batch is not: vllm-2 runs 19.6 of at most 64
 +3 KV usage is up
  > Add capacity, or lower the batch so that what runs can finish; cap `max_tokens`. On this engine: raise `--gpu-memory-utilization`, or lower `--max-num-seqs`; halve KV bytes with `--kv-cache-dtype fp8`.
""",
    "network_path": """\
network_path: confirmed, 25 points
 +0 network p50 21 ms → 101 ms, p95 26 ms → 174 ms
 +6 network without one's own pool p50 21 ms → 101 ms, p95 26 ms → 174 ms
+10 round trip p50 21 ms → 101 ms, p95 26 ms → 174 ms
 +3 network is 100 % of the time added
 +3 only region=us (50 % of requests)
 +3 queue and prefill did not move
  > Reroute: undo the routing or DNS change, pin the region, keep connections alive. It is region=us (50 % of requests).
""",
}


def text(finding: Finding) -> str:
    """Write a finding as a person reads it."""
    lines = [f"{finding.id}: {finding.status}, {finding.score} points"]
    lines += [f"{p.points:+3} {p.text}" for p in (*finding.evidence, *finding.against)]
    lines += [f"  ? {line}" for line in finding.missing]
    return "\n".join([*lines, f"  > {finding.action}", ""])


@pytest.mark.parametrize("cause", GOLDEN)
def test_the_text_of_a_finding(cause):
    """Figures, units, points, and what to set on this engine."""
    assert text(getattr(hand_made, cause)().findings()[cause]) == GOLDEN[cause]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0 ms"), (0.0004, "0.4 ms"), (0.0123, "12 ms"), (0.9996, "1,000 ms"), (2.414, "2.41 s"),
     (61.2, "61 s"), (float("inf"), "?"), (-0.25, "-250 ms")],
)  # fmt: skip
def test_durations_are_said_in_a_unit_that_fits(value, said):
    """Three digits are enough, and no unit is left out."""
    assert format_figures.seconds(value) == said


def test_what_is_not_reported_is_said_so():
    """Never as a 0."""
    for line in (format_figures.durations("queue", None), format_figures.amounts("tokens", None),
                 format_figures.gauge("waiting", None), format_figures.ratio("hits", None),
                 format_figures.counted("preemptions", None)):  # fmt: skip
        assert line.endswith("not reported")


@pytest.mark.parametrize(
    ("facts", "holds", "lacks"),
    [
        ({"engine": "vllm", "version": "0.32.0"}, "--max-num-queued-reqs", "sglang"),
        ({"engine": "vllm", "version": "0.28.1"}, "--max-num-seqs", "--max-num-queued-reqs"),
        ({"engine": "sglang", "version": "0.5.23"}, "--max-running-requests", "--max-num-seqs"),
        ({}, "", "--"),
        ({"engine": "homemade"}, "", "--"),
    ],
)
def test_flags_are_those_of_the_engine_and_its_version(facts, holds, lacks):
    """Nothing is advised that the engine at hand does not know."""
    made = quiet()
    made.facts = dict.fromkeys(made.facts, facts)
    advice = flags(made.evidence(), "queue_saturation")

    assert holds in advice
    assert lacks not in advice


def test_engines_that_differ_get_advice_for_each():
    """With two engines in one fleet, neither is taken for the other."""
    made = quiet()
    made.facts["vllm-1"] = {"engine": "sglang"}
    advice = flags(made.evidence(), "queue_saturation")

    assert "vllm: " in advice
    assert "sglang: " in advice


@pytest.mark.parametrize(
    ("values", "said"),
    [((0.257, 0.487, 0.518, 1.29), ["0.26 s", "0.49 s", "0.52 s", "1.29 s"]),
     ((0.021, 1.4), ["21 ms", "1,400 ms"]), ((0.0, 12.0), ["0 s", "12 s"])],
)  # fmt: skip
def test_durations_of_a_line_have_one_unit(values, said):
    """They are there to be compared."""
    assert format_figures.in_one_unit(*values) == said
