"""A summary on a terminal."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from llmtrace.budget import DEFAULT, Budget
from llmtrace.core.stages import STAGES
from llmtrace.dataset.summary import summarise
from llmtrace.display.summary_tables import (
    JOINED,
    changes_text,
    fill,
    ms,
    outcomes_text,
    sources_text,
    stage_columns,
    stage_table,
    sum_text,
)
from llmtrace.testing import make_row
from tests.dataset.test_summary import MS, request
from tests.strategies import requests


def shown(summary, width):
    """Return the table as lines of text without colour."""
    out = io.StringIO()
    table = stage_table(stage_columns(summary, width), len(summary.stages))
    Console(file=out, width=width, highlight=False).print(table)
    return [text.rstrip() for text in out.getvalue().splitlines()]


def slow_rows(count):
    """Return rows with four digits of milliseconds in every column."""
    return [request(e2e_ms=4_000 + n, queue_ms=n % 1_000) for n in range(1, count)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00001, "<0.1"),
        (0.00912, "9.1"),
        (0.0999, "99.9"),
        (0.09996, "100"),
        (1.2345, "1,234"),
    ],
)
def test_milliseconds_keep_the_digits_that_matter(seconds, text):
    """Unknown, nothing and very little look different."""
    assert ms(seconds) == text


@given(st.lists(requests, min_size=1, max_size=4))
def test_the_shares_that_are_shown_add_up(some):
    """Rounded to tenths of a percent the column still comes to 100.0 %."""
    summary = summarise(some, Budget())
    stages = shown(summary, 300)[1 : 1 + len(summary.stages)]
    shares = [float(share) for text in stages for share in re.findall(r"([\d.]+)%", text)]

    assert round(sum(shares), 1) in ({100.0} if summary.metrics[0].p50_s else {0.0, 100.0})


def test_eighty_columns_hold_all_but_the_sources():
    """With four digits in every column the table fits, and nothing of it is cut off."""
    lines = shown(summarise(slow_rows(1_000), DEFAULT), 80)

    assert max(map(len, lines)) <= 80
    assert lines[0].endswith("known")
    assert "95% CI" in lines[0]
    assert [text.split()[0] for text in lines[1:8]] == list(STAGES)
    assert "…" not in "".join(lines)


@pytest.mark.parametrize(("width", "columns"), [(72, "known"), (66, "known"), (56, "in budget?")])
def test_columns_are_left_out_before_figures_are_cut_off(width, columns):
    """What does not fit is not there at all."""
    lines = shown(summarise(slow_rows(1_200), DEFAULT), width)

    assert max(map(len, lines)) <= width
    assert lines[0].endswith(columns)
    assert "95% CI" not in lines[0]
    assert "…" not in "".join(lines)


def test_a_wide_terminal_shows_who_measured():
    """At 100 columns the sources have a column."""
    lines = shown(summarise([request()], Budget()), 100)

    assert lines[0].endswith("measured by")
    assert lines[3].endswith("engine_inband")


def test_verdicts_are_words_and_symbols():
    """Within, over and unclear read without colour, with the limit they are about."""
    some = [request(queue_ms=n) for n in range(1, 201)]
    budget = Budget(stages_s={"queue": 0.1, "gateway": 0.05, "first_chunk": 0.225})
    lines = {text.split()[0]: text for text in shown(summarise(some, budget), 80) if text}

    assert "✗ over 100 " in lines["queue"]
    assert "✓ within 50 " in lines["gateway"]
    assert "? unclear 225 " in lines["first_chunk"]
    assert "no limit set" in lines["decode"]


def test_what_no_source_gave_is_not_reported():
    """An unknown stage shows no figure at all, and for how many requests it is known."""
    queue = shown(summarise([make_row(), make_row()], DEFAULT), 80)[3]

    assert queue.split() == ["queue", "-", "-", "-", "not", "reported", "0/2"]


def test_a_stage_some_rows_tell_says_how_many():
    """Coverage stands in the line."""
    lines = shown(summarise([request(), make_row()], DEFAULT), 80)

    assert lines[3].endswith("1/2")
    assert lines[1 + len(STAGES)].startswith("unattributed")


def test_sources_are_shown_together():
    """Stages of one source are named in one breath."""
    assert sources_text(summarise([request()], Budget())) == (
        "Measured: network, first_chunk, decode, render by client; gateway by server_timing; "
        "queue, prefill by engine_inband."
    )


def test_outcomes_name_what_failed():
    """Errors are shown by their type."""
    failed = request(outcome="error", error_type="openai.APIError")

    assert outcomes_text(summarise([request(), failed], Budget())) == (
        "2 requests: 1 success, 1 error (1 openai.APIError)."
    )


def test_the_sum_is_shown_as_it_was_found():
    """Exact for all, or a fault for so many."""
    wrong = request()
    wrong.__dict__["stages"] = make_row().stages

    assert sum_text(summarise([request()], Budget())) == (
        "Σ stages = e2e, to the nanosecond: checked for each of the 1."
    )
    assert "not e2e in 1 of the 2" in sum_text(summarise([wrong, request()], Budget()))


def test_changes_are_shown_the_largest_first():
    """What moved little is summed up, and the parts come to the whole."""
    text = changes_text({"queue": 0.5, "decode": -0.1, "network": 0.001, "render": 0.0})

    assert text.replace(JOINED, " ") == "+401 ms = queue +500, decode −100, others +1.0"  # noqa: RUF001


def test_lines_never_break_between_a_name_and_its_figure():
    """Joined words stay on one line, as ordinary text."""
    assert fill(f"moved by queue{JOINED}+500", 12) == "moved by\nqueue +500"


def test_all_of_a_summary_is_known_by_name():
    """The table names the quantile the budget is for."""
    assert "stage p50" in shown(summarise([request()], Budget(objective=0.5)), 80)[0]
    assert request().e2e_ns == 500 * MS
