"""Read a run: a case folder as `llmtrace bench` writes it, or any file of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import SourceError
from llmtrace.core.json_object import read_object
from llmtrace.core.sanitize import printable
from llmtrace.dataset.case import Case, no_signals, read_case
from llmtrace.dataset.files import objects, read_columns
from llmtrace.run_comparison.runs import Run

ABOUT: Final = "bench.json"
ANSWERS: Final = "answers.jsonl"
# What is of one run alone in `bench.json` and `facts.json`, and no setting of anything.
_OWN: Final = {
    "workload", "ended", "active_s", "interrupted", "targets", "cpu", "behind_s", "started",
}  # fmt: skip
_MAX_NAME: Final = 60
_MAX_S: Final = 1e9
_MAX_ANSWERS: Final = 10_000_000


def read_run(path: Path) -> Run:
    """Read a run: a case folder, or a file of rows.

    Raises:
        SourceError: it cannot be read.
        DataError: it holds no rows, or its `bench.json` is not what `llmtrace bench` writes.
    """
    name = printable(str(path))[-_MAX_NAME:]  # the end of a long path tells runs apart
    if not path.is_dir():
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        rows = read_columns(path)
        case = Case(rows=rows, signals=no_signals(), warnings=_named(rows.warnings, name))
        return Run(name=name, case=case)
    about = read_object(path / ABOUT) if (path / ABOUT).is_file() else {}
    workload, gpus, active_s, temperature = (
        about.get(name) for name in ("workload", "gpus", "active_s", "temperature")
    )
    case = read_case(path)
    warnings = _named(case.warnings, name)
    if about.get("interrupted"):
        warnings = (*warnings, f"{name} was interrupted")
    case = replace(case, warnings=warnings)
    return Run(
        name=name,
        case=case,
        workload=workload if isinstance(workload, str) else None,
        answers=_answers(path / ANSWERS),
        gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus > 0 else None,
        active_s=active_s if isinstance(active_s, float) and 0 < active_s < _MAX_S else None,
        temperature=temperature if isinstance(temperature, int | float) else None,
        about=_stated({**about, "engine": case.facts.instances}),
    )


def _named(warnings: Sequence[str], name: str) -> tuple[str, ...]:
    return tuple(type(warning)(f"{warning} (in {name})") for warning in warnings)


def _stated(values: Mapping[str, Any], part: str = "") -> dict[str, str]:
    """Return what is stated of how a run was measured, as texts, with the parts of parts."""
    stated: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            stated |= _stated(value, f"{part} {name}")
        elif value is not None and name not in _OWN:
            key = f"{part} {name}".strip().replace("_", " ")
            stated[printable(key)[:_MAX_NAME]] = printable(str(value))[:_MAX_NAME]
    return stated


def _answers(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    answers: dict[int, str] = {}
    for line in objects(path):
        if line is None or len(answers) >= _MAX_ANSWERS:
            continue
        number, text = line.get("request"), line.get("sha256")
        if isinstance(number, int) and isinstance(text, str):
            answers[number] = text
    return answers
