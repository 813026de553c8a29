"""Do the request list and the request page work in a real browser?

`LLMTRACE_PICTURES=folder` keeps what the browser saw.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from llmtrace_collector.config.link_templates import LinkTemplate
from llmtrace_collector.store import open_store
from tests.collector.serve.stored_requests import COUNT, HOSTILE, application, fill

from . import chromium
from .page_server import serving

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


def served(store: Any, token: str | None = None) -> AbstractContextManager[str]:
    """Serve the pages of a store."""
    return serving(application(store, token, LINKS))


def open_tab(
    browser: chromium.Chromium, url: str, *, scheme: str = "light", width: int = 1600
) -> chromium.Tab:
    """Open a page at a width, light or dark."""
    tab = browser.tab()
    tab.look_as(width=width, scheme=scheme)
    tab.open(url)
    return tab


@pytest.mark.parametrize("width", [390, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_fit_and_are_drawn(
    browser: chromium.Chromium, store: Any, scheme: str, width: int
) -> None:
    """Nothing hangs out of the page, the one style is allowed, and every bar has its colours."""
    with served(store) as url:
        for name, path in PAGES.items():
            tab = open_tab(browser, url + path, scheme=scheme, width=width)
            tab.keep(f"{name}-{width}-{scheme}", whole=True)

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
    with served(store) as url:
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
    with served(store) as url:
        tab = open_tab(browser, f"{url}requests?sort=queue&limit=5")
        for _ in range(60):
            tab.press("Tab", 9)
            if tab.evaluate("document.activeElement.matches('tbody a')"):
                break
        assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        goes_to = tab.evaluate("document.activeElement.href")
        tab.press("Enter", 13)
        tab.arrive(goes_to)
        assert "Unusual: queue" in tab.evaluate("document.body.innerText")
        tab.close()


def test_hostile_names_stay_text(browser: chromium.Chromium, store: Any) -> None:
    """On the list and on the request's own page."""
    with served(store) as url:
        for path in ("requests?outcome=error", f"requests/{'f' * 32}"):
            tab = open_tab(browser, url + path)
            assert HOSTILE in tab.evaluate("document.body.textContent")
            assert tab.evaluate("document.scripts.length") == 0
            assert tab.said == []
            tab.close()


def test_a_collector_that_has_a_token(browser: chromium.Chromium, store: Any) -> None:
    """A link to a request leads through the form to that request; nothing is in the address."""
    with served(store, TOKEN) as url:
        tab = browser.tab()
        tab.go(url + SLOW)
        tab.arrive(f"{url}sign-in?next={SLOW}")
        assert "Unusual" not in tab.evaluate("document.body.innerText")
        tab.evaluate(
            f"document.querySelector('[name=token]').value = {TOKEN!r};"
            "document.querySelector('form').submit()"
        )
        tab.arrive(url + SLOW)
        assert "Unusual: queue" in tab.evaluate("document.body.innerText")
        assert TOKEN not in tab.evaluate("document.cookie + location.href")
        tab.close()
