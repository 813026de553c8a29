"""Are measured requests compared with a budget correctly, and shown as they are?"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from llmtrace.budget import DEFAULT, Budget, Budgets
from llmtrace.budget_analysis.html import page
from llmtrace.budget_analysis.report import report, reports
from llmtrace.budget_analysis.terminal import heading, remarks, table
from llmtrace.core.row import TURN
from llmtrace.core.stages import Network, Reported, Timeline
from llmtrace.testing import make_row

MS = 1_000_000


def row(number, *, queue=100, decode=800, from_engine=True, **fields):
    """Return one request whose queue and decode are so many milliseconds; prefill is 200."""
    front = 50 + 20 + queue + 200 + 10
    engine = {"queue": queue, "prefill": 200} if from_engine else {}
    reports = {name: Reported(ms * MS, "engine_inband") for name, ms in engine.items()}
    timeline = Timeline(
        e2e=(front + decode) * MS,
        ttft=front * MS,
        network=Network(client_wait=0, dns=0, connect=0, tls=0, send=0, rtt=50 * MS,
                        rtt_source="kernel"),
        gateway=Reported(20 * MS, "server_timing"),
        **reports,
    )  # fmt: skip
    return make_row(
        request_id=f"lt-{number:016x}", timeline=timeline, route="chat", model="tiny",
        output_tokens=41, last_content_ns=(front + decode) * MS, **fields,
    )  # fmt: skip


QUICK = [row(i, queue=50 + i % 100) for i in range(200)]
# One in five waits two seconds in the queue.
QUEUED = [row(i, queue=2000 if i % 5 == 0 else 50) for i in range(200)]


def held(found, name):
    """Return one line of a report."""
    return next(one for one in (*found.stages, *found.metrics) if one.name == name)


def turn(ttft):
    """Return one turn of an agent whose user saw something after so many milliseconds."""
    timeline = Timeline(e2e=3000 * MS, ttft=ttft * MS, stream=False)
    return make_row(operation=TURN, agent="voice", route="chat", timeline=timeline)


def test_turns_are_held_against_their_own_limit():
    """A budget of turns' first content counts turns alone, and without one there is no line."""
    turns = [turn(700)] * 150 + [turn(900)] * 50
    found = report([*QUICK, *turns], Budget(turn_ttft_s=0.8, ttft_s=1.0, route=("chat",)))

    shown = held(found, "turn_ttft")
    assert (shown.line.known, shown.within, shown.state) == (200, 150, "over")
    assert held(found, "ttft").line.known == 200
    assert found.summary.rows == 200
    assert "turn_ttft" not in [one.name for one in report(turns, Budget(ttft_s=1.0)).metrics]


def test_the_stage_that_eats_the_budget_is_named():
    """A p95 request is one of those that queued, and its parts come to its e2e."""
    found = report(QUEUED, DEFAULT)

    assert found.state == "over"
    assert found.eats is not None
    assert found.eats.name == "queue"
    assert held(found, "queue").used > 10
    assert held(found, "decode").used == pytest.approx(800 / 1500, rel=0.01)
    assert sum(one.spent_s for one in found.stages if one.spent_s) == pytest.approx(found.high_s)
    assert found.high_s == pytest.approx(3.08, rel=0.01)


def test_requests_within_the_limit_are_counted_with_bounds():
    """160 of 200 are within the 150 ms of the queue; the bounds are the exact binomial ones."""
    queue = held(report(QUEUED, DEFAULT), "queue")

    assert queue.within == 160
    assert queue.share == pytest.approx((0.8, 0.738, 0.853), abs=0.001)


def test_within_the_budget_nothing_is_over():
    """No stage is, and none exceeds its allocation."""
    found = report(QUICK, DEFAULT)

    assert found.state == "within"
    assert found.eats is None
    assert {one.state for one in found.stages} <= {"within", "not reported"}


def test_the_verdict_is_by_the_interval_of_the_percentile():
    """As the demo's is: where the limit is in the interval, neither within nor over."""
    found = report([row(i, queue=100 + i) for i in range(100)], Budget(stages_s={"queue": 0.195}))
    queue = held(found, "queue")

    assert queue.line.high_s == 0.194
    assert queue.state == "unclear"
    for text in (page([found], "rows"), printed(found, 120)):
        assert "? unclear" in text
        assert "189 to 199" in text


def test_two_figures_of_a_p95_are_told_apart():
    """The sum of the stages is an estimate; the p95 of e2e is the time of one request."""
    found = report([row(i, decode=100 * i) for i in range(100)], DEFAULT)
    words = f"the sum of {found.high_s * 1000:,.0f} ms is the estimate, and the p95 of 9,780 ms"

    assert words in page([found], "rows")
    assert words in remarks(found, 2000)
    assert "is the estimate" not in remarks(report(QUEUED, DEFAULT), 2000)


def test_what_is_not_reported_is_not_zero():
    """A queue that is not known is not reported; its time is in unattributed."""
    found = report([row(i, from_engine=False) for i in range(100)], DEFAULT)

    assert held(found, "queue").state == "not reported"
    assert held(found, "queue").spent_s is None
    assert held(found, "unattributed").spent_s == pytest.approx(0.31, rel=0.01)


def test_each_budget_holds_the_requests_it_covers():
    """By model and by route, patterns included; what none covers is in none."""
    rows = [*QUICK, *(row(i, decode=4000) for i in range(100))]
    rows = [*rows, make_row(model="other", route="batch")]
    chat = Budget(name="chat", total_s=2.5, route=("chat",))
    tiny = Budget(name="tiny", total_s=2.5, model=("ti*",), route=("ba*", "ch?t"))
    none = Budget(name="none", total_s=1, model=("llama",))
    found = reports(rows, Budgets((chat, tiny, none)))

    assert [one.summary.rows for one in found] == [300, 300, 0]
    assert [one.state for one in found] == ["over", "over", "not reported"]


def test_too_few_requests_are_a_hint():
    """With fewer than 72 the p95 has no upper bound; that is said."""
    found = report(QUICK[:50], DEFAULT)

    assert not found.enough
    assert "take it as a hint" in remarks(found, 80)


@pytest.mark.parametrize("width", [40, 48, 55, 60, 80, 120])
def test_the_table_is_not_cut_off(width):
    """However narrow a terminal is, every figure is whole: bars give way first, then columns."""
    text = printed(report(QUEUED, DEFAULT), width)

    assert "…" not in text
    assert "✗ over" in text
    assert "dialogue: p95 3,080 ms of 2,500 ms allowed ✗ over" in " ".join(text.split())
    assert re.search(r"queue +150 +2,000 .*✗ over", text)
    assert ("1333%" in text) == (width > 40)


def printed(found, width):
    """Return what a terminal shows of a report, without its remarks."""
    out = io.StringIO()
    console = Console(file=out, width=width, highlight=False)
    console.print(heading(found))
    console.print(table(found, width))
    return out.getvalue()


class Reading(HTMLParser):
    """Reads a page: whether tags close, and what it would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.text = [], [], []

    def handle_starttag(self, tag, attrs):  # noqa: D102
        if tag not in {"meta", "link", "br", "!doctype"}:
            self.open.append(tag)
        self.fetched += [value for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag):  # noqa: D102
        assert self.open.pop() == tag

    def handle_data(self, data):  # noqa: D102
        self.text.append(data)


def test_the_page_is_whole_and_loads_nothing_from_elsewhere():
    """Well-formed, no script, nothing fetched, light and dark."""
    no_route = Budget(name="x", route=("none",))
    html = page(reports(QUEUED, Budgets((DEFAULT, no_route))), "rows.jsonl")
    reading = Reading()
    reading.feed(html)

    assert reading.open == []
    assert reading.fetched == ["data:,"]  # an icon of nothing: without it one is requested
    assert "<script" not in html
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html
    assert f"none of the {len(QUEUED)} requests matches route none" in html
    assert "queue eats the budget: 2,000 ms, and 150 are allowed." in html


def test_names_on_the_page_are_text():
    """Whatever a budget or a file is called, it is no markup."""
    odd = Budget(name="<img src=x>", total_s=1, route=("<b>", "chat"))
    html = page([report(QUICK, odd)], "<script>alert(1)</script>")

    assert "<img" not in html
    assert "<script" not in html
    assert "&lt;img src=x&gt;" in html
    assert "&lt;b&gt;, chat" in html


def test_a_budget_that_covers_no_request_is_not_one_that_all_failed():
    """It says what it covers; and the other says that they failed."""
    chat = Budget(name="chat", model=("llama-*",), route=("chat",))
    failed = [replace(row, outcome="error") for row in QUICK]

    words = f"chat: none of the {len(QUICK)} requests matches model llama-* and route chat"
    assert heading(report(QUICK, chat)) == words
    assert heading(report(failed, DEFAULT)).endswith(
        f"none of the {len(QUICK)} requests that it covers succeeded"
    )
