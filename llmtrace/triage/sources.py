"""Where does a case come from, if not from a folder?

Each source gives the same `Case`: rows, signals and facts of a stretch of time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from llmtrace.case import Case, Window, facts_from, signals_from
from llmtrace.collector_api import Collector
from llmtrace.columns import Builder, Columns
from llmtrace.errors import DataError

Progress = Callable[[str, float], None]

_MOST_ROWS: Final = 5_000_000
_TOLD_EVERY: Final = 2_000


def from_collector(
    collector: Collector,
    window: Window,
    progress: Progress,
    filters: Mapping[str, tuple[str, ...]] | None = None,
) -> Case:
    """Read a case from a running collector.

    Args:
        collector: that is asked.
        window: which time.
        progress: told how far it is.
        filters: by row field; a collector takes one word each, more are filtered here.

    Raises:
        SourceError: it does not answer.
        DataError: it has no rows of that time.
    """
    asked = {name: words[0] for name, words in (filters or {}).items() if len(words) == 1}
    span = {"start": f"{window.start:.6f}", "end": f"{window.end:.6f}"}
    rows = _columns(
        _told(collector.lines("rows", **span, **asked, limit=_MOST_ROWS), window, progress)
    )
    if not rows.n:
        raise DataError(
            f"{collector.url} has no rows between {window.start:.0f} and {window.end:.0f} "
            "(unix seconds); see `llmtrace top` for what it receives"
        )
    progress("reading signals", 0.0)
    signals, odd_signals = signals_from(collector.lines("signals", **span))
    progress("reading signals", 1.0)
    told = dict(collector.get("facts", at=f"{window.end:.6f}"))
    told["events"] = collector.get("events", **span)["events"]
    facts, odd_facts = facts_from(told)
    return Case(
        rows=rows,
        signals=signals,
        facts=facts,
        warnings=(*rows.warnings, *odd_signals, *odd_facts),
    )


def _columns(rows: Iterable[Mapping[str, Any]]) -> Columns:
    builder = Builder()
    builder.add(rows)
    return builder.done()


def _told(
    rows: Iterator[dict[str, Any]], window: Window, progress: Progress
) -> Iterator[dict[str, Any]]:
    """Pass rows on, which come by time, and say how far through the window they are."""
    for number, row in enumerate(rows):
        if number % _TOLD_EVERY == 0:
            at = float(row.get("start", 0)) / 1e9
            progress("reading rows", min(1.0, max(0.0, (at - window.start) / window.seconds)))
        yield row
    progress("reading rows", 1.0)
