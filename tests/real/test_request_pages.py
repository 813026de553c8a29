"""Do the request list and the request page work in a real browser?

`LLMTRACE_PICTURES=folder` keeps what the browser saw.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from llmtrace_collector.config.link_templates import LinkTemplate
from llmtrace_collector.receive import HttpServer, ReceiveLimits
from llmtrace_collector.receive.counters import Received
from llmtrace_collector.store import open_store
from tests.collector.serve.stored_requests import COUNT, HOSTILE, application, fill

from . import chromium
from .conftest import do_without

TOKEN = "0123456789abcdef-secret"
LINKS = (LinkTemplate("Jaeger", "https://jaeger.example/trace/{trace_id}"),)
SLOW = f"requests/{COUNT:032x}"
PAGES = {"list": "requests", "request": SLOW, "turn": f"requests/{'e' * 32}"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An embedded store with requests of every kind."""
    opened = open_store(str(tmp_path_factory.mktemp("pages")))
    fill(opened)
    yield opened
    opened.close()


@contextmanager
def serving(store: Any, token: str | None = None) -> Iterator[str]:
    """Serve the pages from a thread; yield their address."""
    loop = asyncio.new_event_loop()
    server = HttpServer(
        application(store, token, LINKS), "127.0.0.1", 0, ReceiveLimits(), Received()
    )
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.start(), loop).result(30)
        yield f"http://127.0.0.1:{server.port}/"
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Chromium]:
    """Run a browser."""
    program = chromium.find()
    if program is None:
        do_without("chromium is not installed: run `make programs`")
    with chromium.running(program) as running:
        yield running


def open_tab(
    browser: chromium.Chromium, url: str, *, scheme: str = "light", width: int = 1600
) -> chromium.Tab:
    """Open a page at a width, light or dark."""
    tab = browser.tab()
    browser.call(
        "Emulation.setDeviceMetricsOverride", tab._session,
        width=width, height=1400, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    browser.call(
        "Emulation.setEmulatedMedia", tab._session,
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )  # fmt: skip
    tab.open(url)
    return tab


def arrive(tab: chromium.Tab, url: str) -> None:
    """Wait until the page at an address is there."""
    give_up = time.monotonic() + 30
    while tab.evaluate("document.readyState + location.href") != f"complete{url}":
        assert time.monotonic() < give_up, url
        time.sleep(0.05)


def press(browser: chromium.Chromium, tab: chromium.Tab, key: str, code: int) -> None:
    """Press a key, as a person without a mouse does."""
    for kind in ("keyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", tab._session, type=kind, key=key, code=key,
            windowsVirtualKeyCode=code, **({"text": "\r"} if key == "Enter" else {}),
        )  # fmt: skip


@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_fit_and_are_drawn(
    browser: chromium.Chromium, store: Any, scheme: str, width: int
) -> None:
    """Nothing hangs out of the page, the one style is allowed, and every bar has its colours."""
    with serving(store) as url:
        for name, path in PAGES.items():
            tab = open_tab(browser, url + path, scheme=scheme, width=width)
            if folder := os.environ.get("LLMTRACE_PICTURES"):
                Path(folder, f"{name}-{width}-{scheme}.png").write_bytes(tab.picture())

            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
            assert tab.evaluate("document.scripts.length + document.images.length") == 0
            assert tab.said == []
            background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 20, 24)"}[scheme]
            if name != "turn":
                queue = "document.querySelector('svg.bar rect.s-queue')"
                assert tab.evaluate(f"getComputedStyle({queue}).fill") == "rgb(255, 136, 51)"
                assert tab.evaluate(f"{queue}.getBoundingClientRect().width > 0")
            tab.close()


def test_bars_are_on_one_scale(browser: chromium.Chromium, store: Any) -> None:
    """Twice as long is twice as wide, whichever line it is in."""
    with serving(store) as url:
        tab = open_tab(browser, f"{url}requests?sort=queue&limit=3&tenant=acme")
        widths = tab.evaluate(
            "[...document.querySelectorAll('svg.bar')].map(bar => "
            "[...bar.querySelectorAll('.s-decode')].map(r => r.getBoundingClientRect().width)[0])"
        )
        assert len(widths) == 3
        assert max(widths) - min(widths) < 1
        whole = tab.evaluate("document.querySelector('svg.bar').getBoundingClientRect().width")
        assert widths[0] / whole == pytest.approx(400 / 1450, abs=0.01)
        tab.close()


def test_by_keyboard_from_the_list_to_a_request(browser: chromium.Chromium, store: Any) -> None:
    """Tab reaches the first line, where one sees that it is; Enter opens it."""
    with serving(store) as url:
        tab = open_tab(browser, f"{url}requests?sort=queue&limit=5")
        for _ in range(60):
            press(browser, tab, "Tab", 9)
            if tab.evaluate("document.activeElement.matches('tbody a')"):
                break
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        goes_to = tab.evaluate("document.activeElement.href")
        press(browser, tab, "Enter", 13)
        arrive(tab, goes_to)
        assert "Unusual: queue" in tab.evaluate("document.body.innerText")
        tab.close()


def test_hostile_names_stay_text(browser: chromium.Chromium, store: Any) -> None:
    """On the list and on the request's own page."""
    with serving(store) as url:
        for path in ("requests?outcome=error", f"requests/{'f' * 32}"):
            tab = open_tab(browser, url + path)
            assert HOSTILE in tab.evaluate("document.body.textContent")
            assert tab.evaluate("document.scripts.length") == 0
            assert tab.said == []
            tab.close()


def test_a_collector_that_has_a_token(browser: chromium.Chromium, store: Any) -> None:
    """A link to a request leads through the form to that request; nothing is in the address."""
    with serving(store, TOKEN) as url:
        tab = browser.tab()
        browser.call("Page.navigate", tab._session, url=url + SLOW)
        arrive(tab, f"{url}sign-in?next={SLOW}")
        assert "Unusual" not in tab.evaluate("document.body.innerText")
        tab.evaluate(
            f"document.querySelector('[name=token]').value = {TOKEN!r};"
            "document.querySelector('form').submit()"
        )
        arrive(tab, url + SLOW)
        assert "Unusual: queue" in tab.evaluate("document.body.innerText")
        assert TOKEN not in tab.evaluate("document.cookie + location.href")
        tab.close()
