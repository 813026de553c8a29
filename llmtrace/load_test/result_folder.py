"""Write what a load test measured as a folder: a case, which `llmtrace compare` reads."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from llmtrace import __version__
from llmtrace.dataset.jsonl import write_rows
from llmtrace.errors import SourceError, explain_error
from llmtrace.load_test.measure import Measured, Plan
from llmtrace.load_test.requests import hash_of
from llmtrace.run_comparison.read_run import ABOUT, ANSWERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What is known of what served the requests.

    Attributes:
        gpus: that served them, as the user says; `None` = not known.
        facts: of each engine by its instance, as in `facts.json`.
        signals: samples of the engines and GPUs meanwhile, as in `signals.jsonl`.
    """

    gpus: int | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    signals: Iterable[Mapping[str, Any]] = ()


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
        "signals.jsonl": server.signals,
    }
    objects: dict[str, Mapping[str, Any]] = {
        ABOUT: _about(plan, measured, server),
        "case.json": {"note": "simulated"} if simulated else {},
        "facts.json": server.facts,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            write_rows(file, measured.rows)
        for name, values in lines.items():
            with (folder / name).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(value) + "\n" for value in values)
        for name, value in objects.items():
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{folder}: cannot be written: {explain_error(error)}") from error


def _about(plan: Plan, measured: Measured, server: Server) -> dict[str, Any]:
    sending = plan.sending
    return {
        "workload": hash_of(plan.requests, api=sending.api, stream=sending.stream,
                            ignore_eos=sending.ignore_eos, temperature=sending.temperature,
                            concurrency=plan.concurrency),
        "settings": plan.settings,
        "loop": "open" if plan.concurrency is None else "closed",
        "api": sending.api,
        "model": sending.target.model,
        "endpoint": sending.target.url,
        "simulated": sending.target.simulated,
        "gpus": server.gpus,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "active_s": measured.active_s,
        "interrupted": measured.interrupted,
        "client": {
            "llmtrace": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "cpus": os.cpu_count(),
            "processes": plan.processes,
            "cpu": [round(share, 3) for share in measured.cpu],
        },
    }  # fmt: skip
