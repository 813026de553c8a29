"""Write what a load test measured as a folder: a case, which `llmtrace compare` reads."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from llmtrace import __version__
from llmtrace.core.errors import writes
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.load_test.other_tools import summary
from llmtrace.load_test.requests import hash_of
from llmtrace.load_test.send_plan import Measured, Plan
from llmtrace.run_comparison.read_run import ABOUT, ANSWERS

_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is known of what served the requests.

    Attributes:
        gpus: that served them, as the user says; `None` = not known.
        facts: of each engine by its instance, as in `facts.json`.
        signals: samples of the engines and GPUs meanwhile, as in `signals.jsonl`.
        reports: of each target, as `llmtrace doctor --json` prints them.
        gpu_names: of the GPUs of this machine, where a target is on it.
    """

    gpus: int | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signals: Sequence[Mapping[str, Any]] = ()
    reports: Sequence[Mapping[str, Any]] = ()
    gpu_names: Sequence[str] = ()


def write_folder(
    folder: Path, plan: Plan, measured: Measured, server: Server | None = None
) -> None:
    """Write what was measured, as `llmtrace compare` and `llmtrace triage --case` read it.

    Raises:
        SourceError: it cannot be written.
    """
    server = server or Server()
    simulated = plan.sending.target.simulated
    lines = {
        ANSWERS: (
            {"request": one.number, "late_s": one.late_s, "sha256": one.sha256}
            for one in measured.answered
        ),
        "signals.jsonl": _during(server.signals, measured),
    }
    objects: dict[str, Any] = {
        ABOUT: _about(plan, measured, server),
        "summary.json": summary(measured.rows),
        "case.json": {"note": "simulated"} if simulated else {},
        "facts.json": server.facts,
    }
    with writes(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            write_rows(file, measured.rows)
        for name, values in lines.items():
            with (folder / name).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(value) + "\n" for value in values)
        for name, value in objects.items():
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _during(
    signals: Sequence[Mapping[str, Any]], measured: Measured
) -> Iterable[Mapping[str, Any]]:
    """Return the samples from the first request's start to the last one's end."""
    starts = [row.start / _NS for row in measured.rows]
    if not starts:
        return []
    ends = [row.start / _NS + row.e2e_s for row in measured.rows]
    return [one for one in signals if min(starts) <= one["t"] <= max(ends)]


def plan_hash(plan: Plan) -> str:
    """Return the hash of what a plan sends, and how."""
    sending = plan.sending
    return hash_of(
        plan.requests, api=sending.api, stream=sending.stream, ignore_eos=sending.ignore_eos,
        temperature=sending.temperature, concurrency=plan.concurrency,
    )  # fmt: skip


def _about(plan: Plan, measured: Measured, server: Server) -> dict[str, Any]:
    target = plan.sending.target
    return {
        "workload": plan_hash(plan),
        "settings": plan.settings,
        "loop": "open" if plan.concurrency is None else "closed",
        "api": plan.sending.api,
        "stream": plan.sending.stream,
        "ignore_eos": plan.sending.ignore_eos,
        "temperature": plan.sending.temperature,
        "model": target.model,
        "endpoint": None if target.simulated else target.url,
        "simulated": target.simulated,
        "gpus": server.gpus,
        "gpu_names": list(server.gpu_names),
        "targets": list(server.reports),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "active_s": measured.active_s,
        "interrupted": measured.interrupted,
        "client": {
            "llmtrace": __version__, "python": platform.python_version(),
            "system": platform.platform(), "host": platform.node(), "cpus": os.cpu_count(),
            "processes": plan.processes, "cpu": [round(share, 3) for share in measured.cpu],
            "behind_s": measured.often_behind_s,
        },
    }  # fmt: skip
