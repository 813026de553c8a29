"""The prompt and response of a request, as recorded if the user wants them to be.

Collected within bounds, redacted by the user's own hook, cut to a size, and written as
OpenTelemetry's GenAI conventions say. Off by default; if the hook fails, it is as if off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llmtrace.core.failopen import internal_error
from llmtrace.core.sanitize import encodable

DEFAULT_LIMIT: Final = 32_768

SYSTEM: Final = "gen_ai.system_instructions"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
ARGUMENTS: Final = "gen_ai.tool.call.arguments"
RESULT: Final = "gen_ai.tool.call.result"
NAMES: Final = frozenset({SYSTEM, INPUT, OUTPUT, ARGUMENTS, RESULT})

# The hook gets so much more text than is recorded, so that it sees what lies across the cut as a
# whole. A part of a secret longer than this could remain.
_MARGIN: Final = 4_096
_MAX_ITEMS: Final = 1_000
_MAX_DEPTH: Final = 8
CUT: Final = "…[cut]"
_MAX_PARTS: Final = 256
_MAX_NAME: Final = 128
_CUT_SHORT: Final = "cut"  # on a part while it is collected: some of it was not
# Counted for each message or part in addition to its text, so that their number is bounded, too.
_COST: Final = 64

# The key of each kind of part that holds what was said; other kinds are recorded by type alone.
_TEXT_KEYS: Final[Mapping[str, str]] = {
    "text": "content",
    "reasoning": "content",
    "tool_call": "arguments",
    "tool_call_response": "response",
}

Message = tuple[str, Sequence[dict[str, Any]]]  # a role, and parts in the conventions' shape


@dataclass(frozen=True, slots=True)
class ContentPolicy:
    """That content is recorded, and how.

    Attributes:
        limit: most bytes of text in one attribute.
        redact: called with each text before it is recorded; returns what to record in its place,
            or `None` for nothing. If it raises, nothing of the request is recorded.
    """

    limit: int = DEFAULT_LIMIT
    redact: Callable[[str], str | None] | None = None

    @property
    def collected(self) -> int:
        """How many characters are worth collecting."""
        return self.limit + _MARGIN

    def recorded(self, text: str, room: int, *, cut: bool = False) -> str:
        """Redact a text and cut it to so many bytes.

        Args:
            text: as it came.
            room: most bytes to keep of it, a mark that it was cut not counted.
            cut: whether its end was not collected.

        Raises:
            Exception: whatever the hook raises.
            TypeError: it returned no text.
        """
        if len(text) > self.collected:
            text, cut = text[: self.collected], True
        if self.redact is not None:
            redacted = self.redact(text)
            if redacted is None:
                return ""
            if not isinstance(redacted, str):
                raise TypeError(f"the redact hook returned {type(redacted).__name__}, not a text")
            # The end of what was cut may be half of something that the hook knows by its whole.
            text = redacted[: max(0, len(redacted) - _MARGIN)] if cut else redacted
        encoded = text.encode("utf-8", "replace")
        cut = cut or len(encoded) > room
        return encoded[:room].decode("utf-8", "ignore") + (CUT if cut else "")


class Content:
    """The prompt and response of one request, as they come.

    Nothing here raises: whatever goes wrong, nothing of the request's content is recorded.
    """

    __slots__ = ("_choices", "_failed", "_left", "_messages", "_policy", "_skipped", "_system")

    def __init__(self, policy: ContentPolicy) -> None:
        self._policy = policy
        self._failed = False
        self._system: Sequence[dict[str, Any]] = ()
        self._messages: list[Message] = []  # the last first
        self._skipped = 0
        self._choices: dict[int, dict[Any, dict[str, Any]]] = {}
        self._left = policy.collected

    def guarded(self, take: Callable[..., None], *args: Any) -> None:
        """Take content in with a function that knows the shape it comes in."""
        if self._failed:
            return
        try:
            take(self, *args)
        except Exception as error:  # noqa: BLE001 - the request goes on; its content is not kept
            self._fail("content", error)

    def _fail(self, kind: str, error: BaseException) -> None:
        self._failed = True
        self._messages.clear()
        self._choices.clear()
        self._system = ()
        internal_error(kind, error)

    # --- the prompt -----------------------------------------------------------------------------

    def instructed(self, parts: Sequence[dict[str, Any]]) -> None:
        """Note instructions that were given apart from the conversation."""
        self._system = parts[:_MAX_PARTS]

    def add_prompt(self, messages: Sequence[Any], read: Callable[[Any], Message]) -> None:
        """Note a conversation; of a long one its end, which is what is new in it.

        A second one is a second try: it takes the place of the first, and so does its answer.
        `read` turns a message, in the shape it is sent in, into the conventions' shape.
        """
        self._messages.clear()
        self._choices.clear()
        self._skipped, self._left = 0, self._policy.collected
        room = self._policy.collected
        for number, message in enumerate(reversed(messages)):
            if room <= 0:
                self._skipped = len(messages) - number
                break
            role, parts = read(message)
            self._messages.append((role, parts[:_MAX_PARTS]))
            room -= _COST + sum(len(_text(part)) for part in parts)

    # --- what is answered -----------------------------------------------------------------------

    def said(self, piece: Any, kind: str = "text", *, key: object = None, choice: int = 0) -> None:
        """Note a piece of an answer's text or reasoning, as `kind` says; nothing if it is no text.

        The pieces of one part have the `key` in common.
        """
        if not isinstance(piece, str) or not piece:
            return
        part = self._part(choice, (kind, key), {"type": kind, "content": []})
        if part is not None:
            self._add(part, piece)

    def called(
        self,
        key: object,
        *,
        name: Any = None,
        call_id: Any = None,
        piece: Any = None,
        choice: int = 0,
    ) -> None:
        """Note a piece of a tool call that a response asks for.

        Its pieces have the `key` in common; one has the name and the id, and each some of the
        arguments.
        """
        new: dict[str, Any] = {"type": "tool_call", "id": None, "name": "", "arguments": []}
        part = self._part(choice, ("call", key), new)
        if part is None:
            return
        if isinstance(name, str):
            part["name"] = name[:_MAX_NAME]
        if isinstance(call_id, str):
            part["id"] = call_id[:_MAX_NAME]
        if isinstance(piece, str) and piece:
            self._add(part, piece)

    def _part(self, choice: int, key: object, new: dict[str, Any]) -> dict[str, Any] | None:
        parts = self._choices.get(choice, {})
        if key not in parts:
            if sum(map(len, self._choices.values())) >= _MAX_PARTS:
                return None
            self._choices.setdefault(choice, parts)[key] = new
        return parts[key]

    def _add(self, part: dict[str, Any], piece: str) -> None:
        if self._left > 0:
            part[_TEXT_KEYS[part["type"]]].append(piece[: self._left])
        self._left -= len(piece)
        if self._left < 0:
            part[_CUT_SHORT] = True

    # --- what is recorded -----------------------------------------------------------------------

    def attributes(self, finish_reason: str | None) -> dict[str, str]:
        """Return what to put on the request's span: redacted, cut, and as JSON."""
        if self._failed:
            return {}
        try:
            return dict(self._attributes(finish_reason))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - above all the user's hook
            self._fail("content.redact", error)
            return {}

    def _attributes(self, finish_reason: str | None) -> Iterable[tuple[str, str]]:
        if self._system:
            parts, _ = self._recorded(self._system, self._policy.limit)
            yield SYSTEM, _json(parts)
        if self._messages:
            yield INPUT, _json(self._input())
        if self._choices:
            yield OUTPUT, _json(self._output(finish_reason))

    def _input(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        room, skipped = self._policy.limit, self._skipped
        for number, (role, parts) in enumerate(self._messages):
            if room <= 0:
                skipped += len(self._messages) - number
                break
            recorded, room = self._recorded(parts, room - _COST)
            messages.append({"role": role, "parts": recorded})
        if skipped:
            text = f"[{skipped} earlier messages cut]"
            messages.append({"role": "system", "parts": [{"type": "text", "content": text}]})
        return messages[::-1]

    def _output(self, finish_reason: str | None) -> list[dict[str, Any]]:
        messages, room = [], self._policy.limit
        for _, parts in sorted(self._choices.items()):
            recorded, room = self._recorded([*parts.values()], room)
            message: dict[str, Any] = {"role": "assistant", "parts": recorded}
            if finish_reason is not None:
                message["finish_reason"] = finish_reason
            messages.append(message)
        return messages

    def _recorded(
        self, parts: Sequence[dict[str, Any]], room: int
    ) -> tuple[list[dict[str, Any]], int]:
        """Redact and cut parts to so many bytes; return them and how many bytes are left."""
        recorded = []
        for part in parts:
            key = _TEXT_KEYS.get(part["type"])
            if key is None:
                recorded.append(part)
                continue
            cut = part.get(_CUT_SHORT, False)
            text = self._policy.recorded(_text(part), max(0, room), cut=cut)
            room -= len(text.encode()) + _COST
            shown = {name: value for name, value in part.items() if name != _CUT_SHORT}
            recorded.append({**shown, key: text})
        return recorded, room


def tool_content(policy: ContentPolicy, value: Any) -> str | None:
    """Return the arguments or the result of a tool call as JSON, redacted and cut.

    Fails closed: `None` if anything goes wrong.
    """
    try:
        text = value if isinstance(value, str) else _json(plain(value, policy.collected))
        return policy.recorded(text, policy.limit)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - above all the user's hook
        internal_error("content.redact", error)
        return None


def _text(part: Mapping[str, Any]) -> str:
    """Return what a part says, as one text."""
    said = part.get(_TEXT_KEYS.get(part["type"], ""))
    if isinstance(said, str):
        return said
    if isinstance(said, list) and all(isinstance(piece, str) for piece in said):
        return "".join(said)
    return "" if said is None else _json(said)


def _json(value: Any) -> str:
    return encodable(
        json.dumps(value, ensure_ascii=False, default=lambda one: f"<{type(one).__name__}>")
    )


# --- values of any kind as plain data ------------------------------------------------------------


def plain(value: Any, characters: int) -> Any:
    """Copy a value as plain data, with at most so many characters of text in all.

    What is too deep, too long or too much is replaced by a mark; what is no data, by its type.
    """
    return _Copy(characters).of(value, 0)


class _Copy:
    """One copying, within bounds."""

    __slots__ = ("_characters", "_items")

    def __init__(self, characters: int) -> None:
        self._characters = characters
        self._items = _MAX_ITEMS

    def of(self, value: Any, depth: int) -> Any:
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self._text(value)
        if depth > _MAX_DEPTH:
            return CUT
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._list(value, depth)
        fields = getattr(type(value), "__dataclass_fields__", None)
        if fields is not None:
            return self._mapping({name: getattr(value, name, None) for name in fields}, depth)
        return f"<{type(value).__name__}>"

    def _text(self, text: str) -> str:
        taken = text[: self._characters]
        self._characters -= len(taken)
        return taken if len(taken) == len(text) else taken + CUT

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        copied: dict[str, Any] = {}
        for key, one in value.items():
            if self._full():
                copied[CUT] = CUT
                break
            copied[self._text(str(key))] = self.of(one, depth + 1)
        return copied

    def _list(self, value: Any, depth: int) -> list[Any]:
        copied: list[Any] = []
        for one in value:
            if self._full():
                copied.append(CUT)
                break
            copied.append(self.of(one, depth + 1))
        return copied

    def _full(self) -> bool:
        self._items -= 1
        return self._items < 0 or self._characters <= 0
