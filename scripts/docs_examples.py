"""Do the examples in a page run, and print what the page says they print?

A block fenced as `python run` is run; a block fenced as `text output` right after it holds what it
prints. The blocks of a page run one after the other, as a reader would paste them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

_EXAMPLE: Final = re.compile(
    r"^```python run\n(?P<code>.*?)^```\n(?:\n```text output\n(?P<output>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)
_MAX_S: Final = 120
# An example must give the same in every environment.
_SETTINGS: Final = ("LLMTRACE_", "OTEL_", "OPENAI_", "ANTHROPIC_")
_RUNNER: Final = """
import contextlib, io, json, sys

page, blocks = json.load(sys.stdin)
names = {"__name__": "__main__"}
outputs = []
for line, code in blocks:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile("\\n" * line + code, page, "exec"), names)
    outputs.append(printed.getvalue())
json.dump(outputs, open("outputs", "w", encoding="utf-8"))
"""


class ExampleError(Exception):
    """A page that cannot be made: an example fails, or asks for what there is not."""


def with_outputs(page: str, text: str) -> str:
    """Run the examples of a page, and return it with what they print.

    Raises:
        ExampleError: one failed; the message ends with its traceback, by lines of the page.
    """
    found = list(_EXAMPLE.finditer(text))
    if not found:
        return text
    outputs = _run(page, [(text.count("\n", 0, one.start()) + 1, one["code"]) for one in found])
    for one, output in zip(reversed(found), reversed(outputs), strict=True):
        if one["output"] is not None:
            start, end = one.span("output")
            text = text[:start] + _ended(output) + text[end:]
    return text


def _ended(output: str) -> str:
    lines = [line.rstrip() for line in output.strip("\n").split("\n")]
    return "\n".join(lines) + "\n"


def _run(page: str, blocks: list[tuple[int, str]]) -> list[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_SETTINGS)}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", _RUNNER],
            input=json.dumps([page, blocks]),
            cwd=folder,
            env=kept | {"PYTHONIOENCODING": "utf-8", "COLUMNS": "80"},
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_MAX_S,
            check=False,
        )
        if done.returncode:
            raise ExampleError(f"{page}: an example failed\n{done.stderr.strip()}")
        outputs: list[str] = json.loads((Path(folder) / "outputs").read_text(encoding="utf-8"))
    return outputs
