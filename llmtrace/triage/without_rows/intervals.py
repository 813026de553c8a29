"""Turn engines' sums and counts into rows, one for each engine and interval between scrapes.

Such a row has the means of all requests that ended in the interval, so a percentile over these
rows is one of means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from llmtrace.dataset.case import Signals, Window
from llmtrace.dataset.columns import Columns, from_dicts
from llmtrace.triage.evidence.other_clients import ENDED, GAP
from llmtrace.triage.evidence.signals import Series, means, rates

# The durations that engines count: row field and signal.
DURATIONS: Final = {
    "ttft_s": "ttft", "queue_s": "queue", "prefill_s": "prefill", "decode_s": "decode",
    "tpot_s": "tpot", "e2e_s": "e2e",
}  # fmt: skip
_TOKENS: Final = {"prompt_tokens": "prompt_tokens", "output_tokens": "generation_tokens"}
_NS: Final = 1_000_000_000


def interval_rows(signals: Signals) -> Columns:
    """Return a row for each engine and interval in which a request ended."""
    return from_dicts(_rows(signals))


def _rows(signals: Signals) -> Iterator[dict[str, Any]]:
    counted = ended(signals)
    durations = {
        field: {engine: _by_time(one) for engine, one in means(signals, name).items()}
        for field, name in DURATIONS.items()
    }
    tokens = {field: rates(signals, name, {}) for field, name in _TOKENS.items()}
    for engine, series in counted.items():
        width = np.diff(series.t, prepend=np.nan)
        # After a gap in scraping, the count covers a longer time than one interval.
        usual = float(np.nanmedian(width)) if len(width) > 1 else 1.0
        width = np.where(width <= GAP * usual, width, usual)
        mine = {field: found.get(engine, {}) for field, found in durations.items()}
        made = {field: _by_time(found.get(engine)) for field, found in tokens.items()}
        for t, rate, seconds in zip(series.t.tolist(), series.value, width, strict=True):
            if rate > 0:
                row = {field: found[t] for field, found in mine.items() if t in found}
                yield {
                    "start": int(t * _NS),
                    "outcome": "success",
                    "replica": engine,
                    "weight": rate * seconds,
                    **row,
                    **{field: int(found[t] / rate) for field, found in made.items() if t in found},
                }


def gaps(signals: Signals) -> list[Window]:
    """Return the times in which no engine was scraped.

    What was counted since then is in the first scrape that follows, so a gap ends an interval
    after that one.
    """
    every = [series.t for series in ended(signals).values()]
    widths = np.concatenate([np.empty(0), *map(np.diff, every)])
    if not len(widths):
        return []
    usual = float(np.median(widths))
    t = np.unique(np.concatenate(every))
    return [
        Window(float(t[place]), float(t[place + 1]) + usual)
        for place in np.flatnonzero(np.diff(t) > GAP * usual)
    ]


def ended(signals: Signals) -> Mapping[str, Series]:
    """Return the rate at which requests ended, by engine."""
    return next((found for name in ENDED if (found := rates(signals, name, {}))), {})


def _by_time(series: Series | None) -> Mapping[float, float]:
    if series is None:
        return {}
    return dict(zip(series.t.tolist(), series.value.tolist(), strict=True))
