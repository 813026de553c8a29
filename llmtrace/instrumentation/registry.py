"""Keep which clients are instrumented, and undo it.

`instrument(openai)` covers every client of the module, `instrument(client)` that one. Each is
idempotent, and what it returns undoes it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, Final, Self

from llmtrace.core.errors import ConfigError
from llmtrace.instrumentation import import_hooks, langfuse_sdk, uvicorn_server
from llmtrace.instrumentation.http import httpx, httpx_requests
from llmtrace.instrumentation.llm_sdks import patch as calls
from llmtrace.instrumentation.llm_sdks.endpoints import library

_SDKS: Final = ("openai", "anthropic")
_HTTP: Final = ("httpx", "httpx2")
# What `init` instruments. Not aiohttp: there every request pays, also those to no model.
MODULES: Final = (*_SDKS, *_HTTP)
KNOWN: Final = (*MODULES, "aiohttp")

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
        self._keys = ()

    def __enter__(self) -> Self:
        """Return the handle itself: leaving the block undoes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Undo the instrumentation, as `undo` does."""
        self.undo()


def instrument(client_or_module: Any) -> Instrumented:
    """Record every request to a model that a client makes, or all clients of a module make.

    Of an HTTP library (`httpx`, `httpx2`, `aiohttp`) these are the `POST` requests to paths that
    model servers have, unless a client above records them already; and the requests of decorated
    functions are timed phase by phase. Of aiohttp's module, those of sessions made from then on.

    Args:
        client_or_module: the `openai`, `anthropic`, `httpx`, `httpx2` or `aiohttp` module, one of
            their clients or sessions, or a list of such.

    Returns:
        A handle whose `undo()` takes it back; also a context manager. Instrumenting what is
        instrumented already gives a handle that undoes nothing.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(client_or_module, list | tuple | set):
        keys = [key for one in client_or_module for key in instrument(one)._keys]  # noqa: SLF001
        return Instrumented(tuple(keys))
    if isinstance(client_or_module, ModuleType):
        return Instrumented(_patch_module(client_or_module))
    roots = {kind.__module__.partition(".")[0] for kind in type(client_or_module).__mro__}
    if roots & {*_HTTP} and hasattr(client_or_module, "send"):
        return Instrumented(_record(client_or_module))
    if library(client_or_module) is not None and hasattr(client_or_module, "request"):
        return Instrumented(_patch(client_or_module))
    if "aiohttp" in roots and hasattr(client_or_module, "trace_configs"):
        return Instrumented(_patch_aiohttp(client_or_module))
    raise ConfigError(
        f"llmtrace.instrument takes one of the modules {', '.join(KNOWN)} or one of their "
        f"clients, not {client_or_module!r}; for the rest use llmtrace.wrap(stream) or "
        "@llmtrace.trace"
    )


def _patch_module(module: ModuleType) -> tuple[int, ...]:
    name = module.__name__
    if name == "aiohttp":
        return _patch_aiohttp(module.ClientSession)
    if name in _HTTP:
        return _record(name)
    if name not in _SDKS:
        raise ConfigError(f"llmtrace.instrument knows {', '.join(KNOWN)}, not {name!r}")
    base = importlib.import_module(f"{name}._base_client")
    return _patch(base.SyncAPIClient) + _patch(base.AsyncAPIClient)


def _record(target: Any) -> tuple[int, ...]:
    return () if httpx_requests.records(target) else _applied(httpx_requests.record(target))


def _patch(target: Any) -> tuple[int, ...]:
    return () if calls.is_instrumented(target) else _applied(calls.instrument_client(target))


def _patch_aiohttp(target: Any) -> tuple[int, ...]:
    from llmtrace.instrumentation.http import aiohttp

    if aiohttp.is_instrumented(target):
        return ()
    patch = aiohttp.instrument_class if isinstance(target, type) else aiohttp.instrument_session
    return _applied(patch(target))


def _applied(undo: Callable[[], None]) -> tuple[int, ...]:
    key = next(_keys)

    def undo_both() -> None:
        undo()
        httpx.uninstall()

    _undo[key] = undo_both
    httpx.install()
    return (key,)


def when_imported(names: tuple[str, ...], end: Callable[[], object]) -> None:
    """Instrument these modules: now if they are imported already, else right after they are.

    And have uvicorn call `end` before it lets a signal end the process.
    """
    for name in names:
        import_hooks.after_import(name, instrument)
    import_hooks.after_import("langfuse", partial(_patched, langfuse_sdk.listen))
    import_hooks.after_import("uvicorn", partial(_patched, partial(uvicorn_server.ends, end=end)))


def _patched(patch: Callable[[ModuleType], Callable[[], None]], module: ModuleType) -> None:
    _undo[next(_keys)] = patch(module)


def imported(names: Iterable[str]) -> list[ModuleType]:
    """Return those of the modules that have been imported, and not halfway."""
    modules = (sys.modules.get(name) for name in names)
    return [module for module in modules if module is not None and hasattr(module, "__version__")]


def undo_all() -> None:
    """Take back every instrumentation, and forget what was still wanted."""
    import_hooks.forget()
    Instrumented(tuple(_undo)).undo()
