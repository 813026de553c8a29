"""Read the requests of a load test from a file of JSON lines."""

from __future__ import annotations

import base64
import mimetypes
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from llmtrace.core.errors import DataError, SourceError, explain_error
from llmtrace.dataset.files import objects
from llmtrace.load_test.endpoint_apis import Api
from llmtrace.load_test.lengths import Lengths
from llmtrace.load_test.requests import Message, Request, conversation, user

_OPTIONS: Final = ("tools", "tool_choice")
_MAX_IMAGE: Final = 32 << 20

_Turns = list[tuple[Message, ...]]


def from_dataset(
    path: Path, count: int | None, output: Lengths | None, seed: int, api: Api = "openai"
) -> list[Request]:
    """Read requests from JSON lines.

    A line has `messages`, a `prompt`, or `turns` (prompts sent one after the other's response),
    and optionally `max_tokens`, `tools` and `tool_choice`, as the API has them. A part of a
    message `{"type": "image", "path": "cat.png"}` is sent as the bytes of that file. A file of
    fewer requests than `count` is read again from its start.

    Args:
        path: the file, gzipped if its name ends in `.gz`.
        count: how many; `None` = one a line.
        output: most output tokens of lines that do not say; `None` = no limit.
        seed: of the draws of `output`.
        api: whose form images get.

    Raises:
        SourceError: the file or an image cannot be read.
        DataError: a line is no request; the message names it.
    """
    draws = random.Random(seed)  # noqa: S311 - no secret
    lines = [
        _line(f"{path}: line {i}", path.parent, line, api)
        for i, line in enumerate(objects(path), 1)
    ]
    if not lines:
        raise DataError(f"{path}: no request in it")
    requests: list[Request] = []
    number = 0
    for i in range(len(lines) if count is None else count):
        turns, most, options = lines[i % len(lines)]
        limits = [
            output.draw(draws) if most is None and output is not None else most for _ in turns
        ]
        requests.append(conversation(number, list(zip(turns, limits, strict=True)), options))
        number += len(turns)
    return requests


def _line(
    where: str, folder: Path, line: Mapping[str, Any] | None, api: Api
) -> tuple[_Turns, int | None, dict[str, Any]]:
    if line is None:
        raise DataError(f"{where} is not a JSON object")
    limit = line.get("max_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise DataError(f"{where}: max_tokens is {limit!r}, not a whole number")
    options = {name: line[name] for name in _OPTIONS if line.get(name) is not None}
    return _turns(where, folder, line, api), limit, options


def _turns(where: str, folder: Path, line: Mapping[str, Any], api: Api) -> _Turns:
    messages, prompt, turns = (line.get(key) for key in ("messages", "prompt", "turns"))
    if messages is None and isinstance(prompt, str):
        messages = [user(prompt)]
    if messages is None and isinstance(turns, list) and turns:
        if not all(isinstance(text, str) for text in turns):
            raise DataError(f"{where}: `turns` are texts, one a turn")
        return [(user(text),) for text in turns]
    fits = isinstance(messages, list) and messages
    if not fits or not all(isinstance(one, dict) and "role" in one for one in messages or ()):
        raise DataError(f"{where} has neither `messages` nor a `prompt` or `turns`")
    return [tuple(_with_images(where, folder, message, api) for message in messages or ())]


def _with_images(where: str, folder: Path, message: Message, api: Api) -> Message:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": [_part(where, folder, part, api) for part in content]}


def _part(where: str, folder: Path, part: Any, api: Api) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image" or "path" not in part:
        return part
    path = folder / str(part["path"])
    kind = mimetypes.guess_type(path.name)[0] or ""
    if not kind.startswith("image/"):
        raise DataError(f"{where}: {path.name} is no image, by its name")
    try:
        if path.stat().st_size > _MAX_IMAGE:
            raise DataError(f"{path}: larger than {_MAX_IMAGE >> 20} MiB")
        data = base64.b64encode(path.read_bytes()).decode()
    except OSError as error:
        raise SourceError(f"{path}: cannot read it: {explain_error(error)}") from error
    if api == "anthropic":
        source = {"type": "base64", "media_type": kind, "data": data}
        return {"type": "image", "source": source}
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def number_of(requests: Sequence[Request]) -> int:
    """Return how many requests are sent in all, each turn of a conversation counted."""
    return sum(1 for request in requests for _ in request.turns())
