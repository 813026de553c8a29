"""Turn options into the plan of a load test: the requests, and when they are sent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from llmtrace.core.errors import ConfigError
from llmtrace.load_test.dataset_requests import from_dataset
from llmtrace.load_test.endpoint_apis import Sending
from llmtrace.load_test.lengths import read_lengths
from llmtrace.load_test.requests import Request, at_rate, drawn, from_trace
from llmtrace.load_test.send_plan import Plan

_COUNT: Final = 200
_CLIENTS: Final = 4
_OTHER_SEED: Final = 1_000_003
SWEPT: Final = ("concurrency", "rate", "prompt_tokens", "output_tokens", "shared_prefix", "turns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent, and how fast; the attributes are the options of `llmtrace bench`.

    Attributes:
        prompt_tokens, output_tokens: lengths, as `read_lengths` reads them.
        shared_prefix: tokens that all prompts begin with.
        turns: of a conversation.
        dataset, arrivals: files that the requests are of instead; `None` = drawn.
        requests: how many; `None` = all of the file, else 200.
        seed: of what is drawn.
        rate: requests a second of an open loop; `None` = the file's times, or a closed loop.
        concurrency: clients of a closed loop; `None` = 4, unless it is an open one.
        duration: seconds after which none starts; `None` = all start.
        warm_up: requests sent first that do not count.
        processes: that send them.
    """

    prompt_tokens: str = "256"
    output_tokens: str = "64"
    shared_prefix: int = 0
    turns: int = 1
    dataset: Path | None = None
    arrivals: Path | None = None
    requests: int | None = None
    seed: int = 0
    rate: float | None = None
    concurrency: int | None = None
    duration: float | None = None
    warm_up: int = 3
    processes: int = 1

    def plan(self, sending: Sending) -> Plan:
        """Return what is sent to an endpoint.

        Raises:
            SourceError: a file cannot be read.
            DataError: a file is not what it must be.
            ConfigError: a length is none, or the shared prefix is as long as the prompts.
        """
        timed = self.rate is not None or (self.arrivals is not None and self.concurrency is None)
        settings = {
            name: value.name if isinstance(value, Path) else value
            for name, value in asdict(self).items()
        }
        return Plan(
            sending=sending,
            requests=self._requests(sending),
            warm_up=self.others(self.warm_up),
            concurrency=None if timed else self.concurrency or _CLIENTS,
            seconds=self.duration,
            processes=self.processes,
            settings=settings,
        )

    def _requests(self, sending: Sending) -> list[Request]:
        output = read_lengths(self.output_tokens)
        if self.arrivals is not None:
            requests = from_trace(self.arrivals, self.requests, self.seed)
        elif self.dataset is not None:
            requests = from_dataset(
                self.dataset, self.requests, output, seed=self.seed, api=sending.api
            )
        else:
            prompt = read_lengths(self.prompt_tokens)
            if self.shared_prefix >= prompt.first:
                raise ConfigError(
                    f"--shared-prefix {self.shared_prefix}: prompts of --prompt-tokens "
                    f"{self.prompt_tokens} have no room for it and a text of their own"
                )
            requests = drawn(
                self.requests or _COUNT, prompt, output,
                shared_prefix=self.shared_prefix, turns=self.turns, seed=self.seed,
            )  # fmt: skip
        return requests if self.rate is None else at_rate(requests, self.rate, self.seed)

    def again(self, sending: Sending, count: int) -> Plan:
        """Return a plan of so many requests like those of `plan`, of other texts if drawn."""
        other = replace(self, seed=self.seed + 2 * _OTHER_SEED, requests=count, warm_up=0)
        return other.plan(sending)

    def others(self, count: int) -> list[Request]:
        """Return requests of other texts than those that count, or a prefix cache knows them."""
        prompt, output = read_lengths(self.prompt_tokens), read_lengths(self.output_tokens)
        requests = drawn(count, prompt, output, seed=self.seed + _OTHER_SEED)
        return [replace(request, number=-1 - i) for i, request in enumerate(requests)]


def read_sweep(text: str) -> tuple[str, Sequence[float]]:
    """Read `concurrency=1,2,4`: what is varied, and its settings, the lowest first.

    Raises:
        ConfigError: it is none; the message says what one looks like.
    """
    name, _, values = text.partition("=")
    name = name.strip().replace("-", "_")
    try:
        found = sorted({float(value) for value in values.split(",")})
    except ValueError:
        found = []
    whole = name == "rate" or all(value.is_integer() for value in found)
    measurable = all(0 < value < math.inf for value in found)
    if name not in SWEPT or not found or not measurable or not whole:
        raise ConfigError(
            f"--sweep {text!r}: write what is varied and its settings, as concurrency=1,2,4; "
            f"what is varied is one of {', '.join(SWEPT)}"
        )
    return name, found


def at_setting(workload: Workload, name: str, value: float) -> Workload:
    """Return a workload with one thing set; its texts are others than at any other setting."""
    seed = workload.seed + round(1000 * value)
    changes: dict[str, object] = {"seed": seed, name: value if name == "rate" else int(value)}
    if name in {"prompt_tokens", "output_tokens"}:
        changes[name] = str(int(value))
    if name == "concurrency":
        changes["rate"] = None
    return replace(workload, **changes)  # type: ignore[arg-type]
