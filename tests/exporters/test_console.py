from __future__ import annotations

import io
import os
from dataclasses import replace
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.attempts import Attempt
from llmtrace.core.stages import STAGES, Timeline
from llmtrace.exporters.console.sink import console_sink, line, waterfall
from tests.exporters.samples import MS, TRACE, typical, unsplit
from tests.strategies import rows


def test_line():
    """One line says when, what, how it ended, how long, and where the time went."""
    expected = (
        "14:13:20.000  llama-3.1-8b  /chat  success  e2e 2400 ms  ttft 400 ms  tpot 10.0 ms  |  "
        "net 1.1 gw - queue 120 prefill 230 first 47 decode 1950 render 52 unattr 0 ms  |  "
        f"{TRACE}"
    )

    assert expected == line(typical(), UTC)


def test_line_of_a_request_that_got_no_answer():
    """What is not known shows as a dash, and what was raised is named."""
    row = replace(
        typical(),
        model=None,
        route=None,
        outcome="timeout",
        error_type="httpx.ReadTimeout",
        timeline=Timeline(e2e=30_000 * MS),
    )
    expected = (
        "14:13:20.000  -  -  timeout httpx.ReadTimeout  e2e 30000 ms  ttft -  |  "
        "net - gw - queue - prefill - first - decode 0 render 0 unattr 30000 ms  |  "
        f"{TRACE}"
    )

    assert expected == line(row, UTC)


GOLDEN = """\
chat llama-3.1-8b  success  e2e 2,400.0 ms  ttft 400.0 ms
network      ▏                                      1.1 ms   0.0%  client
gateway                                       not reported
queue        █▌                                   120.0 ms   5.0%  engine_inband
prefill       ███▌                                230.0 ms   9.6%  engine_inband
first_chunk      █▏                                46.9 ms   2.0%  client
decode            █████████████████████████▎    1,950.0 ms  81.2%  client
render                                     █       52.0 ms   2.2%  client
trace 4bf92f3577b34da6a3ce929d0e0e4736"""

GOLDEN_UNSPLIT = """\
chat llama-3.1-8b  timeout  httpx.ReadTimeout  e2e 2,400.0 ms  ttft 400.0 ms
network      ▏                                             1.1 ms   0.0%  client
gateway                                              not reported
queue                                                not reported
prefill                                              not reported
first_chunk                                          not reported
unattributed ██████▎                                     396.9 ms  16.5%
decode             ███████████████████████████████▏    1,950.0 ms  81.2%  client
render                                            █       52.0 ms   2.2%  client
trace 4bf92f3577b34da6a3ce929d0e0e4736"""


SAID = {"retry-after": "5", "openai-processing-ms": "312", "x-ratelimit-limit-requests": "9000"}
GOLDEN_SAID = GOLDEN.replace(
    "trace ",
    "196 of 200 chunks came with the one before\n"
    "headers  retry-after: 5  openai-processing-ms: 312  and 1 more\n"
    "trace ",
)
LATE = {"arrived_by_ns": 148 * MS, "client_lag_ns": 241 * MS}
GOLDEN_LATE = GOLDEN.replace(
    "trace ",
    "first content here after 148.0 ms at most, read 252.0 ms later\n"
    "client lag 241.0 ms at least: data was here, the client was busy\n"
    "trace ",
)
# Less than the kernel's clock can distinguish.
ON_TIME = {"arrived_by_ns": 396 * MS, "client_lag_ns": 4 * MS}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (typical(), GOLDEN),
        (typical(**LATE), GOLDEN_LATE),
        (typical(**ON_TIME), GOLDEN),
        (unsplit(outcome="timeout", error_type="httpx.ReadTimeout"), GOLDEN_UNSPLIT),
        (typical(response_headers=SAID, burst_chunks=196), GOLDEN_SAID),
    ],
    ids=["typical", "late", "on time", "unsplit", "said"],
)
def test_waterfall(row, expected):
    """A waterfall shows each stage's place, length, share and source, and what is not known."""
    assert expected == waterfall(row)


def test_waterfall_of_retries():
    """Each attempt has a line below the stages: when it ran, what came of it, and the wait."""
    attempt_log = (
        Attempt(start_ns=0, duration_ns=600 * MS, backoff_ns=600 * MS, status=429,
            retry_after_ns=500 * MS),
        Attempt(start_ns=1_200 * MS, duration_ns=1_200 * MS, status=200),
    )  # fmt: skip
    drawn = waterfall(typical(attempt_log=attempt_log), 80).split("\n")[-3:-1]

    assert drawn == [
        f"attempt 1    {'█' * 6:<24}      600.0 ms  429, then 600 ms (hint 500)",
        f"attempt 2    {' ' * 12 + '█' * 12:<24}    1,200.0 ms  200",
    ]


@given(rows, st.integers(60, 200))
def test_waterfall_of_anything(row, width):
    """Any row can be drawn: a line for each stage, `not reported` exactly where not known."""
    drawn = waterfall(replace(row, operation="chat"), width)
    lines = drawn.split("\n")
    assert all(text.isprintable() for text in lines)
    for stage, ns in row.stages:
        (own,) = [text for text in lines if text.split(" ")[0] == stage]
        assert ("not reported" in own) == (ns is None)

    assert any(text.startswith("  client ") for text in lines) == bool(row.stages.client)
    assert 0 <= len(lines) - len(STAGES) - 2 - len(row.attempt_log) <= 6
    assert all(len(text) <= width for text in lines if text.startswith("headers"))


@given(rows)
def test_line_of_anything(row):
    """Any row fits on one line, whatever a server called its error, and steers no terminal."""
    assert line(replace(row, start=0), UTC).isprintable()


def test_the_sink_writes_a_line_a_row():
    """Each row becomes a line of the stream, in order."""
    stream = io.StringIO()
    sink = console_sink(stream)
    sink.write(typical(1, model="one"))
    sink.write(typical(2, model="two"))
    assert sink.flush(5)
    sink.close()

    assert [text.split("  ")[1] for text in stream.getvalue().splitlines()] == ["one", "two"]


def test_a_blocked_terminal_blocks_nothing_else():
    """With no process reading the pipe, writing comes straight back; later every line is there."""
    reading, writing = os.pipe()
    lines = 2_000  # more than a pipe holds
    with os.fdopen(writing, "w") as stream:
        sink = console_sink(stream, interval_s=0.001)
        for number in range(lines):
            sink.write(typical(number))
        assert not sink.flush(0.01)
        text = b""
        while text.count(b"\n") < lines:
            text += os.read(reading, 1 << 16)
        assert sink.flush(5)
        sink.close()
    os.close(reading)


def test_a_terminal_that_cannot_show_it():
    """A character the stream's encoding has not got is escaped, not an error."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w", encoding="ascii") as stream:
        sink = console_sink(stream)
        sink.write(typical(model="modèle"))
        assert sink.flush(5)
        sink.close()

    assert rb"mod\xe8le" in os.read(reading, 1000)
    os.close(reading)
