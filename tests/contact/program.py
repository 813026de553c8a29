"""Run the cases of one subject, each in a process of its own, and print what each recorded.

`python -m tests.contact.program NAME ROOT`, in the environment of scripts/install_contact.py, with
the address of a server that responds as `tests.contact.test_contact` has it. What a subject needs
is imported once; each case is forked off from there, since patches are for good. A line of JSON a
case.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import llmtrace
from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.core.span import Span
from tests.contact import servers
from tests.contact.subjects import SUBJECTS, Subject, provided

ORDERS: Final = ("before", "after")
_CASE_S: Final = 120  # an instrumentation may import half of itself with its first request


class File:
    """A sink that appends rows and gateways' spans to a file, whatever process it is in."""

    every_row = True
    every_span = True
    spans = False

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, row: Row | Span) -> None:
        """Append a row, or the span of a gateway or tool."""
        if isinstance(row, Row):
            self.add("row", {**row.as_dict(), "adds_up": row.stages.total == row.e2e_ns})
        else:
            of_span = {"name": row.name, "kind": row.kind, "attributes": {**row.attributes}}
            self.add("span", of_span)

    def add(self, kind: str, value: object) -> None:
        """Append one line, whole or not at all."""
        line = json.dumps([kind, value], default=str) + "\n"
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, line.encode())
        os.close(handle)


def run(subject: Subject, root: str, order: str, stream: bool, file: File) -> None:
    """Run one case, and keep all that came of it."""
    signal.alarm(_CASE_S)
    try:
        state = subject.prepare(root) if order == "before" else None
        llmtrace.init("contact", exporters=[file])
        if order == "after":
            state = subject.prepare(root)
        file.add("text", subject.act(state, stream))
        llmtrace.flush()
        for span in provided:
            kind = span.kind.name.lower()
            file.add("span", {"name": span.name, "kind": kind, "attributes": {**span.attributes}})
    except BaseException:
        file.add("raised", traceback.format_exc())
    file.add("internal", {**internal_errors()})


def cases(subject: Subject, root: str) -> Iterator[dict[str, Any]]:
    """Yield what each case came to."""
    with tempfile.TemporaryDirectory() as folder:
        for order in ORDERS:
            for stream in subject.streams:
                path = Path(folder) / f"{order}-{stream}"
                child = os.fork()
                if child == 0:
                    run(subject, root, order, stream, File(path))
                    os._exit(0)
                _, status = os.waitpid(child, 0)
                kept = path.read_text().splitlines() if path.exists() else []
                yield {
                    "order": order, "stream": stream, "status": status,
                    "kept": [json.loads(line) for line in kept],
                }  # fmt: skip


def main() -> None:
    """Run the subject that the arguments name."""
    name, root = sys.argv[1:]
    subject = {**SUBJECTS, **servers.SUBJECTS}[name]
    for module in subject.imports:
        importlib.import_module(module)
    for case in cases(subject, root):
        print(json.dumps(case), flush=True)


if __name__ == "__main__":
    main()
