"""Does a report quote what was measured of a cause and a status, and nothing where it was not?"""

from __future__ import annotations

from typing import get_args

import pytest

from llmtrace.triage.causes import track_record
from llmtrace.triage.causes.track_record import with_record
from llmtrace.triage.report.sentences import record_text, shown_text
from llmtrace.triage.result import CAUSES, Finding, Status
from tests.bench.track_record import counted

MEASURED = {
    "recordings": {"named_first": {"cold_start": [2, 3]}},
    "worlds": {
        "date": "2026-01-02",
        "named_first": {"cold_start": [9, 9], "batch_size": [0, 4]},
        "called": {
            "given": {"cold_start": {"likely": [9, 12]}, "batch_size": {"likely": [1, 4]}},
            "searched": {"cold_start": {"likely": [2, 4]}},
        },
    },
}


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Have other figures than the file's."""
    monkeypatch.setattr(track_record, "track_record", lambda: MEASURED)


def of(cause: str, status: str = "likely", *, searched: bool = False) -> Finding:
    """Return a finding with its record."""
    return with_record(Finding(id=cause, status=status), searched=searched)


def test_a_cause_that_was_called_so_often_has_its_own_share():
    """Of the windows given and searched apart, with where its rule was shown."""
    found = of("cold_start")
    right = found.right_when_so_called

    assert (right.right, right.of, right.calls) == (9, 12, "cold_start")
    assert found.shown_in == ("recordings", "simulation")
    assert "likely was right in 9 of 12 calls of this cause" in record_text(found)
    assert of("cold_start", searched=True).right_when_so_called.of == 4


def test_a_cause_that_was_hardly_called_so_has_the_share_of_all():
    """Four calls say less than the sixteen of all causes."""
    found = of("batch_size")
    right = found.right_when_so_called

    assert (right.right, right.of, right.calls) == (10, 16, "all causes")
    assert found.shown_in == ()
    assert "shown on rows made by hand alone" in shown_text(found)


@pytest.mark.parametrize(
    ("cause", "status"),
    [("busy_client", "likely"), ("cold_start", "ruled_out"), ("cold_start", "confirmed")],
)
def test_what_was_not_measured_is_said_to_be_so(cause, status):
    """Causes that no simulated world has, and statuses that were never given."""
    found = of(cause, status)

    assert found.right_when_so_called is None
    assert "not measured" in record_text(found)


def test_the_file_has_counts_of_known_causes(monkeypatch):
    """With the command that made them."""
    monkeypatch.undo()
    found = track_record.track_record()

    assert {*found} <= {"worlds", "recordings"}
    for part in found.values():
        assert part["command"].startswith("python -m tests.bench.bench_")
        assert {*part["named_first"]} <= {*CAUSES}
    for by_cause in found.get("worlds", {}).get("called", {}).values():
        assert {*by_cause} <= {*CAUSES}
        counts = [pair for calls in by_cause.values() for pair in calls.items()]
        assert {status for status, _ in counts} <= {*get_args(Status)}
        assert all(0 <= right <= of for _, (right, of) in counts)


def test_right_ones_are_counted_among_all():
    """By name."""
    assert counted([("a", True), ("a", False), ("b", False)]) == {"a": [1, 2], "b": [0, 1]}
