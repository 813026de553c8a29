"""What do published root-cause methods name on the recordings of a real vLLM?

    python -m tests.bench.second_opinion [--case-folder DIR]

BARO's RobustScorer and N-Sigma, as the package `fse-baro` publishes them (FSE 2024), rank metrics
by how far they went beyond what they were before the fault. They are given what triage is given:
the time of the fault, and every stage, metric and signal there is, as a series of one value a
second. A metric stands for the causes that it is the symptom of, so that naming it is naming any
of them: triage has to name the one. The packages are installed into a folder of their own.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case, read_case
from llmtrace.engines.local_vllm.install import cache_folder
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NAMED
from tests.bench.bench_recordings import RECORDED
from tests.triage.test_recordings import truth_of

PACKAGES: Final = ("fse-baro==0.2.2", "pandas", "scikit-learn")
TOP: Final = 3
# Which causes a metric is the symptom of: generous, so that no method is made to look worse.
SYMPTOMS: Final[Mapping[str, tuple[str, ...]]] = {
    "queue_s": ("queue_saturation", "kv_exhaustion", "head_of_line", "cold_start", "lora_slots",
                "kv_transfer", "replica_imbalance", "engine_paused"),
    "queue_sum": ("queue_saturation", "kv_exhaustion", "head_of_line", "cold_start",
                  "engine_paused"),
    "step_tokens_sum": ("batch_size", "queue_saturation", "long_prompts", "head_of_line"),
    "waiting": ("queue_saturation", "kv_exhaustion", "head_of_line", "cold_start",
                "engine_paused"),
    "running": ("queue_saturation", "batch_size", "replica_imbalance"),
    "kv_usage": ("kv_exhaustion", "queue_saturation"),
    "preemptions": ("kv_exhaustion",),
    "prefill_s": ("long_prompts", "prefix_cache_collapse", "cold_start", "head_of_line",
                  "queue_saturation", "batch_size"),
    "prompt_tokens": ("long_prompts", "head_of_line"),
    "tokens_in": ("long_prompts", "head_of_line", "queue_saturation", "batch_size"),
    "output_tokens": ("longer_outputs",),
    "tokens_out": ("longer_outputs", "queue_saturation", "batch_size"),
    "prefix_hit_share": ("prefix_cache_collapse",),
    "accepted_share": ("low_spec_acceptance",),
    "decode_s": ("low_spec_acceptance", "batch_size", "longer_outputs", "gpu_throttle",
                 "kv_exhaustion", "engine_paused", "queue_saturation", "head_of_line"),
    "tpot_s": ("low_spec_acceptance", "batch_size", "gpu_throttle", "kv_exhaustion",
               "engine_paused", "head_of_line", "slow_renderer"),
    "max_gap_s": ("engine_paused", "idle_timeout", "head_of_line", "engine_down"),
    "network_s": ("network_path", "client_gate", "engine_down"),
    "gateway_s": ("gateway_overhead", "rate_limit_retries"),
    "attempts": ("rate_limit_retries",),
    "retry_s": ("rate_limit_retries",),
    "first_chunk_s": ("frontend_cpu", "proxy_buffering", "cold_start", "engine_paused",
                      "head_of_line", "queue_saturation"),
    "render_s": ("slow_renderer",),
    "client_s": ("client_gate", "frontend_cpu"),
    "failed_share": ("midstream_errors", "idle_timeout", "engine_down", "rate_limit_retries"),
    "cancelled_share": ("client_give_ups",),
    "started": ("cold_start", "engine_down"),
    "sleep": ("engine_paused",),
    "rejected": ("rate_limit_retries",),
}  # fmt: skip
_LEVELS: Final = 3  # values of a counter, at least
_RISES: Final = 0.98  # of its samples are not below the one before
_NUMBERS: Final = (
    *(f"{stage}_s" for stage in STAGES), "tpot_s", "max_gap_s", "prompt_tokens", "output_tokens",
    "attempts", "retry_s", "client_s",
)  # fmt: skip
Method = Callable[..., Mapping[str, Any]]


def methods() -> dict[str, Method]:
    """Return the published methods, installed into a folder of their own if need be."""
    folder = cache_folder() / "second-opinion"
    if not (folder / "baro").is_dir():
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), *PACKAGES],
            check=True,
        )
    sys.path.append(str(folder))  # after what is here already
    module = importlib.import_module("baro.root_cause_analysis")
    return {"BARO (RobustScorer)": module.robust_scorer, "N-Sigma": module.nsigma}


def series(case: Case) -> dict[str, Any]:
    """Return one value a second of every number and signal, in both windows."""
    assert case.before is not None
    assert case.after is not None
    grid = np.concatenate(
        [np.arange(window.start, window.end) for window in (case.before, case.after)]
    )
    t, number = case.rows.start / 1e9, case.rows.numbers
    found: dict[str, Any] = {"time": grid}
    outcome = case.rows.words["outcome"]
    columns = {name: number[name] for name in _NUMBERS}
    columns["failed_share"] = outcome.where("error", "truncated", "timeout").astype(float)
    columns["cancelled_share"] = outcome.where("cancelled").astype(float)
    for name, column in columns.items():
        known = ~np.isnan(column)
        if known.any():
            found[name] = _by_second(grid, t[known], column[known])
    for name in case.signals.signal.names:
        mine = case.signals.take(case.signals.signal.where(name))
        if len(mine):
            found[name] = _by_second(grid, mine.t, _risen(mine))
    for share, part, whole in (
        ("prefix_hit_share", "prefix_hits", "prefix_queries"),
        ("accepted_share", "spec_accepted", "spec_drafted"),
    ):
        if part in found and whole in found:
            # They look for what rose: a share that falls is given as what is missing of it.
            found[share] = 1 - found[part] / np.maximum(found[whole], 1e-9)
    return {name: np.nan_to_num(column) for name, column in found.items()}


def _risen(samples: Any) -> Any:
    """Return what a counter grew by since the sample before, and a gauge as it is.

    A counter given as it is would rise in every incident, whatever that was.
    """
    value = samples.value.copy()
    key = samples.instance.codes.astype(np.int64) * 100_000 + samples.labels
    for one in np.unique(key):
        mine = key == one
        steps = np.diff(samples.value[mine])
        if len(np.unique(samples.value[mine])) > _LEVELS and (steps >= 0).mean() > _RISES:
            value[mine] = np.append(0.0, np.maximum(steps, 0.0))
    return value


def _by_second(grid: Any, t: Any, value: Any) -> Any:
    """Return the mean of each second; of one without any, that of the last one with some."""
    place = np.searchsorted(grid, t, side="right") - 1
    inside = (place >= 0) & (t < grid[np.clip(place, 0, None)] + 1)
    total = np.bincount(place[inside], value[inside], minlength=len(grid))
    count = np.bincount(place[inside], minlength=len(grid))
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    known = np.flatnonzero(count)
    if not known.size:
        return np.zeros(len(grid))
    latest = np.maximum.accumulate(np.where(count > 0, np.arange(len(grid)), known[0]))
    return means[latest]


def hits(ranked: Sequence[str], wanted: set[str], top: int) -> bool:
    """Return whether one of the first metrics is a symptom of a true cause."""
    return any(wanted & set(SYMPTOMS.get(name, ())) for name in ranked[:top])


def main() -> int:
    """Print what each names first, and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case-folder", type=Path, default=RECORDED)
    folder = parser.parse_args().case_folder
    published = methods()
    frame = importlib.import_module("pandas").DataFrame
    count = dict.fromkeys(("llmtrace triage", *published), (0, 0))
    quiet = dict.fromkeys(count, 0)
    cases = quiets = 0
    for path in sorted(one.parent for one in folder.glob("*/truth.json")):
        truth = truth_of(path)
        wanted = {*truth["causes"], *truth["accept"]}
        case = read_case(path)
        data = frame(series(case))
        named = [one for one in triage(case, Settings(bootstrap=0)).causes if one.status in NAMED]
        sure = any(one.status != "possible" for one in named)
        ids = [one.id for one in named]
        said = {"llmtrace triage": (bool(set(ids[:1]) & wanted), bool(set(ids[:TOP]) & wanted))}
        firsts = [f"triage: {', '.join(ids[:1]) or 'none'}"]
        for name, method in published.items():
            ranks = list(method(data, inject_time=case.after.start if case.after else 0)["ranks"])
            said[name] = (hits(ranks, wanted, 1), hits(ranks, wanted, TOP))
            firsts.append(f"{name}: {ranks[0]}")
        print(f"{path.name:32}{'; '.join(firsts)}", flush=True)
        if not wanted:
            quiets += 1
            quiet["llmtrace triage"] += sure
            for name in published:
                quiet[name] += 1  # they rank metrics whatever happened
            continue
        cases += 1
        for name, (first, among) in said.items():
            count[name] = (count[name][0] + first, count[name][1] + among)
    print(f"\n| of {cases} recordings | AC@1 | AC@{TOP} | names a cause on {quiets} quiet days |")
    print("|---|---|---|---|")
    for name, (first, among) in count.items():
        print(f"| {name} | {first / cases:.2f} | {among / cases:.2f} | {quiet[name]} |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
