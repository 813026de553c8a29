"""Has each extra what its commands need, and does each hint and each page name the right extra?

`scripts/extras.py` makes environments of one extra alone; here what an extra lacks is hidden.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
SOURCES = [
    path
    for folder in ("llmtrace", "collectors/llmtrace_collector", "dashboards/llmtrace_dashboards")
    for path in (ROOT / folder).rglob("*.py")
]
# What a command needs, beside the library itself.
NEEDS = {
    "demo": "demo", "simulate": "simulate", "triage": "triage", "budget": "triage",
    "collect": "collector", "top": "collector", "doctor": "collector", "schema": "collector",
    "migrate": "collector", "dashboards": "dashboards", "slo": "dashboards",
}  # fmt: skip
RUNS = {
    "demo": ["demo", "--fault", "none", "--requests", "3"],
    "triage": ["triage", "--rows", "rows.jsonl", "--bootstrap", "0"],
    "collector": ["collect", "--check", "--data-dir", "data"],
    "dashboards": ["slo", "rules", "--out", "rules"],
}
HIDDEN = """
import sys
allowed, hidden = (set(sys.argv.pop(1).split(",")) for _ in range(2))
class Hiding:
    def __init__(self, finder):
        self._finder = finder
    def __getattr__(self, name):
        return getattr(self._finder, name)
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in hidden and top not in allowed:
            return None
        return self._finder.find_spec(name, path, target)
sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
from llmtrace.cli import main
sys.exit(main(sys.argv[1:]))
"""


def normal(requirement: str) -> str:
    """Return the name of a package in a requirement."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def listed(extra: str) -> set[str]:
    """Return the packages that an extra lists, those of the extras in it included."""
    found: set[str] = set()
    for requirement in EXTRAS[extra]:
        if normal(requirement) == normal(PROJECT["name"]):
            inner = re.search(r"\[(.*)\]", requirement)
            assert inner is not None
            for name in inner[1].split(","):
                found |= listed(name.strip())
        else:
            found.add(normal(requirement))
    return found


@cache
def installed(extra: str) -> frozenset[str]:
    """Return all packages that an extra brings, with what these need themselves."""
    todo = [*listed(extra), *map(normal, PROJECT["dependencies"])]
    found: set[str] = set()
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        try:
            more = requires(name) or []
        except PackageNotFoundError:
            continue
        todo += [normal(one) for one in more if "extra ==" not in one]
    return frozenset(found)


@pytest.mark.parametrize("extra", RUNS)
def test_a_command_runs_with_its_extra_alone(extra, tmp_path):
    """Every package that the extra does not bring is hidden, as if it were not installed."""
    modules = packages_distributions()
    mine = {m for m, owners in modules.items() if {*map(normal, owners)} & installed(extra)}
    ours = {"llmtrace", "llmtrace_collector", "llmtrace_dashboards"}
    row = '{"start": 1790000000000000000, "service": "s", "request_id": "r", "e2e_s": 1.0}\n'
    (tmp_path / "rows.jsonl").write_text(row * 3)
    hidden = ",".join(set(modules) - ours)
    done = subprocess.run(
        [sys.executable, "-c", HIDDEN, ",".join(mine), hidden, *RUNS[extra]],
        capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip

    assert "not installed" not in done.stderr
    assert done.returncode in (0, 11), done.stderr


def hints() -> list[tuple[str, str, str]]:
    """Return each hint of the code: where it is, its extra, and the package that is missing."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", None) in {"missing_extra", "needs_extra"}
                and isinstance(node.args[1], ast.Constant)
            ):
                # Without a name of its own the package is called like the module.
                package = node.args[2] if len(node.args) > 2 else None
                name = package.value if isinstance(package, ast.Constant) else ""
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                found.append((where, node.args[1].value, name))
    return found


@pytest.mark.parametrize(("where", "extra", "package"), hints())
def test_a_hint_names_an_extra_that_has_the_package(where, extra, package):
    """Following it once must be enough."""
    assert extra in EXTRAS, where
    assert not package or normal(package) in listed(extra), where


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_with_the_extras_it_names(page):
    """Each command that is to be typed needs an extra that the page says how to install."""
    text = page.read_text(encoding="utf-8")
    named = {
        extra.strip()
        for inside in re.findall(r"pip install[^\n]*\[([\w, ]+)\]", text)
        for extra in inside.split(",")
    }
    brought = set().union(*map(listed, named & set(EXTRAS)))
    typed = set()
    for kind, block in re.findall(
        r"^```(sh|console|bash|text)\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    ):
        prompt = r"\$ " if kind == "text" else r"(?:\$ )?(?:\w+=\S+ )*"
        typed |= set(re.findall(rf"^{prompt}(?:\S*/)?llmtrace (\w+)", block, re.MULTILINE))
    lacks = {
        command: NEEDS[command]
        for command in typed & set(NEEDS)
        if not listed(NEEDS[command]) <= brought
    }

    assert lacks == {}, f"{page.name}: say which extras these commands need"
