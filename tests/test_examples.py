"""Does every example run as it is?"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import pytest
import yaml

from llmtrace.cli import make_parser

EXAMPLES = Path(__file__).parents[1] / "examples"
# One is a module of the others; one needs a browser (tests/real/test_browser.py), and one a
# collector (tests/real/test_slow_request.py).
ELSEWHERE = ("engine.py", "browser_chat.py", "slow_request.py")
PROGRAMS = sorted(p for p in EXAMPLES.glob("*.py") if p.name not in ELSEWHERE)
RECIPES = sorted(p for p in (EXAMPLES / "recipes").glob("*.py") if p.name != "recipe.py")
_NOT_OURS = ("OTEL_", "OPENAI_", "LANGFUSE_")
# Something each prints only if it did its job.
SAYS = {
    "agent_tools.py": "search, weather, news could have run together",
    "anthropic_trace.py": "greeting",
    "async_chat.py": "timeout",
    "first_trace.py": "greeting",
    "gateway.py": "gw",
    "grpc_stream.py": "gave up: DEADLINE_EXCEEDED",
    "import_dashboards.py": "dashboards, such as",
    "in_a_test.py": "passed",
    "langfuse_export.py": "generation",
    "own_provider.py": "under",
    "prometheus_metrics.py": 'le="0.075"',
    "raw_aiohttp.py": "connect",
    "raw_sse.py": "no route, over httpx: 10 tokens",
    "slow_consumer.py": "render",
    "triage_incident.py": "queue",
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


@pytest.mark.timing
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_shows_what_it_quotes(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In direction, on the simulated engine: the stage that must move does, the other does not."""
    monkeypatch.syspath_prepend(recipe.parent)

    assert run_path(str(recipe))["main"](8), capsys.readouterr().out

    printed = capsys.readouterr().out
    assert "SIMULATED" in printed
    assert "quoted" in printed


def test_the_workflow_of_the_latency_guard_is_one():
    """GitHub's published schema takes it, and its commands are parsed."""
    path = EXAMPLES / "ci" / "latency-guard.yml"
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema",
         "vendor.github-workflows", path],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    [job] = workflow["jobs"].values()
    runs = "\n".join(step.get("run", "") for step in job["steps"])
    lines = [job["env"]["BENCH"], *re.findall(r"(?m)^ *(llmtrace .*)$", runs)]
    assert len(lines) == 3
    for line in lines:
        assert make_parser().parse_args(shlex.split(line)[1:]).command in {"bench", "compare"}
