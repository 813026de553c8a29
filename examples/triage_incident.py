"""An hour of requests, of which the last quarter waits in the engine's queue: triage says so.

`llmtrace triage --rows FILE` is all there is to it. The hour is made up here; yours comes from a
running collector (`--url`).
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from llmtrace.cli import main
from llmtrace.core.stages import Reported, Timeline
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.testing import make_row

MS = 1_000_000
START = 1_795_000_000 * 1_000_000_000
HOUR_NS = 3_600 * 1_000_000_000
REQUESTS = 1_200


def wait(at: float) -> Timeline:
    """Return where the time of a request went that began at a share of the hour."""
    slow = at > 0.75
    queue = round(random.expovariate(1 / (600 if slow else 15)) * MS)
    prefill = round(random.gauss(120, 15) * MS)
    first = queue + prefill + round(random.uniform(20, 40) * MS)
    return Timeline(
        e2e=first + round(random.gauss(800, 80) * MS),
        ttft=first,
        queue=Reported(queue, "engine_inband"),
        prefill=Reported(prefill, "engine_inband"),
    )


random.seed(7)
rows = [
    make_row(
        trace_id=f"{number + 1:032x}", span_id=f"{number + 1:016x}", request_id=f"r-{number}",
        start=START + HOUR_NS * number // REQUESTS, service="shop", model="llama-3.1-8b",
        route="chat", replica=f"engine-{number % 2}:8000", prompt_tokens=random.randint(200, 900),
        output_tokens=40, timeline=wait(number / REQUESTS),
    )
    for number in range(REQUESTS)
]  # fmt: skip

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "rows.jsonl"
    with file.open("w", encoding="utf-8") as out:
        write_rows(out, rows)
    main(["triage", "--rows", str(file), "--bootstrap", "50"])
