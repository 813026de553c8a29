"""Is every module in exactly one ring, and does every import point inwards?

The tables are the architecture: a part is the first name below its package, and it imports itself
and parts of earlier rows alone. Parts of one row do not import each other.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PACKAGES: Final = {
    "llmtrace": ROOT / "llmtrace",
    "llmtrace_collector": ROOT / "collectors" / "llmtrace_collector",
    "llmtrace_dashboards": ROOT / "dashboards" / "llmtrace_dashboards",
}

# `collector_module("commands.top", ...)`, or by the function that triage is passed for it.
_BY_NAME: Final = re.compile(r"\b(collector_module|dashboards_module|bring)\(\s*\"([\w.]+)\"")

# Innermost first. "" is the package's own `__init__`.
RINGS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "llmtrace": (
        ("stats", "core"),
        ("api_clients", "budget"),
        ("semconv",),
        ("exporters",),
        ("runtime",),
        ("instrumentation",),
        ("agents",),
        ("gateway", "browser"),
        ("configure",),
        ("propagate", "websocket", "grpc", "testing"),
        ("",),
        ("engines",),
        ("dataset",),
        ("display", "kv_cache"),
        ("simulator", "triage", "budget_analysis"),
        ("run_comparison",),
        ("demo",),
        ("load_test",),
        ("cli",),
        ("__main__",),
    ),
    "llmtrace_collector": (
        ("",),
        ("signals",),
        ("store",),
        ("scrape",),
        ("receive",),
        ("metrics",),
        ("config",),
        ("serve",),
        ("commands",),
    ),
    "llmtrace_dashboards": (
        ("",),
        ("rules",),
        ("panels",),
        ("promql", "variables", "grafana_json"),
        ("boards",),
        ("export_files", "grafana_import", "lint"),
        ("command",),
    ),
}
# The library: what an application imports. At import it needs none of what is heavy.
LIBRARY: Final = {part for row in RINGS["llmtrace"][:11] for part in row}
HEAVY: Final = {
    "numpy", "pyarrow", "rich", "yaml", "openai", "anthropic", "langfuse", "httpx", "aiohttp",
    "grpc", "websockets", "prometheus_client", "starlette", "uvicorn", "vllm",
}  # fmt: skip
# `llmtrace.__init__` gives its name and version to those it is made of.
VERSION: Final = ("llmtrace", "")


@cache
def modules() -> dict[str, Path]:
    """Return every module of the three packages by its dotted name."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *(name for name in parts if name != "__init__")))] = path
    return found


MODULES: Final = modules()


def imports(source: str, package: str, *, typing: bool = True) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the absolute name of everything a module imports, wherever in it that is done.

    Args:
        source: of the module.
        package: what its relative imports start from.
        typing: whether imports for type checkers alone count.
    """
    tree = ast.parse(source)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if not typing and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            skipped.update(inner for one in node.body for inner in ast.walk(one))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from ((f"{base}.{alias.name}", node) for alias in node.names)


def read(module: str, *, typing: bool = True) -> list[tuple[str, ast.stmt]]:
    """Return what a module imports, and where."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(imports(path.read_text(encoding="utf-8"), package, typing=typing))


def within(name: str) -> str | None:
    """Return the module of ours that an imported name is or is in; `None` = elsewhere."""
    if name.partition(".")[0] not in PACKAGES:
        return None
    while name not in MODULES:
        name = name.rpartition(".")[0]
    return name


@cache
def needed(module: str, *, typing: bool = True) -> frozenset[str]:
    """Return the modules of ours that a module imports."""
    found = (within(name) for name, _ in read(module, typing=typing))
    return frozenset({name for name in found if name is not None} - {module})


def part(module: str) -> tuple[str, str]:
    """Return the package and the part of it that a module belongs to."""
    package, _, rest = module.partition(".")
    return package, rest.partition(".")[0]


def ring(module: str) -> int:
    """Return the row of its package's table that a module is in.

    Raises:
        LookupError: it is in none.
    """
    package, name = part(module)
    for number, row in enumerate(RINGS[package]):
        if name in row:
            return number
    file = MODULES[module].relative_to(ROOT)
    raise LookupError(f"{file} is in no ring: put it into a package of the table in {__file__}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import llmtrace.core", "llmtrace.core"),
        ("from llmtrace import core", "llmtrace.core"),
        ("from llmtrace.core.row import Row", "llmtrace.core.row.Row"),
        ("from . import sink", "llmtrace.exporters.sink"),
        ("from .sink import Sink", "llmtrace.exporters.sink.Sink"),
        ("from ..core import row", "llmtrace.core.row"),
        ("def f():\n    import os.path", "os.path"),
    ],
)
def test_imports_are_found(source, expected):
    """This test sees imports of every form, also inside functions."""
    assert [name for name, _ in imports(source, "llmtrace.exporters")] == [expected]


def test_imports_for_type_checkers_can_be_left_out():
    """An import that never runs does not make a cycle."""
    source = "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"

    assert [name for name, _ in imports(source, "llmtrace", typing=False)] == ["b"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_part_of_the_tables_exists(package):
    """A part that is gone leaves its row."""
    named = [name for row in RINGS[package] for name in row]

    assert sorted(named) == sorted(
        {part(module)[1] for module in MODULES if part(module)[0] == package}
    )


@pytest.mark.parametrize("module", MODULES)
def test_every_import_points_inwards(module):
    """A module imports its own part and parts of earlier rows; never one of its own row."""
    own = ring(module)

    def allowed(other: str) -> bool:
        if part(other) == part(module) or part(other) == VERSION:
            return True
        if part(other)[0] == part(module)[0]:
            return ring(other) < own
        # The collector and the dashboards are built on llmtrace, short of its programs.
        return part(other)[0] == "llmtrace" and part(other)[1] not in {
            "cli",
            "demo",
            "testing",
            "__main__",
        }

    assert {other for other in needed(module) if not allowed(other)} == set()


@pytest.mark.parametrize(
    "module", [name for name in MODULES if part(name) == ("llmtrace", "core")]
)
def test_the_core_needs_the_standard_library_alone(module):
    """What makes rows of requests depends on Python and on nothing else."""
    outside = {name.partition(".")[0] for name, _ in read(module) if within(name) is None}

    assert outside - {*sys.stdlib_module_names} == set()


def test_importing_the_library_needs_nothing_heavy():
    """What is heavy is imported by the function that needs it, where it runs."""
    doors = [f"llmtrace.{name}" for name in sorted(LIBRARY) if name not in {"", "stats", "grpc"}]
    code = f"import sys, {', '.join(doors)}\nprint(*sorted({HEAVY!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_no_module_imports_itself_by_way_of_others():
    """There are no cycles of modules."""
    graph = {module: needed(module, typing=False) for module in MODULES}

    assert list(TopologicalSorter(graph).static_order())  # raises CycleError if there is one


def test_the_collector_and_the_dashboards_are_named_by_the_command_line_alone():
    """`llmtrace` works without them; the command that needs one says what to install."""
    names = {
        module
        for module, path in MODULES.items()
        if part(module)[0] == "llmtrace"
        and any(
            f"llmtrace_{name}" in path.read_text(encoding="utf-8")
            for name in ("collector", "dashboards")
        )
    }

    assert names == {"llmtrace.cli.extras"}


def test_modules_imported_by_name_exist():
    """A command and a triage source name a module of a package built on this one as text."""
    imported = [
        (f"llmtrace_{package}", name)
        for path in MODULES.values()
        for call, name in _BY_NAME.findall(path.read_text(encoding="utf-8"))
        for package in ["dashboards" if call == "dashboards_module" else "collector"]
    ]
    missing = [
        f"{package}.{name}" for package, name in imported if f"{package}.{name}" not in MODULES
    ]

    assert len(imported) >= 10
    assert missing == []
