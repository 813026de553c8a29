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

from llmtrace import Row
from llmtrace.cli import make_parser
from llmtrace.core.stages import Timeline
from llmtrace.testing import make_row

EXAMPLES = Path(__file__).parents[1] / "examples"
# One is a module of the others; one needs a browser (tests/real/test_browser.py), and one a
# collector (tests/real/test_slow_request.py).
ELSEWHERE = ("engine.py", "browser_chat.py", "slow_request.py")
PROGRAMS = sorted(p for p in EXAMPLES.glob("*.py") if p.name not in ELSEWHERE)
# Two are modules of the others, one is a program for vLLM's interpreter, and two need a real vLLM.
NOT_SIMULATED = ("recipe.py", "servers.py", "quantise_model.py", "quantised_weights.py",
                 "speculative_decoding.py")  # fmt: skip
RECIPES = sorted(p for p in (EXAMPLES / "recipes").glob("*.py") if p.name not in NOT_SIMULATED)
_HANG_S = 300  # it takes some 2 s, and a machine that is busy with other things many times that
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
        timeout=_HANG_S,
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
    """In direction: the stage that must move does, the other does not.

    Eight requests are few on a busy machine: then it is as many as users ask for.
    """
    monkeypatch.syspath_prepend(recipe.parent)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    main = run_path(str(recipe))["main"]

    shows = any(main(count) for count in (8, 24, 24))

    printed = capsys.readouterr().out
    assert shows, printed
    assert re.search(
        r"\[(SIMULATED engine|scripted tools and model), \d+ and \d+ requests\]", printed
    )
    assert "quoted" in printed


PAGE_OF_VLLM = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="tiny"} 100.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="1"} 60.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="tiny",position="2"} 40.0
"""


def row_of(tpot_s: float, tokens: int) -> Row:
    """Make the row of a request with this many seconds a token."""
    last = 100_000_000 + round(tpot_s * 1e9) * (tokens - 1)
    return make_row(
        output_tokens=tokens, last_content_ns=last, timeline=Timeline(e2e=last, ttft=100_000_000)
    )


def test_where_drafts_pay_is_worked_out_from_the_run(monkeypatch: pytest.MonkeyPatch):
    """A draft whose step takes 1.9 plain ones: half as fast a token, and 30 % break even."""
    monkeypatch.syspath_prepend(EXAMPLES / "recipes")
    recipe = run_path(str(EXAMPLES / "recipes" / "speculative_decoding.py"))
    drafts = recipe["read_drafts"](PAGE_OF_VLLM)
    # 281 tokens after the first: 180 accepted, and a step each for 101, of which 100 drafted.
    step_s = 0.010 * (1 + 0.9 * 100 / 101)
    work = recipe["Work"]([row_of(0.010, 282)], [row_of(step_s * 101 / 281, 282)], drafts)

    assert drafts == recipe["Drafts"](100, (80, 60, 40))
    assert drafts.share == pytest.approx(0.6)
    assert drafts.since(recipe["Drafts"](40, (30, 20, 10))) == recipe["Drafts"](60, (50, 40, 30))
    assert work.steps == 101
    assert work.draft_cost == pytest.approx(0.9, rel=1e-3)
    assert work.break_even == pytest.approx(0.3, rel=1e-3)


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
