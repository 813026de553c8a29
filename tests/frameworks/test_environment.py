"""Do the tests of this folder pass where the frameworks are installed?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.real.conftest import do_without
from tests.real.proxies import litellm_program

ROOT = Path(__file__).parents[2]
TESTS = ("test_langchain.py", "test_litellm.py")


def test_in_their_environment() -> None:
    """The tests of all frameworks pass with the real packages, and none is left out."""
    program = litellm_program()
    if program is None or not (program.parents[1] / "frameworks-1").exists():
        do_without("no LiteLLM and LangChain: run `python scripts/install_litellm.py`")
    # What the frameworks and their SDKs warn of is not what is tested here.
    settings = ["-o", "filterwarnings=default", "-o", "addopts=", "-q", "--tb=short"]
    files = [f"tests/frameworks/{name}" for name in TESTS]
    given = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [program.with_name("python"), "-m", "pytest", "-p", "no:cacheprovider", *settings, *files],
        cwd=ROOT,
        env=given,  # compiled once, and not in each run: LiteLLM is large
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = done.stdout.strip().rpartition("\n")[2]
    assert " passed" in summary
    assert "skipped" not in summary
