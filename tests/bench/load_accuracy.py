"""Hold every figure of `llmtrace bench` against a server that states what it did.

The server is a process of its own. The kernel tells it when a request arrived, and it notes when
it wrote each token, by the clock that all processes of a machine share: that is the truth, however
late the server itself was. Open and closed loops of 1, 8 and 64 requests at once; in the closed
ones all tokens come at the same moments.

    python -m tests.bench.load_accuracy
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.budget import DEFAULT
from llmtrace.core.row import Row
from llmtrace.dataset.columns import from_rows
from llmtrace.demo.target import Target
from llmtrace.load_test.endpoint_apis import Sending
from llmtrace.load_test.lengths import read_lengths
from llmtrace.load_test.measure import measure_prepared, prepare
from llmtrace.load_test.requests import at_rate, drawn
from llmtrace.load_test.send_plan import Measured, Plan, bottleneck
from llmtrace.run_comparison.run_totals import sum_up
from tests.bench.paced_server import MODEL, TOKENS, paced, stats

_SERVERS: Final = ((0.2, 0.01), (0.04, 0.005))  # seconds to the first token, and between two
_AT_ONCE: Final = (1, 8, 64)
_SECONDS: Final = 6.0  # of each run, about
_MIN_REQUESTS: Final = 20


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of one run: seconds, or requests a second.

    Attributes:
        truth: the median of it, by the server.
        off: by how much the median request is off.
        p95: by how much 19 of 20 requests are off at most.
    """

    name: str
    truth: float
    off: float
    p95: float

    @property
    def holds(self) -> bool:
        """Whether it is within 1 % or 1 ms."""
        most = 0.01 * self.truth
        return abs(self.off) <= (most if self.name == "rate" else max(most, 0.001))


def figures(measured: Measured, wire: dict[str, list[float]]) -> Iterator[Figure]:
    """Yield each figure beside its truth.

    Args:
        measured: by the load test.
        wire: of each request, when it arrived and when each token was written.
    """
    rows = measured.rows
    of = [wire[str(row.request_id)] for row in rows]
    yield _figure("TTFT", rows, "ttft_s", [first - arrived for arrived, first, *_ in of])
    yield _figure(
        "TPOT", rows, "tpot_s", [(last - first) / (TOKENS - 1) for _, first, *_, last in of]
    )
    itl = [(row.gap_sum_ns or 0) / 1e9 / max(1, (row.chunks or 0) - 1) for row in rows]
    yield _apart("ITL", itl, [(last - first) / (TOKENS - 1) for _, first, *_, last in of])
    longest = [max(b - a for a, b in itertools.pairwise(one[1:])) for one in of]
    yield _figure("max gap", rows, "max_gap_s", longest)
    yield _figure("e2e", rows, "e2e_s", [last - arrived for arrived, *_, last in of])
    seconds = max(last for *_, last in of) - min(arrived for arrived, *_ in of)
    ours = sum_up(from_rows(rows), DEFAULT, measured.active_s).requests_per_s
    off = ours - len(of) / seconds
    yield Figure("rate", len(of) / seconds, off, off)


def _figure(name: str, rows: Sequence[Row], field: str, truth: Sequence[float]) -> Figure:
    return _apart(name, [getattr(row, field) for row in rows], truth)


def _apart(name: str, ours: Sequence[float], truth: Sequence[float]) -> Figure:
    off = [mine - known for mine, known in zip(ours, truth, strict=True)]
    far = statistics.quantiles(map(abs, off), n=20)[-1]
    return Figure(name, statistics.median(truth), statistics.median(off), far)


def run(url: str, first_s: float, gap_s: float, at_once: int, *, opened: bool) -> Measured:
    """Measure the server once; about as many requests are open in either loop."""
    e2e_s = first_s + (TOKENS - 1) * gap_s
    count = max(_MIN_REQUESTS, round(at_once * _SECONDS / e2e_s))
    requests = drawn(count, read_lengths("50"), read_lengths(str(TOKENS)))
    if opened:
        requests = at_rate(requests, at_once / e2e_s)
    target = Target(url=f"{url}/v1", model=MODEL, name="paced", ours=True)
    plan = Plan(
        sending=Sending(target=target), requests=requests, warm_up=requests[:1],
        concurrency=None if opened else at_once,
    )  # fmt: skip
    ready = prepare(plan, DEFAULT)
    stats(url)
    return measure_prepared(ready, DEFAULT)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--at-once", type=int, nargs="+", default=_AT_ONCE)
    options = parser.parse_args()
    cpus = sorted(os.sched_getaffinity(0))
    print(f"Python {platform.python_version()}; client and server on {len(cpus)} CPUs")
    missed = 0
    for first_s, gap_s in _SERVERS:
        print(f"\nfirst token after {1000 * first_s:g} ms, then one every {1000 * gap_s:g} ms")
        print(f"{'':<11}{'figure':<9}{'truth':>10}{'off':>10}{'p95 off':>10}")
        for opened in (False, True):
            for at_once in options.at_once:
                with paced("--first", first_s, "--gap", gap_s) as url:
                    measured = run(url, first_s, gap_s, at_once, opened=opened)
                    seen: Any = stats(url)
                label = f"{'open' if opened else 'closed'} {at_once}"
                for one in figures(measured, seen["wire"]):
                    unit, scale = ("/s", 1) if one.name == "rate" else ("ms", 1000)
                    missed += not one.holds
                    print(
                        f"{label:<11}{one.name:<9}{scale * one.truth:>7.2f} {unit}"
                        f"{scale * one.off:>+7.2f} {unit}{scale * one.p95:>7.2f} {unit}"
                        f"{'' if one.holds else '  off by more than 1 % and 1 ms'}"
                    )
                    label = ""
                busy = max(measured.cpu, default=0.0)
                behind = 1000 * (measured.often_behind_s or 0.0)
                print(
                    f"{'':<11}{len(measured.rows)} requests; client {busy:.0%} of a core, "
                    f"behind {behind:.1f} ms; server {seen['cpu']:.0%}"
                )
                if (problem := bottleneck(measured)) is not None:
                    print(f"{'':<11}{problem}")
    print(f"\n{missed or 'no'} figures off by more than 1 % and 1 ms")


if __name__ == "__main__":
    main()
