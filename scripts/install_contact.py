"""Install what the contact suite runs with, once, apart from llmtrace: other people's packages.

Run as `python scripts/install_contact.py`. Standard library only. Takes about a minute and 0.5 GB
in `${XDG_CACHE_HOME:-~/.cache}/llmtrace`; does nothing where that is done already. An environment
of its own, because the packages want other versions of the SDKs than the tests do. `--where`
prints its folder; `--renew` resolves the versions again and writes tests/contact/constraints.txt.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Sequence
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

_ROOT: Final = Path(__file__).parents[1]
_SUITE: Final = _ROOT / "tests" / "contact"
REQUIREMENTS: Final = _SUITE / "requirements.txt"
CONSTRAINTS: Final = _SUITE / "constraints.txt"


def environment_folder() -> Path:
    """Return where the environment goes: one for each state of the two lists, and each Python."""
    wanted = b"".join(path.read_bytes() for path in (REQUIREMENTS, CONSTRAINTS))
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return cache_folder() / f"contact-{python}-{hashlib.sha256(wanted).hexdigest()[:12]}"


def install(folder: Path) -> None:
    """Install exactly the versions that the constraints name, unless that is done."""
    complete = folder / "complete"
    if complete.exists():
        print(f"what the contact suite runs with is installed in {folder}")
        return
    print(f"installing what the contact suite runs with into {folder}")
    with step("1/2 virtual environment"):
        python = make_environment(folder)
    with step("2/2 the packages"):
        # The list is whole: nothing is left to resolve, which takes longer than all the rest.
        pip_install(python, "--no-compile", "--no-deps", "--requirement", CONSTRAINTS)
    complete.touch()


def renew(folder: Path) -> None:
    """Resolve the newest versions that go together, and write them down."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    python = make_environment(folder)
    pip_install(python, "--requirement", REQUIREMENTS, *project["project"]["dependencies"])
    frozen = run(python, "-m", "pip", "freeze", "--exclude", "pip", "--exclude", "setuptools")
    CONSTRAINTS.write_text(frozen, encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install, or do what the arguments say, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", action="store_true", help="print the folder")
    parser.add_argument("--renew", action="store_true", help="resolve the versions again")
    given = parser.parse_args(arguments)
    folder = environment_folder()
    if given.where:
        print(folder)
        return 0
    try:
        if given.renew:
            renew(folder.with_name("contact-renewed"))
            return 0
        with locked(folder):
            install(folder)
    except InstallError as error:
        print(f"what the contact suite runs with was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
