"""Install the load generators that `llmtrace bench` is measured beside: GuideLLM, vLLM's own.

Run as `python scripts/install_load_tools.py`, after scripts/install_vllm.py. Standard library
only. Takes two minutes and 2 GB in `${XDG_CACHE_HOME:-~/.cache}/llmtrace`; does nothing where that
is done already. GuideLLM gets an environment of its own. `vllm bench serve` is in vLLM's, and
needs pandas to read a file.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import install_vllm
from install_vllm import (
    InstallError,
    cache_folder,
    install_torch,
    locked,
    make_environment,
    pip_install,
    run,
    step,
)

VERSION: Final = "0.8.1"
PANDAS: Final = "pandas>=2.2,<4"
_CHECK: Final = "import guidellm.__main__"


def environment_folder() -> Path:
    """Return where the environment goes: tests/bench/load_tools.py looks for it there."""
    return cache_folder() / f"guidellm-{VERSION}"


def install(folder: Path) -> None:
    """Carry out every step that is not done yet."""
    complete = folder / "complete"
    if complete.exists():
        print(f"GuideLLM {VERSION} is installed in {folder}")
        return
    print(f"installing GuideLLM {VERSION} into {folder}")
    with step("1/4 virtual environment"):
        python = make_environment(folder)
    with step("2/4 torch, which it needs, for the CPU"):
        install_torch(python)
    with step("3/4 GuideLLM"):
        pip_install(python, "--no-compile", f"guidellm=={VERSION}")
    with step("4/4 importing it"):
        run(python, "-c", _CHECK)
    complete.touch()


def install_pandas(vllm: Path) -> None:
    """Add pandas to vLLM's environment, unless it is there.

    Raises:
        InstallError: there is no such environment.
    """
    if not install_vllm.is_installed(vllm):
        raise InstallError("vLLM is not installed: run scripts/install_vllm.py first")
    python = vllm / "bin" / "python"
    try:
        run(python, "-c", "import pandas")
    except InstallError:
        with step("pandas, beside vLLM"):
            pip_install(python, "--no-compile", PANDAS)


def main() -> int:
    """Install and return the exit status."""
    folder, vllm = environment_folder(), install_vllm.environment_folder()
    try:
        with locked(folder):
            install(folder)
        with locked(vllm):
            install_pandas(vllm)
    except InstallError as error:
        print(f"the load generators were not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
