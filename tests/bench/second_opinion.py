"""What do published root-cause methods name, on recordings of a real vLLM and in simulated worlds?

    python -m tests.bench.second_opinion [--case-folder DIR] [--worlds N] [--quiet N] [--first N]

BARO's RobustScorer and N-Sigma as the package `fse-baro` publishes them (FSE 2024), CIRCA (KDD
2022) as RCAEval does (WWW 2025) and RCD (NeurIPS 2022) as PyRCA does. They rank metrics. They are
given what triage is given: the time of the fault, and every stage, metric and signal there is, as
a series of one value a second (of longer windows 600 values). A metric stands for the causes that
it is the symptom of, so that naming it is naming any of them: triage has to name the one. They are
installed into an environment of their own, and run there by `published_methods.py`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case, read_case
from llmtrace.engines.local_vllm.install import cache_folder
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.result import NAMED
from tests.bench import bench_worlds
from tests.bench.bench_recordings import RECORDED
from tests.bench.bench_triage import SURE, dropped
from tests.triage.test_recordings import truth_of

# RCAEval and PyRCA name torch, Java and old versions too, for methods that are not run here.
ALONE: Final = ("RCAEval==1.8.1", "sfr-pyrca==1.0.1")
NEEDED: Final = (
    "fse-baro==0.2.2", "causal-learn==0.1.4.8", "pandas==2.3.3", "scikit-learn", "pyyaml",
    "schema", "dill",
)  # fmt: skip
OURS: Final = "llmtrace triage"
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
    "network_rtt_s": ("network_path",),
    "network_connect_s": ("network_path", "client_gate"),
    "network_client_wait_s": ("client_gate", "client_cold"),
    "tool_wall_s": ("serial_tools",),
    "chunks_missing": ("proxy_buffering", "midstream_errors", "idle_timeout"),
    "burst_chunks": ("proxy_buffering", "slow_renderer"),
    "first_chunk_frontend_s": ("frontend_cpu",),
    "frontend_time": ("frontend_cpu",),
    "api_cpu": ("frontend_cpu",),
    "gpu_sm_clock_mhz_missing": ("gpu_throttle",),
    "gpu_throttle": ("gpu_throttle",),
    "gpu_power_w": ("gpu_throttle",),
    "gpu_temp_c": ("gpu_throttle",),
    "gpu_util": ("queue_saturation", "batch_size", "replica_imbalance"),
    "waiting_deferred": ("lora_slots", "kv_transfer"),
    "gateway_429": ("rate_limit_retries",),
    "gateway_5xx": ("engine_down", "midstream_errors"),
    "unattributed_s": ("serial_tools", "client_gate", "network_path", "rate_limit_retries"),
    "awake_missing": ("engine_paused",),
}  # fmt: skip
_FALLS: Final = ("gpu_sm_clock_mhz", "awake", "chunks")  # given as what is missing of them
_COPY: Final = 0.9999  # correlation
_LEVELS: Final = 3  # values of a counter, at least
_RISES: Final = 0.98  # of its samples are not below the one before
_NUMBERS: Final = (
    *(f"{stage}_s" for stage in STAGES), "tpot_s", "max_gap_s", "prompt_tokens", "output_tokens",
    "attempts", "retry_s", "client_s", "chunks", "burst_chunks", "cached_tokens", "network_rtt_s",
    "network_connect_s", "network_client_wait_s", "tool_wall_s", "first_chunk_frontend_s",
)  # fmt: skip
Ranking = Sequence[str]
_MOST: Final = 600  # values of a window, as in RCAEval's data sets


@dataclass(frozen=True, slots=True)
class Question:
    """A case with its windows, and the causes that are right; none on a quiet day."""

    name: str
    case: Case
    wanted: frozenset[str]


@dataclass(frozen=True, slots=True)
class Said:
    """What one method said of one case, as the mean of its runs: right first, among the first."""

    first: float
    among: float
    names: float
    text: str


def environment() -> Path:
    """Return the interpreter of the methods' environment, made the first time it is asked for."""
    folder = cache_folder() / "second-opinion-2"
    python, ready = folder / "bin" / "python", folder / "complete"
    if not ready.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, *NEEDED], check=True)
        subprocess.run([*install, "--no-deps", *ALONE], check=True)
        ready.touch()
    return python


def series(case: Case) -> dict[str, Any]:
    """Return one value a second of every number and signal, in both windows, `_MOST` of each."""
    assert case.before is not None
    assert case.after is not None
    steps = [max(window.seconds / _MOST, 1.0) for window in (case.before, case.after)]
    parts = [
        np.arange(window.start, window.end, step)
        for window, step in zip((case.before, case.after), steps, strict=True)
    ]
    grid = np.concatenate(parts)
    ends = grid + np.repeat(steps, [len(part) for part in parts])
    t, number = case.rows.start / 1e9, case.rows.numbers
    found: dict[str, Any] = {}
    outcome = case.rows.words["outcome"]
    columns = {name: number[name] for name in _NUMBERS}
    columns["failed_share"] = outcome.where("error", "truncated", "timeout").astype(float)
    columns["cancelled_share"] = outcome.where("cancelled").astype(float)
    for name, column in columns.items():
        known = ~np.isnan(column)
        if known.any():
            found[name] = _by_step(grid, ends, t[known], column[known])
    for name in case.signals.signal.names:
        mine = case.signals.take(case.signals.signal.where(name))
        if len(mine):
            found[name] = _by_step(grid, ends, mine.t, _risen(mine))
    for share, part, whole in (
        ("prefix_hit_share", "prefix_hits", "prefix_queries"),
        ("accepted_share", "spec_accepted", "spec_drafted"),
    ):
        if part in found and whole in found:
            # They look for what rose: a share that falls is given as what is missing of it.
            found[share] = 1 - found[part] / np.maximum(found[whole], 1e-9)
    for name in _FALLS:
        if name in found:
            found[f"{name}_missing"] = -found.pop(name)
    found = {name: np.nan_to_num(column) for name, column in found.items()}
    # What never changes says nothing, and no correlation is defined for it.
    changing = {name: column for name, column in found.items() if np.ptp(column) > 0}
    kept = _without_copies(changing)
    return {"time": np.arange(len(grid), dtype=float), "inject_time": len(parts[0]), **kept}


def _without_copies(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what only repeats another column: PC has no correlations for that."""
    kept: dict[str, Any] = {}
    for name in sorted(columns, key=lambda one: one not in SYMPTOMS):
        one = columns[name]
        if all(abs(np.corrcoef(one, other)[0, 1]) < _COPY for other in kept.values()):
            kept[name] = one
    return kept


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


def _by_step(grid: Any, ends: Any, t: Any, value: Any) -> Any:
    """Return the mean of each step; of one without any, that of the last one with some."""
    place = np.searchsorted(grid, t, side="right") - 1
    inside = (place >= 0) & (t < ends[np.clip(place, 0, None)])
    total = np.bincount(place[inside], value[inside], minlength=len(grid))
    count = np.bincount(place[inside], minlength=len(grid))
    means = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    known = np.flatnonzero(count)
    if not known.size:
        return np.zeros(len(grid))
    latest = np.maximum.accumulate(np.where(count > 0, np.arange(len(grid)), known[0]))
    return means[latest]


def hits(ranked: Sequence[str], wanted: frozenset[str], top: int) -> bool:
    """Return whether one of the first metrics is a symptom of a true cause."""
    return any(wanted & set(SYMPTOMS.get(name, ())) for name in ranked[:top])


def ranked(
    questions: Sequence[Question],
) -> Iterator[Mapping[str, Sequence[Sequence[str] | None]]]:
    """Yield of each case what the published methods rank, in each of their runs."""
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(questions):
            np.savez(Path(folder) / f"{number:05}.npz", **series(one.case))
        program = Path(__file__).with_name("published_methods.py")
        done = subprocess.Popen(
            [environment(), program, folder], stdout=subprocess.PIPE, text=True
        )
        assert done.stdout is not None
        yield from (json.loads(line)["ranked"] for line in done.stdout)
        if done.wait():
            raise SystemExit(f"{program.name} ended with {done.returncode}")


def ours(one: Question) -> Said:
    """Return what triage says of a case, its windows given."""
    named = [found for found in triage(one.case, Settings(bootstrap=0)).causes
             if found.status in NAMED]  # fmt: skip
    ids = [found.id for found in named]
    sure = any(found.status in SURE for found in named)
    right = [bool({*ids[:top]} & one.wanted) for top in (1, TOP)]
    return Said(float(right[0]), float(right[1]), float(sure), ids[0] if ids else "none")


def theirs(one: Question, runs: Sequence[Ranking | None]) -> Said:
    """Return what a published method says of a case: a run that failed has named nothing."""
    lists = [[]] if None in runs else [run or [] for run in runs]
    first, among = (
        float(np.mean([hits(run, one.wanted, top) for run in lists])) for top in (1, TOP)
    )
    text = "failed" if None in runs else "/".join(dict.fromkeys(run[0] for run in lists if run))
    return Said(first, among, float(np.mean([bool(run) for run in lists])), text)


def recordings(folder: Path) -> Iterator[Question]:
    """Yield the recorded cases."""
    for path in sorted(one.parent for one in folder.glob("*/truth.json")):
        truth = truth_of(path)
        yield Question(path.name, read_case(path), frozenset([*truth["causes"], *truth["accept"]]))


def worlds(count: int, quiet: int, first: int) -> Iterator[Question]:
    """Yield incidents of one cause in worlds of their own, of which no rule has seen any."""
    traces = sorted(map(str, bench_worlds.TRACES.glob("*.gz")))
    todo = bench_worlds.tasks(bench_worlds.UNSEEN + first, 1 + count // 20, quiet, traces)
    left = {"fault": count, "quiet": quiet}
    for task in todo:
        if not left.get(task.kind):
            continue
        played = bench_worlds.play(task)
        if dropped(task.kind, played) or bench_worlds.hardly_seen(task.kind, played):
            continue
        left[task.kind] -= 1
        name = "-and-".join(played.truth.causes) or "quiet"
        yield Question(f"{name} {task.seed}", played.case, frozenset(played.truth.causes))


def compare(questions: Sequence[Question], what: str) -> None:
    """Print what each method says of each case, and the table."""
    said: list[tuple[Question, dict[str, Said]]] = []
    for one, lists in zip(questions, ranked(questions), strict=True):
        answers = {OURS: ours(one)}
        for name, runs in lists.items():
            answers[name] = theirs(one, runs)
        firsts = "; ".join(f"{name}: {answer.text}" for name, answer in answers.items())
        print(f"{one.name:32}{firsts}", flush=True)
        said.append((one, answers))
    faults = [answers for one, answers in said if one.wanted]
    quiet = [answers for one, answers in said if not one.wanted]
    print(f"\n| of {len(faults)} {what}, windows given | AC@1 | AC@{TOP} | failed | names a cause "
          f"on {len(quiet)} quiet days |\n|---|---|---|---|---|")  # fmt: skip
    for name in said[0][1]:
        mine = [answers[name] for answers in faults]
        first, among = (np.mean([getattr(a, part) for a in mine]) for part in ("first", "among"))
        failed = sum(answers[name].text == "failed" for _, answers in said)
        alarms = sum(answers[name].names for answers in quiet)
        print(f"| {name} | {first:.2f} | {among:.2f} | {failed} | {alarms:.3g} |")


def main() -> int:
    """Compare on the recordings, and on worlds if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case-folder", type=Path, default=RECORDED)
    parser.add_argument("--worlds", type=int, default=0, help="incidents to play instead")
    parser.add_argument("--quiet", type=int, default=0, help="quiet days to play beside them")
    parser.add_argument("--first", type=int, default=0, help="of the worlds' seeds")
    given = parser.parse_args()
    if given.worlds:
        played = list(worlds(given.worlds, given.quiet, given.first))
        compare(played, "incidents in simulated worlds")
    else:
        compare(list(recordings(given.case_folder)), "recordings")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
