from __future__ import annotations

import socket
import sys
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector

from llmtrace.budget import Budget
from llmtrace.core import failopen
from llmtrace.core.errors import ConfigError
from llmtrace.core.row import OUTCOMES
from llmtrace.core.stages import PARTITION, Timeline
from llmtrace.exporters.prometheus.buckets import BANDS_NS
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row
from tests.exporters.samples import MS, START, TRACE, typical, unsplit

LABELS = {
    "model": "llama-3.1-8b",
    "route": "/chat",
    "service": "shop",
    "region": "eu",
    "outcome": "success",
}


@pytest.fixture
def registry():
    """Return a registry of its own for each test."""
    return CollectorRegistry()


@pytest.fixture
def sink(registry):
    """Make a sink with a budget, closed at the end."""
    sink = PrometheusSink(
        registry=registry,
        thresholds_s={"queue": 0.15, "e2e": 2.5, "tpot": 0.033},
        budget_seconds={"dialogue": {"queue": 0.15, "total": 2.5}},
    )
    yield sink
    sink.close()


def samples(registry, name, **labels):
    """Samples of one name whose labels include these, by the rest of their labels."""
    lines = generate_latest(registry).decode().splitlines(keepends=True)
    # Only what begins so is parsed: a page has thousands of lines.
    text = "".join(line for line in lines if line.startswith(("# ", name)))
    return [
        sample
        for family in parse_text(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def value(registry, name, **labels):
    """Return the value of the one sample of this name and these labels."""
    (sample,) = samples(registry, name, **labels)
    return sample.value


def test_names():
    """The metrics have exactly the names dashboards and rules are written for."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry)
    names = {family.name for family in sink.describe()}
    sink.close()

    assert names == {
        "llmtrace_stage_duration_seconds",
        "llmtrace_ttft_seconds",
        "llmtrace_tpot_seconds",
        "llmtrace_e2e_seconds",
        "llmtrace_inter_chunk_gap_seconds",
        "llmtrace_turn_duration_seconds",
        "llmtrace_turn_ttft_seconds",
        "llmtrace_turn_tool_serial_loss_seconds",
        "llmtrace_turn_tool_seconds",
        "llmtrace_turn_tool_wall_seconds",
        "llmtrace_tool_duration_seconds",
        "llmtrace_requests",
        "llmtrace_tokens",
        "llmtrace_stage_unknown",
        "llmtrace_stage_source",
        "llmtrace_anatomy_seconds",
        "llmtrace_prompt_ttft_seconds",
        "llmtrace_prompt_ttft_requests",
        "llmtrace_network_phase_seconds",
        "llmtrace_unattributed_client_seconds",
        "llmtrace_client_lag_seconds",
        "llmtrace_retries",
        "llmtrace_cache_hits",
        "llmtrace_streamed_requests",
        "llmtrace_budget_seconds",
        "llmtrace_internal_errors",
    }


def test_histograms(sink, registry):
    """Counts, sums and buckets are those of the rows, with every label."""
    sink.write(typical())
    sink.write(typical())

    assert value(registry, "llmtrace_e2e_seconds_count", **LABELS) == 2
    assert value(registry, "llmtrace_e2e_seconds_sum", **LABELS) == 4.8
    assert value(registry, "llmtrace_e2e_seconds_bucket", le="2.5", **LABELS) == 2
    assert value(registry, "llmtrace_e2e_seconds_bucket", le="1.92", **LABELS) == 0
    assert value(registry, "llmtrace_e2e_seconds_bucket", le="+Inf", **LABELS) == 2
    assert value(registry, "llmtrace_ttft_seconds_count", **LABELS) == 2
    assert value(registry, "llmtrace_tpot_seconds_bucket", le="0.033", **LABELS) == 2
    assert value(registry, "llmtrace_inter_chunk_gap_seconds_count", **LABELS) == 398
    assert value(registry, "llmtrace_inter_chunk_gap_seconds_bucket", le="0.01", **LABELS) == 240


def test_the_lag_of_a_busy_client_is_added_up(sink, registry):
    """A row of which it is not known adds nothing."""
    for lag_ns in (30_000_000, None, 20_000_000):
        sink.write(make_row(client_lag_ns=lag_ns))

    assert value(registry, "llmtrace_client_lag_seconds_total", outcome="success") == 0.05


def test_thresholds_are_bounds_of_their_stage_only(sink, registry):
    """A budget's limit for a stage is an exact bound there, and nowhere else."""
    sink.write(typical())
    name = "llmtrace_stage_duration_seconds_bucket"

    assert value(registry, name, stage="queue", le="0.15") == 1
    assert samples(registry, name, stage="prefill", le="0.15") == []


def test_unknown_stages_lower_the_count(sink, registry):
    """A stage's count is its coverage; what is missing is counted apart."""
    sink.write(typical())
    sink.write(unsplit())
    count = "llmtrace_stage_duration_seconds_count"

    assert value(registry, count, stage="queue") == 1
    assert value(registry, count, stage="decode") == 2
    assert value(registry, "llmtrace_stage_unknown_total", stage="queue") == 1
    assert value(registry, "llmtrace_stage_unknown_total", stage="decode") == 0


def test_a_stage_that_was_never_known_has_no_series(sink, registry):
    """Only what was known once for a label set is exposed for it; the rest is counted unknown."""
    sink.write(unsplit(route="/unsplit"))
    sink.write(typical())

    for name in ("llmtrace_stage_duration_seconds_count", "llmtrace_anatomy_seconds_total"):
        assert samples(registry, name, stage="queue", route="/unsplit") == []
        assert samples(registry, name, stage="queue", route="/chat")
        assert samples(registry, name, stage="decode", route="/unsplit")
    assert value(registry, "llmtrace_stage_unknown_total", stage="queue", route="/unsplit") == 1


class Ready(Collector):
    """Has its families made already, as far as printing them goes."""

    def __init__(self, families):
        self._families = list(families)

    def collect(self):
        """Return the same families each time."""
        return self._families


def least_cpu_s(registry):
    """Return what printing a page takes, the least of three times."""
    took = []
    for _ in range(3):
        began = time.process_time()
        generate_latest(registry)
        took.append(time.process_time() - began)
    return min(took)


def test_a_page_at_the_default_limit_is_bounded(registry):
    """With many more routes than the limit it stays small, and no request is missing from it.

    Once made, it costs about what printing its samples costs.
    """
    sink = PrometheusSink(registry=registry)
    for number in range(700):
        sink.write(typical(route=f"/{number}"))
    page = generate_latest(registry)
    made = CollectorRegistry()
    made.register(Ready(sink.collect()))

    assert len(page) <= 10_000_000
    assert least_cpu_s(registry) <= 1.5 * least_cpu_s(made)
    routes = {
        s.labels["route"]: s.value
        for s in samples(registry, "llmtrace_requests_total", outcome="success")
    }
    assert len(routes) == 101
    assert (sum(routes.values()), routes["other"]) == (700, 600)
    sink.close()


def test_what_did_not_change_is_made_once(sink, registry):
    """Only the label sets that counted something since the last page are made again."""
    for number in range(5):
        sink.write(typical(route=f"/{number}"))
    before = {id(s) for family in sink.collect() for s in family.samples if "route" in s.labels}
    sink.write(typical(route="/3"))
    after = [s for family in sink.collect() for s in family.samples if "route" in s.labels]

    assert {s.labels["route"] for s in after if id(s) not in before} == {"/3"}
    assert value(registry, "llmtrace_requests_total", route="/3", outcome="success") == 2
    assert value(registry, "llmtrace_requests_total", route="/4", outcome="success") == 1


def test_the_source_of_a_stage(sink, registry):
    """What is known of a stage is counted by its source; what is not, is in no source."""
    sink.write(typical())
    sink.write(unsplit())
    name = "llmtrace_stage_source_total"

    assert value(registry, name, stage="queue", source="engine_inband") == 1
    assert value(registry, name, stage="network", source="client") == 2
    assert value(registry, name, stage="decode", source="client") == 2
    assert samples(registry, name, stage="gateway") == []


def test_the_anatomy_of_slow_requests(sink, registry):
    """A request's stages are added up in the band its whole time falls into, and nowhere else."""
    sink.write(typical())
    every = samples(registry, "llmtrace_anatomy_seconds_total")
    found = [sample for sample in every if sample.value]

    known = {name for name in PARTITION if getattr(typical().stages, name) is not None}
    assert {sample.labels["stage"] for sample in every} == known
    assert len(every) == len(known) * (len(BANDS_NS) + 1)
    assert {(s.labels["over"], s.labels["le"]) for s in found} == {("1.92", "2.56")}
    assert {s.labels["stage"]: s.value for s in found}["prefill"] == 0.23
    assert sum(round(s.value * 1e9) for s in found) == 2_400 * MS


def test_first_content_by_the_length_of_the_prompt(sink, registry):
    """Of requests that know both; a bound belongs to the band below it, as in histograms."""
    for tokens in (256, 257, 1200, 10**6, None):
        sink.write(typical(prompt_tokens=tokens))
    unary = Timeline(e2e=60 * MS, stream=False)
    sink.write(typical(timeline=unary))
    every = samples(registry, "llmtrace_prompt_ttft_requests_total")

    found = {(s.labels["over"], s.labels["le"]): s.value for s in every}
    assert found == {
        ("0", "256"): 1, ("256", "1024"): 1, ("1024", "4096"): 1, ("4096", "16384"): 0,
        ("16384", "65536"): 0, ("65536", "+Inf"): 1,
    }  # fmt: skip
    assert value(registry, "llmtrace_prompt_ttft_seconds_total", over="256") == 0.4
    assert value(registry, "llmtrace_prompt_ttft_seconds_total", over="4096") == 0


def test_network_phases_and_retries(sink, registry):
    """Sub-phases are added up; an attempt after the first is a retry."""
    sink.write(typical(attempts=3))

    assert value(registry, "llmtrace_network_phase_seconds_total", phase="rtt") == 0.001
    assert value(registry, "llmtrace_network_phase_seconds_total", phase="dns") == 0
    assert samples(registry, "llmtrace_network_phase_seconds_total", phase="handshake") == []
    assert value(registry, "llmtrace_retries_total") == 2


def test_cache_hits_and_streamed_requests(sink, registry):
    """Hits are counted where reported, and streams apart from unary responses; from 0 on."""
    unary = Timeline(e2e=60 * MS, stream=False)
    sink.write(typical())
    assert value(registry, "llmtrace_cache_hits_total") == 0
    sink.write(typical(cache_hit=True))
    sink.write(typical(cache_hit=False))
    sink.write(typical(cache_hit=True, timeline=unary))

    assert value(registry, "llmtrace_cache_hits_total") == 2
    assert value(registry, "llmtrace_streamed_requests_total") == 3
    assert value(registry, "llmtrace_requests_total", outcome="success") == 4


def test_requests_by_outcome(sink, registry):
    """Requests are counted by how they ended."""
    sink.write(typical())
    sink.write(typical(outcome="timeout"))
    sink.write(typical(outcome="timeout"))

    assert value(registry, "llmtrace_requests_total", outcome="success") == 1
    assert value(registry, "llmtrace_requests_total", outcome="timeout") == 2


def test_tokens(sink, registry):
    """Tokens are added up by type."""
    sink.write(typical())

    assert {
        each.labels["type"]: each.value for each in samples(registry, "llmtrace_tokens_total")
    } == {"input": 1200.0, "cached_input": 1024.0, "output": 200.0}


def test_budgets_are_shown(sink, registry):
    """What a budget allows is beside what was measured."""
    assert {
        (sample.labels["budget"], sample.labels["stage"]): sample.value
        for sample in samples(registry, "llmtrace_budget_seconds")
    } == {("dialogue", "queue"): 0.15, ("dialogue", "total"): 2.5}


def test_a_limit_names_its_bound_as_the_histogram_does(registry):
    """Sums of floats, and what is written with an exponent: the label joins limit and bucket."""
    budget = Budget(name="odd", total_s=0.1 + 0.2, tpot_s=2e-5, stages_s={"render": 5e-5})
    sink = PrometheusSink(
        registry=registry,
        thresholds_s=budget.thresholds_s(),
        budget_seconds=budget.allocations_s(),
    )
    sink.write(typical())
    limits = {
        one.labels["stage"]: (one.labels["bound"], one.value)
        for one in samples(registry, "llmtrace_budget_seconds")
    }
    for name, where in (("e2e", {}), ("tpot", {}), ("stage_duration", {"stage": "render"})):
        le = limits[where.get("stage", {"e2e": "total"}.get(name, name))][0]
        bucket = f"llmtrace_{name}_seconds_bucket"
        assert samples(registry, bucket, outcome="success", le=le, **where), bucket
    sink.close()

    assert limits == {"total": ("0.3", 0.3), "tpot": ("2e-05", 2e-5), "render": ("5e-05", 5e-5)}


def test_every_outcome_is_there_before_it_happens(sink, registry):
    """The first error of a model raises a counter that was at 0: a rate sees it.

    A series that begins above 0 has no increase, so that an outage between two scrapes would be
    in no rate.
    """
    sink.write(typical())
    for metric in ("requests_total", "ttft_seconds_count", "e2e_seconds_count"):
        found = {
            one.labels["outcome"]: one.value for one in samples(registry, f"llmtrace_{metric}")
        }
        assert found == {**dict.fromkeys(OUTCOMES, 0), "success": 1}, metric
    sink.write(typical(outcome="error"))
    assert value(registry, "llmtrace_requests_total", outcome="error") == 1


@pytest.mark.parametrize("outcome", ["error", "timeout", "truncated"])
def test_what_alerts_subtract_is_there_before_it_happens(sink, registry, outcome):
    """Count and bucket at a limit begin at 0 together, or the first failures would look slow.

    At what age streams are cut off takes all of the buckets.
    """

    def bounds() -> set[str]:
        found = samples(registry, "llmtrace_e2e_seconds_bucket", outcome=outcome)
        return {one.labels["le"] for one in found}

    sink.write(typical())
    before = bounds()
    sink.write(typical(outcome=outcome))

    assert {"2.5", "+Inf"} <= before <= bounds()
    assert (before == bounds()) == (outcome == "truncated")


def test_a_limit_for_ttft_is_a_bound_of_the_whole_request(registry):
    """Who left after it without content is counted exactly: in no histogram of TTFT."""
    sink = PrometheusSink(registry=registry, thresholds_s={"ttft": 0.7})
    sink.write(typical())

    assert samples(registry, "llmtrace_e2e_seconds_bucket", outcome="success", le="0.7")
    sink.close()


@pytest.mark.parametrize("seconds", [150, 300, 500, 1_000])
def test_percentiles_of_long_requests_are_distinct(sink, registry, seconds):
    """Agents and reasoning take minutes: up to half an hour a bound lies above them."""
    took = seconds * 1_000 * MS
    timeline = Timeline(e2e=took, ttft=200 * MS)
    sink.write(typical(timeline=timeline, last_content_ns=took))
    counted = {
        float(one.labels["le"]): one.value
        for one in samples(registry, "llmtrace_e2e_seconds_bucket", outcome="success")
    }
    holds = min(le for le, count in counted.items() if count)

    assert seconds <= holds <= 2 * seconds


def test_internal_errors_are_shown(sink, registry):
    """What goes wrong inside llmtrace can be alerted on."""
    failopen.count_internal("export.otlp.dropped", 3)

    assert value(registry, "llmtrace_internal_errors_total", kind="export.otlp.dropped") == 3


def test_exemplars(sink, registry):
    """In OpenMetrics a bucket points at the trace of the last request in it."""
    sink.write(typical())
    found = [
        sample.exemplar
        for family in parse_open(generate_openmetrics(registry).decode())
        for sample in family.samples
        if sample.name == "llmtrace_e2e_seconds_bucket" and sample.exemplar
    ]

    assert [(e.labels, e.value) for e in found] == [({"trace_id": TRACE}, 2.4)]
    assert float(found[0].timestamp) == (START + 2_400 * MS) / 1e9


def test_missing_labels_are_empty(sink, registry):
    """What is not known is an empty label, which to Prometheus is none."""
    sink.write(typical(model=None, route=None, region=None))

    assert {"model": "", "route": "", "region": ""}.items() <= (
        samples(registry, "llmtrace_requests_total")[0].labels.items()
    )


def test_label_values_are_escaped(sink, registry):
    """A route full of quotes and newlines comes back as it was."""
    nasty = 'a"b\\c\nd'
    sink.write(typical(route=nasty))

    assert value(registry, "llmtrace_requests_total", route=nasty, outcome="success") == 1


def test_tenants_on_request():
    """With tenant metrics, each tenant has its own series."""
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry, tenants=True)
    sink.write(typical(tenant="a"))

    assert value(registry, "llmtrace_requests_total", tenant="a", outcome="success") == 1
    sink.close()


def test_a_second_sink_takes_the_first_ones_place(sink, registry):
    """Setting llmtrace up twice does not clash; closing the old one leaves the new one."""
    again = PrometheusSink(registry=registry)
    again.write(typical())
    sink.close()

    assert value(registry, "llmtrace_requests_total", outcome="success") == 1
    again.close()
    assert list(registry.collect()) == []


def test_names_that_are_taken():
    """A registry that has such a metric already is an error that says so."""
    from prometheus_client import Gauge

    registry = CollectorRegistry()
    Gauge("llmtrace_e2e_seconds", "taken", registry=registry)
    with pytest.raises(ConfigError, match="llmtrace_e2e_seconds"):
        PrometheusSink(registry=registry)


def test_serving(sink, caplog):
    """`serve` answers on loopback, at the address that it logs, until the sink is closed."""
    sink.write(typical())
    with caplog.at_level("INFO", "llmtrace"):
        port = sink.serve(0)
    url = f"http://127.0.0.1:{port}/metrics"
    assert url in caplog.text
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert b"llmtrace_requests_total{" in answer.read()
    sink.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=5)


def test_a_port_in_use(sink):
    """A port in use is an error that says which."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            sink.serve(port)


def test_a_row_that_breaks_it_does_not_reach_the_application(sink):
    """Whatever a row holds, neither writing it nor a scrape raises; the others are counted."""
    sink.write(typical(weight=2.0, trace_id="not hex"))
    sink.write(typical())

    counted = {f.name: f for f in sink.collect()}["llmtrace_ttft_seconds"]
    assert [s.value for s in counted.samples if s.name.endswith("_count") and s.value] == [1]
    assert failopen.internal_errors() == {"export.metrics": 1}


def test_without_prometheus_client(monkeypatch):
    """Without the package the error says how to get it."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "llmtrace.exporters.prometheus.sink")
    with pytest.raises(ConfigError, match=r"prometheus-client.*\[prometheus\]"):
        import llmtrace.exporters.prometheus.sink  # noqa: F401
