"""Make the requests of a load test: drawn by seed, from a dataset, or from a recorded trace.

The same arguments make the same requests, and their hash says so.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from llmtrace.dataset.files import blocks, objects
from llmtrace.errors import DataError
from llmtrace.load_test.lengths import Lengths
from llmtrace.simulator.fleet.arrivals import read_arrivals

Message = Mapping[str, Any]

# Common English words, of which nearly every tokenizer makes one token each.
_WORDS: Final = (
    "the", "time", "people", "year", "way", "day", "man", "thing", "woman", "life", "child",
    "world", "school", "state", "family", "student", "group", "country", "problem", "hand",
    "part", "place", "case", "week", "company", "system", "program", "question", "work", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue",
)  # fmt: skip
_MAX_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send.

    Attributes:
        number: its place in the workload; below 0 = of the warm-up, and not counted.
        messages: the prompt.
        max_tokens: most output tokens; `None` = the endpoint's own limit.
        at_s: when it is to start, in seconds after the first; `None` = when there is room.
    """

    number: int
    messages: tuple[Message, ...]
    max_tokens: int | None
    at_s: float | None = None


def drawn(
    count: int, prompt: Lengths, output: Lengths, *, shared_prefix: int = 0, seed: int = 0
) -> list[Request]:
    """Draw requests.

    Args:
        count: how many.
        prompt: tokens of each prompt, about: a word is taken for a token.
        output: most output tokens of each.
        shared_prefix: tokens at the start of every prompt that all share.
        seed: the same seed gives the same requests.
    """
    draws = random.Random(seed)  # noqa: S311 - no secret
    prefix = _words(shared_prefix, random.Random(-1 - seed))  # noqa: S311 - no secret
    requests = []
    for number in range(count):
        own = max(1, prompt.draw(draws) - shared_prefix)
        text = f"{prefix} {_words(own, draws)}".strip()
        requests.append(Request(number, (_user(text),), output.draw(draws)))
    return requests


def from_dataset(
    path: Path, count: int | None, output: Lengths | None, seed: int
) -> list[Request]:
    """Read requests from JSON lines of `messages` or `prompt`, and optionally `max_tokens`.

    A file of fewer requests than `count` is read again from its start.

    Args:
        path: the file, gzipped if its name ends in `.gz`.
        count: how many; `None` = one a line.
        output: most output tokens of lines that do not say; `None` = no limit.
        seed: of the draws of `output`.

    Raises:
        SourceError: the file cannot be read.
        DataError: a line is no request; the message names it.
    """
    draws = random.Random(seed)  # noqa: S311 - no secret
    lines = [_line(path, i, line) for i, line in enumerate(_objects(path), 1)]
    if not lines:
        raise DataError(f"{path}: no request in it")
    wanted = len(lines) if count is None else count
    requests = []
    for number in range(wanted):
        messages, limit = lines[number % len(lines)]
        if limit is None and output is not None:
            limit = output.draw(draws)
        requests.append(Request(number, messages, limit))
    return requests


def from_trace(path: Path, count: int | None, seed: int = 0) -> list[Request]:
    """Read a trace of arrivals and lengths (Azure, Mooncake); texts are drawn.

    Requests of one group of the trace share the start of their prompts.

    Raises:
        SourceError: the file cannot be read.
        ConfigError: it is no such trace.
    """
    trace = read_arrivals(path)
    requests = []
    for number in range(min(len(trace), count or _MAX_REQUESTS)):
        own = random.Random(f"{seed}.{number}")  # noqa: S311 - no secret
        shared = int(trace.shared[number])
        group = random.Random(f"{seed}.group.{trace.group[number]}")  # noqa: S311 - no secret
        rest = max(1, int(trace.prompt[number]) - shared)
        text = f"{_words(shared, group)} {_words(rest, own)}".strip()
        at_s = float(trace.start_s[number])
        requests.append(Request(number, (_user(text),), int(trace.output[number]), at_s))
    return requests


def at_rate(requests: Sequence[Request], rate: float, seed: int = 0) -> list[Request]:
    """Return requests that start at random, so many a second on average (Poisson)."""
    draws = random.Random(f"{seed}.rate")  # noqa: S311 - no secret
    at_s, timed = 0.0, []
    for request in requests:
        timed.append(replace(request, at_s=at_s))
        at_s += draws.expovariate(rate)
    return timed


def hash_of(requests: Sequence[Request], **settings: Any) -> str:
    """Return a hash of what is sent: every request, and the settings given."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for request in requests:
        what = [list(request.messages), request.max_tokens, request.at_s]
        digest.update(json.dumps(what, sort_keys=True).encode())
    return digest.hexdigest()


def _objects(path: Path) -> Iterator[dict[str, Any] | None]:
    for block in blocks(path):
        yield from objects(block)


def _line(
    path: Path, number: int, line: dict[str, Any] | None
) -> tuple[tuple[Message, ...], int | None]:
    if line is None:
        raise DataError(f"{path}: line {number} is not a JSON object")
    messages, prompt, limit = (line.get(key) for key in ("messages", "prompt", "max_tokens"))
    if isinstance(prompt, str) and messages is None:
        messages = [_user(prompt)]
    fits = isinstance(messages, list) and messages
    if not fits or not all(isinstance(one, dict) and "role" in one for one in messages or ()):
        raise DataError(f"{path}: line {number} has neither `messages` nor a `prompt`")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise DataError(f"{path}: line {number}: max_tokens is {limit!r}, not a whole number")
    return tuple(messages or ()), limit


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _words(count: int, draws: random.Random) -> str:
    return " ".join(draws.choices(_WORDS, k=count))
