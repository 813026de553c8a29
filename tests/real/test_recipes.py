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
    """In direction, and it says where it was measured; with more requests on a busy machine."""
    monkeypatch.syspath_prepend(RECIPES)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{vllm.url}/v1")
    monkeypatch.setenv("MODEL", vllm.model)

    main = run_path(str(RECIPES / f"{name}.py"))["main"]

    shows = any(main(count) for count in (8, 24, 24))

    printed = capsys.readouterr().out
    assert shows, printed
    assert "the endpoint of OPENAI_BASE_URL" in printed
