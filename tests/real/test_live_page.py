"""Does the live page, in a real browser, show what there is, and say what there is not?

`LLMTRACE_PICTURES=folder` keeps what the browser saw.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from llmtrace_collector.serve.app import make_app
from llmtrace_collector.serve.live_model import SlowRow, Window
from tests.collector.serve.views import NOW, empty, view

from . import chromium
from .page_server import serving

TOKEN = "0123456789abcdef-secret"
HOSTILE = '<img src=x onerror="window.hacked = 1"> & "quoted"'


class Shown:
    """What the served page receives."""

    def __init__(self) -> None:
        self.live: Any = view().as_json()
        self.status = 200

    async def answer(self, request: Request) -> Response:
        """Answer as the API does."""
        del request
        return JSONResponse(self.live, self.status)


def served(shown: Shown, token: str | None = None) -> AbstractContextManager[str]:
    """Serve the page, and what it receives."""
    api = Mount("/api/v1", routes=[Route("/live", shown.answer)])
    return serving(make_app(CollectorRegistry(), api, lambda: None, token=token))


def open_tab(
    browser: chromium.Chromium, url: str, *, scheme: str = "light", width: int = 1280
) -> chromium.Tab:
    """Open the page, and wait until it has shown something."""
    tab = browser.tab()
    tab.look_as(width=width, height=1600, scheme=scheme)
    tab.open(url)
    tab.wait_for("document.querySelector('#status').textContent !== 'loading'")
    return tab


def text(tab: chromium.Tab, selector: str) -> str:
    """Return what is to be read there."""
    return str(tab.evaluate(f"document.querySelector({selector!r}).innerText"))


@pytest.mark.parametrize(("scheme", "background"), [("light", 246), ("dark", 15)])
def test_it_shows_all_of_it(browser: chromium.Chromium, scheme: str, background: int) -> None:
    """Every stage with its verdict, a picture of each, slow requests, engines, GPUs."""
    with served(Shown()) as url:
        tab = open_tab(browser, url, scheme=scheme)
        tab.keep(f"live-{scheme}")
        now, hour = text(tab, "#now"), text(tab, "#hour")

        for words in ("queue", "✗ over 150", "? unclear 400", "not reported", "✓ within 2,500"):
            assert words in now
        assert tab.evaluate("document.querySelectorAll('#charts svg').length") == 10
        assert "most 540, limit 1,000" in hour
        assert hour.startswith("The last hour")
        # Seven minutes without requests are a gap: two lines and two areas in each picture.
        assert (
            tab.evaluate(
                "document.querySelectorAll('#charts svg')[1].querySelectorAll('path').length"
            )
            == 4
        )
        assert tab.evaluate("document.querySelectorAll('#slowest tbody tr').length") == 8
        assert "✗\xa0Connection refused" in text(tab, "#engines")
        assert "not read yet" in text(tab, "#engines")
        assert "power_cap" in text(tab, "#gpus")
        assert "not read: 10.0.0.7:8000" in text(tab, "#problem")
        colour = tab.evaluate("getComputedStyle(document.body).backgroundColor")
        assert colour.startswith(f"rgb({background}, ")
        # Nothing hangs out of the page, and nothing was refused by its own policy.
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.said == []
        tab.close()


def test_on_a_phone(browser: chromium.Chromium) -> None:
    """Tables scroll inside their boxes, not the page."""
    with served(Shown()) as url:
        tab = open_tab(browser, url, width=420)
        tab.keep("live-phone")

        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        tab.close()


def test_nothing_yet(browser: chromium.Chromium) -> None:
    """It says how to send to it, and draws no empty tables."""
    shown = Shown()
    shown.live = empty().as_json()
    with served(shown) as url:
        tab = open_tab(browser, url, width=1000)
        tab.keep("live-empty")

        assert "export OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318" in text(tab, "#empty")
        hidden = (
            "['now', 'hour', 'slowest', 'engines'].every(id => document.getElementById(id).hidden)"
        )
        assert tab.evaluate(hidden)
        assert tab.said == []
        tab.close()


def test_five_minutes_without_a_request(browser: chromium.Chromium) -> None:
    """The section stays and says so; its table, and the stages of before, do not."""
    shown = Shown()
    with served(shown) as url:
        tab = open_tab(browser, url)
        assert "over 150" in text(tab, "#now")
        shown.live = view(window=Window(300, 0, 0, {}), stages=(), metrics=()).as_json()
        tab.evaluate("refresh()")
        tab.wait_for("document.querySelector('#now table').hidden")
        tab.keep("live-quiet")

        assert not tab.evaluate("document.querySelector('#now').hidden")
        assert text(tab, "#now").split("\n")[0] == "Stages now no request in the last 5 minutes"
        assert "over 150" not in text(tab, "#now")
        assert text(tab, "#hour").startswith("The last hour")
        assert tab.said == []
        tab.close()


def test_a_collector_that_has_just_begun(browser: chromium.Chromium) -> None:
    """Two minutes of requests are a good part of the picture, and it says how long that is."""
    shown = Shown()
    whole = shown.live["minutes"]
    high = {name: values[-2:] for name, values in whole["high_s"].items()}
    shown.live = {**shown.live, "minutes": {"t": whole["t"][-2:], "high_s": high}}
    with served(shown) as url:
        tab = open_tab(browser, url)
        tab.keep("live-begun")

        assert text(tab, "#hour").startswith("The last 10 minutes")
        line = "document.querySelector('#charts svg path:last-child').getAttribute('d')"
        x = [float(point.split(",")[0]) for point in tab.evaluate(line)[1:].split("L")]
        assert x[1] - x[0] > 20
        assert tab.said == []
        tab.close()


def test_names_from_anywhere_stay_text(browser: chromium.Chromium) -> None:
    """A model or a route may be called anything."""
    row = SlowRow(
        trace_id="0" * 32, request_id="r", start=NOW, service=HOSTILE, model=HOSTILE,
        route=HOSTILE, outcome="success", e2e_s=1.0, ttft_s=None, stages={"decode": 1.0},
    )  # fmt: skip
    shown = Shown()
    shown.live = view(slowest=(row,)).as_json()
    with served(shown) as url:
        tab = open_tab(browser, url)

        assert HOSTILE in text(tab, "#slowest")
        assert tab.evaluate("document.images.length") == 0
        assert tab.evaluate("window.hacked") is None
        tab.close()


def test_a_collector_that_has_a_token(browser: chromium.Chromium) -> None:
    """The page leads to the form, and the form back to it; no script sees the token again."""
    with served(Shown(), TOKEN) as url:
        tab = browser.tab()
        tab.go(url)  # goes on to the form by itself
        tab.wait_for("!!document.querySelector('[name=token]')")
        tab.evaluate(
            f"document.querySelector('[name=token]').value = {TOKEN!r};"
            "document.querySelector('form').submit()"
        )
        tab.wait_for("!!document.querySelector('#now') && !document.querySelector('#now').hidden")

        assert tab.evaluate("localStorage.length + sessionStorage.length") == 0
        assert TOKEN not in tab.evaluate("location.href + document.cookie")
        tab.close()


def test_a_store_that_does_not_answer(browser: chromium.Chromium) -> None:
    """What was shown stays, and it is said how old it is."""
    shown = Shown()
    with served(shown) as url:
        tab = open_tab(browser, url)
        shown.live, shown.status = {"error": "the store does not answer"}, 503
        tab.evaluate("refresh()")
        tab.wait_for("document.querySelector('#status').textContent.includes('shown is')")

        assert "✗ the store does not answer; shown is" in text(tab, "#status")
        assert "over 150" in text(tab, "#now")
        tab.close()
