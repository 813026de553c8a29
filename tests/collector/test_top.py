"""Does the terminal show what the collector says, at any width, also when it goes away?"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from llmtrace.api_clients.collector_client import Collector
from llmtrace.cli import main
from llmtrace.core.errors import SourceError
from llmtrace_collector.commands.top import ask, picture, spark, watch

from .serve.views import empty, view
from .web import serving


def drawn(live, width: int) -> str:
    """Return what a terminal of this width shows."""
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(picture(json.loads(json.dumps(live.as_json())), width))
    return captured.get()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_it_fits_and_says_it(width):
    """Whatever the width: no line too long, every stage, every verdict, what is wrong."""
    text = drawn(view(), width)

    assert max(map(len, text.splitlines())) <= width
    for words in (
        "queue", "✗ over 150", "? unclear 400", "not reported", "✓ within 2,500",
        "✗ not read: 10.0.0.7:8000", "1,300 requests", "running", "✓ vllm", "power_cap",
    ):  # fmt: skip
        assert words in text
    if width >= 80:
        assert f"{3:032x}" in text
        assert "…" not in text


def test_wide_terminals_show_the_last_half_hour():
    """With the seven minutes without requests left blank."""
    assert "last half hour" in drawn(view(), 100)
    assert "last half hour" not in drawn(view(), 80)


def test_nothing_yet():
    """It says so, and draws no empty table."""
    text = drawn(empty(), 80)

    assert "No requests in the last 5 minutes." in text
    assert "queue" not in text


def test_one_request_is_one():
    """It is none in the plural."""
    live = view()
    one = replace(live, window=replace(live.window, requests=1))

    assert "  1 request in 5 min" in drawn(one, 80)


def test_blocks_are_of_the_minutes_there_were():
    """Gaps are blank, the highest is full, and what is 0 is still seen."""
    assert spark([0, 60, 180], [1.0, 4.0, 2.0], now=240.0, minutes=4) == "▂█ ▄"
    assert spark([], [], now=240.0, minutes=3) == "   "
    assert spark([0], [0.0], now=60.0, minutes=1) == "▁"
    assert spark([0, 60], [None, 1.0], now=120.0, minutes=2) == " █"


def test_once(capsys):
    """The command prints once when asked to, or where there is no terminal."""
    with serving({"/api/v1/live": (200, json.dumps(view().as_json()))}) as url:
        assert main(["top", "--url", url, "--once"]) == 0
        assert "over 150" in capsys.readouterr().out
        assert main(["top", "--url", f"{url}/"]) == 0


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, "{}", "requires a token; put it into a file"),
        (421, '{"error": "not called so"}', "responded 421: not called so"),
        (200, "hello", "the response is not JSON"),
        (200, "[1]", "is not an llmtrace collector"),
    ],
)
def test_what_does_not_answer(status, body, words):
    """In words that say what to do."""
    with (
        serving({"/api/v1/live": (status, body)}) as url,
        pytest.raises(SourceError, match=words),
    ):
        ask(Collector(url))


def test_nothing_listens_there(capsys):
    """The command says how to start one."""
    assert main(["top", "--url", "http://127.0.0.1:9", "--once"]) == 1
    assert "start one with `llmtrace collect`" in capsys.readouterr().err


def test_a_token_file_that_is_gone(capsys, tmp_path: Path):
    """A wrong setting is a wrong setting."""
    gone = str(tmp_path / "gone")
    assert main(["top", "--token-file", gone, "--once"]) == 2
    assert gone in capsys.readouterr().err


def test_a_collector_that_goes_away_stays_on_screen():
    """What was last known is kept, with how old it is; and it comes back."""
    answers = iter([view().as_json(), SourceError("no collector answers"), view().as_json()])
    console = Console(width=100, force_terminal=True, record=True, height=60)

    def look():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    slept: list[float] = []
    with console.capture() as captured:
        watch(console, look, 2.0, sleep=slept.append, rounds=3)

    assert slept == [2.0, 2.0]
    assert "no collector answers; shown is" in captured.get()
