"""On a real vLLM that runs already: do the recipes that need no settings show what they quote?"""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

import pytest

from llmtrace.engines import local_vllm

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"


@pytest.mark.timing
@pytest.mark.parametrize("name", ["prefix_cache", "shorter_prompt", "cache_in_front"])
def test_a_recipe_shows_it_on_vllm(
    name: str,
    vllm: local_vllm.Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """In direction, and it says where it was measured."""
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{vllm.url}/v1")
    monkeypatch.setenv("MODEL", vllm.model)

    right = run_path(str(RECIPES / f"{name}.py"))["main"](8)

    printed = capsys.readouterr().out
    assert right, printed
    assert "the endpoint of OPENAI_BASE_URL" in printed
