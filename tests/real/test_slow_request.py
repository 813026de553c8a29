"""Do the six commands of docs/start/slow-request.md lead to the page of a slow request?

As the page has them, but for the environment, which is this one, and the browser; on free ports.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.collector.collecting import process, wait_for

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "start" / "slow-request.md"


def commands() -> list[str]:
    """Return what a reader types."""
    [block] = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


def get(url: str) -> str:
    """Return a page."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def test_from_a_checkout_to_the_page_of_a_slow_request(tmp_path: Path) -> None:
    """The longest of the list is the one that the program names, and its page says why."""
    venv, install, collect, export, program, browse = commands()
    assert "-m venv .venv" in venv
    assert install == "python -m pip install '.[demo]'"
    assert collect == "llmtrace collect &"
    name, endpoint = export.removeprefix("export ").split("=")
    python, script = shlex.split(program)
    _, address = shlex.split(browse)
    with process(tmp_path) as (_, otlp, web):
        assert endpoint.startswith("http://127.0.0.1:")
        done = subprocess.run(
            [sys.executable if python == "python" else python, script],
            cwd=ROOT, env={**os.environ, name: otlp}, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        response_id = re.findall(r"the slow one is (\S+)", done.stdout)[0]
        listed = re.sub(r"^http://127\.0\.0\.1:4319", web, address)
        assert listed != address
        every = "25 requests"

        def first_line() -> str | None:
            page = get(listed)
            lines = re.findall(r'href="(requests/[0-9a-f]{32}\?span=[0-9a-f]{16})"', page)
            return lines[0] if every in page else None

        href = wait_for(first_line, every)
        shown = get(f"{web}/{href}")

    assert response_id in shown
    assert "Longest gap" in shown
    assert re.search(r"Unusual: (prefill|queue), [0-9.,]+ ms where", shown)
