"""Do unified signals and the health of targets come out as metrics others can read?"""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from llmtrace_collector.metrics.target_metrics import TargetMetrics
from llmtrace_collector.scrape.samples import of_targets
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.interval import engine_intervals
from llmtrace_collector.signals.normalise import Measured, Normaliser, Reading
from llmtrace_collector.signals.profile import builtin_profiles

from . import pages


def state(url: str, *texts: str, labels: tuple[tuple[str, str], ...] = ()) -> TargetState:
    """Return the state of a target that said these pages, one after another."""
    made = TargetState(Target(url, labels), Normaliser(builtin_profiles()))
    for text in texts:
        reading = made.normaliser.read(text)
        made.intervals = engine_intervals(made.reading, reading) if made.reading else ()
        made.reading, made.up, made.took_s = reading, True, 0.02
    return made


def exposed(
    *states: TargetState, local: tuple[Measured, ...] = ()
) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and label values, as a scraper of ours would read it."""
    registry = CollectorRegistry()
    registry.register(TargetMetrics(lambda: states, lambda: local))
    text = generate_latest(registry).decode()
    also = {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in parse_open(openmetrics(registry).decode())
        for sample in family.samples
    }
    found = {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }
    assert also == found
    return found


def test_two_targets_of_different_kinds():
    """One vocabulary, each with its instance."""
    found = exposed(
        state("http://a:8000/metrics", pages.scrape("vllm-0.32-metrics.txt")),
        state("http://b:8000/metrics", pages.LLAMA_CPP),
    )

    running = "llmtrace_engine_requests_running"
    assert found[running, "engine=llama_cpp", "instance=b:8000"] == 2
    assert found[running, "engine=vllm", "instance=a:8000", "model=tiny", "replica=0"] == 0
    queue = ("engine=vllm", "instance=a:8000", "model=tiny", "replica=0")
    assert found["llmtrace_engine_queue_seconds_count", *queue] == 62
    assert found["llmtrace_engine_queue_seconds_sum", *queue] == pytest.approx(0.8647010)
    assert found["llmtrace_engine_queue_seconds_bucket", *queue[:2], "le=+Inf", *queue[2:]] == 62


@pytest.mark.parametrize(
    "page",
    [pages.SGLANG, pages.TGI, pages.TRTLLM, pages.TRITON, pages.DYNAMO, pages.LITELLM,
     pages.ENVOY, pages.LLM_D, pages.PRODUCTION_STACK, pages.DCGM, pages.AMD, pages.RAY],
)  # fmt: skip
def test_all_that_is_unified_is_exposed(page):
    """Both formats hold it, and agree."""
    reading = Normaliser(builtin_profiles()).read(page)
    found = exposed(state("http://a:1/metrics", page))

    names = {name.removesuffix("_count") for name, *_ in found}
    assert {one.signal.metric for one in reading.measured} <= names


def test_labels_of_targets_give_way_to_ours():
    """A target labelled `engine` cannot pass for another engine."""
    found = exposed(
        state("http://a:1/metrics", pages.LLAMA_CPP, labels=(("engine", "mine"), ("env", "prod")))
    )

    assert found[
        "llmtrace_engine_requests_running",
        "engine=llama_cpp", "env=prod", "instance=a:1", "target_engine=mine",
    ] == 2  # fmt: skip


def test_the_front_end_of_the_last_window():
    """It is there when requests came in the window, and not as 0 when none did."""
    text = pages.scrape("vllm-0.32-metrics.txt")
    still = state("http://a:1/metrics", text, text)
    assert not any("frontend" in name for name, *_ in exposed(still))

    both = state("http://a:1/metrics", pages.VLLM_0_6, pages.scrape("vllm-0.32-metrics.txt"))
    assert any("frontend" in name for name, *_ in exposed(both))


def test_a_target_that_is_down():
    """Its signals are gone, and its failures are shown."""
    down = state("http://a:1/metrics", pages.LLAMA_CPP)
    down.up, down.reading, down.failures = False, None, Counter({"timeout": 3})

    found = exposed(down)
    assert found["llmtrace_target_up", "instance=a:1", "kind=engine"] == 0
    assert found["llmtrace_target_failures_total", "instance=a:1", "reason=timeout"] == 3
    assert not any(name.startswith("llmtrace_engine_requests") for name, *_ in found)


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (pages.LLAMA_CPP, "engine"),
        (pages.LITELLM, "gateway"),
        (pages.DCGM, "gpu"),
    ],
)
def test_a_target_says_what_it_is(page, kind):
    """So that an engine that is down can be distinguished from a GPU exporter that is."""
    found = exposed(state("http://a:1/metrics", page, labels=(("kind", "mine"),)))

    assert found["llmtrace_target_up", "instance=a:1", f"kind={kind}", "target_kind=mine"] == 1


@pytest.mark.parametrize("texts", [(), ("process_cpu_seconds_total 3\n",)])
def test_a_target_no_profile_knows_has_no_kind(texts):
    """It was never read, or no profile knows its page."""
    unknown = state("http://a:1/metrics", *texts)
    unknown.up = False

    assert exposed(unknown)["llmtrace_target_up", "instance=a:1"] == 0


def test_what_is_dropped_and_missing_is_reported():
    """A page that lost a name, and had a line that is none."""
    text = pages.scrape("vllm-0.32-metrics.txt").replace("vllm:kv_cache_usage_perc", "vllm:kv")
    found = exposed(state("http://a:1/metrics", text + "vllm:num_requests_running{ 3\n"))

    assert found["llmtrace_target_missing_signals", "instance=a:1"] == 1
    assert found["llmtrace_target_dropped_total", "instance=a:1", "reason=malformed"] == 1


def test_signals_of_this_machine():
    """What the GPU reader gives comes beside them."""
    local = Measured(SIGNALS["gpu_power"], (("engine", "nvml"), ("gpu", "0")), 512.5)

    assert exposed(local=(local,))["llmtrace_gpu_power_watts", "engine=nvml", "gpu=0"] == 512.5


def test_nothing_yet():
    """Before the first reading there are no signals, and no error."""
    fresh = TargetState(Target("http://a:1/metrics"), Normaliser(builtin_profiles()))

    assert exposed(fresh) == {("llmtrace_target_late_total", "instance=a:1"): 0}
    assert Reading().measured == ()


class Fading(TargetState):
    """A target that fails while its state is read, as it may: that is another thread."""

    def __init__(self, seen: TargetState) -> None:
        super().__init__(seen.target, seen.normaliser, up=True)
        self.looks = iter([seen.reading])

    @property
    def reading(self) -> Reading | None:
        """Return the reading once, and then none."""
        return next(self.looks, None)

    @reading.setter
    def reading(self, value: Reading | None) -> None:
        del value


def test_a_target_that_fails_while_it_is_read():
    """What was seen first counts, for the metrics and for the store."""
    seen = state("http://a:8000/metrics", pages.scrape("vllm-0.32-metrics.txt"))

    assert exposed_once(Fading(seen))
    assert len([*of_targets([Fading(seen)], 0)]) == len([*of_targets([seen], 0)])


def exposed_once(*states: TargetState) -> str:
    """Return the metrics page of some targets."""
    registry = CollectorRegistry()
    registry.register(TargetMetrics(lambda: states))
    return generate_latest(registry).decode()
