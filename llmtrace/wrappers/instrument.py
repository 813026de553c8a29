"""Which clients are instrumented, and how is that undone?

`instrument(openai)` covers every client of the module, `instrument(client)` that one. Each is
idempotent, and what it returns undoes it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from itertools import count
from types import ModuleType, TracebackType
from typing import Any, Final, Self

from llmtrace.errors import ConfigError
from llmtrace.wrappers import http, imports, sdk
from llmtrace.wrappers.endpoints import library

MODULES: Final = ("openai", "anthropic")

_undo: dict[int, Callable[[], None]] = {}
_keys = count()


class Instrumented:
    """What `instrument` returns: call `undo()`, or use it in a `with`, to take it back."""

    __slots__ = ("_keys",)

    def __init__(self, keys: tuple[int, ...]) -> None:
        self._keys = keys

    def undo(self) -> None:
        """Put back what was there before. Calling it again does nothing."""
        for key in self._keys:
            undo = _undo.pop(key, None)
            if undo is not None:
                undo()
                http.uninstall()
        self._keys = ()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo."""
        self.undo()


def instrument(client_or_module: Any) -> Instrumented:
    """Record every model call of an OpenAI or Anthropic client, or of all clients of the module.

    For aiohttp, which makes no model calls of its own, it times the network phases of requests
    that decorated functions make; for a module, of sessions made from then on.

    Args:
        client_or_module: the `openai`, `anthropic` or `aiohttp` module, one of their clients or
            sessions, or a list of such.

    Returns:
        A handle whose `undo()` takes it back; also a context manager. Instrumenting what is
        instrumented already gives a handle that undoes nothing.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(client_or_module, list | tuple | set):
        keys = [key for one in client_or_module for key in instrument(one)._keys]  # noqa: SLF001
        return Instrumented(tuple(keys))
    if isinstance(client_or_module, ModuleType):
        name = client_or_module.__name__
        if name == "aiohttp":
            return Instrumented(_patch_aiohttp(client_or_module.ClientSession))
        if name not in MODULES:
            msg = f"llmtrace.instrument knows {', '.join(MODULES)} and aiohttp, not {name!r}"
            raise ConfigError(msg)
        base = importlib.import_module(f"{name}._base_client")
        return Instrumented(_patch(base.SyncAPIClient) + _patch(base.AsyncAPIClient))
    if library(client_or_module) is not None and hasattr(client_or_module, "request"):
        return Instrumented(_patch(client_or_module))
    root = type(client_or_module).__module__.partition(".")[0]
    if root == "aiohttp" and hasattr(client_or_module, "trace_configs"):
        return Instrumented(_patch_aiohttp(client_or_module))
    msg = (
        "llmtrace.instrument takes the openai, anthropic or aiohttp module or one of their "
        f"clients, not {client_or_module!r}; for the rest use llmtrace.wrap(stream) or "
        "@llmtrace.trace"
    )
    raise ConfigError(msg)


def _patch(target: Any) -> tuple[int, ...]:
    return () if sdk.is_instrumented(target) else _applied(sdk.instrument_client(target))


def _patch_aiohttp(target: Any) -> tuple[int, ...]:
    from llmtrace.wrappers import aiohttp as wrapped

    if wrapped.is_instrumented(target):
        return ()
    patch = wrapped.instrument_class if isinstance(target, type) else wrapped.instrument_session
    return _applied(patch(target))


def _applied(undo: Callable[[], None]) -> tuple[int, ...]:
    key = next(_keys)
    _undo[key] = undo
    http.install()
    return (key,)


def when_imported(names: tuple[str, ...]) -> None:
    """Instrument these modules: now if they are imported already, else right after they are."""
    for name in names:
        imports.after_import(name, instrument)


def imported(names: Iterable[str]) -> list[ModuleType]:
    """Return those of the modules that have been imported, and not halfway."""
    modules = (sys.modules.get(name) for name in names)
    return [module for module in modules if module is not None and hasattr(module, "__version__")]


def undo_all() -> None:
    """Take back every instrumentation, and forget what was still wanted."""
    imports.forget()
    Instrumented(tuple(_undo)).undo()
