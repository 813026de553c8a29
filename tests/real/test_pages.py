"""Can the pages people are sent be read in a real browser: light, dark, printed, on a phone?

`LLMTRACE_PICTURES=folder` keeps what the browser saw.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from llmtrace.budget import DEFAULT
from llmtrace.budget_analysis.html import page as budget_page
from llmtrace.budget_analysis.report import report
from llmtrace.dataset.case import Event, Facts
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.html import page as triage_page
from llmtrace.triage.result import Point
from tests.budget_analysis.test_report import QUEUED
from tests.triage.days import Kind, day

from . import chromium

LONG: Final = "a-replica-with-a-name-too-long-to-type-0123456789abcdef.example.internal:8000"
HOSTILE: Final = '<img src=x onerror="document.title = 1"><script>document.title = 2</script>'
# The least contrast of text (WCAG 2.2, level AA) that is not large.
CONTRAST: Final = 4.5
# Returns every piece of text whose colour is too near to what lies under it.
_FAINT: Final = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = color => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1); return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = color => { const [r, g, b] = color.map(v => { v /= 255;
    return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const under = one => { for (; one; one = one.parentElement) {
    const color = rgb(getComputedStyle(one).backgroundColor);
    if (color[3] === 255) return color; } return [255, 255, 255, 255]; };
  const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const one = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !one.getClientRects().length) continue;
    const style = getComputedStyle(one), drawn = one instanceof SVGElement;
    const [a, b] = [light(rgb(drawn ? style.fill : style.color)), light(under(one))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < MIN) found.push(walk.currentNode.data + " " + contrast.toFixed(2));
  }
  return found;
})()""".replace("MIN", str(CONTRAST))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a page of each kind, with everything that may make one ugly."""
    folder = tmp_path_factory.mktemp("pages")
    case = day(after=Kind(slow_replica=6.0, prefill=0.9), n=(1500, 500))
    assert case.before is not None
    assert case.after is not None
    events = (Event(case.before.start + 60, "deploy", "v2"), Event(case.after.start, HOSTILE, ""))
    case = replace(case, facts=Facts({}, events))
    result = triage(case, Settings(bootstrap=20))
    one = result.cohorts[0]
    cohorts = tuple(
        replace(
            one, attributes={"replica": f"{n}-{LONG}", "tenant": HOSTILE}, excess_share=0.1 * n
        )
        for n in range(10)
    )
    causes = tuple(
        replace(
            cause,
            status="confirmed" if n < 2 else cause.status,
            evidence=(Point(f"{LONG} {HOSTILE}", 6), Point("prefill p50 1 µs", 3)),
            against=(Point("it would follow from another by itself", -6),),
            action="Lower `--max-num-seqs`. " * 6,
        )
        for n, cause in enumerate(result.causes)
    )
    parts = tuple(
        replace(part, seconds=part.seconds + change)
        for part, change in zip(
            result.contributions, (-0.3, 0.3, 1e-7, -1e-7), strict=False
        )
    ) + result.contributions[4:]  # fmt: skip
    ugly = replace(result, cohorts=cohorts, causes=causes, contributions=parts)
    written = {
        "triage": triage_page(ugly, case),
        "triage-nothing": triage_page(triage(day(n=(30, 30)), Settings(bootstrap=0)), day()),
        "budget": budget_page([report(QUEUED, DEFAULT)], HOSTILE),
    }
    files = {name: folder / f"{name}.html" for name in written}
    for name, text in written.items():
        files[name].write_text(text, encoding="utf-8")
    return files


def look(
    browser: chromium.Chromium, file: Path, *, width: int, scheme: str, media: str
) -> chromium.Tab:
    """Open a page as a person would see it."""
    tab = browser.tab()
    tab.look_as(width=width, height=900, scheme=scheme, media=media)
    tab.open(f"file://{file}")
    tab.keep(f"{file.stem}-{media}-{scheme}-{width}", whole=True)
    return tab


@pytest.mark.parametrize(
    "seen",
    [(1280, "light", "screen"), (1280, "dark", "screen"), (360, "dark", "screen"),
     (360, "light", "screen"), (760, "dark", "print")],
)  # fmt: skip
@pytest.mark.parametrize("name", ["triage", "triage-nothing", "budget"])
def test_a_page_can_be_read(browser, files, name, seen):
    """Nothing sticks out, is too faint, is fetched, runs, or complains."""
    width, scheme, media = seen
    tab = look(browser, files[name], width=width, scheme=scheme, media=media)
    strange = "document.querySelectorAll('script, img, link:not([rel=icon])').length"

    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(_FAINT) == []
    assert tab.evaluate("performance.getEntriesByType('resource').length") == 0
    assert tab.evaluate(strange) == 0
    assert tab.said == []
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    dark = scheme == "dark" and media == "screen"
    assert ground == ("rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)")
    tab.close()
