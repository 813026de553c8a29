"""What the recipes share: requests to a simulated engine, and a report of two ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import openai

import llmtrace
from llmtrace import Row
from llmtrace.simulator import serve
from llmtrace.simulator.server import EngineConfig, ServerConfig
from llmtrace.testing import capture

QUICK = 8
FULL = 24
MOVED = 0.2  # least share by which the stage that must move does
STILL = 0.35  # of that change, which the one that must not may at most


@contextmanager
def engine(**config: float) -> Iterator[openai.OpenAI]:
    """Yield a client of a simulated engine without jitter, of this size and speed."""
    with serve(ServerConfig(engine=EngineConfig(jitter=0.0, **config))) as server:
        yield openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)


@llmtrace.trace
def ask(client: openai.OpenAI, text: str, tokens: int = 16, **more: object) -> Iterator[object]:
    """Yield the chunks of one response."""
    more = {"max_tokens": tokens, "extra_body": {"ignore_eos": True}, **more}
    messages = [{"role": "user", "content": text}]
    yield from client.chat.completions.create(
        model="llmtrace-sim", messages=messages, stream=True, **more
    )


def measure(work: Callable[[int], None], count: int) -> list[Row]:
    """Return the rows of so many calls, without those of the first, which connects."""
    with capture() as rows:
        for i in range(count + 1):
            work(i)
    first = rows[0].start
    return [row for row in rows if row.start > first]


def report(
    title: str,
    quoted: str,
    before: Sequence[Row],
    after: Sequence[Row],
    *,
    moved: str,
    still: str,
    shown: str | None = None,
) -> bool:
    """Print what is quoted and what was measured; return whether the right stage moved.

    Args:
        title: what is compared.
        quoted: the figure of the field.
        before: rows of the first way.
        after: rows of the second.
        moved: the duration of a row that must become shorter by a fifth at least.
        still: the one that must change by less than a third of that.
        shown: the duration that users see, if another one.
    """
    print(f"{title}  [SIMULATED engine, {len(before)} and {len(after)} requests]")
    print(f"  {'quoted':<14} {quoted}")
    names = dict.fromkeys([shown or moved, moved, still])
    change = {name: _quartiles(name, before, after) for name in names}
    for name, (old, new) in change.items():
        what = "must move" if name == moved else "must not" if name == still else "measured"
        share = f"{100 * (new / old - 1):+.0f} %" if old else "was 0"
        print(f"  {what:<14} {name} {1e3 * old:.0f} -> {1e3 * new:.0f} ms at p25 ({share})")
    (old, new), (held, kept) = change[moved], change[still]
    right = new < (1 - MOVED) * old and abs(kept - held) < STILL * (old - new)
    print(f"  {'':<14} {'as quoted, in direction' if right else 'NOT as quoted'}")
    return right


def _quartiles(name: str, before: Sequence[Row], after: Sequence[Row]) -> tuple[float, float]:
    """Return the lower quartile of both: a busy machine only adds to what a request takes."""
    old, new = (sorted(seconds(row, name) for row in rows) for rows in (before, after))
    return old[len(old) // 4], new[len(new) // 4]


def seconds(row: Row, name: str) -> float:
    """Return a duration of a row, or one of its stages; first content is e2e without a stream."""
    if name == "first content":
        return row.e2e_s if row.ttft_s is None or not row.stream else row.ttft_s
    flat = row.as_dict()
    return float(flat.get(f"{name}_s") or 0.0)


def run(main: Callable[[int], bool]) -> None:
    """Run a recipe as a program: `--quick` sends fewer requests; exit status 1 = not as quoted."""
    sys.exit(0 if main(QUICK if "--quick" in sys.argv else FULL) else 1)
