"""Call a function once a module is imported, also when that is after `llmtrace.init`.

A finder on `sys.meta_path` that finds nothing itself: the other finders find the module, and it
adds a call after the module's execution. It is installed only while a module is awaited.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from llmtrace.core.failopen import internal_error

_waiting: dict[str, Callable[[ModuleType], object]] = {}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module; watch its execution."""
        if fullname not in _waiting:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                _watch(spec)
                return spec
        return None


_finder = _Finder()


def _watch(spec: ModuleSpec) -> None:
    loader: Any = spec.loader
    plain = getattr(loader, "exec_module", None)
    if plain is None:
        return

    def exec_module(module: ModuleType) -> None:
        plain(module)
        if module.__name__ != spec.name:
            return  # a loader that several modules share
        then = _waiting.pop(spec.name, None)
        if not _waiting:
            forget()
        if then is not None:
            _call(then, module)

    loader.exec_module = exec_module


def _call(then: Callable[[ModuleType], object], module: ModuleType) -> None:
    try:
        then(module)
    except Exception as error:  # noqa: BLE001 - neither an import nor `init` fails over an odd SDK
        internal_error("instrument", error)


def after_import(name: str, then: Callable[[ModuleType], object]) -> None:
    """Call `then` with a module: now if it is imported already, else right after it is."""
    module = sys.modules.get(name)
    # A module that is being imported right now has its spec marked so, and is not usable yet.
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        _call(then, module)
        return
    _waiting[name] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget() -> None:
    """Forget all modules that are awaited."""
    _waiting.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
