"""Make the requests of a load test: drawn by seed, from a dataset, or from a recorded trace.

The same arguments make the same requests, and their hash says so.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.load_test.lengths import Lengths

Message = Mapping[str, Any]

# Common English words, of which nearly every tokenizer makes one token each.
_WORDS: Final = files(__package__).joinpath("words.txt").read_text(encoding="utf-8").split()
_MAX_REQUESTS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Request:
    """One request to send.

    Attributes:
        number: its place in the workload; below 0 = of the warm-up, and not counted.
        messages: the prompt.
        max_tokens: most output tokens; `None` = the endpoint's own limit.
        at_s: when it is to start, in seconds after the first; `None` = when there is room.
        options: what else its body has, such as `tools`.
        then: the next turn of a conversation, whose `messages` follow the response to this one.
    """

    number: int
    messages: tuple[Message, ...]
    max_tokens: int | None
    at_s: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    then: Request | None = None

    def turns(self) -> Iterator[Request]:
        """Yield the request and those that follow it."""
        turn: Request | None = self
        while turn is not None:
            yield turn
            turn = turn.then


def drawn(
    count: int,
    prompt: Lengths,
    output: Lengths,
    *,
    shared_prefix: int = 0,
    turns: int = 1,
    seed: int = 0,
) -> list[Request]:
    """Draw requests.

    Args:
        count: how many, or how many conversations.
        prompt: tokens of each prompt, about: a word is taken for a token.
        output: most output tokens of each.
        shared_prefix: tokens at the start of every prompt that all share.
        turns: of each conversation: prompts that are sent one after the other's response.
        seed: the same seed gives the same requests.
    """
    draws = random.Random(seed)  # noqa: S311 - no secret
    prefix = words(shared_prefix, random.Random(-1 - seed))  # noqa: S311 - no secret
    requests = []
    for number in range(count):
        own = max(1, prompt.draw(draws) - shared_prefix)
        said = [(user(f"{prefix} {words(own, draws)}".strip()), output.draw(draws))]
        said += [
            (user(words(prompt.draw(draws), draws)), output.draw(draws)) for _ in range(turns - 1)
        ]
        requests.append(conversation(number * turns, [((text,), most) for text, most in said]))
    return requests


def conversation(
    number: int,
    said: Sequence[tuple[tuple[Message, ...], int | None]],
    options: Mapping[str, Any] | None = None,
) -> Request:
    """Return the request of a first turn, with those of later turns, which have the next numbers.

    `said` has the messages and most output tokens of each turn, `options` the rest of each body.
    """
    first, later = said[0], said[1:]
    return Request(
        number, *first, options=options or {},
        then=conversation(number + 1, later, options) if later else None,
    )  # fmt: skip


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
        text = f"{words(shared, group)} {words(rest, own)}".strip()
        at_s = float(trace.start_s[number])
        requests.append(Request(number, (user(text),), int(trace.output[number]), at_s))
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
        for turn in request.turns():
            what = [list(turn.messages), turn.max_tokens, turn.at_s, dict(turn.options)]
            digest.update(json.dumps(what, sort_keys=True).encode())
    return digest.hexdigest()


def user(text: str) -> Message:
    """Return a message of the user with this text."""
    return {"role": "user", "content": text}


def words(count: int, draws: random.Random) -> str:
    """Return so many common words, about as many tokens."""
    return " ".join(draws.choices(_WORDS, k=count))
