"""Compute how many requests fit into an engine's KV cache, and which lengths filled it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from llmtrace.kv_cache.reported_cache import ReportedCache, reported_cache
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.evidence import Evidence
from llmtrace.triage.evidence.signals import Moved
from llmtrace.triage.evidence.window_rows import Side

_MIN_ROWS: Final = 20
_MAX_SAMPLE: Final = 4_000  # requests
_MIN_CHANGE: Final = 0.05
_FULL: Final = 0.9  # usage from which a cache that holds many requests is full
_MIN_FULL: Final = 0.5  # the lowest usage that counts as full, however long the prompts


@dataclass(frozen=True, slots=True)
class _Mix:
    """Lengths of requests in tokens, and the mean lengths of their prompts and outputs."""

    lengths: list[int]
    prompt: float
    output: float


def kv_room(e: Evidence) -> str | None:
    """Say how many requests the fullest engine's cache holds, at the lengths of after and before.

    `None` if no cache size is known, or too few rows report their lengths.
    """
    found = _fullest(e)
    if found is None:
        return None
    name, cache = found
    after, before = _mix(e.after, name), _mix(e.before, name)
    now = None if after is None else cache.fit(after.lengths)
    if after is None or now is None:
        return None
    each = cache.bytes_per_token
    size = "" if each is None else f" of {say.amount(each)} bytes"
    text = (
        f"the KV cache of {name} holds {cache.tokens:,} tokens{size}: {now.at_mean:,} requests of "
        f"these lengths (mean {now.mean_tokens:,.0f} tokens, p95 {now.high_tokens:,})"
    )
    then = None if before is None else cache.fit(before.lengths)
    if before is not None and then is not None:
        text += f", {then.at_mean:,} of those before (mean {then.mean_tokens:,.0f}"
        if now.mean_tokens > (1 + _MIN_CHANGE) * then.mean_tokens:
            longer = {"prompts": after.prompt - before.prompt,
                      "outputs": after.output - before.output}  # fmt: skip
            most = max(longer, key=lambda part: longer[part])
            text += f"; {most} are {longer[most]:,.0f} longer now"
        text += ")"
    counts = [(_mean(e.gauge(signal), name), what)
              for signal, what in (("running", "ran"), ("waiting", "waited"))]  # fmt: skip
    words = [f"{count:,.0f} {what}" for count, what in counts if count is not None]
    return f"{text}; {' and '.join(words)}" if words else text


def full_from(e: Evidence) -> float:
    """Return the usage of the KV cache from which an ordinary prompt finds no room."""
    found = _fullest(e)
    after = None if found is None else _mix(e.after, found[0])
    if found is None or after is None:
        return _FULL
    return min(max(1 - after.prompt / found[1].tokens, _MIN_FULL), _FULL)


def _fullest(e: Evidence) -> tuple[str, ReportedCache] | None:
    """Return the engine with the highest mean KV usage among those with a known cache size."""
    usage = e.gauge("kv_usage")
    best: tuple[float, str, ReportedCache] | None = None
    for name, facts in sorted(e.facts.instances.items()):
        cache = reported_cache(facts)
        used = _mean(usage, name) or 0.0
        if cache is not None and (best is None or used > best[0]):
            best = (used, name, cache)
    return None if best is None else best[1:]


def _mean(moved: Moved | None, name: str) -> float | None:
    series = None if moved is None else moved.after.get(name)
    return None if series is None or not len(series.value) else float(series.value.mean())


def _mix(side: Side, name: str) -> _Mix | None:
    """Return the lengths of an engine's requests, or of all requests if too few rows name it."""
    prompt, output = side.number("prompt_tokens"), np.nan_to_num(side.number("output_tokens"))
    known = np.isfinite(prompt)
    own = known & side.where("replica", name)
    kept = np.flatnonzero(own if int(own.sum()) >= _MIN_ROWS else known)
    if len(kept) < _MIN_ROWS:
        return None
    weights = side.rows.weights[kept]
    if (
        len(kept) > _MAX_SAMPLE or np.ptp(weights) > 0
    ):  # sample rows by the requests they stand for
        count = min(len(kept), _MAX_SAMPLE)
        kept = np.random.default_rng(1).choice(kept, count, p=weights / weights.sum())
    lengths = [int(length) for length in prompt[kept] + output[kept]]
    return _Mix(lengths, float(prompt[kept].mean()), float(output[kept].mean()))
