#!/usr/bin/env python3
"""Write dashboards/json/*.json from the code in dashboards/llmtrace_dashboards.

With --check nothing is written, and the exit status says whether the files are as the code has it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from llmtrace_dashboards.boards import dashboards, text

FOLDER: Final = Path(__file__).parent.parent / "dashboards" / "json"


def main() -> int:
    """Write or compare the files and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only")
    check = parser.parse_args().check
    FOLDER.mkdir(exist_ok=True)
    made = {name: text(dashboard) for name, dashboard in dashboards().items()}
    status = 0
    for path in sorted(FOLDER.glob("*.json")):
        if path.name not in made:
            print(f"{path.name}: no longer made; delete it")
            status = 1
    for name, content in made.items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == content:
            continue
        if check:
            print(f"{name}: out of date; run scripts/dashboards.py")
            status = 1
        else:
            path.write_text(content, encoding="utf-8")
            print(f"{name}: written")
    return status


if __name__ == "__main__":
    sys.exit(main())
