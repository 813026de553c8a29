"""How fast is a triage, and how much memory does it take?

`python -m tests.bench.bench_analysis [ROWS ...]` makes days of that many requests, a fifth of them
after their queue got longer, and triages them: without intervals, with them, and, of the largest
day, row by row as they come out of a store.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator

import numpy as np

from llmtrace.dataset.case import Case, Window, no_signals
from llmtrace.dataset.columns import Builder, Columns, concatenate
from llmtrace.dataset.sampling import Sample
from llmtrace.triage.pipeline import Settings, triage

START = 1_700_000_000.0
DAY_S = 86_400.0
SLOWER = 0.8  # of the day, until queues get longer
CHUNK = 500_000
STREAMED = 0.9  # of the requests


def rows(n: int, seed: int, begin: float, end: float) -> Columns:
    """Make requests between two moments of the day."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(begin, end, n))
    slow = t >= START + SLOWER * DAY_S
    prompt = np.round(np.exp(rng.normal(6, 0.8, n)))
    output = np.round(np.exp(rng.normal(5, 0.7, n))) + 2
    stages = {
        "network_s": rng.gamma(4, 0.008, n),
        "gateway_s": rng.gamma(2, 0.004, n),
        "queue_s": rng.exponential(0.05, n) + slow * rng.exponential(0.2, n),
        "prefill_s": (0.02 + 5e-5 * prompt) * np.exp(rng.normal(0, 0.1, n)),
        "first_chunk_s": rng.gamma(2, 0.005, n),
    }
    ttft = sum(stages.values())
    tpot = 0.03 * np.exp(rng.normal(0, 0.15, n))
    stages |= {"decode_s": tpot * (output - 1), "render_s": np.zeros(n)}
    numbers = {
        **stages, "ttft_s": ttft, "tpot_s": tpot, "e2e_s": ttft + stages["decode_s"],
        "unattributed_s": np.zeros(n), "prompt_tokens": prompt, "output_tokens": output,
        "stream": (rng.random(n) < STREAMED).astype(np.float64),
    }  # fmt: skip
    kinds = {"tenant": 20, "replica": 12, "region": 3, "route": 5, "model": 2}
    words = {
        name: (rng.integers(0, count, n).astype(np.int32), [f"{name}-{i}" for i in range(count)])
        for name, count in kinds.items()
    }
    words["outcome"] = np.zeros(n, np.int32), ["success"]
    unknown = np.full(n, np.nan)
    builder = Builder()
    builder.add_arrays(
        (t * 1e9).astype(np.int64),
        lambda name: numbers.get(name, unknown),
        lambda name: words.get(name, (np.full(n, -1, np.int32), [])),
        lambda name: rng.bytes(16 * n) and np.frombuffer(rng.bytes(16 * n), "S16"),
    )
    return builder.done()


def chunks(n: int) -> Iterator[Columns]:
    """Make a day's requests in order of time, some at a time."""
    count = -(-n // CHUNK)
    for i in range(count):
        begin, end = (START + DAY_S * k / count for k in (i, i + 1))
        yield rows(n // count, i, begin, end)


def case(columns: Columns) -> Case:
    """Make a case of a day whose windows are known."""
    changed = START + SLOWER * DAY_S
    return Case(
        columns, no_signals(), before=Window(START, changed), after=Window(changed, START + DAY_S)
    )


def memory_mib() -> float:
    """Return the most memory this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what: str, one: Case, settings: Settings) -> None:
    """Triage once and print how long it took, in wall and processor time."""
    begun, used = time.perf_counter(), time.process_time()
    result = triage(one, settings)
    wall, cpu = time.perf_counter() - begun, time.process_time() - used
    print(f"{what:44} {wall:6.2f} s  ({cpu:.2f} s CPU)  {result.verdict}  "
          f"p95 +{result.delta_s or 0:.3f} s  {memory_mib():.0f} MiB", flush=True)  # fmt: skip


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("rows", nargs="*", type=int, default=[50_000, 1_000_000])
    parser.add_argument("--store", type=int, default=10_000_000, help="rows read as they come")
    given = parser.parse_args()
    for n in given.rows:
        one = case(concatenate(list(chunks(n))))
        measure(f"{n:,} rows, windows given, no intervals", one, Settings(bootstrap=0))
        found = Case(one.rows, one.signals)
        measure(f"{n:,} rows, spike to be found, no intervals", found, Settings(bootstrap=0))
        measure(f"{n:,} rows, windows given, intervals", one, Settings())
    if given.store:
        sample, used = Sample(), 0.0
        for chunk in chunks(given.store):
            begun = time.process_time()
            sample.add(chunk)
            used += time.process_time() - begun
        kept = sample.rows()
        print(
            f"{given.store:,} rows sampled to {len(kept):,} as they came: {used:.2f} s CPU",
            flush=True,
        )
        measure(f"{given.store:,} rows, of which those kept", case(kept), Settings(bootstrap=0))


if __name__ == "__main__":
    sys.exit(main())
