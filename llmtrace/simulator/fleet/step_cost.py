"""The time of an engine's step, by machine.

`cpu-tiny` was measured (docs/develop/simulator.md says how, tests hold the fit to it). The GPU
models are assumed: their figures are set so that output tokens take the 20 to 80 ms and prompts
the 100 to 500 ms that are commonly reported for such machines, and no more should be read into
them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds that a step takes: a base, and more for what is in it.

    Attributes:
        base_s: a step with nothing in it: the weights are read once.
        prefill_token_s: a prompt token.
        attention_s: a pair of prompt token and token before it.
        sequence_s: a sequence that decodes.
        context_s: a token of its context.
        jitter: standard deviation of a step's time, as a share of it.
        front_request_s, front_prompt_s, front_token_s: the API server's work for a request, for a
            prompt token, for an output chunk.
        measured: whether this is a fit or an assumption.
    """

    base_s: float
    prefill_token_s: float
    attention_s: float
    sequence_s: float
    context_s: float
    jitter: float
    front_request_s: float
    front_prompt_s: float
    front_token_s: float
    measured: bool = False

    def rate_limit(self, prompt_tokens: float, output_tokens: float) -> float:
        """Return the requests a second at which steps would never end: capacity without limits.

        A step that carries the prompts and tokens arriving while it runs takes
        base / (1 - rate * (prefill + output tokens * cost of a sequence)).
        """
        return 1.0 / self._request_s(prompt_tokens, output_tokens)

    def batch(self, rate: float, prompt_tokens: float, output_tokens: float) -> float:
        """Return how many sequences decode at once under a steady load."""
        load = rate * self._request_s(prompt_tokens, output_tokens)
        return rate * output_tokens * self.base_s / max(1e-9, 1.0 - load)

    def _request_s(self, prompt_tokens: float, output_tokens: float) -> float:
        context = prompt_tokens + output_tokens / 2
        prefill = prompt_tokens * (self.prefill_token_s + self.attention_s * prompt_tokens / 2)
        return prefill + output_tokens * (self.sequence_s + self.context_s * context)


MODELS: Final[Mapping[str, StepCost]] = {
    model: StepCost(**seconds)
    for model, seconds in tomllib.loads(
        files(__package__).joinpath("step_cost.toml").read_text(encoding="utf-8")
    ).items()
}
