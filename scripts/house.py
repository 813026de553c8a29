"""Print the figures of the code base's layout and language, beside what they may be at most.

`make house`; `tests/test_house.py` fails when a figure is over its bound. Bounds are only ever
tightened; those of lines and of import pairs grow with a new part, by what it is. The words that
are counted are those that the last paragraph of docs/reference/glossary.md lists.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PRODUCT: Final = ("llmtrace/", "collectors/", "dashboards/")
COLLECTOR: Final = "collectors/llmtrace_collector/"
DASHBOARDS: Final = "dashboards/llmtrace_dashboards/"
GLOSSARY: Final = "docs/reference/glossary.md"
_BOUND: Final = re.compile(r"\b_?(?:MOST|LEAST|LONGEST|SHORTEST|FEWEST|DEEPEST)_[A-Z_]+")
_SHORT: Final = re.compile(r'^ +"""[^"]{1,29}"""$', re.MULTILINE)
# To sleep for 0 s is to let others run, and takes no time.
_SLEEP: Final = re.compile(r"(?:time|asyncio)\.sleep\((?!0\))")
_LONG: Final = 60
# Begins what git writes where two changes meet.
_CONFLICT: Final = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)


@cache
def tracked() -> tuple[str, ...]:
    """Return the paths of all files under version control that are there."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return tuple(path for path in listed if (ROOT / path).exists())


@cache
def text(path: str) -> str:
    """Return what a file of the repository says."""
    return (ROOT / path).read_text(encoding="utf-8")


def product() -> list[str]:
    """Return the paths of the product's Python files."""
    return [path for path in tracked() if path.startswith(PRODUCT) and path.endswith(".py")]


def pages() -> list[str]:
    """Return the paths of what people read beside the code, without the glossary itself."""
    return [
        path
        for path in tracked()
        if (path.startswith("docs/") or "/" not in path)
        and path.endswith(".md")
        and path != GLOSSARY
    ]


@cache
def avoided() -> tuple[str, ...]:
    """Return the words that the glossary says are not used."""
    paragraph = text(GLOSSARY).partition("as `make house` counts them:")[2]
    return tuple(re.findall(r"`([^`]+)`", paragraph))


def count(words: Iterable[str], paths: Iterable[str]) -> int:
    """Count whole words, however they are capitalised, in some files."""
    found = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
    return sum(len(found.findall(text(path))) for path in paths)


def in_folder(folder: str) -> int:
    """Count the modules directly in a folder."""
    return sum(path.startswith(folder) and "/" not in path[len(folder) :] for path in product())


def repeated_names() -> int:
    """Count the file names that more than one module has."""
    names = Counter(Path(path).name for path in product())
    return sum(number > 1 for name, number in names.items() if name != "__init__.py")


def layers() -> tuple[int, int]:
    """Return how many pairs of parts of `llmtrace` import each other, and how many outwards."""
    sys.path.insert(0, str(ROOT))
    from tests.test_layers import MODULES, needed, part, ring

    ours = [module for module in MODULES if part(module)[0] == "llmtrace"]
    pairs = {
        (part(module), part(other))
        for module in ours
        for other in needed(module)
        if part(other)[0] == "llmtrace" and part(other) != part(module)
    }
    outwards = sum(
        part(other)[0] == part(module)[0]
        and part(other) != part(module)
        and part(other)[1] != ""
        and ring(other) >= ring(module)
        for module in MODULES
        for other in needed(module)
    )
    return len(pairs), outwards


def long_functions() -> int:
    """Count the product's functions of over 60 lines."""
    return sum(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= _LONG
        for path in product()
        for node in ast.walk(ast.parse(text(path)))
    )


def matches(pattern: re.Pattern[str], paths: Iterable[str]) -> int:
    """Count what a pattern finds in some files."""
    return sum(len(pattern.findall(text(path))) for path in paths)


def unit_tests() -> list[str]:
    """Return the paths of the tests that need no real parts."""
    return [
        path
        for path in tracked()
        if path.startswith("tests/")
        and path.endswith(".py")
        and not path.startswith(("tests/real/", "tests/bench/"))
    ]


def written_tests() -> list[str]:
    """Return the paths of all tests but that of these figures, which names the words."""
    return [
        path
        for path in tracked()
        if path.startswith("tests/") and path.endswith(".py") and path != "tests/test_house.py"
    ]


def written() -> list[str]:
    """Return the paths of all pages and of all code in Python."""
    return [path for path in tracked() if path.endswith((".md", ".py"))]


def bound_constants() -> int:
    """Count the constants whose name says "most" or "least" where the field says max and min."""
    return len({name for path in product() for name in _BOUND.findall(text(path))})


def loose_tests() -> int:
    """Count the test modules that are in no folder of `tests/`."""
    return sum(bool(re.fullmatch(r"tests/[^/]+\.py", path)) for path in tracked())


def lines(ending: str) -> int:
    """Count the lines of the product's files of one kind."""
    paths = (path for path in tracked() if path.startswith(PRODUCT) and path.endswith(ending))
    return sum(text(path).count("\n") for path in paths)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: how it is counted, its bound, what is aimed at, and its value at bfe351b."""

    name: str
    measure: Callable[[], int]
    most: int
    aim: int
    before: int


FIGURES: Final = (
    Figure("modules directly in llmtrace/", lambda: in_folder("llmtrace/"), 7, 12, 45),
    Figure("modules directly in llmtrace_collector/", lambda: in_folder(COLLECTOR), 1, 1, 23),
    Figure("modules directly in llmtrace_dashboards/", lambda: in_folder(DASHBOARDS), 7, 7, 15),
    Figure("import pairs between parts of llmtrace", lambda: layers()[0], 113, 115, 231),
    Figure("imports against the rings", lambda: layers()[1], 0, 0, 15),
    Figure("file names used more than once", repeated_names, 10, 15, 44),
    Figure("avoided words in the code", lambda: count(avoided(), product()), 0, 0, 953),
    Figure("avoided words in the pages", lambda: count(avoided(), pages()), 0, 0, 158),
    Figure("avoided words in the tests", lambda: count(avoided(), written_tests()), 0, 0, 74),
    Figure("asked, in the code", lambda: count(["asked"], product()), 5, 20, 382),
    Figure("asked, in the pages", lambda: count(["asked"], pages()), 2, 10, 64),
    Figure("constants called MOST_, LEAST_ and the like", bound_constants, 0, 0, 132),
    Figure("docstrings of under 30 characters", lambda: matches(_SHORT, product()), 28, 60, 171),
    Figure("test modules directly in tests/", loose_tests, 10, 10, 44),
    Figure("sleeps in unit tests", lambda: matches(_SLEEP, unit_tests()), 11, 30, 111),
    Figure("conflict markers in pages and code", lambda: matches(_CONFLICT, written()), 0, 0, 0),
    Figure("functions of over 60 lines", long_functions, 0, 0, 37),
    Figure("lines of the product's Python", lambda: lines(".py"), 90_866, 63_305, 63_305),
    Figure("lines of the product's SQL", lambda: lines(".sql"), 1_157, 390, 0),
)


def main() -> int:
    """Print each figure, its bound and what it was."""
    over = 0
    print(f"{'':<46}{'now':>8}{'at most':>9}{'aim':>8}{'before':>8}")
    for figure in FIGURES:
        value = figure.measure()
        note = "  over" if value > figure.most else ""
        over += bool(note)
        print(
            f"{figure.name:<46}{value:>8}{figure.most:>9}{figure.aim:>8}{figure.before:>8}{note}"
        )
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
