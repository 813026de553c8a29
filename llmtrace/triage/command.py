"""The command `llmtrace triage`, from its options to its exit status."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from llmtrace.core.errors import ConfigError, DataError, suggestion
from llmtrace.dataset.case import Case, Window, write_case
from llmtrace.dataset.columns import WORDS
from llmtrace.display.summary_tables import console_for, date_and_zone
from llmtrace.stats.arrays import Mask
from llmtrace.triage.causes import RULES
from llmtrace.triage.pipeline import Settings, triage
from llmtrace.triage.report.links import TRACE, Links
from llmtrace.triage.report.runbooks import page
from llmtrace.triage.report.sentences import only
from llmtrace.triage.report.terminal import screen
from llmtrace.triage.result import Result, Verdict, as_json
from llmtrace.triage.sources import Read

LAST: Final = "6h"
_NEAR_S: Final = 30.0
_LATEST_S: Final = 9e9  # the year 2255: what is later is no Unix time in seconds
_TIME_OF_DAY: Final = re.compile(r"\d\d?:\d\d(?::\d\d)?(?:Z|[+-]\d\d:?\d\d)?")
# Exit statuses in addition to those of every command, for scripts.
MOVED: Final = 10
CANNOT_TELL: Final = 11
_STATUS: Final[Mapping[Verdict, int]] = {
    "no_change": 0, "workload": MOVED, "regression": MOVED, "mixed": MOVED, "improvement": MOVED,
    "drift": MOVED, "traffic": MOVED, "new_workload": MOVED, "not_enough_data": CANNOT_TELL,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TriageOptions:
    """The options of a triage apart from its data source.

    Attributes:
        settings: windows, metric, resampling.
        filters: by row field (`model`, `route`, `tenant`, ...), the words a row may have.
        explain: print every line of evidence.
        as_json: print JSON instead of a screen.
        html: write a page there.
        save: write the case there.
        links: where traces and runbooks are.
    """

    settings: Settings
    filters: Mapping[str, tuple[str, ...]]
    explain: bool = False
    as_json: bool = False
    html: Path | None = None
    save: Path | None = None
    links: Links = field(default_factory=Links)


def main(options: argparse.Namespace, read: Read) -> int:
    """Run the command on the source that `read` reads; return its exit status."""
    now = time.time()
    elsewhere = options.case or options.store or options.rows or options.langfuse
    wanted = TriageOptions(
        settings=settings_of(options, now),
        filters=_filters(options.where),
        explain=options.explain,
        as_json=options.json,
        html=options.html,
        save=options.save,
        links=links_of(options, None if elsewhere else options.url),
    )
    progress = Steps(sys.stderr)
    try:
        searched = span(wanted.settings, options.last or LAST, now)
        case = read(searched, progress.report, wanted.filters)
        if (options.case or options.rows) and case.rows.n:  # times are those of the data's day
            wanted = replace(wanted, settings=settings_of(options, _stretch(case).end))
        return run(case, wanted, sys.stdout, progress)
    finally:
        progress.done()


def print_runbook(cause: str) -> None:
    """Print the runbook of a cause.

    Raises:
        ConfigError: no such cause.
    """
    if cause not in RULES:
        near = get_close_matches(cause, RULES, n=1)
        meant = f"did you mean {near[0]}?" if near else f"causes are {', '.join(sorted(RULES))}"
        raise ConfigError(f"{cause!r} is no cause; {meant}")
    sys.stdout.write(page(cause))


def settings_of(options: argparse.Namespace, now: float) -> Settings:
    """Return what to compare; incomplete times are the latest before `now`."""
    return Settings(
        before=None if options.before is None else window(options.before, now),
        after=None if options.after is None else window(options.after, now),
        at=None if options.at is None else time_of(options.at, now),
        metric=options.metric,
        bootstrap=options.bootstrap,
    )


def links_of(options: argparse.Namespace, collector: str | None) -> Links:
    """Return where traces and runbooks are: from the options, or the collector's own pages.

    Raises:
        ConfigError: an address is invalid.
    """
    traces = options.trace_url
    if traces is None and collector is not None:
        traces = f"{collector.rstrip('/')}/requests/{TRACE}"
    return Links(traces, options.runbooks)


def span(settings: Settings, last: str, now: float) -> Window:
    """Return the time to read: that of the windows if they are given, else as far back as `last`.

    `last` is such as `6h`; `now` is in unix seconds.

    Raises:
        ConfigError: `last` is not a length of time.
    """
    named = [one for one in (settings.before, settings.after) if one is not None]
    back = now - time_of(last, now)
    if back <= 0:
        raise ConfigError(f"--last {last}: write how long back to look, as 6h or 90m")
    if len(named) == 2:  # noqa: PLR2004 - both
        return Window(min(one.start for one in named), max(one.end for one in named))
    end = max([settings.at or 0.0, *(one.end for one in named)]) or now
    start = min([end, *(one.start for one in named)]) - back
    return Window(start, min(now, end + back / 4) if settings.at else end)


def _filters(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    filters: dict[str, tuple[str, ...]] = {}
    for text in given:
        name, equals, word = text.partition("=")
        if not (equals and name and word):
            raise ConfigError(f"--where {text}: write NAME=VALUE, as model=llama-3")
        if name not in WORDS:
            hint = suggestion(name, WORDS) or f": rows are filtered by {', '.join(WORDS)}"
            raise ConfigError(f"--where {name}=...: unknown field {name!r}{hint}")
        filters[name] = (*filters.get(name, ()), word)
    return filters


def run(case: Case, wanted: TriageOptions, out: TextIO, progress: Steps) -> int:
    """Triage a case, print what was found, and return the exit status.

    Raises:
        ConfigError: windows contradict each other, or no row is from the requested time.
        DataError: no row is left.
        SourceError: a file cannot be written.
    """
    case = keep(case, wanted.filters)
    if wanted.settings.at is not None:
        _expect_rows_at(case, wanted.settings.at)
    if wanted.save is not None:
        write_case(wanted.save, case)
    result = triage(case, wanted.settings, progress.report)
    result = replace(result, about=only(wanted.filters))
    progress.done()
    if wanted.html is not None:
        from llmtrace.triage.report.html import write_page

        write_page(wanted.html, result, case, wanted.links)
    show(result, wanted, out)
    return _STATUS[result.verdict]


def _expect_rows_at(case: Case, at: float) -> None:
    """Raise `ConfigError` if a time is more than half a minute outside of the rows."""
    if not case.rows.n:
        raise ConfigError(f"--at {date_and_zone(at)}: there are no rows at all")
    there = _stretch(case)
    if not there.start - _NEAR_S <= at <= there.end + _NEAR_S:
        raise ConfigError(
            f"--at {date_and_zone(at)}: there are no rows at that time; they are from "
            f"{date_and_zone(there.start)} to {date_and_zone(there.end)}"
        )


def _stretch(case: Case) -> Window:
    """Return the time from the start of the first request to the end of the last."""
    t = case.rows.start / 1e9
    return Window(float(t.min()), float(np.max(t + np.nan_to_num(case.rows.numbers["e2e_s"]))))


def show(result: Result, wanted: TriageOptions, out: TextIO) -> None:
    """Print a result, as a screen or as JSON."""
    if wanted.as_json:
        json.dump(as_json(result), out, indent=2, allow_nan=False)
        out.write("\n")
        return
    console = console_for(out)
    # Not cropped: a link that is cut off does not open.
    console.print(screen(result, explain=wanted.explain, links=wanted.links), crop=False)
    for what, path in (("page", wanted.html), ("case", wanted.save)):
        if path is not None:
            console.print(f"{what}: {path}", soft_wrap=True, highlight=False)


def keep(case: Case, filters: Mapping[str, tuple[str, ...]]) -> Case:
    """Keep the rows that pass the filters.

    Raises:
        DataError: no row is left.
    """
    rows = case.rows
    for name, words in filters.items():
        mask: Mask = rows.words[name].where(*words)
        if not np.any(mask):
            had = ", ".join(sorted(rows.words[name].names)[:10]) or "nothing: it is not reported"
            raise DataError(f"--where {name}={','.join(words)}: no row has it; rows have {had}")
        rows = rows.take(mask)
    return replace(case, rows=rows)


def window(text: str, at: float) -> Window:
    """Parse a window `START/END`, two times as for `time_of`.

    Raises:
        ConfigError: it is invalid.
    """
    start, slash, end = text.partition("/")
    if not slash:
        raise ConfigError(f"{text!r} is no window: write START/END, as 10:00/10:30 or 2h/30m")
    found = Window(time_of(start, at), time_of(end, at))
    if _TIME_OF_DAY.fullmatch(end := end.strip()):
        # On the day that the window begins, even if that is still to come; else on the next.
        same, following = (_on_day_of(found.start + day, end) for day in (0.0, _UNITS["d"]))
        found = replace(found, end=same if same > found.start else min(following, found.end))
    if found.seconds <= 0:
        raise ConfigError(f"{text!r}: the window does not end after it starts")
    return found


def time_of(text: str, at: float) -> float:
    """Parse unix seconds, ISO 8601, `HH:MM` (local without a zone), `30m` ago, or `now`.

    Args:
        text: the time; without a day, the latest such time before `at`.
        at: now, or the end of the rows that it is about; unix seconds.

    Raises:
        ConfigError: it is invalid.
    """
    from datetime import datetime

    text = text.strip()
    if text in {"", "now"}:
        return at
    with suppress(ValueError):
        if text[-1] in _UNITS:  # with or without a minus
            found = at - float(text.removeprefix("-")[:-1]) * _UNITS[text[-1]]
        else:
            found = float(text)
        if abs(found) < _LATEST_S:
            return found
    try:
        if _TIME_OF_DAY.fullmatch(text):
            today = _on_day_of(at, text)
            return today if today <= at + _NEAR_S else _on_day_of(at - _UNITS["d"], text)
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"invalid time {text!r}: use 14:30, 2026-01-31T14:30, 30m (30 minutes ago) or "
            "Unix seconds"
        ) from None


def _on_day_of(at: float, text: str) -> float:
    """Return a time of day on the day of another time, both local or in the zone that it names."""
    from datetime import datetime, time

    whole = f"0{text}" if text[1] == ":" else text
    day = datetime.fromtimestamp(at).astimezone(time.fromisoformat(whole).tzinfo).date()
    return datetime.fromisoformat(f"{day.isoformat()}T{whole}").astimezone().timestamp()


_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class Steps:
    """Progress on a terminal, one line per step; nothing without a terminal."""

    def __init__(self, err: TextIO) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=Console(file=err),
            transient=True,
            disable=not err.isatty(),
        )
        self._tasks: dict[str, TaskID] = {}
        self._bar.start()

    def report(self, what: str, share: float) -> None:
        """Report how far one step is, from 0 to 1."""
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=1.0)
        self._bar.update(self._tasks[what], completed=share)

    def done(self) -> None:
        """Remove the progress from the terminal."""
        self._bar.stop()
