"""Do signals come back from a real Prometheus as they went in: ours, and a real vLLM's own?

promtool makes its blocks from pages with times, so that an hour of scrapes takes a second.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from llmtrace.cli import main
from llmtrace.core.errors import DataError, SourceError
from llmtrace.dataset.case import Window, read_case, samples_of, write_case
from llmtrace_collector.scrape.from_prometheus import read_buckets, read_signals
from llmtrace_collector.scrape.samples import of_reading
from llmtrace_collector.signals.definitions import SIGNALS
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles
from tests.collector import pages
from tests.triage.days import day

from .conftest import do_without
from .prometheus import PROMETHEUS, PROMTOOL, missing, prometheus

EVERY_S: Final = 5.0
RECORDED: Final = Path(__file__).parents[1] / "triage" / "recorded"
# By metric: the signal, its labels, and its value after so many scrapes.
OURS: Final[dict[str, tuple[str, dict[str, str], Any]]] = {
    "llmtrace_engine_requests_waiting": ("waiting", {}, lambda n: n % 7),
    "llmtrace_engine_kv_cache_usage_ratio": ("kv_usage", {"model": "m"}, lambda n: 0.1 + n / 999),
    "llmtrace_engine_preemptions_total": ("preemptions", {}, lambda n: 3 * n),
    "llmtrace_engine_requests_finished_total": (
        "finished", {"reason": 'sto"p\\'}, lambda n: 11 * n,
    ),
    "llmtrace_engine_queue_seconds_sum": ("queue_sum", {}, lambda n: n / 8),
    "llmtrace_engine_queue_seconds_count": ("queue_count", {}, lambda n: 4 * n),
    "llmtrace_target_up": ("up", {}, lambda n: float(n % 100 != 7)),
}  # fmt: skip


def silent(_what: str, _share: float) -> None:
    """Say nothing."""


def line(name: str, labels: dict[str, str], value: float, t: float) -> str:
    """Write one sample with its time."""
    texts = {k: v.replace("\\", "\\\\").replace('"', '\\"') for k, v in labels.items()}
    named = ",".join(f'{k}="{v}"' for k, v in texts.items())
    return f"{name}{{{named}}} {value!r} {t:.3f}\n"


@contextmanager
def holding(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """Run a Prometheus that scraped these; yield its address."""
    if reason := missing(PROMETHEUS, PROMTOOL):
        do_without(reason)
    page, data = folder / "page.om", folder / "data"
    page.write_text("".join(lines) + "# EOF\n")
    command = [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", str(page), str(data)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    with prometheus({}, data=data) as url:
        yield url


def test_our_signals_come_back_as_they_were_scraped(tmp_path: Path, capsys: Any) -> None:
    """Every sample of every signal, at its time; and the command puts them beside rows."""
    case = day()
    first = float(case.rows.start.min() / 1e9)
    last = float(case.rows.start.max() / 1e9)
    times = [first + n * EVERY_S for n in range(int((last - first) / EVERY_S))]
    lines, wanted = [], set()
    for metric, (signal, labels, value) in OURS.items():
        for engine in ("vllm-0", "vllm-1"):
            for n, t in enumerate(times):
                where = {"instance": engine, "job": "llmtrace-collector"}
                lines.append(line(metric, {**labels, **where}, float(value(n)), t))
                wanted.add((round(t, 3), engine, signal, float(value(n)), *labels.items()))
    write_case(tmp_path / "case", case)
    with holding(tmp_path, lines) as url:
        command = ["triage", "--case", str(tmp_path / "case"), "--prometheus", url,
                   "--bootstrap", "0", "--save", str(tmp_path / "saved")]  # fmt: skip
        assert main(command) in {0, 10}
        assert len(times) * EVERY_S > 900  # more than one question was needed
        with pytest.raises(DataError, match="has no metrics of engines"):
            read_signals(url, None, Window(1e9, 1e9 + 60), silent)
    capsys.readouterr()
    found = [*samples_of(read_case(tmp_path / "saved").signals)]

    assert len(found) == len(wanted)
    assert {
        (round(one["t"], 3), one["instance"], one["signal"], one["value"],
         *one.get("labels", {}).items())
        for one in found
    } == wanted  # fmt: skip


def test_labels_choose_the_series_that_are_read(tmp_path: Path) -> None:
    """One of two fleets, by its cluster; of one that is not there, the error says so."""
    start, text = 1_700_000_000.0, pages.scrape("vllm-0.32-metrics.txt")
    lines = []
    for one in [one for one in text.splitlines() if one and not one.startswith("#")]:
        name, _, value = one.rpartition(" ")
        head, _, labels = name.partition("{")
        for cluster in ("eu", 'us "1"'):
            quoted = cluster.replace('"', '\\"')
            where = f'instance="vllm",cluster="{quoted}"{"," * bool(labels)}{labels or "}"}'
            grows = head.endswith("_bucket")
            lines += [f"{head}{{{where} {float(value) + n * grows} {start + 15 * n:.0f}\n"
                      for n in range(4)]  # fmt: skip
    window = Window(start, start + 60)
    with holding(tmp_path, sorted(lines)) as url:
        both, _ = read_signals(url, None, window, silent)
        one, _ = read_signals(url, None, window, silent, {"cluster": 'us "1"'})
        with pytest.raises(DataError, match='with cluster="asia"'):
            read_signals(url, None, window, silent, {"cluster": "asia"})
        counted = [read_buckets(url, None, "ttft", Window(start, start + 46), where)
                   for where in ({}, {"cluster": "eu"}, {"cluster": "asia"})]  # fmt: skip

    assert len({sample["instance"] for sample in samples_of(both)}) == 2
    assert {sample["instance"] for sample in samples_of(one)} == {"vllm"}
    assert len(both) == 2 * len(one)
    assert [bool(one) for one in counted] == [True, True, False]


@pytest.mark.parametrize("page", ["vllm-0.32-metrics.txt"])
def test_an_engines_own_metrics_are_read_by_its_profile(tmp_path: Path, page: str) -> None:
    """A Prometheus that scrapes engines themselves tells what the collector would."""
    start, text = 1_700_000_000.0, pages.scrape(page)
    scraped = [one for one in text.splitlines() if one and not one.startswith("#")]
    lines = []
    for one in scraped:
        name, _, value = one.rpartition(" ")
        head, _, labels = name.partition("{")
        where = f'instance="vllm-0:8000",job="vllm"{"," * bool(labels)}{labels or "}"}'
        lines += [f"{head}{{{where} {value} {start + 15 * n:.0f}\n" for n in range(20)]
    with holding(tmp_path, lines) as url:
        signals, odd = read_signals(url, None, Window(start, start + 300), silent)
    reading = Normaliser(builtin_profiles()).read(text)
    wanted = {
        (one.signal, tuple(sorted(one.labels.items())), one.value)
        for one in of_reading(reading, "vllm-0:8000", {}, 0)
    }

    assert odd == ()
    found = [*samples_of(signals)]
    last = max(one["t"] for one in found)
    assert {
        (one["signal"], tuple(sorted(one.get("labels", {}).items())), one["value"])
        for one in found
        if one["t"] == last
    } == wanted
    assert {one["instance"] for one in found} == {"vllm-0:8000"}
    assert len({one["t"] for one in found}) >= 20


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        # How many slots there are, no metric says: it is named, and not confirmed.
        ("saturation-severe", "queue_saturation possible|likely"),
        ("batch-size-mild", "batch_size likely"),
        ("long-prompts-mild", "long_prompts confirmed"),
        ("kv-preempted-mild", "kv_exhaustion confirmed"),
        ("kv-preempted-severe", "kv_exhaustion confirmed"),
    ],
)
def test_a_cause_is_named_without_rows(tmp_path: Path, capsys: Any, name: str, cause: str) -> None:
    """What the collector exposed of an engine to which something was done: nothing else."""
    case = read_case(RECORDED / name)
    names = {
        f"{one.name}{part}": f"{one.metric}{part}"
        for one in SIGNALS.values()
        for part in (("_sum", "_count") if one.kind == "histogram" else ("",))
    }
    lines = [
        line(names[one["signal"]], {**one.get("labels", {}), "instance": one["instance"]},
             one["value"], one["t"])
        for one in samples_of(case.signals)
        if one["signal"] in names
    ]  # fmt: skip
    assert case.before is not None
    assert case.after is not None
    windows = [f"--{side}={one.start}/{one.end}" for side, one in
               (("before", case.before), ("after", case.after))]  # fmt: skip
    with holding(tmp_path, lines) as url:
        status = main(["triage", "--prometheus", url, *windows])
        said = capsys.readouterr().out
        assert main(["triage", "--prometheus", url, "--save", "new"]) == 2

    assert status == 10
    first = said.partition("\ncauses ")[2].splitlines()[1]
    assert re.fullmatch(cause.replace(" ", r"\s+(") + ")", first.strip()), first
    assert "sum of the four above" in " ".join(said.split())
    assert "Not known without rows of requests" in " ".join(said.split())
    assert "--save is about requests" in capsys.readouterr().err


def test_who_is_no_prometheus_is_named(tmp_path: Path) -> None:
    """Nothing there, or another server: an error that says which option."""
    with pytest.raises(SourceError, match=r"no Prometheus responds.*--prometheus"):
        read_signals("http://127.0.0.1:9", None, Window(1e9, 2e9), silent)
    with (
        pytest.raises(SourceError, match="404"),
        holding(tmp_path, [line("a", {}, 1, 1e9)]) as url,
    ):
        read_signals(f"{url}/nowhere", None, Window(1e9, 1e9 + 60), silent)
