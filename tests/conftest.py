"""Settings for every test: properties are not timed, since other work may run at the same time.

Tests that can be late on a machine that others use, too, are marked `timing`: only these are run
again by `.ci/run`. Those are the tests against real parts, and those that run threads, processes,
servers or an event loop, or read a clock, by what their modules and fixtures import.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings

# Other examples in each run; `make properties` and `make fuzz` look at more.
settings.register_profile("llmtrace", deadline=None, max_examples=40)
settings.register_profile("properties", deadline=None, max_examples=1_000)
settings.register_profile("fuzz", deadline=None, max_examples=5_000)
settings.load_profile("llmtrace")

# A program that patches SDKs for good: it runs in a process of its own, and is never imported.
collect_ignore = ["exporters/langfuse_program.py"]

ROOT: Final = Path(__file__).resolve().parents[1]
REAL: Final = ROOT / "tests" / "real"
# What the dependency group `real` adds to `test`, and the folders and files that are about it:
# where it is not installed they are left out, and said to be, but never in CI.
ADDED_BY_REAL: Final = ("chdb", "dns", "grafana_foundation_sdk", "numba")
OF_REAL: Final = (
    "collectors",
    "dashboards",
    "llmtrace/api_clients/grafana_client.py",
    "llmtrace/simulator/fleet",
    "tests/bench",
    "tests/cli/test_contact.py",
    "tests/collector",
    "tests/dashboards",
    "tests/demo",
    "tests/real",
    "tests/simulator/calibrate.py",
    "tests/simulator/test_calibrate.py",
    "tests/simulator/test_fleet.py",
    "tests/simulator/test_worlds.py",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_extras.py",
    "tests/triage/test_oncall.py",
)
_CONCURRENT: Final = frozenset(
    {
        "anyio", "asyncio", "concurrent", "gevent", "multiprocessing", "socket", "subprocess",
        "threading", "time", "trio",
    }
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what needs the group `real` where only `test` is installed."""
    if left_out():
        given = config.option.ignore_glob or ()
        config.option.ignore_glob = [*given, *(f"{ROOT / one}*" for one in OF_REAL)]


def left_out() -> list[str]:
    """Return what is missing for the tests of the group `real`, if they are to be left out."""
    if os.environ.get("CI") == "true" or os.environ.get("LLMTRACE_REAL") == "1":
        return []
    return [name for name in ADDED_BY_REAL if find_spec(name) is None]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    if missing := left_out():
        terminalreporter.write_line(
            f"left out {len(OF_REAL)} folders and files: {', '.join(missing)} not installed; "
            "run: python -m pip install --editable . --group real"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what can be late."""
    for item in items:
        if REAL in item.path.parents or any(map(can_be_late, _sources(item))):
            item.add_marker("timing")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note what is run again, for `scripts/retried.py`."""
    if names := os.environ.get("LLMTRACE_RETRIED"):
        with Path(names).open("a") as file:
            file.writelines(f"{item.nodeid}\n" for item in session.items)


def _sources(item: pytest.Item) -> Iterator[Path]:
    """Yield the files of a test and of the fixtures it uses."""
    if ROOT / "tests" not in item.path.parents:
        return  # the example of a docstring
    yield item.path
    fixtures: Any = getattr(item, "_fixtureinfo", None)
    for made in () if fixtures is None else fixtures.name2fixturedefs.values():
        yield Path(made[-1].func.__code__.co_filename)


@cache
def can_be_late(path: Path) -> bool:
    """Say whether a module of the tests, or another that it imports, needs time to pass."""
    if ROOT / "tests" not in path.parents:
        return False
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            if any(name.name.partition(".")[0] in _CONCURRENT for name in node.names):
                return True
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0 and (node.module or "").partition(".")[0] in _CONCURRENT:
                return True
            if any(map(can_be_late, _imported(path, node))):
                return True
    return False


def _imported(path: Path, node: ast.ImportFrom) -> Iterator[Path]:
    """Yield the modules of the tests that a statement imports, or imports from."""
    names = (node.module or "").split(".") if node.module else []
    folder = path.parents[node.level - 1] if node.level else ROOT
    for parts in (names, *([*names, name.name] for name in node.names)):
        module = folder.joinpath(*parts).with_suffix(".py") if parts else None
        if module is not None and module.is_file() and module != path:
            yield module
