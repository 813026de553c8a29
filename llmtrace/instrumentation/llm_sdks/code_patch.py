"""Patch the code of an SDK's function: every call goes through llmtrace, by any reference to it.

Another instrumentation may have put a function of its own on a class or a client before us, and
kept the SDK's to call: a function set on a class would never be called. So the code object of the
function itself is replaced, and the order in which instrumentations are set up does not matter.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, Final

from llmtrace.core.errors import ConfigError

_NAME: Final = "__llmtrace_{}_request__"
_SYNC: Final = "def request(*args, **kwargs):\n    return {}(*args, **kwargs)\n"
_ASYNC: Final = "async def request(*args, **kwargs):\n    return await {}(*args, **kwargs)\n"


class CodePatch:
    """The replaced code of one SDK function, as long as at least one instrumentation needs it."""

    def __init__(self, function: FunctionType, name: str) -> None:
        self._function = function
        self._name = _NAME.format(name)
        self._users = 0
        self._replaced: CodeType | None = None
        self._plain = function.__code__

    def apply(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Make every call go through `wrap(original)`; a second `apply` is only counted."""
        self._users += 1
        if self._users > 1:
            return
        function = self._function
        self._plain = function.__code__
        plain = FunctionType(
            self._plain,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        plain.__kwdefaults__ = function.__kwdefaults__
        template = _ASYNC if inspect.iscoroutinefunction(function) else _SYNC
        signature = inspect.signature(function)
        self._replaced = _code(template.format(self._name))
        function.__globals__[self._name] = wrap(plain)
        function.__code__ = self._replaced
        function.__signature__ = signature  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Undo one `apply`; the last one restores the function's own code."""
        self._users -= 1
        # A later instrumentation keeps calling our function, which then only passes on.
        if self._users == 0 and self._function.__code__ is self._replaced:
            self._function.__code__ = self._plain
            del self._function.__signature__  # type: ignore[attr-defined]
            del self._function.__globals__[self._name]


_patches: dict[type[Any], CodePatch] = {}


def request_patch(kind: type[Any]) -> CodePatch:
    """Return the patch of a client class's `request`, as the SDK's base class defines it.

    Raises:
        ConfigError: its `request` is not a plain function of the SDK.
    """
    for base in kind.__mro__:
        if base.__module__.endswith("._base_client") and "request" in vars(base):
            known = _patches.get(base)
            if known is None:
                function = inspect.unwrap(vars(base)["request"])
                if not isinstance(function, FunctionType) or function.__closure__:
                    break
                known = _patches[base] = CodePatch(function, base.__name__)
            return known
    msg = f"llmtrace cannot instrument {kind.__qualname__}: its `request` is not the SDK's own"
    raise ConfigError(msg)


def _code(source: str) -> CodeType:
    scope: dict[str, Any] = {}
    exec(compile(source, "<llmtrace>", "exec"), scope)  # noqa: S102 - the two lines above
    code: CodeType = scope["request"].__code__
    return code
