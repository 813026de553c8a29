"""Run published root-cause methods on series that `second_opinion` has written.

    python tests/bench/published_methods.py FOLDER

Runs in an environment of their own, without llmtrace. Prints a line of JSON for each file
`FOLDER/*.npz`: its name and, by method, the rankings of each run, first the likeliest; `null` is a
run that failed or took over a minute of CPU time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RUNS = 5  # of RCD, which draws: its figures are means
LIMIT_S = 60
SHARE = 4  # CIRCA: the window before is so many times as long as what is tested, at least


NAMES = (
    "baro.root_cause_analysis", "RCAEval.graph_construction.pc", "RCAEval.graph_heads.rht",
    "pyrca.analyzers.rcd",
)  # fmt: skip


def circa(pc: Any, rht: Any, data: pd.DataFrame, inject_time: float) -> list[str]:
    """Rank by CIRCA as RCAEval puts it together: a graph by PC, then its regression test.

    There, the test sees 120 s before a fault and 10 s five minutes after it, which these windows
    do not have; here, the window before, and as much of the one after as a quarter of that.
    """
    names = [name for name in data.columns if name != "time"]
    nodes = {name: rht.Node("engine", name) for name in names}
    adjacent = pc.pc_default(data[names])
    graph = rht.nx.DiGraph()
    graph.add_nodes_from(nodes.values())
    for a, one in enumerate(names):
        for b, other in enumerate(names):
            # As RCAEval's `rht` reads them; an edge without a direction goes both ways.
            if adjacent[b, a] == -1 and abs(adjacent[a, b]) == 1:
                graph.add_edge(nodes[one], nodes[other])
    time = data["time"].to_numpy()
    before = int((time < inject_time).sum())
    tested = max(min(before // SHARE, len(time) - before), 2)
    series = {name: list(zip(time.tolist(), data[name].tolist(), strict=True)) for name in names}
    seen = rht.CaseData(
        data_loader=rht.MemoryDataLoader({"engine": series}),
        sli=None,
        detect_time=float(inject_time),
        interval=timedelta(seconds=1),
        lookup_window=before,
        detect_window=tested,
    )
    scores = rht.RHTScorer().score(
        graph=rht.MemoryGraph(graph), data=seen, current=float(inject_time + tested - 1)
    )
    ranked = sorted(scores.items(), key=lambda item: item[1].key, reverse=True)
    return [node.metric for node, _ in ranked]


def rcd(module: Any, data: pd.DataFrame, inject_time: float) -> list[list[str] | None]:
    """Rank by RCD with PyRCA's defaults, several times."""
    columns = [name for name in data.columns if name != "time"]
    before = data.loc[data["time"] < inject_time, columns]
    after = data.loc[data["time"] >= inject_time, columns]

    def rank() -> list[str]:
        found = module.RCD(module.RCDConfig()).find_root_causes(before.copy(), after.copy())
        return [name for name, _ in found.root_cause_nodes]

    runs: list[list[str] | None] = []
    while len(runs) < RUNS and None not in runs:
        np.random.seed(len(runs))  # noqa: NPY002 - it draws from there
        runs.append(limited(rank))
    return runs


def limited(rank: Callable[[], list[str]]) -> list[str] | None:
    """Return a ranking, or `None` where it fails or takes longer than the limit."""
    try:
        with _within(LIMIT_S), contextlib.redirect_stdout(sys.stderr):
            return rank()
    except Exception as error:  # whatever theirs raises is no ranking
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return None


@contextlib.contextmanager
def _within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    # Of CPU time: what else the machine does is no fault of a method.
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> int:
    """Rank the series of each file."""
    warnings.filterwarnings("ignore")
    baro, pc, rht, of_rcd = map(importlib.import_module, NAMES)
    for path in sorted(Path(sys.argv[1]).glob("*.npz")):
        with np.load(path) as file:
            at = float(file["inject_time"])
            data = pd.DataFrame({name: file[name] for name in file if name != "inject_time"})
        once: dict[str, Callable[[], list[str]]] = {
            "BARO (RobustScorer)": partial(published, baro.robust_scorer, data, at),
            "N-Sigma": partial(published, baro.nsigma, data, at),
            "CIRCA": partial(circa, pc, rht, data, at),
        }
        ranked = {name: [limited(rank)] for name, rank in once.items()}
        ranked["RCD"] = rcd(of_rcd, data, at)
        print(json.dumps({"case": path.stem, "ranked": ranked}), flush=True)
    return 0


def published(method: Callable[..., Any], data: pd.DataFrame, at: float) -> list[str]:
    """Rank by a method of BARO's package."""
    return list(method(data, inject_time=at)["ranks"])


if __name__ == "__main__":
    raise SystemExit(main())
