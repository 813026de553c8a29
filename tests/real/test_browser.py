"""Does a real browser's page show in the row: what it waits, holds and paints?"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from llmtrace.core.browser_timing import ON_WIRE, Browser, unflatten
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.core.span import Span
from llmtrace.testing import capture
from tests.support.free_ports import free_port
from tests.support.internal_errors import reset_internal_errors

from . import chromium
from .best_of import settles
from .chat_pages import Served, serving

EXAMPLE = Path(__file__).parents[2] / "examples" / "browser_chat.py"
PATIENCE_S = 60.0
LONG = "/chat?tokens=1000"  # ten seconds: it is not read to its end


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Serve the page, and answers of 60 tokens for it."""
    with serving(tokens=60) as one:
        yield one


class _Spans:
    every_row = True
    spans = True

    def __init__(self) -> None:
        self.kept: list[Span] = []

    def write(self, item: Any) -> None:
        """Keep what is no row."""
        if isinstance(item, Span):
            self.kept.append(item)


class Recorded:
    """What the application recorded while a page was open."""

    def __init__(self, rows: list[Row], spans: list[Span]) -> None:
        self._rows = rows
        self._spans = spans

    def row(self) -> Row:
        """Return the row of the page, once it has gone on; it adds up."""
        wait_until(lambda: len(self._rows) == 1)
        [row] = self._rows
        assert row.stages.total == row.e2e_ns
        return row

    def timing(self) -> Browser:
        """Return what the page reported, once it has."""
        wait_until(lambda: any(span.name == "llmtrace.browser" for span in self._spans))
        [span] = [span for span in self._spans if span.name == "llmtrace.browser"]
        timing = unflatten(span.attributes, ON_WIRE)
        assert timing is not None
        return timing


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for what must come."""
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, "it did not come"
        time.sleep(0.02)


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    """Record what the application does for one page, and see that its beacon could be read."""
    reset_internal_errors()
    spans = _Spans()
    with capture(sinks=[spans]) as rows:
        yield Recorded(rows, spans.kept)
    assert internal_errors() == {}


def visit(browser: chromium.Chromium, url: str, how: str) -> tuple[chromium.Tab, str]:
    """Open the page, and return its tab and how reading ended once it has."""
    tab = browser.tab()
    tab.open(f"{url}?{quote(how, safe='=&')}")
    return tab, tab.evaluate("over")


def test_rendering_every_token_shows_in_render(browser, served):
    """The same answer: code that draws all of it for every token makes the user wait for that."""
    rows = {}

    def more() -> None:
        for how in ("token", "task", "batch"):
            with capture() as captured:
                tab, _ = visit(browser, served.url, f"render={how}")
                rows[how] = Recorded(captured, []).row()
                tab.close()

    def check() -> None:
        render = {how: row.stages.render for how, row in rows.items()}
        assert render["token"] > 3 * render["batch"]
        assert render["task"] > 3 * render["batch"]  # as frameworks do: not while the page reads
        # On a busy machine the page that draws little is late, too.
        lag = {how: row.browser.paint_lag_ns for how, row in rows.items()}
        assert lag["token"] > 2 * lag["batch"]

    settles(more, check)
    for row in rows.values():
        seen = row.browser
        assert row.outcome == "success"
        assert row.e2e_ns == seen.e2e_ns >= seen.first_paint_ns > seen.ttft_ns > 0
        assert row.stages.queue is not None  # the engine's own figures
    paints = rows["batch"].browser
    assert 1 < paints.paints < paints.chunks  # several chunks a paint


@pytest.mark.parametrize(
    "how", ["reader", "iterate", "pipe", "tee", "text", "clone", "eventsource"]
)
def test_every_way_to_read_is_seen_and_left_alone(browser, served, recorded, how):
    """The page reads the same words with and without the script, and its row is joined."""
    tab, over = visit(browser, served.url, f"read={how}")
    words = tab.evaluate("text")
    row = recorded.row()
    tab.close()
    with capture():
        plain, _ = visit(browser, served.url, f"read={how}&native")
        assert plain.evaluate("text") == words
        plain.close()

    assert (over, row.outcome, len(words) > 100) == ("read", "success", True)
    assert row.browser.kind == {
        "text": "whole",
        "clone": "whole",
        "eventsource": "eventsource",
    }.get(how, "fetch")
    assert row.browser.inconsistent is None
    assert row.stages.network is not None
    if how not in {"text", "clone"}:
        assert row.ttft_ns == row.browser.ttft_ns
        assert row.browser.first_paint_ns > row.ttft_ns


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("abort=250", ("AbortError", "AbortError")),
        ("abort=250&why=Lost <interest>", ("Lost <interest>", "Lostinterest")),
        ("stop", ("read", None)),
        ("stop&read=iterate", ("read", None)),
    ],
)
def test_a_page_that_stops_early_tells_so(browser, served, recorded, how, ends):
    """Aborted, cancelled or broken out of: the page sees what it would, the row how it ended."""
    tab, over = visit(browser, served.url, f"{how}&path={LONG}")
    row = recorded.row()
    tab.close()

    assert (over, row.browser.error_type) == ends
    assert row.outcome == "cancelled"


def test_a_page_that_is_left_tells_so(browser, served, recorded):
    """Its last act is the beacon."""
    tab = browser.tab()
    tab.open(f"{served.url}?path={LONG}")
    wait_until(lambda: tab.evaluate("text") != "")
    tab.open("about:blank")
    row = recorded.row()
    tab.close()

    assert (row.outcome, row.browser.error_type) == ("cancelled", "pagehide")


def test_a_hidden_page_is_not_painted(browser, served, recorded):
    """What the server sent is read all the same, and no paint is made up."""
    tab, front = browser.tab(), browser.tab()
    front.show()
    tab.open(served.url)
    assert tab.evaluate("document.visibilityState") == "hidden"
    tab.evaluate("over")
    row = recorded.row()
    tab.close()
    front.close()

    assert row.outcome == "success"
    assert (row.browser.paints, row.browser.first_paint_ns) == (0, None)
    assert row.browser.hidden_ns == row.e2e_ns


@pytest.mark.parametrize(
    ("path", "ended"),
    [("/refused", ("error", "HTTP503", 503)), ("/cached", ("success", None, 200))],
)
def test_answers_without_a_row_are_reported(browser, served, recorded, path, ended):
    """What no model was asked for has no row, and the page's span says how it went."""
    tab, over = visit(browser, served.url, f"path={path}")
    timing = recorded.timing()
    tab.close()

    assert over == "read"
    assert (timing.outcome, timing.error_type, timing.http_status) == ended


def test_other_origins_are_not_asked_for_permission(browser, served, recorded):
    """Nor do they get ids: there, only what is seen here is reported."""
    with serving(tokens=20) as other:
        tab, over = visit(browser, served.url, f"path={other.url}chat")
        timing = recorded.timing()
        tab.close()

    assert (over, timing.outcome) == ("read", "success")
    assert "content-language" not in other.headers[0]
    assert timing.dns_ns is None  # the server did not allow it
    assert served.headers[0]["content-language"].startswith("x-llmtrace-")
    assert "traceparent" not in served.headers[0]  # whether to sample is not the page's to say


def test_a_redirect_to_another_origin_is_followed(browser, served, recorded):
    """As by the browser's own `fetch`: no header of ours needs the other origin's permission."""
    with serving(tokens=20) as other:
        path = f"/moved?to={other.url}chat"
        tab, over = visit(browser, served.url, "native&path=" + path)
        native = tab.evaluate("text")
        tab.close()
        tab, over = visit(browser, served.url, "path=" + path)
        words = tab.evaluate("text")
        timing = recorded.timing()
        tab.close()

    assert (over, words, len(words) > 20, timing.outcome) == ("read", native, True, "success")
    assert len(other.headers) == 2


@pytest.mark.parametrize("how", ["wrapped", "worker", "never"])
def test_a_response_read_unseen_keeps_the_servers_row(browser, recorded, how):
    """The page is left long after: that says nothing about a response no hook saw read."""
    with serving(tokens=20, wait_s=2) as served:
        tab, over = visit(browser, served.url, f"read={how}")
        time.sleep(2)  # long after its end
        tab.open("about:blank")
        row = recorded.row()
        tab.close()

    assert (over, row.outcome, row.browser) == ("read", "success", None)


@pytest.mark.parametrize(
    "sabotage",
    [
        "delete window.PerformanceObserver",
        "delete window.MutationObserver",
        "delete window.scheduler",
        "navigator.sendBeacon = undefined",
        "navigator.sendBeacon = () => { throw new Error('no') }",
        "crypto.getRandomValues = () => { throw new Error('no') }",
        "requestAnimationFrame = () => { throw new Error('no') }",
        "performance.now = () => { throw new Error('no') }",
        "setTimeout(() => { performance.now = () => { throw new Error('no') } }, 250)",
        "setTimeout(() => { scheduler.postTask = null; JSON.stringify = null }, 250)",
        "Object.defineProperty(Response.prototype, 'body', {get() { return null }})",
    ],
)
def test_nothing_that_breaks_in_the_script_breaks_the_page(browser, served, sabotage):
    """A page in an odd browser reads what it would without the script."""
    tab = browser.tab()
    if "Response" in sabotage:  # then the page itself has no streams
        sabotage, how = f"{sabotage};", "read=text"
    else:
        how = "read=reader"
    tab.before_every_page(sabotage)
    with capture():
        tab.open(f"{served.url}?{how}")
        ended, words = tab.evaluate("over"), tab.evaluate("text.length")
        tab.close()

    assert (ended, words > 100) == ("read", True)
    assert not [said for said in tab.said if "llmtrace" in said]


def test_the_script_is_a_module_too(browser, served):
    """Imported, it offers the same, and knows where to send its beacons."""
    tab = browser.tab()
    tab.open(f"{served.url}?render=nothing")
    names = tab.evaluate("import('/llmtrace/llmtrace.mjs').then((m) => Object.keys(m).sort())")
    tab.close()

    assert names == ["EventSource", "configure", "fetch"]


def test_the_example_runs(browser):
    """Its page streams an answer, and its row is printed with what the page measured."""
    port = free_port()
    ours = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_"))}
    program = subprocess.Popen(
        [sys.executable, "-u", EXAMPLE],
        env={**ours, "PORT": str(port)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert program.stdout is not None
    try:
        url = next(line.split()[-1] for line in program.stdout if "http://" in line)
        tab = browser.tab()
        wait_until(lambda: _listens(port))
        tab.open(url)
        tab.evaluate("ask('slow')")
        tab.evaluate("ask('fast')")
        printed = [next(program.stdout) for _ in range(2)]
        picture = tab.picture()
        tab.close()
    finally:
        program.terminate()
        program.communicate()

    assert [line.partition(":")[0] for line in printed] == ["slow", "fast"]
    assert all("from token to screen" in line for line in printed)
    assert picture.startswith(b"\x89PNG")


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
