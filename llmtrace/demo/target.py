"""Open the demo's endpoint: a simulated engine, a real vLLM, or one the user names.

Each is a context manager that yields a `Target` and stops what it started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from llmtrace.core.errors import ConfigError
from llmtrace.demo.simulated_users import MAX_PROMPT
from llmtrace.engines import local_vllm

if TYPE_CHECKING:
    from llmtrace.simulator.server import SimulatedServer

SIMULATED: Final = "SIMULATED engine"
REAL_VLLM: Final = "real vLLM"
# Real work in a gateway is rarely free: authentication, routing, a rate limit.
_GATEWAY_S: Final = 0.012
_ANSWER_TOKENS: Final = 25
# Slow steps and short answers: what is simulated must outweigh what a busy machine adds to it.
_SLOWER: Final = 2.0
# Few slots, so that a dozen users make a queue.
_VLLM_FLAGS: Final = ("--max-num-seqs", "6")
# One byte is one token to the tiny model, whose context is 4,096.
_VLLM_LONGEST_PROMPT: Final = 3_200
NO_KEY: Final = "none"
_VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An endpoint to ask.

    Attributes:
        url: its base URL, as OpenAI's client wants it.
        model: the model to ask for.
        name: what reports call it.
        notes: what a reader of the figures must know about it, a line each.
        api_key: never shown.
        limit: the endpoint's name for the limit of output tokens.
        longest_prompt: characters of the longest prompt it takes.
        simulated: whether its rows are marked as such.
        ours: started by the demo on loopback, so that no proxy is used.
        engine: the simulated engine, if it is one.
    """

    url: str
    model: str
    name: str
    notes: tuple[str, ...] = ()
    api_key: str = field(default=NO_KEY, repr=False)
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    longest_prompt: int = MAX_PROMPT
    simulated: bool = False
    ours: bool = False
    engine: SimulatedServer | None = field(default=None, repr=False)

    def hide_key(self, text: str) -> str:
        """Return a text without the key: servers like to quote it back."""
        return text if self.api_key == NO_KEY else text.replace(self.api_key, "***")


@contextmanager
def simulated() -> Iterator[Target]:
    """Serve the embedded engine on loopback.

    Raises:
        ConfigError: a package of the `demo` extra is missing.
        SourceError: the engine did not start.
    """
    from llmtrace.simulator.engine.incidents import slowed
    from llmtrace.simulator.engine.scheduler import EngineConfig
    from llmtrace.simulator.server import ServerConfig, serve

    slow = slowed(EngineConfig(), _SLOWER)
    config = ServerConfig(engine=slow, gateway_s=_GATEWAY_S, answer_tokens=_ANSWER_TOKENS)
    slots, gateway_ms = config.engine.max_num_seqs, round(1000 * _GATEWAY_S)
    with serve(config) as engine:
        yield Target(
            url=engine.url,
            model=config.model,
            name=SIMULATED,
            notes=(
                f"Simulated: an engine with {slots} slots, a gateway that takes {gateway_ms} ms.",
                "Real: HTTP on loopback, the OpenAI SDK, llmtrace, and every clock.",
            ),
            simulated=True,
            ours=True,
            engine=engine,
        )


@contextmanager
def real_vllm(tell: Callable[[str], None]) -> Iterator[Target]:
    """Start a real vLLM with a tiny random model here; `tell` gets the progress every few seconds.

    Raises:
        SourceError: vLLM is not installed, or did not start.
    """
    with local_vllm.start(flags=_VLLM_FLAGS, log=tell) as server:
        vllm = Target(
            url=f"{server.url}/v1",
            model=server.model,
            name=REAL_VLLM,
            notes=(
                "Real: vLLM, HTTP on loopback, the OpenAI SDK, llmtrace, and every clock.",
                "A tiny model with random weights: what it says means nothing. It shares this",
                "machine's cores with its users, which shows in network and first_chunk, too.",
                f"Started with {' '.join(_VLLM_FLAGS)}, so that a dozen users make a queue.",
            ),
            longest_prompt=_VLLM_LONGEST_PROMPT,
            ours=True,
        )
        try:
            yield vllm
        finally:
            tell("stopping vLLM")


@contextmanager
def named(url: str, model: str, api_key_env: str | None) -> Iterator[Target]:
    """Take the endpoint a user names; nothing is started.

    Its key is in the environment variable `api_key_env`; without one no key is sent.

    Raises:
        ConfigError: it is no URL, or the variable is not set.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"--endpoint {url!r} is no address; write it like http://127.0.0.1:8000/v1"
        raise ConfigError(msg)
    if parts.username or parts.password:
        msg = "--endpoint: keep the key out of the address; name its variable by --api-key-env"
        raise ConfigError(msg)
    key = NO_KEY
    if api_key_env is not None:
        key = os.environ.get(api_key_env, "")
        if not key:
            # Not repeated unless it can be no key: a key given here by mistake must not be shown.
            shown = f" {api_key_env}" if _VARIABLE.fullmatch(api_key_env) else ""
            raise ConfigError(
                f"--api-key-env: the environment variable{shown} is not set or empty; "
                "give the name of the variable that holds the key, not the key"
            )
    yield Target(
        url=url,
        model=model,
        name=f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname,
        notes=("Answers of a hosted model cost what its provider charges for them.",)
        if api_key_env
        else (),
        api_key=key,
    )
