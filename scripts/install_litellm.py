"""How are LiteLLM and LangChain installed, once, beside llmtrace and not into it, for the tests?

Run as `python scripts/install_litellm.py`. Standard library only. Takes about a minute and 0.8 GB
in `${XDG_CACHE_HOME:-~/.cache}/llmtrace`; does nothing where that is done already. An environment
of its own, because LiteLLM wants older versions of the SDKs than the tests do.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

from install_vllm import (
    InstallError,
    cache_folder,
    locked,
    make_environment,
    pip_install,
    run,
    step,
)

VERSION: Final = "1.106.2"
_ROOT: Final = Path(__file__).parents[1]
_CHECK: Final = "import litellm.proxy.proxy_cli"
# What tests/frameworks runs with. The number counts up when this changes.
FRAMEWORKS: Final = ("langchain-openai>=1.1,<2", "pytest>=8.3", "hypothesis>=6.115")
FRAMEWORKS_MARKER: Final = "frameworks-1"


def environment_folder() -> Path:
    """Return where the environment goes: tests/real/proxies.py looks for it there."""
    return cache_folder() / f"litellm-{VERSION}"


def install(folder: Path) -> None:
    """Carry out every step that is not done yet."""
    proxy, frameworks = folder / "complete", folder / FRAMEWORKS_MARKER
    if proxy.exists() and frameworks.exists():
        print(f"LiteLLM {VERSION} is installed in {folder}")
    if not proxy.exists():
        _install_proxy(folder)
        proxy.touch()
    if not frameworks.exists():
        with step("LangChain, and what runs their tests"):
            pip_install(_python(folder), "--no-compile", *FRAMEWORKS, *_dependencies())
        frameworks.touch()


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _dependencies() -> list[str]:
    """Return what llmtrace needs, which the tests run from where it lies."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return list(project["project"]["dependencies"])


def _install_proxy(folder: Path) -> None:
    print(f"installing LiteLLM {VERSION} into {folder}")
    with step("1/3 virtual environment"):
        python = make_environment(folder)
    with step("2/3 the proxy"):
        # What is used gets compiled when it is first imported; most of it never is.
        pip_install(python, "--no-compile", f"litellm[proxy]=={VERSION}")
    with step("3/3 importing it"):
        run(python, "-c", _CHECK)


def main() -> int:
    """Install and return the exit status."""
    folder = environment_folder()
    try:
        with locked(folder):
            install(folder)
    except InstallError as error:
        print(f"LiteLLM was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
