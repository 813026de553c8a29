#!/usr/bin/env python3
"""Draw the web pages for the documents, light and dark: docs/pictures/{triage,budget}-*.png.

Needs Chromium. Triage is of a simulated incident, so it is the same every time; the budget report
is of a run of the demo, which takes two minutes, or of `--rows FILE` that such a run wrote.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.real import chromium  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
# Closes what can be, and returns how high the page then is.
_FOLD: Final = """document.querySelectorAll("details").forEach(one => { one.open = false });
Math.ceil(document.body.getBoundingClientRect().bottom)"""
_WIDTHS: Final = {"triage": 1040, "budget": 1090}


def llmtrace(*arguments: str | Path) -> None:
    """Run a command of llmtrace, whose exit status may be a verdict."""
    subprocess.run([sys.executable, "-m", "llmtrace", *map(str, arguments)], check=False)


def main() -> int:
    """Draw everything and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=Path, help="rows for the budget report, not a new run's")
    options = parser.parse_args()
    program = chromium.find()
    if program is None:
        print("Chromium is not installed (make programs)", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llmtrace("simulate", "--fault", "gpu_throttle", "--out", folder / "incident")
        llmtrace("triage", "--case", folder / "incident", "--html", folder / "triage.html")
        rows = options.rows or folder / "rows.jsonl"
        if options.rows is None:
            llmtrace("demo", "--fault", "queue_saturation", "--rows-out", rows)
        llmtrace("budget", "report", rows, "--html", folder / "budget.html")
        with chromium.running(program) as browser:
            tab = browser.tab()
            for page, width in _WIDTHS.items():
                for scheme in ("light", "dark"):
                    tab.look_as(width=width, height=960, scheme=scheme)
                    tab.open((folder / f"{page}.html").as_uri())
                    height = tab.evaluate(_FOLD)
                    tab.look_as(width=width, height=height, scheme=scheme)
                    picture = PICTURES / f"{page}-{scheme}.png"
                    picture.write_bytes(tab.picture())
                    print(f"written: {picture.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
