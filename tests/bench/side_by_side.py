"""Measure one endpoint with `llmtrace bench`, `vllm bench serve` and GuideLLM: do they agree?

Two questions, each with the same requests for all three:

* On a real vLLM on this machine's CPU, in turns: do TTFT and TPOT agree within noise, once one
  tool's definitions are mapped to another's?
* Against a server of known times, each tool on one core: how many requests a second does it
  sustain, that is, does it send them, and are its figures still those of the server?

    make bench-load      # installs what it needs; a quarter of an hour
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from llmtrace.engines import local_vllm
from llmtrace.engines.local_vllm.install import cache_folder
from tests.bench import paced_server
from tests.bench.load_tools import GUIDE, OURS, TOOLS, VLLM, Figures, Load, write_requests

_PROMPT: Final = 256  # characters, which are tokens to the tiny model
_TOKENS: Final = 64
_RATE: Final = 3.0
_PAIRS: Final = (  # ours by their definition, and theirs
    ((VLLM, "TTFT"), VLLM), ((VLLM, "TPOT"), VLLM),
    ((GUIDE, "TTFT"), GUIDE), ((GUIDE, "TPOT"), GUIDE), ((GUIDE, "ITL"), GUIDE),
)  # fmt: skip
# Two-sided 95 % of Student's t, by degrees of freedom.
_T: Final = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
_SAME_S: Final = 1e-3  # less is not worth a reason
_SECONDS: Final = 8.0  # of one run at a rate
_STEPS: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # of what a closed loop takes
_OFF_S: Final = 0.01  # of the median TTFT, by which a tool is no longer measuring the server


@dataclass(frozen=True, slots=True)
class Difference:
    """How a figure of ours, by another tool's definition, differs from that tool's; seconds."""

    tool: str
    figure: str
    ours: float
    theirs: float
    by: float
    within: float

    @property
    def verdict(self) -> str:
        """Whether it is more than noise, and more than a millisecond."""
        if abs(self.by) <= self.within:
            return "agree within noise"
        return "agree within 1 ms" if abs(self.by) <= _SAME_S else "differ"


@dataclass(frozen=True, slots=True)
class Sustained:
    """What one tool takes on one core.

    Attributes:
        closed: requests a second of a closed loop, as the server saw them arrive.
        rate: the highest that it sent, with figures that are the server's; `None` = none of them.
    """

    tool: str
    closed: float
    rate: float | None


def agreement(folder: Path, rounds: int, count: int) -> list[Difference]:
    """Measure a real vLLM with each tool in turn, and compare their figures.

    By the 10th percentile of each turn: what else the machine does only adds.
    """
    found: dict[str, list[Figures]] = {name: [] for name in TOOLS}
    draws = random.Random(1)
    with local_vllm.start(log=print) as server:
        for i in range(rounds):
            names = list(TOOLS)
            for name in names[i % 3 :] + names[: i % 3]:
                work = folder / f"{i}-{name.split()[0]}"
                work.mkdir()
                prompts = ["".join(draws.choices("abcdefgh ", k=_PROMPT)) for _ in range(count)]
                write_requests(work / "requests.jsonl", prompts, _TOKENS)
                load = Load(
                    url=server.url, model=server.model, requests=work / "requests.jsonl",
                    count=count, output_tokens=_TOKENS, tokenizer=_tokenizer(),
                    cpus=frozenset(os.sched_getaffinity(0)), rate=_RATE, seed=i,
                )  # fmt: skip
                print(f"round {i + 1} of {rounds}: {name}", flush=True)
                found[name].append(TOOLS[name](load, work / "result"))
    return [_difference(key, found[OURS], found[name]) for key, name in _PAIRS]


def _difference(
    key: tuple[str, str], ours: Sequence[Figures], theirs: Sequence[Figures]
) -> Difference:
    ours_s, theirs_s = (
        [statistics.quantiles(one[key], n=10)[0] for one in side] for side in (ours, theirs)
    )
    apart = [mine - other for mine, other in zip(ours_s, theirs_s, strict=True)]
    spread = statistics.stdev(apart) / math.sqrt(len(apart))
    return Difference(
        *key, statistics.mean(ours_s), statistics.mean(theirs_s), statistics.mean(apart),
        _T[min(len(apart) - 1, max(_T))] * spread,
    )  # fmt: skip


def capacity(folder: Path) -> list[Sustained]:
    """Find what each tool sustains on one core, against a server on another."""
    client, server = sorted(os.sched_getaffinity(0))[:2]
    found = []
    with paced_server.paced("--cpu", server) as url:
        for name in TOOLS:
            work = folder / f"capacity-{name.split()[0]}"
            work.mkdir()
            load = Load(
                url=url, model=paced_server.MODEL, requests=work / "requests.jsonl", count=400,
                output_tokens=paced_server.TOKENS, tokenizer=_tokenizer(),
                cpus=frozenset({client}), clients=64,
            )  # fmt: skip
            closed, _ = _run(name, load, work / "closed")
            print(f"{name}: {closed:.0f} requests/s from 64 clients", flush=True)
            found.append(Sustained(name, closed, _highest(name, load, closed, work)))
    return found


def _highest(name: str, load: Load, closed: float, work: Path) -> float | None:
    for step in _STEPS:
        rate = step * closed
        at = replace(load, rate=rate, clients=None, count=round(_SECONDS * rate))
        seen, figures = _run(name, at, work / f"{step}")
        ttft = statistics.median(
            next(values for (_, one), values in figures.items() if one == "TTFT")
        )
        off = ttft - paced_server.FIRST_S
        print(f"{name}: {rate:.0f}/s: sent {seen:.0f}/s, TTFT {1000 * off:+.1f} ms", flush=True)
        if abs(off) <= _OFF_S:
            return seen  # not what was to be sent: some tools send less at any rate
    return None


def _run(name: str, load: Load, folder: Path) -> tuple[float, Figures]:
    """Run a tool, and return how many requests a second arrived in the middle of the run."""
    prompts = [f"{i} {'word ' * 40}" for i in range(load.count)]
    write_requests(load.requests, prompts, load.output_tokens)
    paced_server.stats(load.url)
    figures = TOOLS[name](load, folder)
    arrivals = paced_server.stats(load.url)["arrivals"][-load.count :]
    low, high = len(arrivals) // 10, len(arrivals) * 9 // 10
    return (high - low) / (arrivals[high] - arrivals[low]), figures


def _tokenizer() -> Path:
    python = local_vllm.find_python()
    if python is None:
        raise SystemExit("vLLM is not installed: make vllm")
    return local_vllm.make_tiny_model(python, cache_folder() / "tiny-llama-256-4")


def main() -> None:
    """Answer both questions, or the one that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each tool on vLLM")
    parser.add_argument("--requests", type=int, default=80, help="requests of a turn")
    parser.add_argument("--only", choices=("agreement", "capacity"))
    options = parser.parse_args()
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(prefix="llmtrace-load-") as name:
        folder = Path(name)
        if options.only != "capacity":
            for one in agreement(folder, options.rounds, options.requests):
                print(
                    f"{one.tool:<17}{one.figure:<5} ours {1000 * one.ours:7.2f} ms, theirs "
                    f"{1000 * one.theirs:7.2f}, apart {1000 * one.by:+6.2f} ± "
                    f"{1000 * one.within:.2f}: {one.verdict}"
                )
        if options.only != "agreement":
            for tool in capacity(folder):
                rate = "none" if tool.rate is None else f"{tool.rate:.0f}/s"
                print(f"{tool.tool:<17} closed loop {tool.closed:6.0f}/s, sustained {rate}")


if __name__ == "__main__":
    main()
