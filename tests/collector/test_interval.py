"""Do two readings come to what the engine did between them?"""

from __future__ import annotations

import pytest

from llmtrace_collector.signals.interval import EngineInterval, engine_intervals
from llmtrace_collector.signals.normalise import Normaliser, Reading
from llmtrace_collector.signals.profile import builtin_profiles

from . import pages

LABELS = 'engine="0",model_name="m"'


def page(
    *, requests: int, each: float = 0.1, started: float | None = 1000.0, **more: float
) -> str:
    """Write a vLLM page after so many requests, each with a queue of `each` seconds."""
    times = {
        "request_queue_time": each,
        "request_prefill_time": 2 * each,
        "request_decode_time": 5 * each,
        "time_to_first_token": 4 * each,
        "e2e_request_latency": 9 * each,
    }
    text = "".join(
        pages.histogram(
            f"vllm:{name}_seconds", seconds * requests, {"1": requests, "+Inf": requests}, LABELS
        )
        for name, seconds in times.items()
    )
    counters = {"generation_tokens_total": 10.0 * requests, **more}
    text += "".join(f"vllm:{name}{{{LABELS}}} {value}\n" for name, value in counters.items())
    return text + (f"process_start_time_seconds {started}\n" if started else "")


def between(before: str, after: str) -> EngineInterval:
    """Return the one interval between two pages."""
    normaliser = Normaliser(builtin_profiles())
    first, second = normaliser.read(before), normaliser.read(after)
    (interval,) = engine_intervals(first, second)
    return interval


def test_averages_are_of_the_interval_alone():
    """Ten slow requests after a hundred quick ones: the quick ones are history."""
    after = page(requests=110).replace(
        f"vllm:request_queue_time_seconds_sum{{{LABELS}}} 11.0",
        f"vllm:request_queue_time_seconds_sum{{{LABELS}}} 15.0",
    )
    interval = between(page(requests=100), after)

    assert interval.means["queue"].count == 10
    assert interval.means["queue"].mean_s == pytest.approx(0.5)
    assert interval.means["prefill"].mean_s == pytest.approx(0.2)
    assert not interval.restarted


def test_the_front_end_is_what_is_left_of_ttft():
    """Template, tokenising and IPC: TTFT less queue and prefill."""
    interval = between(page(requests=10), page(requests=20))

    assert interval.frontend_s == pytest.approx(0.1)


def test_the_front_end_is_never_below_zero():
    """TTFT also counts requests that are aborted later, so its average may lie below."""
    after = page(requests=20).replace(
        f"vllm:time_to_first_token_seconds_sum{{{LABELS}}} 8.0",
        f"vllm:time_to_first_token_seconds_sum{{{LABELS}}} 4.1",
    )

    assert between(page(requests=10), after).frontend_s == 0.0


def test_an_interval_in_which_nothing_happened_has_no_averages():
    """No requests is not zero seconds."""
    interval = between(page(requests=10), page(requests=10))

    assert interval.means == {}
    assert interval.frontend_s is None


@pytest.mark.parametrize("started", [1000.0, 2000.0, None])
def test_after_a_restart_only_what_came_since_counts(started):
    """Counters that fell began again from zero, whether the engine tells its start or not."""
    interval = between(page(requests=100), page(requests=4, started=started))

    assert interval.restarted
    assert interval.means["queue"].count == 4
    assert interval.means["queue"].mean_s == pytest.approx(0.1)


def test_a_restart_is_seen_though_counters_have_passed_where_they_were():
    """The start tells what the counters hide."""
    interval = between(page(requests=4, started=1000.0), page(requests=100, started=2000.0))

    assert interval.restarted
    assert interval.means["queue"].count == 100


def test_a_gauge_that_falls_is_no_restart():
    """Fewer requests running is a good day."""
    interval = between(
        page(requests=1, num_requests_running=9.0), page(requests=2, num_requests_running=1.0)
    )

    assert not interval.restarted


def test_the_prefix_hit_ratio_is_that_of_the_interval():
    """Hits and queries before the interval do not count."""
    interval = between(
        page(requests=1, prefix_cache_queries_total=100, prefix_cache_hits_total=100),
        page(requests=2, prefix_cache_queries_total=300, prefix_cache_hits_total=150),
    )

    assert interval.prefix_hit_ratio == pytest.approx(0.25)


def test_the_real_scrape_agrees_with_what_was_worked_out_by_hand():
    """39 ms of front end a request with two API servers."""
    normaliser = Normaliser(builtin_profiles())
    (interval,) = engine_intervals(
        Reading(), normaliser.read(pages.scrape("vllm-0.32-metrics-2apiservers.txt"))
    )
    assert interval.frontend_s == pytest.approx(0.0391, abs=1e-4)

    normaliser = Normaliser(builtin_profiles())
    (interval,) = engine_intervals(
        Reading(), normaliser.read(pages.scrape("vllm-0.32-metrics-specdecode.txt"))
    )
    assert interval.means["itl"].count == 2133


def test_each_replica_has_its_own_interval():
    """Data-parallel ranks are distinguished, so that one's queue is not averaged away."""
    normaliser = Normaliser(builtin_profiles())
    reading = normaliser.read(pages.scrape("vllm-0.32-metrics-dp2.txt"))
    found = {dict(one.labels)["replica"]: one for one in engine_intervals(Reading(), reading)}

    assert found["0"].means["queue"].mean_s == pytest.approx(0.1881, abs=1e-4)
    assert found["1"].means["queue"].mean_s == pytest.approx(0.1352, abs=1e-4)
