"""Does the endpoint answer at all, and if not, what is wrong with it in one sentence?

One tiny request before the clients start, so that a wrong address, key or model is said once.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any, Final

import openai

from llmtrace.demo.drive import make_client
from llmtrace.demo.target import Target
from llmtrace.errors import SourceError

_TIMEOUT_S: Final = 60.0
_LIST_TIMEOUT_S: Final = 5.0
_MOST_NAMES: Final = 5
_MOST_CHARACTERS: Final = 300


async def probe(target: Target) -> Target:
    """Ask for a few tokens, and return the target as it wants to be asked.

    Raises:
        SourceError: no answer came; the message says why and what to look at.
    """
    async with make_client(target, timeout=_TIMEOUT_S, max_retries=0) as client:
        try:
            try:
                await _say_hello(client, target)
            except openai.BadRequestError as error:
                # Newer models of OpenAI's take the limit under this name only.
                if "max_completion_tokens" not in str(error):
                    raise
                target = replace(target, limit="max_completion_tokens")
                await _say_hello(client, target)
        except openai.APIStatusError as error:
            raise SourceError(target.hide_key(await _status(client, target, error))) from None
        except openai.APITimeoutError:
            msg = f"{target.url} did not answer within {_TIMEOUT_S:.0f} s; is the model loaded?"
            raise SourceError(msg) from None
        except openai.OpenAIError as error:
            msg = (
                f"{target.url} cannot be reached: {_cause(error)}; "
                "is the server running, and the address right?"
            )
            raise SourceError(target.hide_key(msg)) from None
    return target


async def _say_hello(client: Any, target: Target) -> None:
    stream = await client.chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": "Say hello."}],
        stream=True,
        **{target.limit: 8},
    )
    async for _ in stream:
        pass


async def _status(client: Any, target: Target, error: openai.APIStatusError) -> str:
    status = error.status_code
    if status in {401, 403}:
        return (
            f"{target.url} refused the key (HTTP {status}): put it into an environment variable "
            "and name that by --api-key-env VARIABLE"
        )
    said = f"HTTP {status}: {_words(error)}"
    if status == 404:  # noqa: PLR2004
        names = await _models(client)
        if names:
            return f"{target.url} does not serve {target.model!r}; it serves {names} ({said})"
        return (
            f"{target.url} has no chat completions ({said}); "
            "does the address end in /v1, and is the model's name right?"
        )
    return f"{target.url} refused the request ({said})"


async def _models(client: Any) -> str:
    try:
        listed = await asyncio.wait_for(client.models.list(), _LIST_TIMEOUT_S)
        names = [str(model.id) for model in listed.data]
    except Exception:  # noqa: BLE001 - it was only to help
        return ""
    more = ", …" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _words(error: openai.APIStatusError) -> str:
    """Return what the server said, without the JSON around it, in one line."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or json.dumps(body)
    text = " ".join(str(body or error.message).split())
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__
