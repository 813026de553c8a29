"""What the recipes share: an engine, requests to it, and a report of two ways.

A recipe runs on the simulated engine; with `--vllm` on a real vLLM, on this machine's CPU; with
OPENAI_BASE_URL and MODEL set, on your endpoint, unless its ways differ in an engine's settings.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import openai

import llmtrace
from llmtrace import Row, SourceError
from llmtrace.core.stages import STAGES
from llmtrace.engines import local_vllm
from llmtrace.engines.local_vllm.install import VERSION, cache_folder
from llmtrace.simulator import serve
from llmtrace.simulator.server import EngineConfig, ServerConfig
from llmtrace.testing import capture

__all__ = [
    "LENGTH", "ON_VLLM", "OURS", "SIMULATED", "VLLM", "Engine", "ask", "capture", "engine",
    "find_python", "measure", "note", "quartile", "report", "run", "simulated", "tiny_model",
    "vllm",
]  # fmt: skip

QUICK = 8
FULL = 24
MOVED = 0.2  # least share by which the stage that must move does
STILL = 0.35  # of that change, which the one that must not may at most
ALIKE = 0.3  # at most, between two ways of which neither should be faster
ON_VLLM = "--vllm" in sys.argv
SIMULATED = "SIMULATED engine"
LENGTH = {"ignore_eos": True}  # an option: `max_tokens` is how many come
TINY = (256, 4)  # hidden size and layers of vLLM's model, if no other: 2 to 3 ms a token
# A token of a tiny model is a byte: each of these is a character, and shown once it is there.
LETTERS = list(range(94))
VLLM = f"vLLM {VERSION} on a CPU, a tiny model"
OURS = VLLM if ON_VLLM else SIMULATED  # an engine that a recipe starts itself
# Settings that vLLM has under the same name. The rest tell the simulated engine what a real one
# finds out by itself.
FLAGS = {"max_num_seqs", "max_num_batched_tokens", "max_model_len"}


@dataclass(frozen=True)
class Engine:
    """Where requests go: a client, the model's name, and the address without `/v1`.

    Attributes:
        options: sent with each request.
    """

    client: openai.OpenAI
    model: str
    root: str
    options: Mapping[str, object] = field(default_factory=LENGTH.copy)


@contextmanager
def engine(size: tuple[int, int] = TINY, **settings: float) -> Iterator[Engine]:
    """Yield an engine of these settings: simulated, a real vLLM, or the one you named.

    Args:
        size: of vLLM's model, as `tiny_model` has it.
        **settings: by the names of `EngineConfig`.
    """
    flags = {f"--{k.replace('_', '-')}": str(v) for k, v in settings.items() if k in FLAGS}
    url = os.environ.get("OPENAI_BASE_URL")
    if ON_VLLM:
        model = None if size == TINY else tiny_model(*size)
        yield vllm(*(part for flag in flags.items() for part in flag), model=model)
    elif url is None:
        with simulated(**settings) as made:
            yield made
    elif flags:
        sys.exit(f"this recipe changes {', '.join(flags)}: unset OPENAI_BASE_URL, or use --vllm")
    else:
        client = openai.OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0)
        yield Engine(client, os.environ.get("MODEL", "tiny"), url.rstrip("/").removesuffix("/v1"))


@contextmanager
def simulated(**config: float) -> Iterator[Engine]:
    """Yield a simulated engine without jitter, of this size and speed."""
    with serve(ServerConfig(engine=EngineConfig(jitter=0.0, **config))) as server:
        client = openai.OpenAI(base_url=server.url, api_key="none", max_retries=0)
        yield Engine(client, "llmtrace-sim", server.root)


@cache
def vllm(*flags: str, model: Path | None = None) -> Engine:
    """Return a real vLLM of a tiny model, started when first wanted; it ends with the program."""
    server = local_vllm.start(model, flags)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    return Engine(client, server.model, server.url, {**LENGTH, "allowed_token_ids": LETTERS})


def tiny_model(hidden_size: int, layers: int) -> Path:
    """Return the folder of a random model, which is made unless it is there."""
    folder = cache_folder() / f"tiny-llama-{hidden_size}-{layers}"
    return local_vllm.make_tiny_model(find_python(), folder, hidden_size, layers)


def find_python() -> Path:
    """Return the interpreter that has vLLM."""
    python = local_vllm.find_python()
    if python is None:
        raise SourceError("this needs a vLLM: from a checkout of llmtrace run `make vllm`")
    return python


@llmtrace.trace
def ask(to: Engine, text: str, tokens: int = 16, **more: object) -> Iterator[object]:
    """Yield the chunks of one response."""
    more = {"max_tokens": tokens, "extra_body": to.options, **more}
    messages = [{"role": "user", "content": text}]
    yield from to.client.chat.completions.create(
        model=to.model, messages=messages, stream=True, **more
    )


def measure(work: Callable[[int], object], count: int) -> list[Row]:
    """Return the rows of so many calls, without those of the first, which connects."""
    with capture() as rows:
        for i in range(count + 1):
            work(i)
    first = rows[0].start
    return [row for row in rows if row.start > first]


def where() -> str:
    """Name what was measured."""
    yours = "OPENAI_BASE_URL" in os.environ and not ON_VLLM
    return "the endpoint of OPENAI_BASE_URL" if yours else OURS


def report(
    title: str,
    quoted: str,
    before: Sequence[Row],
    after: Sequence[Row],
    *,
    moved: str | None,
    still: str,
    shown: str | None = None,
    by: str | None = None,
) -> bool:
    """Print what is quoted and what was measured; return whether the right stage moved.

    Args:
        title: what is compared.
        quoted: the figure of the field.
        before: rows of the first way.
        after: rows of the second.
        moved: the duration of a row that must become shorter by a fifth at least; `None`: nothing.
        still: the one that must change by less than a third of that.
        shown: the duration that users see, if another one.
        by: what was measured, if not an engine.
    """
    print(f"{title}  [{by or where()}, {len(before)} and {len(after)} requests]")
    print(f"  {'quoted':<14} {quoted}")
    change = {}
    for name in dict.fromkeys(name for name in (shown or moved, moved, still) if name):
        what = "must move" if name == moved else "must not" if name == still else "measured"
        change[name] = old, new = quartile(name, before), quartile(name, after)
        print(f"  {what:<14} {name} {_change(old, new)}")
    right = all(None not in pair for pair in change.values()) and _right(change, moved, still)
    note("as quoted, in direction" if right else "NOT as quoted")
    return right


def _right(change: dict[str, tuple[float, float]], moved: str | None, still: str) -> bool:
    held, kept = change[still]
    if moved is None:
        return abs(kept - held) < ALIKE * held
    old, new = change[moved]
    return new < (1 - MOVED) * old and abs(kept - held) < STILL * (old - new)


def note(text: str) -> None:
    """Print a line under a report."""
    print(f"  {'':<14} {text}")


def _change(old: float | None, new: float | None) -> str:
    share = f" ({100 * (new / old - 1):+.0f} %)" if old and new is not None else ""
    return f"{_ms(old)} -> {_ms(new)} at p25{share}"


def _ms(value: float | None) -> str:
    return "not reported" if value is None else f"{1e3 * value:.{1 if value < 0.01 else 0}f} ms"


def quartile(name: str, rows: Sequence[Row]) -> float | None:
    """Return a duration's lower quartile: a busy machine only adds to what a request takes."""
    known = sorted(s for s in (seconds(row, name) for row in rows) if s is not None)
    return known[len(known) // 4] if known else None


def seconds(row: Row, name: str) -> float | None:
    """Return a duration of a row, or one of its stages; first content is e2e without a stream."""
    if name == "first content":
        return row.ttft_s if row.stream and row.ttft_s is not None else row.e2e_s
    if name in STAGES:
        ns = getattr(row.stages, name)
        return None if ns is None else ns / 1e9
    return getattr(row, f"{name}_s")


def run(main: Callable[[int], bool]) -> None:
    """Run a recipe as a program: `--quick` sends fewer requests; exit status 1 = not as quoted."""
    try:
        sys.exit(0 if main(QUICK if "--quick" in sys.argv else FULL) else 1)
    except SourceError as error:
        sys.exit(str(error))
