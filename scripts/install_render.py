"""Install once what tests draw dashboards with, and what they check an operator's manifests by.

Run as `python scripts/install_render.py`. Standard library only; needs node and npm. Takes about
50 seconds and 530 MB in `${XDG_CACHE_HOME:-~/.cache}/llmtrace`; does nothing where that is done
already. For tests alone: one of Grafana's own packages is under the AGPL, and none is part of
llmtrace.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Final

from install_vllm import InstallError, cache_folder, locked, run, step

_REAL: Final = Path(__file__).parents[1] / "tests" / "real"
HARNESS: Final = _REAL / "render"
OPERATOR: Final = _REAL / "operator"  # the types of Prometheus's operator, to check manifests with
COMPLETE: Final = "complete"
_LISTS: Final = ("package.json", "package-lock.json")


def modules_folder(harness: Path = HARNESS) -> Path:
    """Return where the packages go: one folder for each state of the lock file."""
    wanted = b"".join((harness / name).read_bytes() for name in _LISTS)
    return cache_folder() / f"{harness.name}-{hashlib.sha256(wanted).hexdigest()[:12]}"


def install(folder: Path, harness: Path) -> None:
    """Install exactly what the lock file names, unless that is done."""
    if (folder / COMPLETE).exists():
        print(f"the packages of {harness.name} are installed in {folder}")
        return
    if shutil.which("npm") is None:
        raise InstallError("npm is not installed; on Debian or Ubuntu: apt-get install npm")
    print(f"installing the packages of {harness.name} into {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _LISTS:
        shutil.copyfile(harness / name, folder / name)
    with step("1/1 npm ci"):
        # No package's own scripts run. One package names peers a patch version older.
        run(
            "npm", "ci", "--prefix", folder, "--legacy-peer-deps", "--ignore-scripts",
            "--no-audit", "--no-fund",
        )  # fmt: skip
    (folder / COMPLETE).touch()


def main() -> int:
    """Install and return the exit status."""
    try:
        for harness in (HARNESS, OPERATOR):
            folder = modules_folder(harness)
            with locked(folder):
                install(folder, harness)
    except InstallError as error:
        print(f"what draws dashboards was not installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
