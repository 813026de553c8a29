"""The split of a request is exact, honest about the unknown, and fair to slow consumers."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace
from itertools import permutations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from llmtrace.core.stages import (
    SOURCES,
    STAGES,
    EngineFigures,
    Network,
    Reported,
    Stages,
    Timeline,
    better,
    reported,
    split,
    with_engine,
)
from tests.strategies import durations, marks, maybe, networks, timelines

MS = 1_000_000
REPORTS = ("gateway", "queue", "prefill", "engine_decode", "frontend")
REPORTING = tuple(source for source in SOURCES if source != "estimated")

any_ns = st.integers(-(10**12), 10**12)
# What a clock that runs backwards, or a row from elsewhere, may claim.
wild_timelines = st.builds(
    Timeline,
    e2e=durations,
    ttft=st.none() | any_ns,
    client=st.none() | any_ns,
    held_before=any_ns,
    held_after=any_ns,
    network=st.builds(Network, client_wait=any_ns, dns=any_ns, send=st.none() | any_ns),
    retry_network=any_ns,
    retry_gateway=any_ns,
    queue=st.none() | st.builds(Reported, any_ns, st.sampled_from(SOURCES)),
    prefill=st.none() | st.builds(Reported, any_ns, st.sampled_from(SOURCES)),
    marked_before=st.dictionaries(st.sampled_from(STAGES), any_ns),
    marked_after=st.dictionaries(st.sampled_from(STAGES), any_ns),
    stream=st.booleans(),
)
any_report = st.builds(Reported, durations, st.sampled_from(REPORTING))


@st.composite
def fitting(draw: st.DrawFn) -> Timeline:
    """Draw what may be true: a wait as long as all that was measured in it, and some more."""
    network = draw(networks.map(lambda one: replace(one, send=None)))
    reports = {name: draw(st.none() | any_report) for name in ("gateway", "queue", "prefill")}
    before, after = draw(marks), draw(marks)
    spent = {
        name: draw(st.just(0) | durations)
        for name in ("retry_network", "retry_gateway", "held_before")
    }
    held, decode, rest = draw(durations), draw(durations), draw(durations)
    ttft = (
        (network.known or 0)
        + sum(report.ns for report in reports.values() if report is not None)
        + sum(before.values())
        + sum(spent.values())
        + rest
    )
    return Timeline(
        e2e=ttft + held + sum(after.values()) + decode,
        ttft=ttft,
        held_after=held,
        network=network,
        marked_before=before,
        marked_after=after,
        stream=True,  # what is none divides nothing by its first content
        **spent,
        **reports,
    )


def ms(**given: int) -> dict[str, int]:
    """Read milliseconds."""
    return {name: value * MS for name, value in given.items()}


def known(stages: Stages) -> dict[str, int]:
    """Return the known stages."""
    return {name: ns for name, ns in stages if ns is not None}


def inband(value: int) -> Reported:
    """Report milliseconds as an engine does in its answer."""
    return Reported(value * MS, "engine_inband")


# --- what always holds --------------------------------------------------------------------------


@given(timelines | wild_timelines)
@example(Timeline(e2e=0))
@example(Timeline(e2e=0, ttft=0, held_before=5, queue=Reported(5, "engine_inband")))
@example(Timeline(e2e=10, held_before=10**9, held_after=10**9, stream=False))
@example(
    Timeline(
        e2e=10,
        queue=Reported(1, "engine_inband"),
        prefill=Reported(1, "engine_inband"),
        marked_before={"first_chunk": 4},
    )
)
def test_stages_add_up_to_the_wait(timeline):
    """Every nanosecond of the wait goes to exactly one stage, whatever was measured."""
    assert timeline.e2e == split(timeline).total


@given(timelines | wild_timelines)
def test_no_stage_is_negative(timeline):
    """No stage takes less than no time, however odd the figures."""
    stages = split(timeline)

    assert [ns for ns in (*known(stages).values(), stages.unattributed) if ns < 0] == []


@given(timelines | wild_timelines)
def test_every_known_stage_has_a_source(timeline):
    """Each known stage has a source, and no unknown one does."""
    stages = split(timeline)

    assert set(known(stages)) == set(stages.sources)
    assert set(stages.sources.values()) <= set(REPORTING)


@given(timelines)
def test_an_estimate_never_enters_the_sum(timeline):
    """A timeline splits the same with its estimates as without them."""
    without = {
        name: None
        for name in REPORTS
        if (report := getattr(timeline, name)) is not None and report.source == "estimated"
    }

    assert split(replace(timeline, **without)) == split(timeline)


@given(timelines)
def test_what_is_not_reported_stays_unknown(timeline):
    """Without a report or a mark, queue and prefill are unknown, and so is what follows them."""
    silent = replace(timeline, queue=None, prefill=None, marked_before={}, marked_after={})

    stages = split(silent)

    assert (stages.queue, stages.prefill, stages.first_chunk) == (None, None, None)


@given(timelines, st.sampled_from(["gateway", "queue", "prefill"]), st.sampled_from(REPORTING))
def test_a_reported_zero_is_known(timeline, stage, source):
    """A stage reported to have taken no time took none: that is not the same as unknown."""
    bare = replace(timeline, marked_before={}, marked_after={}, retry_gateway=0)

    stages = split(replace(bare, **{stage: Reported(0, source)}))

    assert getattr(stages, stage) == 0
    assert stages.sources[stage] == source
    assert stage not in stages.inconsistent


@given(timelines)
def test_only_the_client_is_unattributed_once_the_engine_reported_all(timeline):
    """With queue, prefill and decode known, the remainder is first_chunk; a turn may differ."""
    stages = split(replace(timeline, unsplit=0))
    assume(None not in (stages.queue, stages.prefill, stages.decode))

    assert stages.unattributed == (stages.client or 0)
    assert stages.first_chunk is not None


@given(timelines, any_report)
def test_a_silent_gateway_hides_in_what_is_left(timeline, gateway):
    """What a gateway reports is taken from the first chunk, or from what cannot be split."""
    network = replace(timeline.network, send=None)
    bare = replace(
        timeline, gateway=None, retry_gateway=0, network=network, held_before=0, marked_before={},
        marked_after={},
    )  # fmt: skip
    before, after = split(bare), split(replace(bare, gateway=gateway))

    def rest(stages: Stages) -> int:
        return stages.unattributed + (stages.first_chunk or 0)

    assert rest(before) == rest(after) + after.gateway


@given(timelines)
def test_what_does_not_fit_is_flagged_once(timeline):
    """A stage is named inconsistent once at most."""
    inconsistent = split(timeline).inconsistent

    assert len(set(inconsistent)) == len(inconsistent)


@given(timelines)
def test_a_split_can_be_copied_to_another_process(timeline):
    """Stages survive pickling and turning into plain data."""
    stages = split(timeline)

    assert stages == pickle.loads(pickle.dumps(stages))
    assert asdict(stages)["sources"] == dict(stages.sources)


def test_stages_come_in_the_order_of_the_request():
    """Iterating yields the seven stages in order, known or not."""
    assert list(STAGES) == [name for name, _ in split(Timeline(e2e=1))]


# --- slow readers -------------------------------------------------------------------------------


@given(timelines, durations)
def test_a_hold_after_the_first_chunk_is_render_and_nothing_else(timeline, hold):
    """Holding the stream longer after the first content changes render and the wait alone."""
    slower = replace(
        timeline, e2e=timeline.e2e + hold, held_after=timeline.held_after + hold, stream=True,
        ttft=timeline.e2e if timeline.ttft is None else min(timeline.ttft, timeline.e2e),
    )  # fmt: skip
    eager = replace(slower, e2e=timeline.e2e, held_after=timeline.held_after)

    before, after = split(eager), split(slower)

    assert after == replace(before, render=before.render + hold)


@given(fitting())
def test_what_fits_is_not_cut(timeline):
    """Figures that fit into the wait are taken as they are."""
    stages = split(timeline)

    assert stages.inconsistent == ()
    for name in ("queue", "prefill"):
        report, marked = getattr(timeline, name), timeline.marked_before.get(name)
        if report is not None and marked is None and name not in timeline.marked_after:
            assert getattr(stages, name) == report.ns


@given(fitting(), durations)
def test_a_hold_on_top_of_the_wait_is_render_and_nothing_else(eager, hold):
    """A reader late by as long as the whole wait grew costs no other stage anything."""
    late = replace(
        eager, e2e=eager.e2e + hold, ttft=eager.ttft + hold, held_before=eager.held_before + hold
    )
    before = split(eager)

    assert split(late) == replace(before, render=before.render + hold)


@given(fitting(), durations)
def test_a_late_reader_does_not_make_the_server_slow(timeline, hold):
    """Who asks after the content has arrived sees no more queue, prefill or first chunk."""
    eager = replace(timeline, held_before=0)
    ttft = max(eager.ttft, hold)
    late = replace(eager, e2e=eager.e2e - eager.ttft + ttft, ttft=ttft, held_before=hold)

    before, now = split(eager), split(late)

    assert (before.queue, before.prefill) == (now.queue, now.prefill)
    assert (now.first_chunk or 0) <= (before.first_chunk or 0)
    assert now.unattributed <= before.unattributed
    assert (now.first_chunk is None) == (before.first_chunk is None)
    assert before.decode == now.decode


@given(timelines, durations)
def test_consumer_time_longer_than_the_wait_is_cut_to_it(timeline, hold):
    """Consumer time beyond the wait takes all but the client's part, and is no contradiction."""
    unmarked = replace(timeline, stream=True, marked_before={}, marked_after={})

    stages = split(replace(unmarked, held_before=timeline.e2e + hold))

    assert (stages.first_chunk or 0) == 0
    assert stages.unattributed == (stages.client or 0)
    assert "render" not in stages.inconsistent


# --- one at a time ------------------------------------------------------------------------------


def test_a_streamed_answer():
    """Each figure lands in its stage, and the remainders in theirs."""
    stages = split(
        Timeline(
            **ms(e2e=2_400, ttft=400, held_before=2, held_after=50, retry_gateway=3),
            network=Network(**ms(client_wait=1, dns=2, connect=3, tls=4, send=5, rtt=6)),
            gateway=Reported(7 * MS, "server_timing"),
            queue=inband(120),
            prefill=inband(230),
            marked_before=ms(render=4),
            marked_after=ms(gateway=10),
        )
    )

    assert known(stages) == ms(
        network=21, gateway=20, queue=120, prefill=230, first_chunk=13, decode=1_940, render=56
    )
    assert stages.unattributed == 0
    assert dict(stages.sources) == {
        **dict.fromkeys(STAGES, "client"), "queue": "engine_inband", "prefill": "engine_inband",
    }  # fmt: skip


def test_an_engine_that_reports_nothing():
    """What a hosted API does not report is unattributed."""
    stages = split(Timeline(**ms(e2e=1_000, ttft=300), network=Network(**ms(rtt=10))))

    assert known(stages) == ms(network=10, decode=700, render=0)
    assert stages.unattributed == 290 * MS


def test_half_of_the_engine_is_not_enough():
    """With queue alone known, the rest of the wait cannot be split."""
    stages = split(Timeline(**ms(e2e=1_000, ttft=300), queue=inband(100)))

    assert (stages.queue, stages.prefill, stages.first_chunk) == (100 * MS, None, None)
    assert stages.unattributed == 200 * MS


def test_a_whole_answer_takes_its_decode_from_the_engine():
    """An answer that came in one piece has the engine's decode; first_chunk is what is left."""
    stages = split(
        Timeline(
            **ms(e2e=1_000),
            queue=inband(100),
            prefill=inband(200),
            engine_decode=inband(600),
            stream=False,
        )
    )

    assert known(stages) == ms(queue=100, prefill=200, first_chunk=100, decode=600, render=0)


def test_a_whole_answer_without_the_engines_decode():
    """An answer in one piece whose decode is not reported has none, and no first chunk."""
    stages = split(Timeline(**ms(e2e=1_000), queue=inband(100), prefill=inband(200), stream=False))

    assert known(stages) == ms(queue=100, prefill=200, render=0)
    assert stages.unattributed == 700 * MS


def test_a_stream_does_not_ask_the_engine_for_its_decode():
    """Where a stream was read, the client's own clock says how long its chunks were waited for."""
    stages = split(
        Timeline(
            **ms(e2e=1_000, ttft=400),
            queue=inband(100),
            prefill=inband(200),
            engine_decode=inband(900),
        )
    )

    assert (stages.decode, stages.sources["decode"]) == (600 * MS, "client")
    assert stages.inconsistent == ()


def test_a_stream_without_content():
    """A stream that brought no content spent all its time before the first one."""
    stages = split(Timeline(**ms(e2e=1_000, held_before=100), queue=inband(50)))

    assert known(stages) == ms(queue=50, decode=0, render=100)
    assert stages.unattributed == 850 * MS


def test_a_figure_longer_than_the_wait():
    """A report that does not fit is cut to the wait and flagged; what it said stays."""
    timeline = Timeline(**ms(e2e=1_000, ttft=100), queue=inband(400), prefill=inband(5))

    stages = split(timeline)

    assert (stages.queue, stages.prefill) == (100 * MS, 0)
    assert stages.inconsistent == ("queue", "prefill")
    assert timeline.queue == inband(400)


def test_failed_attempts_go_to_who_failed_them():
    """Attempts answered with an error are the gateway's, the others the network's."""
    stages = split(Timeline(**ms(e2e=100, ttft=90, retry_network=20, retry_gateway=30)))

    assert (stages.network, stages.gateway) == (20 * MS, 30 * MS)


def test_a_failed_attempt_adds_to_what_the_gateway_reports():
    """The gateway's own time and its refusals are both its."""
    stages = split(
        Timeline(**ms(e2e=100, retry_gateway=30), gateway=Reported(5 * MS, "server_timing"))
    )

    assert stages.gateway == 35 * MS


@pytest.mark.parametrize("stage", ["queue", "prefill"])
def test_what_is_left_of_an_average_is_approximate_too(stage):
    """A first chunk that an average was subtracted from is marked as one."""
    figures = {"queue": inband(1), "prefill": inband(1), stage: Reported(MS, "engine_window")}

    stages = split(Timeline(**ms(e2e=10, ttft=9), **figures))

    assert stages.sources["first_chunk"] == "engine_window"


def test_what_is_left_of_an_average_decode_is_approximate_too():
    """The same for the decode of an answer that came in one piece."""
    stages = split(
        Timeline(
            **ms(e2e=10),
            queue=inband(1),
            prefill=inband(1),
            stream=False,
            engine_decode=Reported(MS, "engine_window"),
        )
    )

    assert stages.sources["first_chunk"] == "engine_window"


def test_a_marked_first_chunk_keeps_its_time():
    """A remainder that was claimed in part already is the claim and the rest."""
    stages = split(
        Timeline(**ms(e2e=10), queue=inband(1), prefill=inband(1), marked_before=ms(first_chunk=4))
    )

    assert stages.first_chunk == 8 * MS


def test_a_hold_before_the_engine_has_answered():
    """The engine's time comes first, then the hold; the first chunk gets what is left."""
    late = Timeline(
        **ms(e2e=500, ttft=400, held_before=390), queue=inband(100), prefill=inband(200)
    )

    assert known(split(late)) == ms(queue=100, prefill=200, first_chunk=0, decode=100, render=100)


def test_sending_that_overlaps_with_the_server_counts_once():
    """A server that began before the client's send returned is not cut short for it."""
    network = Network(**ms(connect=10, send=30))
    engine = {"queue": inband(40), "prefill": inband(40)}

    stages = split(Timeline(**ms(e2e=100, ttft=100), network=network, **engine))

    assert known(stages) == ms(network=20, queue=40, prefill=40, first_chunk=0, decode=0, render=0)
    assert stages.inconsistent == ()


def test_a_negative_figure_claims_nothing():
    """A duration below zero, as of a clock set back, is taken for zero and flagged."""
    stages = split(Timeline(e2e=10, ttft=-5, queue=Reported(-3, "engine_span")))

    assert (stages.queue, stages.inconsistent, stages.decode) == (0, ("queue",), 10)


@given(maybe, maybe, maybe)
def test_network_is_known_once_anything_of_it_is(dns, connect, rtt):
    """Sub-phases not observed do not make the others unknown; none at all do."""
    seen = [ns for ns in (dns, connect, rtt) if ns is not None]

    assert Network(dns=dns, connect=connect, rtt=rtt).known == (sum(seen) if seen else None)


# --- who to believe -----------------------------------------------------------------------------

# One engine tells one duration once by each of its ways.
figures_by_source = st.dictionaries(st.sampled_from(SOURCES), durations, min_size=1, max_size=5)


def reports_by_source(values: dict[str, int]) -> list[Reported]:
    """Make the reports of one duration, one a source."""
    return [Reported(ns, source) for source, ns in values.items()]


@given(figures_by_source, st.data())
def test_the_most_trustworthy_report_wins_in_any_order(values, data):
    """However often and in which order reports arrive, one is picked, and always the same."""
    reports = reports_by_source(values)
    again = data.draw(st.permutations(reports + reports[:2]))
    first, second = None, None
    for one in reports:
        first = better(first, one)
    for one in again:
        second = better(second, one)

    assert first == second
    assert (first is None) == (set(values) == {"estimated"})


def test_the_order_of_trust():
    """In-band figures win over spans, those over the plugin, and averages come last."""
    order = (
        "engine_inband", "engine_span", "engine_plugin", "server_timing", "client", "kernel",
        "client_bound", "engine_window",
    )  # fmt: skip

    for worse, source in enumerate(order):
        for other in order[worse + 1 :]:
            assert Reported(1, source) == better(Reported(2, other), Reported(1, source))
            assert Reported(1, source) == better(Reported(1, source), Reported(2, other))


@pytest.mark.parametrize("source", REPORTING)
def test_any_report_is_better_than_an_estimate(source):
    """An estimate gives way to whatever was measured, and to nothing else."""
    guess, real = Reported(5, "estimated"), Reported(7, source)

    assert better(guess, real) == real
    assert better(real, guess) == real
    assert better(guess, None) == guess


def test_of_two_reports_by_one_source_the_first_stays():
    """A second report by the same way does not replace the first."""
    assert better(Reported(1, "engine_span"), Reported(2, "engine_span")).ns == 1


@given(
    timelines,
    *(figures_by_source for _ in range(4)),
)
def test_figures_may_arrive_in_parts(timeline, queue, prefill, decode, frontend):
    """Figures joined one by one, twice or backwards make the timeline they make at once."""
    bare = replace(timeline, queue=None, prefill=None, engine_decode=None, frontend=None)
    parts = [
        EngineFigures(**{name: one})
        for name, values in (
            ("queue", queue), ("prefill", prefill), ("decode", decode), ("frontend", frontend),
        )
        for one in reports_by_source(values)
    ]  # fmt: skip

    forwards, backwards = bare, bare
    for part in parts:
        forwards = with_engine(forwards, part)
    for part in (*reversed(parts), *parts):
        backwards = with_engine(backwards, part)

    assert forwards == backwards


def test_figures_add_to_each_other():
    """Queue from one source and prefill from another make both known, in every order."""
    parts = [
        EngineFigures(queue=inband(3)),
        EngineFigures(prefill=Reported(4 * MS, "engine_span"), frontend=inband(1)),
        EngineFigures(queue=Reported(9 * MS, "engine_window")),
    ]
    joined = set()
    for order in permutations(parts):
        timeline = Timeline(e2e=20 * MS)
        for part in order:
            timeline = with_engine(timeline, part)
        joined.add((timeline.queue, timeline.prefill, timeline.frontend))

    assert joined == {(inband(3), Reported(4 * MS, "engine_span"), inband(1))}


def test_a_whole_answers_decode_overlaps_the_sending_too() -> None:
    """A client that was not scheduled after its send counts the engine's work as sending."""
    timeline = Timeline(
        e2e=100,
        network=Network(client_wait=5, send=60, rtt=1),
        queue=Reported(1, "engine_inband"),
        prefill=Reported(10, "engine_inband"),
        engine_decode=Reported(50, "engine_inband"),
        stream=False,
    )

    stages = split(timeline)

    assert stages.inconsistent == ()
    assert (stages.prefill, stages.decode, stages.network) == (10, 50, 39)
    assert stages.total == 100


@given(timelines | wild_timelines)
def test_what_was_not_watched_is_neither_decode_nor_render(timeline):
    """If no wait was observed, the time after the first content is unattributed."""
    stages = split(replace(timeline, watched=False))

    assert stages.total == max(0, timeline.e2e)
    assert stages.unattributed >= split(timeline).unattributed
    marked = {*timeline.marked_before, *timeline.marked_after}
    assert stages.render is None or "render" in marked
    if timeline.stream:
        assert stages.decode is None or "decode" in marked


# --- what is reported ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "unit_ns", "expected"),
    [
        (0, 10**6, 0),
        (1.5, 10**6, 1_500_000),
        (0.25, 10**9, 250_000_000),
        (86_399.999, 10**9, 86_399_999_000_000),
        (86_400, 10**9, None),
        (86_400_000, 10**6, None),
        (-0.001, 10**9, None),
        (float("nan"), 10**9, None),
        (float("inf"), 10**9, None),
        (10**400, 10**6, None),
        (True, 10**9, None),
        ("1", 10**9, None),
        (None, 10**9, None),
        ([1], 10**9, None),
    ],
)
def test_what_a_server_reports_is_read_within_bounds(value, unit_ns, expected):
    """A number from 0 to below a day is a duration; anything else is unknown."""
    report = reported(value, unit_ns, "engine_span")

    assert report == (None if expected is None else Reported(expected, "engine_span"))


@given(st.integers() | st.floats() | st.text() | st.booleans() | st.none())
def test_no_report_is_longer_than_a_day(value):
    """Nothing a server sends raises, or makes a duration that no request has."""
    for unit_ns in (10**6, 10**9):
        report = reported(value, unit_ns, "engine_inband")

        assert report is None or 0 <= report.ns <= 86_400 * 10**9


def test_the_applications_own_time_is_a_named_part_of_unattributed():
    """Work before the request was handed over is no network, whatever the engine reports."""
    timeline = Timeline(
        e2e=1000,
        ttft=800,
        client=500,
        network=Network(client_wait=5, send=15),
        queue=Reported(100, "engine_inband"),
        prefill=Reported(100, "engine_inband"),
    )
    stages = split(timeline)

    assert (stages.network, stages.first_chunk) == (20, 80)
    assert (stages.client, stages.unattributed, stages.total) == (500, 500, 1000)
    assert split(replace(timeline, client=5_000)).client == 800, "as far as it fits"
