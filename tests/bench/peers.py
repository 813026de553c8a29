"""What do llmtrace and its peers add to the OpenAI client, and how right are their figures?

Each in a virtual environment of its own, with the same OpenAI SDK, in one run, taking turns: CPU a
chunk and a request, hot and cold (all threads, exporters on), growth of an open stream, and what
each reports of a reader that comes late or reads slowly.

    python -m tests.bench.peers
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import platform
import random
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from llmtrace.engines.local_vllm.install import cache_folder
from tests.bench.peers_server import FIRST_S, serve

ROOT: Final = Path(__file__).parents[2]
OPENAI: Final = f"openai=={version('openai')}"
EXPORTER: Final = "opentelemetry-exporter-otlp-proto-http"
HOWS: Final = ("sync", "async")
LONG: Final = 2_000
LATE_S: Final = 0.5
SLOW_S: Final = 0.03


# --- what each reports of one stream -------------------------------------------------------------

Received = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """What an SDK says of one stream, in seconds; `None` = it does not say.

    Attributes:
        ttft: to the first content, or chunk, had the reader been there.
        model: what it charges to the model: the duration, less the reader's own time if it
            tells that apart.
    """

    ttft: float | None
    model: float | None


def _llmtrace(got: Received) -> Report:
    row = _last(got, lambda span: "llmtrace.e2e" in span["attributes"])["attributes"]
    return Report(
        row.get("llmtrace.ttft_arrival"),
        row["llmtrace.e2e"] - row.get("llmtrace.stage.render", 0.0),
    )


def _opentelemetry(got: Received) -> Report:
    span = _last(got)
    return Report(span["attributes"].get("gen_ai.response.time_to_first_chunk"), _duration(span))


def _openllmetry(got: Received) -> Report:
    ttft = got["metrics"].get("gen_ai.server.time_to_first_token")
    return Report(None if ttft is None else ttft["sum"], _duration(_last(got)))


def _openinference(got: Received) -> Report:
    span = _last(got)
    first = [at for name, at in span["events"] if name == "First Token Stream Event"]
    return Report((first[0] - span["start"]) / 1e9 if first else None, _duration(span))


def _langfuse(got: Received) -> Report:
    from datetime import datetime

    span = _last(got)
    claimed = span["attributes"].get("langfuse.observation.completion_start_time")
    ttft = None
    if claimed is not None:
        ttft = datetime.fromisoformat(json.loads(claimed)).timestamp() - span["start"] / 1e9
    return Report(ttft, _duration(span))


def _logfire(got: Received) -> Report:
    log = _last(got, lambda span: "duration" in span["attributes"])
    return Report(None, float(log["attributes"]["duration"]))


def _last(got: Received, fits: Callable[[Any], bool] = lambda _span: True) -> Any:
    return [span for span in got["spans"] if fits(span)][-1]


def _duration(span: Any) -> float:
    return (span["end"] - span["start"]) / 1e9


@dataclass(frozen=True)
class Sdk:
    """One of those compared.

    Attributes:
        name: as in peers_probe.SDKS.
        shown: as people know it.
        package: whose version is shown.
        needs: what its environment has beside the OpenAI SDK.
        report: reads what it sent.
    """

    name: str
    shown: str
    package: str
    needs: tuple[str, ...]
    report: Callable[[Received], Report]


SDKS: Final = (
    Sdk("llmtrace", "llmtrace", "llmtrace-stages", ("-e", str(ROOT)), _llmtrace),
    Sdk(
        "opentelemetry",
        "OpenTelemetry GenAI",
        "opentelemetry-instrumentation-genai-openai",
        ("opentelemetry-instrumentation-genai-openai>=1.3b0,<2", EXPORTER),
        _opentelemetry,
    ),
    Sdk(
        "openllmetry",
        "OpenLLMetry",
        "opentelemetry-instrumentation-openai",
        ("opentelemetry-instrumentation-openai>=0.62,<1", EXPORTER),
        _openllmetry,
    ),
    Sdk(
        "openinference",
        "OpenInference",
        "openinference-instrumentation-openai",
        ("openinference-instrumentation-openai>=0.1.66,<1", EXPORTER),
        _openinference,
    ),
    Sdk("langfuse", "Langfuse", "langfuse", ("langfuse>=5.0.4,<6",), _langfuse),
    Sdk("logfire", "Logfire", "logfire", ("logfire>=5.2,<6", EXPORTER), _logfire),
)


# --- their environments and processes ------------------------------------------------------------


def environment(sdk: Sdk) -> Path:
    """Return the interpreter of an SDK's own environment, made the first time it is asked for."""
    wanted = "\n".join((sys.version, OPENAI, *sdk.needs))
    folder = (
        cache_folder() / "peers" / f"{sdk.name}-{hashlib.sha256(wanted.encode()).hexdigest()[:10]}"
    )
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if not ready.exists():
        print(f"{sdk.shown}: making its environment", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, OPENAI, *sdk.needs], check=True)
        ready.touch()
    return python


@dataclass
class Probe:
    """A process with the client, bare or with an SDK; it does one thing on command."""

    process: subprocess.Popen[str]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Have it do something, and return what came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.process.args}: ended, with {self.process.wait()}")
        return json.loads(line)


@contextmanager
def probe(python: Path, *, name: str, endpoint: str) -> Iterator[Probe]:
    """Start a process of an environment."""
    theirs = ("OTEL_", "LANGFUSE_", "LOGFIRE_", "LLMTRACE_", "TRACELOOP_", "OPENAI_")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
    process = subprocess.Popen(
        [python, "-m", "tests.bench.peers_probe", name, endpoint],
        cwd=ROOT,
        env={**environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield Probe(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(10)
        finally:
            process.kill()


# --- the run -------------------------------------------------------------------------------------


@dataclass
class Results:
    """What was measured of one SDK, sync and async: added CPU, growth in bytes, errors."""

    version: str
    chunk_us: dict[str, float] = field(default_factory=dict)
    request_us: dict[str, float] = field(default_factory=dict)
    cold_us: dict[str, float] = field(default_factory=dict)
    growth_bytes: dict[str, int] = field(default_factory=dict)
    late_ttft_error_s: dict[str, float | None] = field(default_factory=dict)
    slow_ttft_error_s: dict[str, float | None] = field(default_factory=dict)
    slow_charged_error_s: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    requests: int
    cold_requests: int
    growth_chunks: int


@dataclass(frozen=True)
class Pair:
    """The two processes of an SDK's environment."""

    bare: Probe
    with_it: Probe


def measure(sdks: tuple[Sdk, ...], size: Size) -> dict[str, Results]:
    """Run everything; return the results by SDK, and the bare client's own CPU under `bare`."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(_served())
        results, pairs = {"bare": Results("")}, {}
        for sdk in sdks:
            start = partial(probe, environment(sdk), endpoint=endpoint)
            pairs[sdk.name] = pair = Pair(
                stack.enter_context(start(name="bare")),
                stack.enter_context(start(name=sdk.name)),
            )
            claimed = pair.with_it.ask("versions", packages=[sdk.package])
            results[sdk.name] = Results(claimed[sdk.package])
        for how in HOWS:
            print(f"{how}: CPU", file=sys.stderr)
            for what, name, us in _cpu(how, pairs, size):
                getattr(results[name], f"{what}_us")[how] = us
            print(f"{how}: memory, and readers that are late or slow", file=sys.stderr)
            for sdk in sdks:
                _memory(how, pairs[sdk.name], results[sdk.name], size)
                _truth(how, sdk, pairs[sdk.name].with_it, endpoint, results[sdk.name])
    return results


def _memory(how: str, pair: Pair, result: Results, size: Size) -> None:
    bare, with_it = (
        one.ask("growth", how=how, tokens=size.growth_chunks) for one in (pair.bare, pair.with_it)
    )
    result.growth_bytes[how] = with_it - bare


def _truth(how: str, sdk: Sdk, one: Probe, endpoint: str, result: Results) -> None:
    """Hold what an SDK says of a late reader's stream, and a slow one's, against what was so."""
    claimed, was = _claimed(sdk, one, endpoint, {"do": "late", "how": how, "seconds": LATE_S})
    result.late_ttft_error_s[how] = _error(claimed.ttft, was.ttft)
    claimed, was = _claimed(sdk, one, endpoint, {"do": "slow", "how": how, "seconds": SLOW_S})
    result.slow_ttft_error_s[how] = _error(claimed.ttft, was.ttft)
    result.slow_charged_error_s[how] = _error(claimed.model, was.model)


def _cpu(how: str, pairs: Mapping[str, Pair], size: Size) -> Iterator[tuple[str, str, float]]:
    """Measure the CPU of chunks and requests, each SDK and the bare client in turns.

    The least of many short turns counts: whatever else the machine does only ever adds.

    Yields:
        `chunk`, `request` or `cold` (a request), the SDK's name or `bare`, and microseconds: what
        it adds, or what the client alone takes.
    """
    turns: dict[tuple[str, str, str], list[float]] = {}
    for number in range(size.rounds + 1):
        for name, pair in random.sample([*pairs.items()], len(pairs)):
            both = [("bare", pair.bare), ("with", pair.with_it)]
            for which, one in random.sample(both, len(both)):
                short = one.ask("chunks", how=how, tokens=1, times=10)
                long = one.ask("chunks", how=how, tokens=LONG, times=1)
                request = one.ask("requests", how=how, times=size.requests)
                cold = one.ask("requests", how=how, times=size.cold_requests, cold=True)
                if number:  # the first warms everything up
                    took = {"short": short, "long": long, "request": request, "cold": cold}
                    for what, us in took.items():
                        turns.setdefault((name, which, what), []).append(us)
    least = {key: min(taken) for key, taken in turns.items()}

    def chunk(name: str, which: str) -> float:
        return (least[name, which, "long"] - least[name, which, "short"]) / (LONG - 1)

    yield "chunk", "bare", min(chunk(name, "bare") for name in pairs)
    for what in ("request", "cold"):
        yield what, "bare", min(least[name, "bare", what] for name in pairs)
    for name in pairs:  # each less the client of its own environment
        yield "chunk", name, chunk(name, "with") - chunk(name, "bare")
        for what in ("request", "cold"):
            yield what, name, least[name, "with", what] - least[name, "bare", what]


def _claimed(
    sdk: Sdk, one: Probe, endpoint: str, command: Mapping[str, Any]
) -> tuple[Report, Report]:
    """Read one stream, and return what the SDK says of it and what was so."""
    one.ask("flush")
    _taken(endpoint)
    was = one.ask(**command)
    got = _taken(endpoint)
    # Who comes late cannot know when the first content came; who was there does, by its own clock.
    came_s = (got["sent"] - was["began"]) / 1e9 if command["do"] == "late" else was["first_s"]
    return sdk.report(got), Report(came_s, was["wall_s"] - was["held_s"])


def _taken(endpoint: str) -> Received:
    """Fetch, and have forgotten, what the receiver has got."""
    with urlopen(f"{endpoint}/taken", timeout=30) as answer:
        taken: Received = json.load(answer)
    return taken


def _error(claimed: float | None, truth: float | None) -> float | None:
    return None if claimed is None or truth is None else claimed - truth


@contextmanager
def _served() -> Iterator[str]:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(theirs,), daemon=True
    )
    server.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        server.terminate()
        server.join()
        for end in (ours, theirs):
            end.close()


# --- what is shown -------------------------------------------------------------------------------


COLUMNS: Final[Mapping[str, Callable[[Results, str], str]]] = {
    "added a chunk": lambda one, how: f"{one.chunk_us[how]:+.2f} µs",
    "added a request": lambda one, how: f"{one.request_us[how]:+.0f} µs",
    "cold": lambda one, how: f"{one.cold_us[how]:+.0f} µs",
    "growth": lambda one, how: f"{one.growth_bytes[how] / 1024:+,.1f} KiB",
    "late: TTFT": lambda one, how: _ms(one.late_ttft_error_s[how]),
    "slow: TTFT": lambda one, how: _ms(one.slow_ttft_error_s[how]),
    "slow: charged": lambda one, how: _ms(one.slow_charged_error_s[how]),
}


def table(results: Mapping[str, Results], how: str) -> str:
    """Return one table, sync or async: a line for each SDK."""
    alone = results["bare"]
    chunk, request, cold = alone.chunk_us[how], alone.request_us[how], alone.cold_us[how]
    requests = f"{request:.0f} µs a request hot, {cold:.0f} µs cold"
    lines = [
        f"{how}: the client alone takes {chunk:.1f} µs a chunk, {requests}",
        f"{'':30}" + "".join(f"{column:>17}" for column in COLUMNS),
    ]
    for sdk in SDKS:
        if (one := results.get(sdk.name)) is not None:
            cells = "".join(f"{show(one, how):>17}" for show in COLUMNS.values())
            lines.append(f"{f'{sdk.shown} {one.version}':30}{cells}")
    return "\n".join(lines)


def legend(size: Size) -> str:
    """Say what the columns are."""
    return f"""\
added    CPU over the bare client's, of all threads, exporters at work; the least of all turns
cold     the same of a request before which the CPU's caches were evicted
growth   of an open stream, its 100th to its {size.growth_chunks:,}th chunk, less the bare client's
late     a reader that comes {LATE_S:g} s after the stream opened; content came after {FIRST_S:g} s
slow     a reader that takes {SLOW_S * 1000:g} ms a chunk
TTFT     what is reported, less when the first content was sent (late), or came (slow)
charged  the time charged to the model, less how long the reader waited for it"""


def _ms(seconds: float | None) -> str:
    return "not reported" if seconds is None else f"{seconds * 1000:+.1f} ms"


def main() -> int:
    """Measure, and print two tables, or JSON."""
    names = ", ".join(sdk.name for sdk in SDKS)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="turns of each (default: 20)")
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    parser.add_argument("--only", nargs="+", metavar="SDK", help=f"of {names}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    sdks = tuple(sdk for sdk in SDKS if not options.only or sdk.name in options.only)
    size = Size(rounds=options.rounds, requests=100, cold_requests=20, growth_chunks=3_000)
    if options.quick:
        size = Size(rounds=2, requests=40, cold_requests=10, growth_chunks=600)
    began = time.monotonic()
    results = measure(sdks, size)
    if options.json:
        shown = {name: vars(one) for name, one in results.items()}
        print(json.dumps({"python": platform.python_version(), "openai": OPENAI, "sdks": shown}))
        return 0
    print(
        f"Python {platform.python_version()}, openai {version('openai')}; "
        f"{size.rounds} rounds in {time.monotonic() - began:.0f} s"
    )
    for how in HOWS:
        print(f"\n{table(results, how)}")
    print(f"\n{legend(size)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
