"""Run `llmtrace bench`: send a workload, write what was measured as a folder, and sum it up."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import llmtrace
from llmtrace import __version__
from llmtrace.budget import Budget
from llmtrace.core.row import Row
from llmtrace.demo.preflight import probe
from llmtrace.demo.sample_app import make_client
from llmtrace.errors import ConfigError, SourceError, explain_error
from llmtrace.exporters.row_files.sink import write_rows
from llmtrace.load_test.drive import WARM_UP, Answered, Sending, drive
from llmtrace.load_test.requests import Request, hash_of
from llmtrace.run_comparison.read_run import ABOUT, ANSWERS

_LATE_SHARE: Final = 0.1  # of the median TTFT that the median request started late
_LATE_S: Final = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A load test.

    Attributes:
        sending: the endpoint, and how requests are sent.
        requests: the workload.
        warm_up: requests sent first, one after the other, which are not counted.
        concurrency: clients of a closed loop; `None` = an open loop by the requests' times.
        seconds: no request starts later; `None` = all start.
        settings: what the workload was made of, for the record.
    """

    sending: Sending
    requests: Sequence[Request]
    warm_up: Sequence[Request] = ()
    concurrency: int | None = None
    seconds: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a load test measured.

    Attributes:
        rows: of the requests that count.
        answered: beside each row, in the order they ended.
        interrupted: whether it was ended by Ctrl-C.
    """

    rows: list[Row]
    answered: list[Answered]
    interrupted: bool

    @property
    def late_s(self) -> list[float]:
        """How late each request of an open loop started, in seconds, the earliest first."""
        return sorted(one.late_s for one in self.answered if one.late_s is not None)


class _Rows:
    """A sink that keeps the rows of the requests that count."""

    every_row = True

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def write(self, row: Row) -> None:
        """Keep a row, unless it is of the warm-up."""
        if row.route != WARM_UP:
            self.rows.append(row)

    def flush(self, timeout_s: float) -> bool:
        """Return at once: no row waits to be sent."""
        del timeout_s
        return True

    def close(self) -> None:
        """Return at once: there is nothing to close."""


def measure(
    plan: Plan, budget: Budget, done: Callable[[Answered], None] = lambda _answered: None
) -> Measured:
    """Send the requests and return what they waited for; Ctrl-C ends it early.

    Args:
        plan: what to send.
        budget: whose limits the rows' histograms are exact at.
        done: called with each request's `Answered` as it is over.

    Raises:
        SourceError: the endpoint does not answer; the message says why.
        ConfigError: recording is switched off in the environment.
    """
    if os.environ.get("LLMTRACE_DISABLED") or os.environ.get("OTEL_SDK_DISABLED") == "true":
        raise ConfigError("LLMTRACE_DISABLED or OTEL_SDK_DISABLED is set: nothing is measured")
    target = asyncio.run(probe(plan.sending.target))
    sink, answered = _Rows(), list[Answered]()
    sending = replace(plan.sending, target=target)

    def over(one: Answered) -> None:
        if one.number >= 0:
            answered.append(one)
            done(one)

    async def send() -> None:
        async with make_client(target, max_retries=0) as client:
            if plan.warm_up:
                await drive(client, sending, plan.warm_up, concurrency=1, seconds=None, done=over)
            await drive(
                client, sending, plan.requests, concurrency=plan.concurrency,
                seconds=plan.seconds, done=over,
            )  # fmt: skip

    llmtrace.init("llmtrace-bench", exporters=[sink], budget=budget, sample=1.0)
    interrupted = False
    try:
        asyncio.run(send())
    except KeyboardInterrupt:
        interrupted = True
    finally:
        llmtrace.shutdown()
    if not sink.rows and not interrupted:
        raise SourceError(f"no request to {target.url} was recorded")
    return Measured(rows=sink.rows, answered=answered, interrupted=interrupted)


def write_folder(folder: Path, plan: Plan, measured: Measured) -> None:
    """Write what was measured, as `llmtrace compare` and `llmtrace triage --case` read it.

    Raises:
        SourceError: it cannot be written.
    """
    target = plan.sending.target
    about = {
        "workload": hash_of(plan.requests, stream=plan.sending.stream,
                            ignore_eos=plan.sending.ignore_eos,
                            temperature=plan.sending.temperature,
                            concurrency=plan.concurrency),
        "settings": plan.settings,
        "loop": "open" if plan.concurrency is None else "closed",
        "model": target.model,
        "endpoint": target.url,
        "simulated": target.simulated,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "interrupted": measured.interrupted,
        "client": {
            "llmtrace": __version__, "python": platform.python_version(),
            "system": platform.platform(), "cpus": os.cpu_count(),
        },
    }  # fmt: skip
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
            write_rows(file, measured.rows)
        with (folder / ANSWERS).open("w", encoding="utf-8") as file:
            for one in measured.answered:
                line = asdict(one)
                line["request"] = line.pop("number")
                file.write(json.dumps(line) + "\n")
        for name, value in (
            (ABOUT, about),
            ("case.json", {"note": "simulated"} if target.simulated else {}),
        ):
            (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{folder}: cannot be written: {explain_error(error)}") from error


def bottleneck(measured: Measured) -> str | None:
    """Return in a sentence how late requests started, if that distorts what was measured."""
    late = measured.late_s
    waits = sorted(row.ttft_s for row in measured.rows if row.ttft_s is not None)
    if not late or not waits:
        return None
    middle, wait = late[len(late) // 2], waits[len(waits) // 2]
    if middle <= max(_LATE_S, _LATE_SHARE * wait):
        return None
    return (
        f"The client is the bottleneck: half of the requests started over {1000 * middle:.0f} ms "
        "late. Lower the rate, or run it on more cores."
    )
