"""Is the position in the spool known after whatever happened?"""

from __future__ import annotations

import os

import pytest

from llmtrace_collector.receive.spool_cursor import Cursor


def opened(path, *, position=False):
    """Open a cursor and close it; return it, or its position."""
    cursor = Cursor(path, sync=False)
    cursor.close()
    return cursor.position if position else cursor


def test_a_new_cursor_has_a_name_of_its_own(tmp_path):
    """Two spools never share a token."""
    one, other = opened(tmp_path / "a", position=True), opened(tmp_path / "b", position=True)

    assert one.spool != other.spool
    assert (one.segment, one.offset, one.planned) == (0, 0, 0)


def test_moves_and_plans_are_remembered(tmp_path):
    """The next process goes on where this one was."""
    cursor = Cursor(tmp_path / "cursor", sync=True)
    cursor.move(3, 100)
    cursor.plan(3, 100, 250)
    cursor.close()

    found = opened(tmp_path / "cursor", position=True)

    assert cursor.position == found
    assert (found.segment, found.offset, found.planned) == (3, 100, 250)


@pytest.mark.parametrize("half", [0, 1])
def test_a_half_written_half_costs_one_move_at_most(tmp_path, half):
    """Whichever half is spoilt, the other is whole."""
    cursor = Cursor(tmp_path / "cursor", sync=False)
    cursor.move(1, 10)
    cursor.move(1, 20)
    cursor.close()
    with (tmp_path / "cursor").open("r+b") as file:
        file.seek(half * 512 + 40)
        file.write(os.urandom(20))

    found = opened(tmp_path / "cursor")

    assert not found.was_lost
    assert cursor.position.spool == found.position.spool
    assert found.position.offset in {10, 20}


def test_a_lost_cursor_is_reported(tmp_path):
    """Both halves spoilt: a new spool, and it says so."""
    cursor = opened(tmp_path / "cursor")
    (tmp_path / "cursor").write_bytes(b"x" * 1024)

    found = opened(tmp_path / "cursor")

    assert found.was_lost
    assert cursor.position.spool != found.position.spool


def test_a_write_that_fails_moves_nothing(tmp_path, monkeypatch):
    """The position is what the disk has."""
    cursor = Cursor(tmp_path / "cursor", sync=False)
    before = cursor.position
    monkeypatch.setattr(os, "pwrite", lambda *_: 12)

    with pytest.raises(OSError, match="in part"):
        cursor.move(1, 1)

    assert before == cursor.position
    cursor.close()
