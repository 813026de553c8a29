"""Are other tools' figures worked out of a row, and left out where it cannot tell them?"""

from __future__ import annotations

import pytest

from llmtrace import Timeline
from llmtrace.load_test.other_tools import FIGURES, summary
from llmtrace.testing import make_row

MS = 1_000_000


def streamed(**changes):
    """Return a row of a stream whose role came long before its first token."""
    given = {"timeline": Timeline(e2e=2310 * MS, ttft=300 * MS), "first_event_ns": 40 * MS,
             "last_content_ns": 2300 * MS, "output_tokens": 101}  # fmt: skip
    return make_row(**given | changes)


def figures(*rows):
    """Return the mean of each figure, in milliseconds, by tool and name."""
    return {(one["tool"], one["figure"]): 1000 * one["mean_s"] for one in summary(rows)}


def test_each_tool_counts_from_and_to_its_own_marks():
    """The role's event, the first content, the end of the stream; over N or N - 1 tokens."""
    found = figures(streamed())
    assert found["llmtrace", "TPOT"] == pytest.approx(20.0)
    assert found["vllm bench serve", "TTFT"] == pytest.approx(40.0)
    assert found["vllm bench serve", "TPOT"] == pytest.approx(22.6)
    assert found["GuideLLM", "TPOT"] == pytest.approx(2300 / 101)
    assert found["sglang.bench_serving", "TPOT"] == pytest.approx(20.1)


def test_what_a_row_cannot_tell_is_left_out():
    """One token has no time between tokens, a whole response no TTFT, a failure nothing."""
    assert ("GuideLLM", "ITL") not in figures(streamed(output_tokens=1))
    assert figures(make_row(timeline=Timeline(e2e=MS, stream=False))) == {}
    assert summary([streamed(outcome="error")]) == []
    assert all(figure.of(make_row(timeline=Timeline(e2e=MS))) is None for figure in FIGURES)


def test_a_quantile_that_would_be_the_maximum_is_left_out():
    """Of fifteen requests there is no p95."""
    [first, *_] = summary([streamed()] * 15)
    assert (first["requests"], first["p95_s"]) == (15, None)
    assert first["p50_s"] == pytest.approx(0.3)
