"""Do readings get into the store as they were, once each, and never in the way of anything?"""

from __future__ import annotations

import asyncio
from collections import Counter

from llmtrace_collector.scrape.recorder import Recorder
from llmtrace_collector.scrape.samples import facts_of, of_targets
from llmtrace_collector.scrape.scraper import TargetState
from llmtrace_collector.scrape.targets import Target
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.interval import engine_intervals
from llmtrace_collector.signals.normalise import Measured, Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from llmtrace_collector.store import StoreError
from tests.support.waiting import auntil

from . import pages

LABELS = (("zone", "z"),)


class Shelf:
    """A store that keeps what it is given, or fails."""

    def __init__(self) -> None:
        self.samples = []
        self.facts = []
        self.broken = False

    def insert_signals(self, samples) -> None:
        """Keep them."""
        if self.broken:
            raise StoreError("no room")
        self.samples.append([*samples])

    def insert_facts(self, facts) -> None:
        """Keep them."""
        self.facts.append([*facts])


def state(*texts: str) -> TargetState:
    """Return the state of a target that said these pages, one after another."""
    made = TargetState(Target("http://a:8000/metrics", LABELS), Normaliser(builtin_profiles()))
    for text in texts:
        read(made, text)
    return made


def read(made: TargetState, text: str) -> None:
    """Have a target say one more page."""
    reading = made.normaliser.read(text)
    made.intervals = engine_intervals(made.reading, reading) if made.reading else ()
    made.reading, made.up = reading, True
    made.pages += 1


def test_gauges_counters_and_histograms():
    """As they are; of histograms the sum and the count; the target's labels beside their own."""
    page = pages.scrape("vllm-0.32-metrics.txt")
    found = {
        (one.signal, *sorted(one.labels.items())): one.value
        for one in of_targets([state(pages.VLLM_0_6, page)], 17)
    }
    own = (("engine", "vllm"), ("model", "tiny"), ("replica", "0"), ("zone", "z"))

    assert found[("up", *LABELS)] == 1
    assert found[("running", *own)] == 0
    assert found[("queue_count", *own)] == 62
    assert round(found[("queue_sum", *own)], 4) == 0.8647
    assert found[("started", *LABELS)] > 1.7e9
    assert found[("api_cpu_seconds", *LABELS)] > 1
    assert {name for name, *_ in found} & {"frontend_time"}
    assert not any(name.endswith("_bucket") for name, *_ in found)
    assert {name.removesuffix("_sum").removesuffix("_count") for name, *_ in found} <= {
        *SIGNALS, "up", "started", "api_cpu_seconds", "frontend_time",
    }  # fmt: skip


def test_a_target_that_is_down_says_only_that():
    """Its last signals are no longer true."""
    down = state(pages.LLAMA_CPP)
    down.up, down.reading = False, None

    assert [(one.signal, one.value) for one in of_targets([down], 17)] == [("up", 0.0)]
    assert [*facts_of([down], 17)] == []


def test_a_sample_has_the_time_of_its_page():
    """Not that of the write, which may come an interval later."""
    up, down = state(pages.LLAMA_CPP), state(pages.LLAMA_CPP)
    up.read_ns = down.read_ns = 5
    down.up, down.reading = False, None

    assert {one.t_ns for one in of_targets([up], 17)} == {5}
    assert [one.t_ns for one in of_targets([down], 17)] == [17]


def test_facts():
    """What it is, and since when."""
    [facts] = facts_of([state(pages.scrape("vllm-0.32-metrics.txt"))], 17)

    assert facts.instance == "a:8000"
    assert facts.facts["engine"] == "vllm"
    assert facts.facts["kv_cache_tokens"] == 1_048_576
    assert facts.facts["started"] > 1.7e9


def test_a_gpu_is_no_engine():
    """Read under its engine's name, it must not take the engine's facts away."""
    assert [*facts_of([state(pages.DCGM)], 17)] == []


def test_nothing_is_written_twice():
    """A target that said nothing new is left out, one that is down is said again."""
    shelf, target = Shelf(), state(pages.LLAMA_CPP)
    recorder = Recorder(shelf, lambda: (target,), None, machine="m", interval_s=1.0)

    async def rounds() -> None:
        await recorder.write()
        await recorder.write()
        read(target, pages.LLAMA_CPP)
        await recorder.write()
        target.up, target.reading = False, None
        await recorder.write()
        await recorder.write()

    asyncio.run(rounds())
    full = len(shelf.samples[0])
    assert [len(one) for one in shelf.samples] == [full, full, 1, 1]
    assert recorder.written == 2 * full + 2


def test_this_machines_gpus():
    """Under this machine's name."""
    shelf = Shelf()
    power = Measured(SIGNALS["gpu_power"], (("engine", "nvml"), ("gpu", "0")), 512.5)
    recorder = Recorder(shelf, tuple, lambda: (power,), machine="node5", interval_s=1.0)
    asyncio.run(recorder.write())

    [[sample]] = shelf.samples
    assert (sample.instance, sample.signal, sample.value) == ("node5", "gpu_power", 512.5)


def test_a_store_that_fails_costs_the_samples_alone():
    """They are dropped and counted, and the next ones are written."""
    shelf, target = Shelf(), state(pages.LLAMA_CPP)
    recorder = Recorder(shelf, lambda: (target,), None, machine="m", interval_s=1.0)
    shelf.broken = True
    asyncio.run(recorder.write())
    shelf.broken = False
    read(target, pages.LLAMA_CPP)
    asyncio.run(recorder.write())

    assert recorder.dropped == recorder.written > 0
    assert Counter(map(len, shelf.samples)) == {recorder.written: 1}


def test_it_runs_until_it_is_ended():
    """Again and again, from one interval to the next."""
    shelf, target = Shelf(), state(pages.LLAMA_CPP)
    recorder = Recorder(shelf, lambda: (target,), None, machine="m", interval_s=0.01)

    async def some_rounds() -> None:
        task = asyncio.create_task(recorder.run())
        await auntil(lambda: read(target, pages.LLAMA_CPP) or len(shelf.samples) >= 2)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(some_rounds(), 30))
    assert len(shelf.samples) >= 2


def test_the_log_says_when_samples_begin_and_cease_to_be_dropped(caplog):
    """With the reason, once; the counter has how many."""
    caplog.set_level("INFO", "llmtrace.collector")
    shelf, target = Shelf(), state(pages.LLAMA_CPP)
    target.up = False  # it is written each time
    recorder = Recorder(shelf, lambda: (target,), None, machine="m", interval_s=1.0)
    for shelf.broken in (True, True, False, False):
        asyncio.run(recorder.write())

    assert caplog.messages == [
        "signals of engines and GPUs are not stored, and are dropped until this is over: no room",
        f"signals are stored again; {recorder.dropped} samples were dropped",
    ]
