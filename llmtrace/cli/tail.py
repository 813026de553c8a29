"""Declare `llmtrace tail`, which prints requests of a running collector as they end."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from llmtrace.cli.arguments import Commands, add_collector, add_command, add_json, positive
from llmtrace.core.row_fields import OUTCOMES

if TYPE_CHECKING:
    from llmtrace.api_clients.collector_client import Collector

# What rows can be filtered by, as the collector's read API names it.
FILTERS: Final = (
    "service", "model", "route", "tenant", "outcome", "replica", "region", "provider", "version",
    "gateway", "operation", "error_type",
)  # fmt: skip
_PAGE: Final = 5_000


def add_tail(commands: Commands) -> None:
    """Declare `llmtrace tail`."""
    tail = add_command(
        commands,
        "tail",
        _tail,
        "print requests as they end, one line each",
        "Print the last requests of a running collector, one line each, then new ones as they "
        "end. Stop it with Ctrl-C.",
        examples=(
            "llmtrace tail",
            "llmtrace tail --model llama-3.1-8b --outcome error",
            "llmtrace tail --slower-than 2 --json",
        ),
        docs="operate/collector.md",
    )
    add_collector(tail)
    chosen = tail.add_argument_group("filters")
    for name in FILTERS:
        chosen.add_argument(
            f"--{name.replace('_', '-')}", metavar="TEXT",
            choices=OUTCOMES if name == "outcome" else None,
            help=f"only requests with this {name.replace('_', ' ')}"
            + (f": {', '.join(OUTCOMES)}" if name == "outcome" else ""),
        )  # fmt: skip
    chosen.add_argument(
        "--slower-than", type=positive(float), metavar="S",
        help="only requests that took longer, in seconds",
    )  # fmt: skip
    tail.add_argument(
        "-n", "--lines", type=positive(int), default=10, metavar="N",
        help="lines to begin with (default: 10)",
    )  # fmt: skip
    tail.add_argument(
        "--interval", type=positive(float), default=2.0, metavar="S",
        help="seconds between two looks (default: 2)",
    )  # fmt: skip
    tail.add_argument(
        "--max-duration", type=positive(float), default=600.0, metavar="S",
        help="longest request that is printed when it ends, in seconds (default: 600)",
    )  # fmt: skip
    tail.add_argument("--no-follow", action="store_true", help="print the last requests, and exit")
    add_json(tail, "lines")


def _tail(options: argparse.Namespace) -> None:
    from llmtrace.api_clients.collector_client import Collector
    from llmtrace.core.row import from_dict
    from llmtrace.exporters.console.sink import line

    filters = {name: value for name in FILTERS if (value := getattr(options, name)) is not None}
    looks = ended(
        Collector(options.url, options.token_file),
        filters,
        longest_s=options.max_duration,
        slower_than_s=options.slower_than or 0.0,
    )
    for number, found in enumerate(looks):
        shown = found if number else found[-options.lines :]
        for flat in shown:
            text = json.dumps(flat, ensure_ascii=False) if options.json else line(from_dict(flat))
            print(text, flush=True)
        if options.no_follow:
            return
        time.sleep(options.interval)


def ended(
    collector: Collector,
    filters: Mapping[str, str],
    *,
    longest_s: float,
    slower_than_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[dict[str, Any]]]:
    """Yield, at each look, the requests that were not there at the one before, by their end.

    Requests come in the order in which they begin, and end in another: each look covers those
    that began up to `longest_s` ago.

    Args:
        collector: that has them.
        filters: what they are equal in, by the names in `FILTERS`.
        longest_s: the longest that a request takes, in seconds.
        slower_than_s: leave out those that took no longer, in seconds.
        clock: monotonic seconds.
    """
    seen: dict[tuple[str, str], float] = {}
    while True:
        now = clock()
        new = []
        since = f"-{max(1, round(longest_s))}s"
        for flat in _pages(collector, since, filters):
            key = str(flat.get("trace_id")), str(flat.get("span_id"))
            if key not in seen:
                new.append(flat)
            seen[key] = now
        # What is no longer in the answer began too long ago to come again.
        seen = {key: at for key, at in seen.items() if at == now}
        yield sorted(
            (flat for flat in new if float(flat["e2e_s"]) > slower_than_s),
            key=lambda flat: float(flat["start"]) / 1e9 + float(flat["e2e_s"]),
        )


def _pages(
    collector: Collector, since: str, filters: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield all rows since then, however many: each response has so many of them at most."""
    after = None
    while True:
        number = 0
        for flat in collector.lines("rows", start=since, limit=_PAGE, after=after, **filters):
            number += 1
            place = f"{flat['start']}:{flat['trace_id']}:{flat['span_id']}"
            yield flat
        if number < _PAGE:
            return
        after = place
