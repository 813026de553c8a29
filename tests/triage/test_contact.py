"""Does triage say what happened where rows come from a cache, in one piece, or from a calm day?"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from llmtrace.cli import main
from llmtrace.dataset.case import Case, Window, no_signals, write_case
from llmtrace.dataset.columns import from_dicts
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.links import Links
from llmtrace.triage.result import NAMED, Result
from tests.triage.days import Kind, day

BEGIN = 1_790_000_000.0  # 2026-09-21 14:13:20 UTC
QUICK = Settings(bootstrap=20)
Flat = Mapping[str, Any]


def drawn(n: int, start: float, seed: int, every: float = 2.0) -> Iterator[dict[str, Any]]:
    """Yield requests of a p50 of 3 s, 0.9 s to the first token."""
    dice = np.random.default_rng(seed)
    for i in range(n):
        yield {
            "start": int((start + every * i) * 1e9), "request_id": f"{seed}-{i}", "model": "m",
            "operation": "chat", "outcome": "success", "stream": True, "prompt_tokens": 500,
            "output_tokens": 100, "ttft_s": float(dice.normal(0.9, 0.05)),
            "e2e_s": float(dice.normal(3, 0.2)),
        }  # fmt: skip


def case(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Case:
    """Make a case of two windows."""
    windows = [
        Window(rows[0]["start"] / 1e9 - 1, rows[-1]["start"] / 1e9 + 1) for rows in (before, after)
    ]
    rows = from_dicts([*before, *after])
    return Case(rows=rows, signals=no_signals(), before=windows[0], after=windows[1])


def cached(start: float, seed: int, hits: float, *, counts: bool) -> list[dict[str, Any]]:
    """Return requests of which a response cache answers a share, with or without token counts."""
    dice = np.random.default_rng(seed + 100)
    rows = list(drawn(300, start, seed))
    for row in rows:
        row["cache_hit"] = bool(dice.random() < hits)
        if row["cache_hit"]:
            row.update(ttft_s=0.02, e2e_s=0.05)
            if not counts:
                del row["prompt_tokens"], row["output_tokens"]
    return rows


def named(result: Result) -> list[str]:
    """Return the causes that are named, the first first."""
    return [one.id for one in result.causes if one.status in NAMED]


@pytest.mark.parametrize("counts", [False, True])
@pytest.mark.parametrize("hits", [0.0, 0.5])
def test_a_response_cache_that_misses_is_a_regression(counts, hits):
    """Whether hits carry token counts or not: that a cache answered is no property of the work."""
    result = triage(
        case(cached(BEGIN, 1, 0.97, counts=counts), cached(BEGIN + 1000, 2, hits, counts=counts)),
        QUICK,
    )

    assert result.verdict == "regression"
    assert named(result)[0] == "response_cache_misses"
    first = result.causes[0]
    assert first.status == "confirmed"
    assert any("requests that miss alone" in point.text for point in first.evidence)


def test_longer_prompts_behind_a_cache_are_still_a_workload():
    """Hits without counts say nothing of the lengths; the misses do."""
    before, after = (list(drawn(600, BEGIN + gap, 3 + gap)) for gap in (0, 2000))
    dice = np.random.default_rng(5)
    for rows, factor in ((before, 1.0), (after, 2.5)):
        for row in rows:
            if dice.random() < 0.5:
                row.update(cache_hit=True, ttft_s=0.02, e2e_s=0.05)
                del row["prompt_tokens"], row["output_tokens"]
            else:
                prompt = factor * float(dice.lognormal(6, 0.8))
                row.update(cache_hit=False, prompt_tokens=round(prompt))
                row["ttft_s"] += 0.002 * prompt
                row["e2e_s"] += 0.002 * prompt

    assert triage(case(before, after), QUICK).verdict == "workload"


def unary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the requests as answered in one piece."""
    for row in rows:
        row["stream"] = False
        del row["ttft_s"]
    return rows


def test_answers_that_are_no_longer_streamed_are_named():
    """The first content comes with the last, though the whole takes as long as before."""
    result = triage(
        case(list(drawn(300, BEGIN, 1)), unary(list(drawn(300, BEGIN + 1000, 2)))), QUICK
    )

    assert (result.verdict, result.metric) == ("regression", "ttft")
    assert named(result)[0] == "streaming_off"
    assert any("100 % → 0 %" in point.text for point in result.causes[0].evidence)


def test_what_is_never_streamed_has_no_first_token():
    """A route of its own that answers in one piece is in no TTFT, however its share changes."""
    before, after = list(drawn(300, BEGIN, 1)), list(drawn(300, BEGIN + 1000, 2))
    others = unary(list(drawn(100, BEGIN, 3))), unary(list(drawn(300, BEGIN + 1000, 4)))
    for rows in others:
        for row in rows:
            row["route"] = "/embed"
    result = triage(
        case(
            sorted(before + others[0], key=lambda row: row["start"]),
            sorted(after + others[1], key=lambda row: row["start"]),
        ),
        Settings(bootstrap=20, metric="ttft"),
    )

    assert result.before.n == result.after.n == 300
    assert not result.significant
    assert result.verdict == "traffic"  # three times as many of that route


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_what_got_quicker_is_an_improvement(metric):
    """In the verdict itself, not only in the words for people; the cause of nothing is named."""
    quick, slow = list(drawn(300, BEGIN + 1000, 2)), list(drawn(300, BEGIN, 1))
    for row in slow:
        row["ttft_s"] += 20
        row["e2e_s"] += 20
    result = triage(case(slow, quick), Settings(bootstrap=20, metric=metric))

    assert result.verdict == "improvement"
    assert "less" in result.reason


def test_requests_that_fail_early_are_no_improvement():
    """Who gets an error at once does not wait for long."""
    slow, quick = list(drawn(300, BEGIN, 1)), list(drawn(300, BEGIN + 1000, 2))
    for row in slow:
        row["e2e_s"] += 20
    for row in quick[::2]:
        row["outcome"] = "error"

    assert triage(case(slow, quick), QUICK).verdict == "regression"


def test_a_token_s_time_is_said_to_be_per_token():
    """67 ms longer for each token is not 67 ms longer."""
    result = triage(day(after=Kind(decode=1.5)), QUICK)

    assert result.metric == "tpot"
    assert "per token longer" in result.reason


def calm(seed: int, windows: int = 23, n: int = 600) -> list[list[dict[str, Any]]]:
    """Return neighbouring windows of production-like requests without an incident.

    Slow requests come in bursts of some minutes, and what is asked for comes in campaigns.
    """
    dice = np.random.default_rng(seed)
    hot = campaign = 0
    made: list[list[dict[str, Any]]] = []
    for window in range(windows):
        rows = list(drawn(n, BEGIN + window * n * 20, seed * 100 + window, 20.0))
        for row in rows:
            hot = hot - 1 if hot else 30 * int(dice.random() < 0.003)
            campaign = campaign - 1 if campaign else 80 * int(dice.random() < 0.003)
            row["stream"] = False
            del row["ttft_s"]
            row["output_tokens"] = int(dice.lognormal(6.5 if campaign else 5.2, 0.6))
            row["e2e_s"] = float(dice.uniform(40, 90) if hot else dice.uniform(3, 30)) + (
                0.03 * row["output_tokens"]
            )
        made.append(rows)
    return made


@pytest.mark.parametrize("seed", [1, 2])
def test_calm_windows_are_not_said_to_hide_two_changes(seed):
    """Of 22 pairs of neighbouring windows without an incident, at most one is."""
    made = calm(seed)
    found = [triage(case(a, b), QUICK).verdict for a, b in pairwise(made)]

    assert found.count("mixed") <= 1


def test_two_changes_that_cancel_are_still_seen():
    """Shorter prompts hide a slower prefill: each far beyond what the windows do by themselves."""
    result = triage(
        day(after=Kind(prompts=0.4, long_share=0.08, prefill=2.2), n=(3000, 3000)),
        Settings(bootstrap=50, metric="ttft"),
    )

    assert result.verdict in {"mixed", "regression"}


def test_where_nothing_moved_no_cause_is_ranked(tmp_path, capsys):
    """On the screen and in JSON; nor is any engine's flag printed."""
    write_case(tmp_path, day())

    assert main(["triage", "--case", str(tmp_path), "--json", "--bootstrap", "0"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["verdict"] == "no_change"
    assert {one["status"] for one in result["causes"]} <= {"unknown", "ruled_out"}
    assert main(["triage", "--case", str(tmp_path), "--bootstrap", "0"]) == 0
    assert "causes" not in capsys.readouterr().out


@pytest.mark.parametrize("at", ["2023-11-13T03:00Z", "2023-12-24T03:00Z"])
def test_a_time_outside_of_the_data_is_refused(tmp_path, capsys, at):
    """With the time that was asked for, and from when to when there are rows."""
    write_case(tmp_path, day(windows=False))

    assert main(["triage", "--case", str(tmp_path), "--at", at]) == 2
    said = capsys.readouterr().err
    assert f"--at {at[:10]} 03:00:00 UTC: there are no rows at that time" in said
    assert "they are from 2023-11-14" in said


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Set this process's time zone for a test."""

    def set_to(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_to
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("UTC0", "2026-09-21 14:13:20 to 2026-10-06 14:13:20 UTC"),
        ("EST5", "2026-09-21 09:13:20 to 2026-10-06 09:13:20 UTC-05:00"),
    ],
)
def test_a_span_of_days_has_both_dates_and_the_zone(zone, name, said):
    """A window from one day's ten o'clock to another's is no window of nothing."""
    from llmtrace.display.summary_tables import time_span

    zone(name)

    assert time_span(BEGIN, BEGIN + 15 * 86_400) == said


def test_a_span_within_a_day_is_dated_once(zone):
    """At its beginning."""
    from llmtrace.display.summary_tables import time_span

    zone("UTC0")
    assert time_span(BEGIN, BEGIN + 60) == "2026-09-21 14:13:20 to 14:14:20 UTC"


@pytest.fixture
def drawn_page(zone) -> str:
    """Return the page of two minutes, with a collector's address for traces."""
    from llmtrace.triage.report.html import page

    zone("UTC0")
    before, after = list(drawn(300, BEGIN, 1, 0.3)), list(drawn(300, BEGIN + 100, 2, 0.3))
    for row in [*before, *after]:
        row["trace_id"] = "0af7651916cd43dd8448eb211c80319c"
        row["cache_hit"] = row["start"] < (BEGIN + 100) * 1e9
        if row["cache_hit"]:
            row.update(ttft_s=0.02, e2e_s=0.05)
    made = case(before, after)
    links = Links(traces="http://127.0.0.1:4319/api/v1/traces/{trace_id}")
    return page(triage(made, QUICK), made, links)


def test_the_axis_of_a_page_says_each_time_once(drawn_page):
    """At round times, with seconds where it takes them; the day and the zone stand beside it."""
    pictures = re.findall(r'<svg class="(?:wide|narrow)".*?</svg>', drawn_page, re.DOTALL)[:2]
    for picture in pictures:
        labels = re.findall(r">(\d\d:\d\d(?::[0-5]0)?)(?: UTC)?</text>", picture)
        assert len(labels) == len(set(labels)) >= 2
    assert re.search(r"2026-09-21 14:13:2\d to 14:16:\d\d UTC", drawn_page)


def test_a_page_links_runbooks_and_traces(drawn_page):
    """The runbook is on the page itself; a trace is at the collector."""
    assert 'href="#runbook-response_cache_misses"' in drawn_page
    assert 'id="runbook-response_cache_misses"' in drawn_page
    traces = "http://127.0.0.1:4319/api/v1/traces/0af7651916cd43dd8448eb211c80319c"
    assert f'<a href="{traces}">' in drawn_page
