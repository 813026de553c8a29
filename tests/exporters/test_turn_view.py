"""A turn on a terminal: one line, and a waterfall."""

from __future__ import annotations

import json
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

import llmtrace
from llmtrace.cli.rows import redraw
from llmtrace.core.row import TURN, from_dict
from llmtrace.core.stages import Timeline
from llmtrace.core.tool_calls import Part
from llmtrace.exporters.console.sink import line, waterfall
from llmtrace.testing import FakeClock, capture, fake_stream, make_row
from tests.core.test_tool_calls import parts_of_any_kind

SERIAL_LOSS = "serial loss {} ms: search, weather could have run together"


@pytest.fixture
def rows():
    """Record a turn: a request, two tools in turn and one that needs the first, a request."""
    clock = FakeClock(1)

    def tool(name, seconds, result):
        @llmtrace.tool(name=name)
        def run(_argument):
            clock.advance(seconds)
            return result

        return run

    def ask():
        list(llmtrace.wrap(fake_stream("ab", clock, gaps=0.5), model="tiny"))

    search = tool("search", 1.5, "https://example.org/page")
    weather, fetch = tool("weather", 1.5, "rain"), tool("fetch", 0.5, "text")
    with capture(clock=clock) as found, llmtrace.turn("trip"):
        ask()
        url = search("tea")
        weather("Paris")
        fetch(url)
        ask()
    return found


def test_a_turn_is_a_line(rows):
    """What it is, how long it took, what ran inside, and what was lost to taking turns."""
    text = line(rows[-1], UTC)

    assert "  turn trip  -  success  e2e 5500 ms  2 requests  3 tools 3500 ms  " in text
    assert f"  {SERIAL_LOSS.format('1500')}  |  " in text
    assert "render 3500" in text
    assert "ttft" not in text
    assert text.endswith(rows[-1].trace_id)


def test_a_request_is_the_line_it_was(rows):
    """Nothing of turns is said of one."""
    text = line(rows[0], UTC)

    assert "turn" not in text
    assert "  tiny  -  success  e2e 1000 ms  ttft 500 ms  |" in text


def test_a_waterfall_of_a_turn(rows):
    """A bar for each thing that ran, where it lay."""
    lines = waterfall(rows[-1], 100).splitlines()

    assert lines[0].startswith("invoke_agent trip  success  e2e 5,500.0 ms")
    names = [text.split()[0] for text in lines[1:6]]
    assert names == ["tiny", "search", "weather", "fetch", "tiny"]
    begins = [len(text) - len(text[8:].lstrip()) for text in lines[1:6]]
    assert begins == sorted(begins)
    assert lines[6] == (
        "tools 3,500.0 ms for 3 calls of 3,500.0 ms, 1.0 at once; critical path 2,000.0 ms"
    )
    assert lines[7] == SERIAL_LOSS.format("1,500.0")
    assert any(text.startswith("render") and "63.6%" in text for text in lines)


def bars(text):
    """Return the columns in which each line has a bar."""
    return [
        {column for column, letter in enumerate(line) if letter in "▏▎▍▌▋▊▉█▐"}
        for line in text.splitlines()
    ]


def shown(*parts, e2e=1000, **fields):
    """Draw a turn of these parts, given as name, start and end in ms."""
    made = tuple(
        Part(
            kind="tool",
            name=name,
            number=number,
            start=start * 1_000_000,
            duration=(end - start) * 1_000_000,
            outcome="success",
            **fields,
        )
        for number, (name, start, end) in enumerate(parts)
    )
    row = make_row(
        operation=TURN,
        agent="x",
        parts=made,
        timeline=Timeline(e2e=e2e * 1_000_000, held_before=e2e * 1_000_000, stream=False),
    )
    return waterfall(row, 100)


def test_what_ran_together_overlaps_in_the_drawing():
    """Side by side their bars share columns; one after the other they do not."""
    together = bars(shown(("a", 0, 600), ("b", 100, 700)))
    in_turn = bars(shown(("a", 0, 500), ("b", 500, 1000)))

    assert len(together[1] & together[2]) > 20
    assert len(in_turn[1] & in_turn[2]) <= 1


def test_what_lies_deeper_is_indented():
    """A tool that a tool called stands under it."""
    assert "\n  a " in shown(("a", 0, 600), depth=2)


def test_many_parts_are_not_all_drawn():
    """A screen holds so many; how many more there are is said."""
    text = shown(*((f"t{number}", number, number + 1) for number in range(60)))

    assert "and 20 more" in text
    assert len(text.splitlines()) < 60


def test_a_loss_of_many_calls_of_one_tool():
    """The same tool several times is counted, not listed."""
    clock = FakeClock(1)

    @llmtrace.tool
    def fetch(_page):
        clock.advance(0.5)

    with capture(clock=clock) as rows, llmtrace.turn("trip"):
        for page in range(5):
            fetch(page)

    text = "serial loss 2,000.0 ms: 5 × fetch could have run together"  # noqa: RUF001
    assert text in waterfall(rows[0])


def test_how_a_part_ended():
    """Success goes without saying."""
    row = make_row(
        operation=TURN,
        agent="x",
        parts=(
            Part(kind="tool", name="a", number=0, start=0, duration=1, outcome="error"),
            Part(kind="request", name="b", number=1, start=0, duration=1),
        ),
    )
    text = waterfall(row)

    assert "tool, error" in text
    assert "request, still running" in text


def test_a_turn_comes_back_from_its_file(rows, tmp_path):
    """As JSON and back it is the same, and drawn the same."""
    turn = rows[-1]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row.as_dict()) + "\n" for row in rows), encoding="utf-8")

    assert from_dict(json.loads(json.dumps(turn.as_dict()))) == turn
    assert waterfall(turn, 90) in redraw(path, turn.trace_id, 90)
    assert redraw(path, turn.trace_id).startswith("turn lt-")
    assert redraw(path).startswith("the slowest of 3 requests and turns")


@given(st.lists(parts_of_any_kind, max_size=50), st.integers(20, 200), st.integers(0, 10**12))
def test_any_turn_can_be_drawn(parts, width, e2e):
    """Whatever a file claims that a turn was."""
    row = make_row(
        operation=TURN,
        agent="x",
        parts=tuple(parts),
        tool_calls=1,
        tool_serial_loss_s=1.0,
        timeline=Timeline(e2e=e2e, stream=False),
    )

    assert waterfall(row, width).replace("\n", "").isprintable()
    assert line(row).isprintable()
