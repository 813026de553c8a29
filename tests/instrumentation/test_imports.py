"""An SDK that is imported only after `init` is instrumented."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import llmtrace
llmtrace.init("late", exporters=[])
waiting = len(sys.meta_path)
import {name}
import {name}._base_client as base
def instrumented():
    kinds = base.SyncAPIClient, base.AsyncAPIClient
    return [hasattr(kind, "_llmtrace_patch") for kind in kinds]
assert instrumented() == [True, True]
assert llmtrace.internal_errors() == {{}}
llmtrace.shutdown()
assert instrumented() == [False, False]
assert len(sys.meta_path) == waiting - 1, "the finder is gone"
"""

BROKEN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
Path(sys.argv[1], "openai.py").write_text("raise ImportError('half an installation')")
import llmtrace
llmtrace.init("late", exporters=[])
try:
    import openai
except ImportError as error:
    assert str(error) == "half an installation"
else:
    raise AssertionError("the error was swallowed")
assert "openai" not in sys.modules
"""


def run(program: str, *arguments: str) -> None:
    """Run a program in an interpreter of its own."""
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_an_sdk_imported_after_init_is_instrumented(name: str) -> None:
    """No decorated call is needed, and nothing of the waiting is left afterwards."""
    run(PROGRAM.format(name=name))


def test_an_import_that_fails_fails_as_it_would(tmp_path: object) -> None:
    """The error is the module's own, and the import can be retried."""
    run(BROKEN, str(tmp_path))
