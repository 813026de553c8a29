"""Check that the endpoint responds, and explain in one sentence why it does not.

One tiny request before the clients start, so that a wrong address, key or model is said once.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import Any, Final

import openai

from llmtrace.core.errors import SourceError
from llmtrace.demo.sample_app import make_client
from llmtrace.demo.target import NO_KEY, Target

_TIMEOUT_S: Final = 60.0
_LIST_TIMEOUT_S: Final = 5.0
_MAX_NAMES: Final = 5
_MAX_CHARACTERS: Final = 300


async def probe(target: Target) -> Target:
    """Request a few tokens, and return the target with the options it accepts.

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
        except openai.APIConnectionError as error:
            msg = (
                f"{target.url} cannot be reached: {_cause(error)}; "
                "is the server running, and the address right?"
            )
            raise SourceError(target.hide_key(msg)) from None
        except (openai.OpenAIError, ValueError) as error:  # inside the stream of a 200
            msg = f"{target.url} answered with an error: {_one_line(str(error))}"
            raise SourceError(target.hide_key(msg)) from None
    return target


async def _say_hello(client: Any, target: Target) -> None:
    stream = await client.chat.completions.create(
        model=target.model,
        messages=[{"role": "user", "content": "Say hello."}],
        stream=True,
        extra_body={target.limit: 8},
    )
    chunks = 0
    async for _ in stream:
        chunks += 1
    if not chunks:
        raise SourceError(
            f"{target.url} answered, but with no stream of chat completion chunks; "
            "is it the address of an OpenAI-compatible server?"
        )


async def _status(client: Any, target: Target, error: openai.APIStatusError) -> str:
    status = error.status_code
    if status in {401, 403}:
        advice = (
            "put one into an environment variable and name that by --api-key-env VARIABLE"
            if target.api_key == NO_KEY
            else "is it the right one, and may it use this model?"
        )
        what = "no key" if target.api_key == NO_KEY else "the key"
        return f"{target.url} does not accept {what} (HTTP {status}); {advice}"
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
    more = ", …" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def _words(error: openai.APIStatusError) -> str:
    """Return what the server said, without the JSON around it."""
    body = error.body
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or json.dumps(body)
    return _one_line(str(body or error.message))


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _cause(error: BaseException) -> str:
    """Return what the operating system said, below what each library made of it."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    if isinstance(error, ConnectionError) and error.errno is not None:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
