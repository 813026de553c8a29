"""Read a run: a case folder as `llmtrace bench` writes it, or any file of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from llmtrace.core.sanitize import printable
from llmtrace.dataset.case import Case, no_signals, read_case
from llmtrace.dataset.files import blocks, objects, read_columns
from llmtrace.dataset.json_object import read_object
from llmtrace.errors import SourceError
from llmtrace.run_comparison.runs import Run

ABOUT: Final = "bench.json"
ANSWERS: Final = "answers.jsonl"
_MAX_NAME: Final = 60
_MAX_S: Final = 1e9
_MAX_ANSWERS: Final = 10_000_000


def read_run(path: Path) -> Run:
    """Read a run.

    Args:
        path: a case folder, or a file of rows.

    Raises:
        SourceError: it cannot be read.
        DataError: it holds no rows, or its `bench.json` is not what `llmtrace bench` writes.
    """
    where = path.resolve()
    parts = (where.name,) if path.is_dir() else (where.parent.name, where.name)
    name = printable("/".join(parts))[:_MAX_NAME]
    if not path.is_dir():
        if not path.exists():
            raise SourceError(f"{path}: no such file or folder")
        return Run(name=name, case=Case(rows=read_columns(path), signals=no_signals()))
    about = read_object(path / ABOUT) if (path / ABOUT).is_file() else {}
    workload, gpus, active_s = (about.get(name) for name in ("workload", "gpus", "active_s"))
    return Run(
        name=name,
        case=read_case(path),
        workload=workload if isinstance(workload, str) else None,
        answers=_answers(path / ANSWERS),
        gpus=gpus if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus > 0 else None,
        active_s=active_s if isinstance(active_s, float) and 0 < active_s < _MAX_S else None,
    )


def _answers(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    answers: dict[int, str] = {}
    for block in blocks(path):
        for line in objects(block):
            if line is None or len(answers) >= _MAX_ANSWERS:
                continue
            number, text = line.get("request"), line.get("sha256")
            if isinstance(number, int) and isinstance(text, str):
                answers[number] = text
    return answers
