"""Do the documents say what the code says, and do their examples run?

`python scripts/docs.py` (`make docs`) rewrites what is generated and runs the examples; with
`--check` it writes nothing and fails on a difference. Both fail on an example or link that breaks.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from docs_examples import ExampleError, with_outputs
from docs_generated import GENERATORS, WHOLE_PAGES

ROOT: Final = Path(__file__).resolve().parent.parent

_BLOCK: Final = re.compile(
    r"(?P<head><!-- generated: (?P<name>[\w-]+) -->)\n.*?(?P<tail><!-- end -->)", re.DOTALL
)
_MARKER: Final = re.compile(r"^<!-- generated: ", re.MULTILINE)
_FENCED: Final = re.compile(r"^(`{3,}).*?^\1`*$", re.DOTALL | re.MULTILINE)
_TOCTREE: Final = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE_CODE: Final = re.compile(r"`[^`\n]*`")
_LINK: Final = re.compile(r"\[[^\]]*\]\(\s*([^)\s]+)[^)]*\)|(?:src|href)=\"([^\"]+)\"")
_HEADING: Final = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
_NOT_IN_ANCHOR: Final = re.compile(r"[^\w\- ]")


def pages(root: Path) -> list[Path]:
    """Return every page, in reading order."""
    below = (page for page in (root / "docs").rglob("*.md") if "_build" not in page.parts)
    return [*sorted(root.glob("*.md"), reverse=True), *sorted(below)]


def generated(page: Path, text: str, whole: str = "") -> str:
    """Return a page with its generated parts made again.

    Args:
        page: its file.
        text: what it says now.
        whole: its path below docs/, by which a page is known that is generated as a whole.

    Raises:
        ExampleError: it asks for something that nothing generates, a part has no end, or there is
            nothing in it.
    """
    if whole in WHOLE_PAGES:
        return WHOLE_PAGES[whole]()

    def fill(block: re.Match[str]) -> str:
        make = GENERATORS.get(block["name"])
        if make is None:
            known = ", ".join(GENERATORS)
            raise ExampleError(f"{page.name}: nothing generates {block['name']!r}, only {known}")
        made = make()
        if not made.strip():
            raise ExampleError(f"{page.name}: the part {block['name']!r} is generated empty")
        return f"{block['head']}\n\n{made}\n\n{block['tail']}"

    filled, count = _BLOCK.subn(fill, text)
    if count != len(_MARKER.findall(text)):
        raise ExampleError(f"{page.name}: a generated part has no <!-- end -->")
    return filled


def links(text: str) -> Iterator[str]:
    """Yield where a page's links lead, those within the project only."""
    prose = _INLINE_CODE.sub("", _FENCED.sub("", text))
    for found in _LINK.finditer(prose):
        target = found[1] or found[2]
        if not re.match(r"[a-z]+:", target):
            yield target
    for tree in _TOCTREE.findall(text):
        yield from (f"{entry}.md" for entry in re.findall(r"^[\w/-]+$", tree, re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Return the anchors a page's headings make, as GitHub makes them."""
    made: set[str] = set()
    for heading in _HEADING.findall(_FENCED.sub("", text)):
        plain = _NOT_IN_ANCHOR.sub("", heading.replace("`", "").lower()).replace(" ", "-")
        number, anchor = 0, plain
        while anchor in made:
            number += 1
            anchor = f"{plain}-{number}"
        made.add(anchor)
    return made


def broken_links(root: Path, page: Path, text: str) -> list[str]:
    """Name the links of a page that lead nowhere, or out of the project."""
    broken = []
    for link in links(text):
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(root):
            broken.append(f"{page.name}: {link}: leads nowhere")
        elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
            broken.append(f"{page.name}: {link}: no such heading")
    return broken


def refresh(root: Path, *, check: bool, only: Sequence[str] = ()) -> list[str]:
    """Bring the pages up to date, and return what is wrong with them.

    Args:
        root: the project's folder.
        check: write nothing; a page that would change is wrong.
        only: names of the pages to look at; default: all.
    """
    wrong = []
    for page in pages(root):
        if only and page.name not in only:
            continue
        before = page.read_text(encoding="utf-8")
        try:
            below = page.relative_to(root).as_posix().removeprefix("docs/")
            after = with_outputs(page.name, generated(page, before, below))
        except ExampleError as error:
            wrong.append(str(error))
            continue
        wrong += broken_links(root, page, after)
        if after == before:
            continue
        if check:
            wrong.append(f"{page.name} is out of date; run `make docs`\n{_changes(before, after)}")
        else:
            page.write_text(after, encoding="utf-8")
            print(f"{page.name}: rewritten")
    return wrong


def _changes(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "is", "should be", n=1)
    return "\n".join(line.rstrip("\n") for line in lines)


def main() -> int:
    """Refresh or check the documents, and say what is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names of pages; default: all")
    options = parser.parse_args()
    wrong = refresh(ROOT, check=options.check, only=options.pages)
    for one in wrong:
        print(one, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
