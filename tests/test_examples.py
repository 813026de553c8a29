"""Does every example run as it is?"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# One is a module of the others; one needs a browser (tests/real/test_browser.py).
ELSEWHERE = ("engine.py", "browser_chat.py")
PROGRAMS = sorted(p for p in EXAMPLES.glob("*.py") if p.name not in ELSEWHERE)
_NOT_OURS = ("OTEL_", "OPENAI_", "LANGFUSE_")
# Something each prints only if it did its job.
SAYS = {
    "agent_tools.py": "search, weather, news could have run together",
    "async_chat.py": "timeout",
    "first_trace.py": "greeting",
    "gateway.py": "gw",
    "grpc_stream.py": "gave up: DEADLINE_EXCEEDED",
    "in_a_test.py": "passed",
    "langfuse_export.py": "generation",
    "own_provider.py": "under",
    "prometheus_metrics.py": 'le="0.075"',
    "raw_aiohttp.py": "connect",
    "raw_sse.py": "no route, over httpx: 10 tokens",
    "slow_consumer.py": "render",
    "websocket_chat.py": "success",
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(program: Path) -> None:
    """It ends well and prints what it is about, without a server, key or warning."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}
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
