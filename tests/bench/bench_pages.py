"""How many engine pages does a core read in a second, beside prometheus_client's parser?

    python -m tests.bench.bench_pages

The page is a real vLLM's, its series written for several data-parallel ranks until it has 2,400
lines, with other numbers each time, as a busy engine's are. CPU time of the process, best of
several rounds, both sides in turn.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from llmtrace_collector.signals.exposition_parser import ExpositionParser
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles

LINES: Final = 2_400
TARGET: Final = 1_000  # pages a CPU-second
ROUNDS: Final = 7
_SCRAPE: Final = Path(__file__).parent.parent / "collector/data/vllm-0.32-metrics.txt"
_VALUE: Final = re.compile(r" (\d+)\.0$", re.MULTILINE)


def page(step: int) -> str:
    """Write the page as it is after so many steps."""
    lines = _SCRAPE.read_text(encoding="utf-8").splitlines()
    own = [line for line in lines if line[0] != "#" and 'engine="0"' in line]
    rank = 1
    while len(lines) < LINES:
        lines += [line.replace('engine="0"', f'engine="{rank}"') for line in own]
        rank += 1
    text = "\n".join(lines[:LINES]) + "\n"
    return _VALUE.sub(lambda found: f" {int(found[1]) + step}.0", text)


def rate(read: Callable[[str], object], pages: Iterator[str], count: int) -> float:
    """Return how many pages are read in a second of CPU time, at best."""
    best = 0.0
    for _ in range(ROUNDS):
        started = time.process_time()
        for _ in range(count):
            read(next(pages))
        best = max(best, count / (time.process_time() - started))
    return best


def stock(text: str) -> object:
    """Read a page as prometheus_client does."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def main() -> int:
    """Measure, print, and return 1 if the target is missed."""
    texts = [page(step) for step in range(10)]
    reader = ExpositionParser(lambda _name: True)
    normaliser = Normaliser(builtin_profiles())
    pages = cycle(texts)
    for text in texts:  # a series is learnt once
        reader.read(text)
        normaliser.read(text)
    print(f"one page: {len(texts[0].splitlines()):,} lines, {len(texts[0]) / 1024:.0f} KiB")
    print("pages a CPU-second:")
    whole = rate(normaliser.read, pages, 60)
    for name, found in (
        ("read and unified", whole),
        ("read, all series", rate(reader.read, pages, 60)),
        ("prometheus_client's parser, not unified", rate(stock, pages, 3)),
    ):
        print(f"  {name:40} {found:8,.0f}")
    print(f"target: {TARGET:,} read and unified: {'met' if whole >= TARGET else 'missed'}")
    return 0 if whole >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
