#!/usr/bin/env python3
"""Draw the dashboards for the documents: docs/pictures/dashboard-*.png.

The data are a made-up past (tests/real/history.py) in a real Prometheus; Grafana's own front-end
packages draw them in Chromium (tests/real/render). Takes some minutes.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.real import drawing, history  # noqa: E402
from tests.real.prometheus import prometheus  # noqa: E402

PICTURES: Final = ROOT / "docs" / "pictures"
LIGHT: Final = ("llmtrace-budget",)
_SHOWN_S: Final = 3600
# Between two labels of the time axis: one at its very end would be cut.
_END: Final = history.END - 150


def main() -> int:
    """Draw everything and return the exit status."""
    if reason := drawing.why_not():
        print(reason, file=sys.stderr)
        return 1
    times = {
        "start": _iso(_END - _SHOWN_S),
        "end": _iso(_END),
        "scrape": f"{history.STEP}s",
    }
    jobs = []
    for path in sorted((ROOT / "dashboards" / "json").glob("*.json")):
        name = path.stem.removeprefix("llmtrace-")
        jobs.append(drawing.Job(dashboard=path, **times, png=PICTURES / f"dashboard-{name}.png"))
        if path.stem in LIGHT:
            png = PICTURES / f"dashboard-{name}-light.png"
            jobs.append(drawing.Job(dashboard=path, **times, theme="light", png=png))
    with tempfile.TemporaryDirectory() as folder:
        print("making up a past ...", flush=True)
        data = history.write(Path(folder))
        print(f"drawing {len(jobs)} pictures ...", flush=True)
        every = {"global": {"scrape_interval": f"{history.STEP}s"}}
        with prometheus(every, data=data) as url:
            reports = drawing.draw(url, jobs)
    wrong = [problem for report in reports for problem in report.problems]
    print("\n".join(wrong) or f"written to {PICTURES}")
    return 1 if wrong else 0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


if __name__ == "__main__":
    sys.exit(main())
