"""Do imports point one way?

    stages ← rows ← record ← runtime ← wrappers ← configure ← cli
                      ↑
                    export

What is not in this drawing may lie anywhere, as long as nothing goes round in a circle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parent.parent / "llmtrace"
COLLECTOR: Final = PACKAGE.parent / "collectors"

# Each may import itself and those before it, and none after it.
CHAIN: Final = (
    "stages", "rows", "record", "runtime", "wrappers", "configure", "cli", "__main__",
)  # fmt: skip
CORE: Final = (
    "errors",
    "failopen",
    "stages",
    "rows",
    "record",
    "spans",
    "content",
    "printable",
    "rendering",
    "refusals",
    "relay",
    "tools",
    "tries",
)
# What an application imports: it pulls in nothing an application does not need.
LIBRARY: Final = (
    *CORE, "budget", "configure", "export", "gateway", "identity", "marks", "runtime", "scope",
    "semconv", "semconv_table", "wrappers",
)  # fmt: skip
PROGRAMS: Final = ("__main__", "cli", "demo", "sim", "testing", "local_vllm")


def modules() -> dict[str, Path]:
    """Return every module of the package by its name below `llmtrace`."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


MODULES: Final = modules()


def imports(source: str, package: str, *, typing: bool = True) -> Iterator[str]:
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
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def read(module: str, *, typing: bool = True) -> list[str]:
    """Return what a module of the package imports."""
    path = MODULES[module]
    package = ".".join(("llmtrace", *path.relative_to(PACKAGE).parent.parts))
    return list(imports(path.read_text(encoding="utf-8"), package, typing=typing))


def within(name: str) -> str | None:
    """Return the module of the package that an imported name is or is in; `None` = elsewhere."""
    head, _, rest = name.partition(".")
    if head != "llmtrace":
        return None
    while rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest


def needed(module: str, *, typing: bool = True) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = (within(name) for name in read(module, typing=typing))
    return {name for name in found if name is not None} - {module}


def part(module: str) -> str:
    """Return the top-level part of the package a module belongs to."""
    return module.partition(".")[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import llmtrace.core.row", "llmtrace.core.row"),
        ("from llmtrace import rows", "llmtrace.core.row"),
        ("from llmtrace.core.row import Row", "llmtrace.core.row.Row"),
        ("from . import sink", "llmtrace.exporters.sink"),
        ("from .sink import Sink", "llmtrace.exporters.sink.Sink"),
        ("from ..rows import Row", "llmtrace.core.row.Row"),
        ("def f():\n    import os.path", "os.path"),
    ],
)
def test_imports_are_found(source, expected):
    """This test sees imports of every form, also inside functions."""
    assert list(imports(source, "llmtrace.exporters")) == [expected]


def test_what_is_only_for_type_checkers_can_be_told_apart():
    """An import that never runs can be left out."""
    source = "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"

    assert list(imports(source, "llmtrace", typing=False)) == ["b"]


def test_the_drawing_is_of_this_package():
    """Every part that is drawn exists."""
    assert {*CHAIN, *LIBRARY, *PROGRAMS, "export"} <= {part(module) for module in MODULES}


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) in CHAIN])
def test_no_module_of_the_chain_imports_upwards(module):
    """A module knows those below it, and nothing of those above."""
    above = CHAIN[CHAIN.index(part(module)) + 1 :]

    assert {name for name in needed(module) if part(name) in above} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) == "export"])
def test_exporters_see_rows_and_not_how_they_are_made(module):
    """An exporter knows nothing of the runtime, the wrappers or the set-up."""
    ours = {part(name) for name in needed(module)}

    assert ours & {"runtime", "wrappers", "configure", "marks", *PROGRAMS} == set()


@pytest.mark.parametrize("module", CORE)
def test_the_recording_core_needs_the_standard_library_alone(module):
    """What makes rows of requests depends on Python, and on nothing else."""
    others = {name for name in read(module) if within(name) not in CORE}

    assert {part(name) for name in others} - {*sys.stdlib_module_names} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) in LIBRARY])
def test_the_library_does_not_import_the_programs(module):
    """What an application imports does without the command line, the demo and the simulator."""
    assert {name for name in needed(module) if part(name) in PROGRAMS} == set()


def test_the_collector_is_known_to_the_command_line_alone_and_by_name():
    """`llmtrace` works without it; the command that needs it says what to install."""
    knows = {
        module
        for module, path in MODULES.items()
        if "llmtrace_collector" in path.read_text(encoding="utf-8")
    }

    assert knows == {"cli.extras"}


@pytest.mark.parametrize(
    "path", sorted((COLLECTOR / "llmtrace_collector").rglob("*.py")), ids=lambda path: path.stem
)
def test_the_collector_is_built_on_this_package_and_not_on_its_ends(path):
    """It imports rows, stages and errors; neither the command line nor the demo nor tests."""
    found = imports(path.read_text(encoding="utf-8"), "llmtrace_collector")
    ours = {part(within(name) or "") for name in found if within(name) is not None}

    assert ours & {"__main__", "cli", "demo", "testing", "runtime", "wrappers"} == set()


@pytest.mark.parametrize("module", MODULES)
def test_nothing_here_imports_what_is_built_on_it(module):
    """The package knows neither its tests nor the collectors nor the dashboards."""
    outside = {part(name) for name in read(module)}

    assert outside & {
        "tests", "collectors", "llmtrace_collector", "dashboards", "llmtrace_dashboards",
    } == set()  # fmt: skip


def test_nothing_goes_round_in_a_circle():
    """No module imports, by way of others, itself."""
    graph = {module: needed(module, typing=False) for module in MODULES if module}

    assert list(TopologicalSorter(graph).static_order())  # raises CycleError if there is one


def test_only_the_command_line_needs_the_command_line():
    """The command is an end: nothing else calls it."""
    ends = {"cli", "__main__"}
    users = {module for module in MODULES if {part(name) for name in needed(module)} & ends}

    assert {module for module in users if part(module) != "cli"} == {"__main__"}
