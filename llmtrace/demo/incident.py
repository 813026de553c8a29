"""Run the demo's incident, from a quiet phase to its triage.

The whole chain on one machine: users and the OpenAI SDK, llmtrace, OTLP, a collector that also
reads the engine's metrics page, and the triage of what it has stored.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import ConfigError, needs_extra
from llmtrace.demo.embedded_collector import EmbeddedCollector, running_collector
from llmtrace.demo.injected_faults import Fault
from llmtrace.demo.options import Phase
from llmtrace.demo.simulated_users import Job
from llmtrace.demo.target import Target
from llmtrace.display.summary_tables import READABLE, readable_width
from llmtrace.engines.local_vllm.install import cache_folder
from llmtrace.simulator.engine.incidents import healthy

with needs_extra("the demo's triage", "demo"):
    from llmtrace.dataset.case import Facts, Window, write_case
    from llmtrace.exporters.row_files.forms import silent
    from llmtrace.triage.pipeline import Settings, triage
    from llmtrace.triage.report.html import write_page
    from llmtrace.triage.report.terminal import screen
    from llmtrace.triage.result import NAMED, Result
    from llmtrace.triage.sources import from_collector, with_replicas

if TYPE_CHECKING:
    from rich.console import Console

    from llmtrace.exporters.sink import Sink
    from llmtrace.simulator.server import SimulatedServer

_MARGIN_S: Final = 5.0
_NOTE: Final = "simulated engine: its times are made up; requests and clocks are real"


class DemoIncident:
    """An incident as it happens: a fault of the simulated engine, and what the collector has."""

    def __init__(
        self, fault: Fault, engine: SimulatedServer, collector: EmbeddedCollector
    ) -> None:
        self._fault = fault
        self._engine = engine
        self._collector = collector
        self._began = time.time()
        self._broke: float | None = None
        self._case = _folder() / "case"

    def sinks(self) -> list[Sink]:
        """Return what sends rows to the collector."""
        from llmtrace.exporters.otlp.sink import otlp_sink

        return [otlp_sink(endpoint=self._collector.otlp, protocol="http/protobuf")]

    def started(self, phase: Phase) -> None:
        """Run without a fault in the first phase, and inject it in the second."""
        if phase.name == self._fault.cause:
            self._broke = time.time()
            self._engine.change(self._fault.change(self._engine.config))
        else:
            self._engine.change(healthy(self._engine.config))

    def jobs_in(self, phase: Phase, jobs: Iterator[Job]) -> Iterator[Job]:
        """Return the jobs of users in a phase."""
        return self._fault.jobs(jobs) if phase.name == self._fault.cause else jobs

    def triage(self, rows: int, page: Path, out: Console, err: Console) -> Result:
        """Wait for so many rows, triage them, print what was found, and write the page.

        Raises:
            SourceError: the collector does not answer.
        """
        err.print("waiting for the collector to store the rows")
        since = self._began - _MARGIN_S
        found = self._collector.wait_for(rows, since)
        if found < rows:
            err.print(f"the collector has {found} of {rows} rows; going on with those")
        err.print("triaging")
        window = Window(since, time.time() + _MARGIN_S)
        stored = from_collector(Collector(self._collector.url), window, silent)
        facts = self._known(stored.facts)
        case = replace(with_replicas(stored), note=_NOTE, facts=facts)
        result = triage(case, Settings())
        out.print(f"\n{'─' * min(out.width, READABLE)}\n")
        out.print("llmtrace triage, from what the collector has stored:\n")
        out.print(screen(result), width=readable_width(out))
        write_page(page, result, case)
        write_case(self._case, case)
        out.print(f"\nAs a page, with pictures: {page}", soft_wrap=True)
        out.print(f"To look closer: llmtrace triage --case {self._case} --explain", soft_wrap=True)
        return result

    @property
    def live(self) -> str:
        """The address of the collector's live page."""
        return self._collector.url

    def resolve(self, result: Result, out: Console) -> None:
        """Print the injected fault, and whether triage found it."""
        cause = self._fault.cause
        named = [one.id for one in result.causes if one.status in NAMED]
        when = (
            ""
            if self._broke is None
            else time.strftime(" at %H:%M:%S", time.localtime(self._broke))
        )
        words = [f"\nWhat was done{when}: {cause}. {self._fault.about}"]
        if named[:1] == [cause]:
            words.append("Triage, which did not know, names it first.")
        elif cause in named:
            words.append(f"Triage, which did not know, names it, after {named[0]}.")
        else:
            words.append(f"The evidence on it: llmtrace triage --case {self._case} --explain")
        for text in words:
            out.print(text, soft_wrap=True)

    def _known(self, facts: Facts) -> Facts:
        """Add what the demo knows of its engine, as of the end of the incident."""
        config = self._engine.config.engine
        known = {
            "max_num_seqs": config.max_num_seqs,
            "max_num_batched_tokens": config.max_num_batched_tokens,
            "max_model_len": config.max_model_len,
            "kv_cache_tokens": config.kv_capacity_tokens,
            "chunked_prefill": True,
            "prefix_caching": True,
            "spec_decode": False,
        }
        name = urlsplit(self._engine.root).netloc
        mine = {**known, **facts.instances.get(name, {})}
        return replace(facts, instances={**facts.instances, name: mine})


@contextmanager
def demo_incident(
    fault: Fault, target: Target, say: Callable[[str], None], progress: Callable[[str], None]
) -> Iterator[DemoIncident]:
    """Run the collector of a demo with a fault.

    Raises:
        SourceError: the collector did not start.
    """
    if target.engine is None:
        raise ConfigError("only the simulated engine can have a fault")
    progress("starting a collector")
    root = target.engine.root
    with running_collector([f"{root}/metrics", f"{root}/gpu/metrics"]) as collector:
        say(f"Collector: {collector.url} (its live page, while this runs)")
        say("Halfway through, a fault is injected; triage does not know which.")
        yield DemoIncident(fault, target.engine, collector)


def linger(url: str, out: Console) -> None:
    """Keep the collector's live page up until Enter, on a terminal where it can be pressed."""
    if sys.stdin is None or not sys.stdin.isatty() or not out.is_terminal:
        return
    out.print(f"\nThe live page stays up: {url}", soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt, EOFError):
        input("Press Enter to end. ")


def room_for_page(html: Path | None) -> Path:
    """Return the file of the triage's page, once it is certain that it can be written.

    `None` is one in llmtrace's own folder, which keeps the case in any event.

    Raises:
        ConfigError: one of them cannot be written.
    """
    path = html or _folder() / "triage.html"
    try:
        for folder in (_folder(), path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        was_there = path.exists()
        path.open("a").close()
        if not was_there:
            path.unlink()
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: the triage cannot be written there: {error.strerror}; --html "
            "names the file of its page, XDG_CACHE_HOME the folder of the rest"
        ) from error
    return path


def _folder() -> Path:
    return cache_folder() / "demo"
