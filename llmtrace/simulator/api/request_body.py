"""Read a request's JSON body, and reject what the engine cannot serve.

Typed readers over a JSON body that may hold anything. What is wrong with it becomes a
`RejectedError`, which every protocol formats in its own way.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]
_TEXT_KEYS = ("role", "name", "content", "text", "input", "thinking", "arguments", "output")


class RejectedError(Exception):
    """A request that gets an HTTP error status instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Keep what the answer will say."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.headers = dict(headers or {})


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """One request as its body put it, whatever the protocol."""

    prompt: str
    limit: int | None  # most output tokens; `None` = as many as fit
    model: str | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    tool: str = "lookup"  # which tool a simulated call calls


def parse_body(raw: bytes) -> Body:
    """Parse a request body.

    Raises:
        RejectedError: it is no JSON object.
    """
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise RejectedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise RejectedError(400, "the body must be a JSON object")
    return body


def read_request(body: Body, prompt: str, limit_names: tuple[str, ...]) -> ParsedRequest:
    """Read what all protocols share; the first of `limit_names` that is given counts.

    Raises:
        RejectedError: a field of the wrong type, or more than one choice requested.
    """
    if _integer(body, "n", 1) != 1:
        raise RejectedError(400, "the simulated engine gives one choice: n must be 1", "n")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise RejectedError(400, "stream_options must be an object", "stream_options")
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise RejectedError(400, "model must be a string", "model")
    tools = body.get("tools") or []
    if not isinstance(tools, list):
        raise RejectedError(400, "tools must be a list", "tools")
    limits = (_integer(body, name) for name in limit_names)
    return ParsedRequest(
        prompt=prompt + text_of(tools),
        limit=next((limit for limit in limits if limit is not None), None),
        model=model,
        stream=body.get("stream") is True,
        include_usage=options.get("include_usage") is True,
        continuous_usage=options.get("continuous_usage_stats") is True,
        ignore_eos=body.get("ignore_eos") is True,
        min_tokens=_integer(body, "min_tokens", 0, least=0) or 0,
        tool=_tool_name(tools),
    )


def text_of(value: object) -> str:
    """Return the text in a prompt: a string, a list of parts, messages, or tools as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text_of(part) for part in value)
    if isinstance(value, dict):
        if "function" in value or "input_schema" in value or "parameters" in value:
            return json.dumps(value)
        return "\n".join(text_of(value[key]) for key in _TEXT_KEYS if value.get(key))
    return ""


def messages_text(body: Body, name: str) -> str:
    """Return the text of a conversation.

    Raises:
        RejectedError: there is none, or it is no list of objects.
    """
    messages = body.get(name)
    if not isinstance(messages, list) or not messages:
        raise RejectedError(400, f"{name} must be a list with a message or more", name)
    if not all(isinstance(message, dict) for message in messages):
        raise RejectedError(400, f"every one of {name} must be an object", name)
    return text_of(messages)


def _integer(body: Body, name: str, default: int | None = None, *, least: int = 1) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RejectedError(400, f"{name} must be an integer of {least} or more", name)
    return value


def _tool_name(tools: list[Any]) -> str:
    """Return the name of the first tool on offer, in the shape of any of the protocols."""
    for tool in tools:
        if isinstance(tool, dict):
            function = tool.get("function")
            name = function.get("name") if isinstance(function, dict) else tool.get("name")
            if isinstance(name, str):
                return name
    return "lookup"
