"""Check the instrumentation with old and new versions of the SDKs.

Make a virtual environment for each version (kept between runs), run the wrappers' tests in it, and
print a table. Needs a package index; takes minutes the first time.

    python tests/instrumentation/matrix.py                     # all of them
    python tests/instrumentation/matrix.py openai-1.40.0       # some
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
PLACE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "llmtrace/matrix"
FILES: Final = ("endings", "endpoints", "faults", "instrument", "retries", "usage")
NEEDED: Final = ("pytest>=8.3", "hypothesis>=6.115")


@dataclass(frozen=True)
class Version:
    """One version of an SDK, and requirements that it does not declare itself."""

    sdk: str
    version: str
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What it goes by: `openai-1.40.0`."""
        return f"{self.sdk}-{self.version}"


VERSIONS: Final = (
    Version("openai", "1.40.0", ("httpx<0.28",)),
    Version("openai", "1.109.1"),
    Version("openai", "2.54.0"),
    Version("openai", "3.52.0"),
    Version("anthropic", "0.43.1"),
    Version("anthropic", "0.60.0"),
    Version("anthropic", "1.17.0"),
    Version("anthropic", "2.11.0"),
)


def environment(version: Version) -> Path:
    """Make the virtual environment of a version, unless it is there; return its Python."""
    place = PLACE / version.name
    python = place / "bin" / "python"
    done = place / "complete"
    if done.exists():
        return python
    venv.create(place, with_pip=True, clear=True)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = [f"{version.sdk}=={version.version}", *version.needs, *NEEDED]
    wanted += project["project"]["dependencies"]
    subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
    done.touch()
    return python


def run(version: Version) -> tuple[int, dict[str, int], str]:
    """Run the tests; return pytest's status, its counts, and what it said."""
    files = [f"tests/instrumentation/test_{name}.py" for name in FILES]
    # What an old SDK warns of is not what is tested here.
    settings = ["-o", "filterwarnings=default", "-o", "addopts=", "-q", "--tb=short", "-rf"]
    done = subprocess.run(
        [environment(version), "-m", "pytest", *settings, *files],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    last = said.strip().rpartition("\n")[2]
    counts = {kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return done.returncode, counts, said


def main() -> int:
    """Run the selected versions, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    names = [version.name for version in VERSIONS]
    parser.add_argument("version", nargs="*", help=f"any of {', '.join(names)}; default: all")
    selected = parser.parse_args().version
    if unknown := set(selected) - set(names):
        parser.error(f"no such version: {', '.join(sorted(unknown))}")
    failed = False
    print(f"{'SDK':<20}{'passed':>8}{'failed':>8}{'skipped':>9}", flush=True)
    for version in VERSIONS:
        if selected and version.name not in selected:
            continue
        status, counts, said = run(version)
        broken = counts.get("failed", 0) + counts.get("error", 0)
        failed |= status != 0
        columns = f"{counts.get('passed', 0):>8}{broken:>8}{counts.get('skipped', 0):>9}"
        print(f"{version.name:<20}{columns}", flush=True)
        if status != 0:
            print(said, file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
