"""Runs as other systems log them: sampled, repeated, without outcomes, or with other columns."""

from __future__ import annotations

import json

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.core.errors import DataError
from llmtrace.run_comparison.conditions import read_condition
from llmtrace.run_comparison.read_run import read_run
from llmtrace.run_comparison.runs import compare
from llmtrace.run_comparison.wording import headline, sentences, totals_rows

START = 1_790_000_000_000_000_000


def rows(seed, count=600, **more):
    """Make rows of ten a second, of which one in fifty fails; `more` overrides their keys."""
    rng = np.random.default_rng(seed)
    for n in range(count):
        ttft = float(rng.lognormal(-1, 0.4))
        yield {
            "start": START + n * 10**8 + seed, "request_id": f"{seed}-{n}", "model": "m",
            "route": "chat", "prompt_tokens": int(rng.integers(100, 900)), "output_tokens": 100,
            "ttft_s": ttft, "e2e_s": ttft + 2, "finish_reason": "stop",
            "outcome": "error" if n % 50 == 0 else "success", **more,
        }  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Write rows to a file and read them as a run."""

    def make(name, made):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in made))
        return read_run(path)

    return make


def without(made, *keys):
    """Leave keys out of rows."""
    return [{key: value for key, value in row.items() if key not in keys} for row in made]


def test_a_sample_counts_for_the_requests_that_it_stands_for(run):
    """A tenth of the fast ones, and all that failed: failures, rates and tokens are as of all."""
    every = list(rows(1, 2000))
    chosen = (row for n, row in enumerate(every) if row["outcome"] == "error" or n % 10 == 1)
    kept = [row | {"weight": 1.0 if row["outcome"] == "error" else 10.0} for row in chosen]
    found = compare(run("all", every), run("sample", kept))

    whole, sample = found.totals
    assert sample.requests == pytest.approx(whole.requests, rel=0.02)
    assert sample.failed == pytest.approx(whole.failed, rel=0.05)
    assert sample.tokens_per_s == pytest.approx(whole.tokens_per_s, rel=0.05)
    assert not found.failures_differ
    assert read_condition("failures > 5%").judge(found)[0] == "passed"


def test_rows_without_outcomes_are_not_failures(run):
    """Nothing is known of failures; durations are compared."""
    found = compare(run("a", rows(1)), run("b", without(rows(2), "outcome")))

    assert found.totals[1].succeeded == 600
    assert not found.failures_differ
    assert ("error", "12", "not reported") in totals_rows(found)
    with pytest.raises(DataError, match="the runs do not both report outcomes"):
        read_condition("failures > 1%").judge(found)


def test_kinds_that_one_run_does_not_report_are_left_aside(run):
    """One log lacks columns: what both have is compared, and what was not is said."""
    bare = without(rows(2), "model", "route", "prompt_tokens", "finish_reason")
    found = compare(run("a", rows(1)), run("b", bare))

    assert {one.name for one in found.effects} >= {"ttft", "e2e"}
    said = " ".join(sentences(found))
    assert "only one run reports it: model, route, prompt_tokens" in said
    assert "end with" not in said


def test_what_has_nothing_in_common_says_why(run):
    """A renamed model, or too few rows."""
    before = run("a", rows(1))
    with pytest.raises(DataError, match="only the run after has model=m-fp8"):
        compare(before, run("b", rows(2, model="m-fp8")))
    with pytest.raises(DataError, match="3 and 3 requests are too few of any one kind"):
        compare(run("few", rows(1, 3, outcome="success")), run("c", rows(2, 3, outcome="success")))


def test_requests_that_turns_enclose_are_compared(run):
    """An agent's rows: turns, and the requests in them."""

    def agents(seed):
        for row in rows(seed):
            yield row | {"nested": True}
        yield next(rows(seed)) | {"operation": "invoke_agent", "request_id": "turn"}

    assert compare(run("a", agents(1)), run("b", agents(2))).totals[0].requests == 600
    with pytest.raises(DataError, match=r"no request in it \(1 turns of agents\)"):
        compare(run("a", agents(1)), run("turns", [list(agents(2))[-1]]))
    with pytest.raises(DataError, match=r"no request succeeded in it \(600 timeout\)"):
        compare(run("a", agents(1)), run("failed", rows(2, outcome="timeout")))


def test_repeated_rows_count_once(run):
    """A log that was joined to itself."""
    found = compare(run("a", rows(1)), run("twice", [*rows(2), *rows(2)]))

    assert found.totals[1].requests == 600
    assert any("600 repeated rows count once" in one for one in found.warnings)


def test_failures_that_chance_may_make_are_undecided(run):
    """2 % and 3 % of a few hundred: no limit of 1 % is kept for sure, nor broken."""
    some = [row | {"outcome": "error" if n % 33 == 0 else "success"}
            for n, row in enumerate(rows(2))]  # fmt: skip
    found = compare(run("a", rows(1)), run("b", some))

    state, figures = read_condition("failures > 1%").judge(found)
    assert (state, "points" in figures) == ("undecided", True)
    assert read_condition("failures > 9%").judge(found)[0] == "passed"


def test_more_failures_are_in_the_headline(run):
    """That responses are as fast is not the news where half of them fail."""
    half = [row | {"outcome": "error" if n % 2 else "success"} for n, row in enumerate(rows(2))]
    found = compare(run("a", rows(1)), run("b", half))

    assert headline(found).startswith("More requests fail: 2.0% → 50.0%.")
    assert read_condition("failures > 10%").judge(found)[0] == "failed"


def test_a_doubt_comes_before_what_it_puts_in_doubt(run, tmp_path, capsys):
    """Milliseconds in keys of seconds."""
    run("a", rows(1))
    run("ms", [row | {name: 1000 * row[name] for name in ("ttft_s", "e2e_s")} for row in rows(2)])

    assert main(["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "ms.jsonl")]) == 0
    said = capsys.readouterr().out
    assert 0 < said.index("are these milliseconds?") < said.index("TTFT is slower")
    assert said.count("ttft_s is") == 1
