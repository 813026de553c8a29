"""Do a server's row and a page's beacon make one row that adds up to what the user waited?"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from llmtrace.browser import Beacon, joined_row, with_beacon
from llmtrace.core.browser_timing import Browser
from llmtrace.core.row import from_dict, with_figures
from llmtrace.core.stages import EngineFigures, Network, Reported, Timeline
from llmtrace.testing import make_row
from tests.strategies import browsers, maybe_page, reported, requests

MS = 1_000_000
IDS = {"trace_id": "1" * 32, "span_id": "2" * 16}

beacons = st.builds(Beacon, browser=browsers, **{name: st.just(v) for name, v in IDS.items()})

# A server that waited 1,000 ms, 200 of them for the first content, of which the engine reports.
ROW = make_row(
    output_tokens=11,
    chunks=10,
    max_gap_ns=99 * MS,
    first_text_ns=200 * MS,
    timeline=Timeline(
        e2e=1000 * MS,
        ttft=200 * MS,
        held_after=50 * MS,
        network=Network(client_wait=1 * MS, dns=0, connect=0, tls=0, rtt=2 * MS),
        queue=Reported(40 * MS, "engine_inband"),
        prefill=Reported(100 * MS, "engine_inband"),
    ),
)


def page(**figures: object) -> Beacon:
    """Make a beacon of a page that waited 1,500 ms, 320 of them for the first content."""
    known = {
        "outcome": "success",
        "e2e_ns": 1500 * MS,
        "ttft_ns": 320 * MS,
        "held_before_ns": 10 * MS,
        "held_after_ns": 700 * MS,
        "last_content_ns": 1320 * MS,
        "chunks": 8,
    }
    return Beacon(**IDS, browser=Browser(**{**known, **figures}))


def test_the_page_says_how_long_and_the_server_why():
    """The wait, the first content and render are the page's; the engine's are the row's."""
    row = with_beacon(ROW, page(), app_ns=30 * MS)
    stages = row.stages

    assert (row.e2e_ns, row.ttft_ns) == (1500 * MS, 320 * MS)
    assert (stages.queue, stages.prefill) == (40 * MS, 100 * MS)
    assert stages.network == 3 * MS
    assert stages.gateway == 30 * MS
    assert stages.render == 710 * MS
    assert stages.decode == (1500 - 320 - 700) * MS
    assert stages.first_chunk == (320 - 10 - 3 - 30 - 140) * MS
    assert stages.total == row.e2e_ns
    assert row.tpot_s == 0.1


def test_what_the_server_had_measured_is_kept():
    """Nothing is lost of either side."""
    browser = with_beacon(ROW, page(paints=5)).browser

    assert (browser.app_e2e_ns, browser.app_ttft_ns, browser.app_held_ns) == (
        1000 * MS, 200 * MS, 50 * MS,
    )  # fmt: skip
    assert (browser.e2e_ns, browser.paints, browser.inconsistent) == (1500 * MS, 5, None)


def test_marks_of_the_servers_clock_are_not_put_on_the_pages():
    """What only the server saw come first has no time on the page's clock."""
    row = with_beacon(ROW, page(first_byte_ns=310 * MS))

    assert row.first_text_ns is None
    assert row.max_gap_ns is None
    assert row.first_byte_ns == 310 * MS


def test_both_ways_of_the_network_add_up():
    """The page's way to the application, and the application's on to the engine."""
    seen = page(dns_ns=5 * MS, connect_ns=8 * MS, tls_ns=9 * MS, client_wait_ns=1 * MS)
    network = with_beacon(ROW, seen).timeline.network

    assert network == Network(
        client_wait=2 * MS, dns=5 * MS, connect=8 * MS, tls=9 * MS, rtt=10 * MS,
        rtt_source="client",
    )  # fmt: skip


def test_a_handshake_of_quic_is_no_round_trip():
    """It includes the encryption's, too."""
    seen = page(connect_ns=8 * MS, protocol="h3")

    assert with_beacon(ROW, seen).timeline.network.rtt == 2 * MS


def test_a_network_not_observed_stays_unknown():
    """Unknown and unknown is unknown."""
    unseen = replace(ROW, timeline=replace(ROW.timeline, network=Network()))

    assert with_beacon(unseen, page()).stages.network is None
    assert with_beacon(unseen, page(dns_ns=0)).stages.network == 0


def test_a_gateways_time_is_counted_once():
    """The larger figure of the gateways is believed: the page's includes those behind, too."""
    behind = replace(ROW.timeline, gateway=Reported(20 * MS, "server_timing"))
    row = replace(ROW, timeline=behind)

    assert with_beacon(row, page(gateway_ns=45 * MS), app_ns=15 * MS).stages.gateway == 45 * MS
    assert with_beacon(row, page(gateway_ns=10 * MS), app_ns=15 * MS).stages.gateway == 35 * MS
    assert with_beacon(row, page()).stages.gateway == 20 * MS
    assert with_beacon(ROW, page()).stages.gateway is None


def test_the_applications_render_is_not_the_users():
    """What the server marked as its own rendering is not what the page did."""
    marked = replace(ROW.timeline, marked_after={"render": 90 * MS, "gateway": 5 * MS})
    stages = with_beacon(replace(ROW, timeline=marked), page()).stages

    assert (stages.render, stages.gateway) == (710 * MS, 5 * MS)


def test_an_answer_read_in_one_go_has_no_first_content():
    """Its decode is the engine's own, as for any unary response."""
    timed = replace(ROW.timeline, engine_decode=Reported(700 * MS, "engine_inband"))
    whole = page(kind="whole", ttft_ns=None, held_before_ns=10 * MS, held_after_ns=0)
    row = with_beacon(replace(ROW, timeline=timed), whole)

    assert (row.stream, row.ttft_ns) == (False, None)
    assert (row.stages.decode, row.stages.render) == (700 * MS, 10 * MS)
    assert row.stages.total == 1500 * MS


def test_how_it_ended_is_what_the_user_saw():
    """A page that gave up counts, and a server that failed still counts."""
    gave_up = page(outcome="cancelled", error_type="AbortError")
    failed = replace(ROW, outcome="error", error_type="APIError")

    assert with_beacon(ROW, gave_up).outcome == "cancelled"
    assert with_beacon(ROW, gave_up).error_type == "AbortError"
    assert with_beacon(failed, page()).outcome == "error"
    assert with_beacon(failed, gave_up).error_type == "APIError"
    assert with_beacon(ROW, page(outcome=None)).outcome == "success"


def test_what_cannot_be_is_named():
    """Contradictions are flagged, cut to fit, and kept as reported."""
    cases = {
        "ttft": page(ttft_ns=2000 * MS),
        "held_before": page(held_before_ns=400 * MS),
        "held_after": page(held_after_ns=1300 * MS),
        "server": page(ttft_ns=50 * MS),
        None: page(),
    }
    for name, beacon in cases.items():
        row = with_beacon(ROW, beacon)

        assert name == row.browser.inconsistent or name in row.browser.inconsistent.split()
        assert row.stages.total == row.e2e_ns
    assert with_beacon(ROW, page(ttft_ns=50 * MS)).stages.inconsistent


@given(requests, beacons, maybe_page)
def test_stages_add_up_to_what_the_page_waited(row, beacon, app_ns):
    """To the nanosecond, whatever either side reports."""
    joined = with_beacon(row, beacon, app_ns=app_ns)

    if row.browser is None:
        assert joined.e2e_ns == beacon.browser.e2e_ns
    assert joined.stages.total == joined.e2e_ns


@given(requests, beacons, beacons)
def test_a_row_is_joined_once(row, beacon, another):
    """A second beacon, the same or another, changes nothing."""
    joined = with_beacon(row, beacon)

    assert with_beacon(joined, beacon) == joined
    assert with_beacon(joined, another) == joined


@given(requests, beacons, reported, reported)
def test_it_does_not_matter_who_tells_first(row, beacon, queue, prefill):
    """An engine's figures may come before the page's beacon, or after it."""
    figures = EngineFigures(queue=queue, prefill=prefill)

    assert with_figures(with_beacon(row, beacon), figures) == with_beacon(
        with_figures(row, figures), beacon
    )


@given(requests, beacons)
def test_what_is_not_reported_stays_unknown(row, beacon):
    """The page cannot know the engine, and what neither side knows is not 0."""
    row = replace(
        row, browser=None, timeline=replace(row.timeline, marked_before={}, marked_after={})
    )
    joined, was, seen = with_beacon(row, beacon), row.timeline, beacon.browser

    assert (joined.stages.queue is None) == (was.queue is None or _estimated(was.queue))
    assert (joined.stages.prefill is None) == (was.prefill is None or _estimated(was.prefill))
    if seen.gateway_ns is None and not was.retry_gateway:
        assert (joined.stages.gateway is None) == (was.gateway is None or _estimated(was.gateway))
    for part, ns in joined.timeline.network.parts():
        unseen = part in {"rtt", "send"} or getattr(seen, f"{part}_ns", None) is None
        if unseen and part != "rtt":
            assert ns == dict(was.network.parts())[part]


def _estimated(figure: Reported) -> bool:
    return figure.source == "estimated"  # never part of a sum


@given(requests, beacons)
def test_a_joined_row_can_be_written_and_read(row, beacon):
    """It is a row like any other."""
    joined = replace(with_beacon(row, beacon), gap_counts=None)

    assert from_dict(joined.as_dict()).stages.total == joined.e2e_ns
    assert from_dict(joined.as_dict()).browser == joined.browser


# --- which row ----------------------------------------------------------------------------------


def at(start_ms: int, e2e_ms: int, span: str, parent: str | None = None, **fields: object):
    """Make a row that ran from one time to another."""
    return make_row(
        start=start_ms * MS,
        span_id=span * 16,
        parent_span_id=None if parent is None else parent * 16,
        timeline=Timeline(e2e=e2e_ms * MS),
        **fields,
    )


def test_of_requests_inside_one_another_the_outer_is_the_pages():
    """A decorated function's row includes those of the calls it makes."""
    outer = at(0, 100, "a", "9")

    assert joined_row([at(10, 20, "b", "a"), at(40, 20, "c", "a"), outer]) is outer


def test_of_several_in_a_row_the_last_answered():
    """A question is put in other words first, then answered."""
    last = at(60, 40, "b")

    assert joined_row([last, at(0, 50, "a")]) is last


def test_of_several_at_once_none_is():
    """The page cannot know which it read, and nothing is made up."""
    assert joined_row([at(0, 50, "a"), at(20, 50, "b")]) is None
    assert joined_row([]) is None


def test_a_turn_is_not_one_request():
    """An agent's turn keeps its own sum."""
    assert joined_row([at(0, 90, "a", operation="invoke_agent"), at(0, 50, "b", "a")]) is None
