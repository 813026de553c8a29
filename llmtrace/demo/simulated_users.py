"""Draw the prompts of the demo's users, and how each user reads the response.

A mix as a help desk has it: mostly short questions, some conversations with a history, a few long
documents. Drawn by seed, so that two runs send the same.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llmtrace.dataset.arrivals import Arrivals

Message = dict[str, str]

_SYSTEM: Final = (
    "You are the assistant of a help desk. Answer in plain text, in a few sentences, from what "
    "the user gives you; if that does not say, ask one short question back."
)
_SENTENCES: Final = (
    "The export of report {} stops at page {} without an error.",
    "Ticket {} was opened again after {} days because the fix did not hold.",
    "Since update {} the search takes {} seconds where it took one.",
    "Order {} was paid twice, and only one of {} invoices was sent.",
    "The printer in room {} prints {} blank pages before every document.",
    "Meeting {} was moved, but {} of the guests kept the old date.",
    "Device {} loses its connection every {} minutes and finds it again by itself.",
    "Backup {} finished, though {} files were skipped as being in use.",
)
_ASKS: Final = {
    "question": "What should I try first?",
    "conversation": "That did not help. What is the next step?",
    "document": "Sum up these notes: what is open, and what comes first?",
    "replay": "Sum up these notes.",
}
# Share of the requests, shortest and longest prompt in characters, most output tokens.
_MIX: Final = {
    "question": (0.50, 150, 500, (30, 50, 80)),
    "conversation": (0.30, 3_000, 6_000, (40, 60, 100)),
    "document": (0.20, 6_000, 8_000, (60, 100, 140)),
}
MAX_PROMPT: Final = 8_000
_SLOW_RENDER_S: Final = 0.012
_DECK: Final = 50
# Of a replayed trace: what the demo's engine can do, and its users at most together.
_REPLAYED_PER_S: Final = 3.0
_REPLAYED_OUTPUT: Final = 60.0  # tokens, on average
_REPLAYED_TOKENS: Final = (8, 200)
_SHORTEST: Final = 150


@dataclass(frozen=True, slots=True)
class Job:
    """One request to make, and how its answer is read.

    Attributes:
        route: which kind of request it is.
        messages: the prompt.
        max_tokens: the longest answer wanted.
        render_s: seconds the reader spends on each chunk before asking for the next.
        leaves_after: chunks after which the reader has seen enough; `None` = reads to the end.
        after_s: seconds after the one before it that it is due; 0 = as soon as a user is free.
    """

    route: str
    messages: tuple[Message, ...]
    max_tokens: int
    render_s: float = 0.0
    leaves_after: int | None = None
    after_s: float = 0.0


def jobs(seed: int = 0, longest_prompt: int = MAX_PROMPT) -> Iterator[Job]:
    """Yield jobs without end, the same for the same seed.

    Every 8th reader draws each chunk on the screen for 12 ms, and every 30th leaves early. All
    prompts shrink with `longest_prompt`, the characters that the endpoint's context holds.
    """
    draws = random.Random(seed)  # noqa: S311 - no secret
    scale = min(1.0, longest_prompt / MAX_PROMPT)
    # As from a deck of cards: by chance alone one phase would get twice the documents of another,
    # and a triage would rightly say that the work changed.
    deck = [route for route, (share, *_) in _MIX.items() for _ in range(round(share * _DECK))]
    for number in itertools.count(1):
        if number % len(deck) == 1:
            draws.shuffle(deck)
        route = deck[number % len(deck)]
        _, shortest, longest, limits = _MIX[route]
        length = round(draws.uniform(shortest, longest) * scale)
        yield Job(
            route=route,
            messages=_messages(route, length, draws),
            max_tokens=draws.choice(limits),
            render_s=_SLOW_RENDER_S if number % 8 == 5 else 0.0,  # noqa: PLR2004
            leaves_after=draws.randint(10, 40) if number % 30 == 17 else None,  # noqa: PLR2004
        )


def replayed(trace: Arrivals, longest_prompt: int = MAX_PROMPT) -> Iterator[Job]:
    """Yield the requests of a trace, again and again, scaled to what the demo's engine can do.

    When they come keeps its pattern and how long they are its proportions; the longest prompts are
    cut to `longest_prompt` characters.
    """
    draws = random.Random(0)  # noqa: S311 - no secret
    starts, prompts, outputs = (
        column.tolist() for column in (trace.start_s, trace.prompt, trace.output)
    )
    slower = trace.rate / _REPLAYED_PER_S
    characters = longest_prompt / sorted(prompts)[int(0.95 * len(prompts))]
    tokens = _REPLAYED_OUTPUT * len(outputs) / sum(outputs)
    least, most = _REPLAYED_TOKENS
    for number in itertools.count():
        k = number % len(starts)
        length = min(max(round(prompts[k] * characters), _SHORTEST), longest_prompt)
        yield Job(
            route="replay",
            messages=_messages("replay", length, draws),
            max_tokens=min(max(round(outputs[k] * tokens), least), most),
            after_s=(starts[k] - starts[k - 1]) * slower if k else 0.0,
        )


def lengthened(job: Job, length: int) -> Job:
    """Return a job whose prompt is so many characters long: its own, and notes before it."""
    *before, last = job.messages
    missing = length - sum(len(message["content"]) for message in job.messages)
    if missing <= 0:
        return job
    draws = random.Random(len(last["content"]))  # noqa: S311 - no secret
    longer = {**last, "content": f"{_notes(missing, draws)} {last['content']}"}
    return replace(job, messages=(*before, longer))


def _messages(route: str, length: int, draws: random.Random) -> tuple[Message, ...]:
    system = {"role": "system", "content": _SYSTEM}
    notes = _notes(length, draws)
    ask = {"role": "user", "content": _ASKS[route]}
    if route != "conversation":
        return (system, {"role": "user", "content": f"{notes}\n\n{_ASKS[route]}"})
    half = len(notes) // 2
    return (
        system,
        {"role": "user", "content": notes[:half]},
        {"role": "assistant", "content": notes[half:]},
        ask,
    )


def _notes(length: int, draws: random.Random) -> str:
    sentences: list[str] = []
    written = 0
    while written < length:
        sentence = draws.choice(_SENTENCES).format(draws.randint(100, 9999), draws.randint(2, 40))
        sentences.append(sentence)
        written += len(sentence) + 1
    return " ".join(sentences)[:length]
