"""Does every example run as it is?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = sorted(p for p in EXAMPLES.glob("*.py") if p.name != "engine.py")
# Something each prints only if it did its job.
SAYS = {
    "async_chat.py": "timeout",
    "first_trace.py": "greeting",
    "in_a_test.py": "passed",
    "own_provider.py": "under",
    "prometheus_metrics.py": 'le="0.075"',
    "raw_aiohttp.py": "connect",
    "slow_consumer.py": "render",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(program: Path) -> None:
    """It ends well and prints what it is about, without a server, key or warning."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "OPENAI_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert SAYS[program.name] in done.stdout + done.stderr
    assert "failed" not in done.stderr
