"""Is the rate that a search finds the highest one that holds the budget?

In virtual time: a queue with one server whose waiting times are known, and the simulated engine.
"""

from __future__ import annotations

import numpy as np

from llmtrace.budget import Budget
from llmtrace.dataset.columns import Builder
from llmtrace.load_test.rate_search import find_rate, judge
from llmtrace.simulator.engine.scheduler import EngineConfig, Request, simulate

SERVICE_S = 0.05
EARLIER_NS = 1_700_000_000_000_000_000


def waits(arrived, service_s):
    """Return how long each request waits for a single server (Lindley's recursion)."""
    work = np.concatenate([[0.0], np.full(len(arrived) - 1, service_s) - np.diff(arrived)])
    walk = np.cumsum(work)
    return walk - np.minimum.accumulate(walk)


def arrivals(rate, count, draws):
    """Return times of a Poisson process, in seconds."""
    return np.cumsum(draws.exponential(1 / rate, count))


def rows_of(arrived, e2e_s):
    """Return rows of requests that all succeeded."""
    n = len(arrived)
    builder = Builder()
    known = {"e2e_s": e2e_s, "stream": np.zeros(n)}
    builder.add_arrays(
        EARLIER_NS + (np.asarray(arrived) * 1e9).astype(np.int64),
        lambda name: np.asarray(known.get(name, np.full(n, np.nan))),
        lambda name: (np.full(n, -1 + (name == "outcome"), np.int32), ["success"]),
        lambda _name: np.full(n, b"", "S1"),
    )
    return builder.done()


def queue(seed):
    """Return how to measure a single server in virtual time."""
    draws = np.random.default_rng(seed)

    def measure(rate, count):
        arrived = arrivals(rate, count, draws)
        return rows_of(arrived, waits(arrived, SERVICE_S) + SERVICE_S)

    return measure


def true_rate(share_inside, objective, low, high):
    """Return the rate at which a share of all requests is inside, by bisection."""
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if share_inside(middle) >= objective else (low, middle)
    return low


def test_the_rate_of_a_known_queue_is_found():
    """In 19 of 20 searches it is not above the truth; with enough requests, it is close to it."""
    budget = Budget(total_s=0.15, objective=0.95)

    def share(rate):
        arrived = arrivals(rate, 400_000, np.random.default_rng(99))
        return float((waits(arrived, SERVICE_S) + SERVICE_S <= 0.15).mean())

    truth = true_rate(share, 0.95, 5.0, 20.0)
    few = [find_rate(queue(seed), budget, 4.0, 700).rate or 0.0 for seed in range(10)]
    many = [find_rate(queue(seed), budget, 4.0, 6000).rate or 0.0 for seed in range(10)]
    assert sum(rate > truth for rate in few + many) <= 1
    assert sum(0.95 < rate / truth < 1.05 for rate in many) >= 9


def test_the_rate_of_the_simulated_engine_is_found():
    """Within 5 %: of 160,000 requests, 95 % had their first token in 0.5 s at 16.5 a second."""
    truth = 16.5
    seeds = iter(range(1000))

    def measure(rate, count):
        arrived = arrivals(rate, count, np.random.default_rng(next(seeds)))
        requests = [Request(str(i), 400, 10, float(t)) for i, t in enumerate(arrived)]
        done = sorted(
            simulate(EngineConfig(jitter=0.0), requests),
            key=lambda figures: figures.request.arrived_s,
        )
        return rows_of(arrived, [one.first_token_s - one.request.arrived_s for one in done])

    found = find_rate(measure, Budget(total_s=0.5), 12.0, 700)
    assert found.rate is not None
    assert 0.95 < found.rate / truth < 1.01
    assert 0.97 < found.limit / truth < 1.04


def test_an_endpoint_that_never_holds_the_budget_has_no_rate():
    """Nor is one made up; the trials say what was seen."""
    found = find_rate(queue(0), Budget(total_s=0.04), 1.0, 50)
    assert found.rate is None
    assert not any(trial.holds for trial in found.trials)


def test_a_backlog_that_grows_is_no_rate_that_holds():
    """Where limits are so wide that a run ends before they are broken."""
    budget = Budget(total_s=60.0)
    trial = judge(queue(1)(30.0, 600), budget, 30.0)
    assert trial.share == 1.0
    assert not trial.keeps_up
    assert not trial.holds
    assert judge(queue(1)(15.0, 600), budget, 15.0).holds


def test_a_look_is_at_the_rate_that_came():
    """By chance, or from a late client, it is not the one that was to be sent."""
    trial = judge(rows_of(np.arange(101) / 9.0, np.full(101, 0.01)), Budget(total_s=1.0), 10.0)
    assert abs(trial.rate - 9.0) < 1e-6
