from __future__ import annotations

import threading
from dataclasses import replace
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.errors import ConfigError
from llmtrace.core.failopen import internal_errors
from llmtrace.exporters.prometheus.aggregate import Aggregate, Histogram, fold
from llmtrace.exporters.prometheus.buckets import BANDS_NS, LATENCY_S
from llmtrace.semconv.attributes import DURATION_BOUNDS_S
from tests.exporters.samples import MS, typical, unsplit
from tests.strategies import requests

NS = 1_000_000_000


def only(aggregate):
    """The one cell of an aggregate that has one."""
    (cell,) = aggregate.by(lambda _: ()).values()
    return cell


def buckets(histogram):
    """The buckets that hold anything, by upper bound in seconds (`None` = no bound)."""
    bounds = [*(edge / NS for edge in histogram.edges), None]
    return {b: n for b, n in zip(bounds, histogram.counts, strict=True) if n}


def test_a_typical_row():
    """A row falls into one bucket of each histogram, and sums are exact."""
    aggregate = Aggregate()
    aggregate.add(typical())
    cell = only(aggregate)

    assert buckets(cell.e2e) == {2.56: 1}
    assert buckets(cell.ttft) == {0.48: 1}
    assert buckets(cell.tpot) == {0.01: 1}
    assert cell.e2e.total == 2_400 * MS
    assert buckets(cell.stages["queue"]) == {0.12: 1}
    assert cell.stages["prefill"].total == 230 * MS
    assert cell.input_tokens.total == 1200
    assert cell.cached_tokens == 1024
    assert cell.output_tokens.total == 200


def test_gaps_are_counted_chunk_by_chunk():
    """Each gap a row counted is in the histogram; their sum is what the reader waited."""
    aggregate = Aggregate()
    aggregate.add(typical())
    aggregate.add(typical())
    gaps = only(aggregate).gaps

    assert buckets(gaps) == {0.01: 240, 0.015: 158}
    assert gaps.total == 2 * 1_950 * MS


def test_unknown_stages_are_counted_apart():
    """An unknown stage is not observed, and how often that happens is exposed."""
    aggregate = Aggregate()
    aggregate.add(typical())
    aggregate.add(unsplit())
    cell = only(aggregate)

    assert (cell.stages["queue"].count, cell.unknown["queue"]) == (1, 1)
    assert (cell.stages["gateway"].count, cell.unknown["gateway"]) == (0, 2)
    assert (cell.stages["decode"].count, cell.unknown["decode"]) == (2, 0)
    assert cell.stages["unattributed"].count == 2


@given(st.lists(requests, min_size=1, max_size=5))
def test_stage_sums_add_up(some):
    """The sums of the stages add up to the sum of the waits, whatever the rows."""
    aggregate = Aggregate()
    for row in some:
        aggregate.add(row)
    cell = only(aggregate)

    assert cell.requests == len(some)
    assert cell.e2e.total == sum(histogram.total for histogram in cell.stages.values())
    assert cell.e2e.total == sum(map(sum, cell.bands))


def test_a_band_holds_the_requests_its_bounds_name():
    """Every bound of a band is one of `e2e`'s, so that counts and stages can be held together."""
    assert set(BANDS_NS) < {round(bound * NS) for bound in LATENCY_S}

    aggregate = Aggregate()
    aggregate.add(typical())
    cell = only(aggregate)

    assert [place for place, band in enumerate(cell.bands) if any(band)] == [
        BANDS_NS.index(2_560 * MS)
    ]


def test_a_bound_belongs_to_its_bucket():
    """A value equal to a bound is within it; one nanosecond more is not."""
    histogram = Histogram((10, 20))
    for value in (10, 11, 20, 21):
        histogram.observe(value, None)

    assert histogram.counts == [1, 2, 1]


@pytest.mark.parametrize("name", ["e2e", "ttft", "queue", "render", "unattributed"])
def test_thresholds_are_bounds(name):
    """A budget's threshold is a bound of its own metric, so the share within it is exact."""
    aggregate = Aggregate(thresholds_s={name: 0.333})
    aggregate.add(typical())
    cell = only(aggregate)
    histogram = getattr(cell, name, None) or cell.stages[name]

    assert 333 * MS in histogram.edges
    assert len(LATENCY_S) + 1 == len(histogram.edges)
    assert {round(s * NS) for s in LATENCY_S} < set(histogram.edges)


@pytest.mark.parametrize(
    ("thresholds", "named"),
    [
        ({"rendering": 1.0}, "rendering"),
        ({"e2e": 0.0}, "e2e"),
        ({"e2e": float("inf")}, "e2e"),
        ({"e2e": float("nan")}, "e2e"),
        ({"inter_chunk_gap": 0.033}, "0.03, 0.04"),
    ],
)
def test_impossible_thresholds(thresholds, named):
    """A threshold that cannot be a bound is an error at set-up."""
    with pytest.raises(ConfigError, match=named):
        Aggregate(thresholds_s=thresholds)


def test_gap_thresholds_that_are_bounds_already():
    """Gaps are counted while they happen, so only bounds known before can be thresholds."""
    Aggregate(thresholds_s={"inter_chunk_gap": 0.05})


def test_label_sets_are_bounded():
    """Above the limit, new ones are counted as `other`, by service and outcome; none is lost."""
    aggregate = Aggregate(max_label_sets=3)
    for number in range(10):
        aggregate.add(typical(route=f"/{number}"))
    aggregate.add(typical(route="/x", outcome="timeout"))
    aggregate.add(typical(route="/1"))
    cells = aggregate.by(attrgetter("route", "model", "outcome"))

    assert {key: cell.requests for key, cell in cells.items()} == {
        ("/0", "llama-3.1-8b", "success"): 1,
        ("/1", "llama-3.1-8b", "success"): 2,
        ("/2", "llama-3.1-8b", "success"): 1,
        ("other", "other", "success"): 7,
        ("other", "other", "timeout"): 1,
    }
    assert internal_errors() == {"export.metrics.label_sets": 8}


def test_random_models_hide_no_later_service():
    """A new service is counted by its name, until services are what there is too much of."""
    aggregate = Aggregate(max_label_sets=3)
    for number in range(10):
        aggregate.add(typical(model=f"m{number}", service="noisy"))
    for service in ("shop", "shop", "search", "a", "b"):
        aggregate.add(typical(service=service))
    cells = aggregate.by(attrgetter("service", "model"))

    assert {key: cell.requests for key, cell in cells.items()} == {
        ("noisy", "m0"): 1, ("noisy", "m1"): 1, ("noisy", "m2"): 1, ("noisy", "other"): 7,
        ("shop", "other"): 2, ("search", "other"): 1, ("other", "other"): 2,
    }  # fmt: skip


def test_half_a_character_in_a_label():
    """What UTF-8 cannot hold would cost every scrape; it is counted as what is shown of it."""
    aggregate = Aggregate(max_label_sets=2)
    for route in ("a\ud83d", "a\udc00", "a?", "b", "a\ud83d"):
        aggregate.add(typical(route=route))
    cells = aggregate.by(attrgetter("route"))

    assert {key: cell.requests for key, cell in cells.items()} == {"a?": 4, "b": 1}
    assert internal_errors() == {}


def test_tenants_only_on_request():
    """Tenants are kept apart only where configured."""
    for tenants, expected in ((False, {"": 2}), (True, {"a": 1, "b": 1})):
        aggregate = Aggregate(tenants=tenants)
        aggregate.add(typical(tenant="a"))
        aggregate.add(typical(tenant="b"))
        cells = aggregate.by(attrgetter("tenant"))
        assert expected == {key: cell.requests for key, cell in cells.items()}


def test_the_last_request_of_a_bucket_is_its_exemplar():
    """Each bucket remembers the last request that fell into it."""
    aggregate = Aggregate()
    aggregate.add(typical(1, trace_id="1" * 32))
    aggregate.add(typical(2, trace_id="2" * 32, start=typical().start + 1))
    value, (trace_id, span_id, unix_ns) = next(filter(None, only(aggregate).e2e.exemplars))

    assert (2_400 * MS, "2" * 32, typical(2).span_id) == (value, trace_id, span_id)
    assert typical().start + 1 + 2_400 * MS == unix_ns


def test_merging_keeps_the_later_exemplar():
    """When label sets are added up, the later of two exemplars stays, in whatever order."""
    for first, second in ((0, 1), (1, 0)):
        aggregate = Aggregate()
        for n in (first, second):
            aggregate.add(typical(route=f"/{n}", trace_id=str(n) * 32, start=typical().start + n))
        _, (trace_id, *_) = next(filter(None, only(aggregate).e2e.exemplars))
        assert trace_id == "1" * 32


def test_traces_left_out_by_sampling_are_no_exemplars():
    """A trace that was not sent cannot be looked up, so no bucket points at it."""
    aggregate = Aggregate()
    aggregate.add(typical(weight=10.0, trace_id="f" * 32))
    assert not any(only(aggregate).e2e.exemplars)
    aggregate.add(typical(weight=10.0, trace_id="f" * 18 + "0" * 14))
    assert any(only(aggregate).e2e.exemplars)


def test_counting_anew():
    """A receiver of differences gets each row once."""
    aggregate = Aggregate()
    aggregate.add(typical())

    assert [cell.requests for cell in aggregate.by(lambda _: (), reset=True).values()] == [1]
    assert aggregate.by(lambda _: (), reset=True) == {}


def test_threads_lose_no_count():
    """Rows added from several threads during reads are all counted."""
    aggregate = Aggregate()
    row = typical()

    def add():
        for _ in range(500):
            aggregate.add(row)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        aggregate.by(lambda _: ())
    for thread in threads:
        thread.join()

    assert only(aggregate).requests == 2000
    assert only(aggregate).e2e.count == 2000


def test_a_child_counts_from_nothing():
    """What was counted before a fork is the parent's to report."""
    aggregate = Aggregate()
    aggregate.add(typical())
    aggregate.restart_in_child()

    assert aggregate.by(lambda _: ()) == {}


@given(st.lists(st.integers(0, 200 * NS)))
def test_folding_is_exact(values):
    """Counts over OpenTelemetry's bounds are what counting by them at once would have given."""
    edges = tuple(round(bound * NS) for bound in DURATION_BOUNDS_S)
    fine = Histogram(tuple(round(bound * NS) for bound in LATENCY_S))
    coarse = Histogram(edges)
    for value in values:
        fine.observe(value, None)
        coarse.observe(value, None)

    assert coarse.counts == fold(fine, edges)


def test_every_opentelemetry_bound_is_one_of_ours():
    """Folding needs every coarse bound among the fine ones."""
    assert {round(s * NS) for s in DURATION_BOUNDS_S} <= {round(s * NS) for s in LATENCY_S}


def test_rows_without_answer():
    """A request that got no content counts as a request, and in no histogram of an answer."""
    row = typical()
    timeline = replace(row.timeline, ttft=None)
    aggregate = Aggregate()
    aggregate.add(replace(row, timeline=timeline, outcome="timeout", gap_counts=None))
    cell = only(aggregate)

    assert (
        cell.requests, cell.e2e.count, cell.ttft.count, cell.tpot.count, cell.gaps.count,
    ) == (1, 1, 0, 0, 0)  # fmt: skip
