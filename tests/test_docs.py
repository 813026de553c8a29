"""Do the documents say what the code says, run, and lead somewhere?"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

import llmtrace
from llmtrace import exporters
from llmtrace.core.stages import STAGES, Source

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("*/*.md")]
)
CODE = [*(ROOT / "llmtrace").rglob("*.py"), *(ROOT / "scripts").glob("*.py")]


@pytest.fixture
def docs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Import scripts/docs.py, as `python scripts/docs.py` would."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    yield import_module("docs")
    for name in ("docs", "docs_examples", "docs_generated"):
        sys.modules.pop(name, None)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Make a project of one page that says nothing."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Nothing\n", encoding="utf-8")
    return tmp_path


def text(page: str) -> str:
    """Return what a page of docs/ says."""
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


# --- the pages of this project ------------------------------------------------------------------


def test_every_page_is_up_to_date_and_every_example_runs():
    """`make docs` would change nothing, and finds no dead link."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.parametrize(
    "unwanted",
    [
        pytest.param(r"pip3? install\W+llmtrace\b(?!-stages)", id="a package of another project"),
        pytest.param(r"(?<![\w.])/(home|root|work|tmp|Users)/|[A-Z]:\\", id="a machine's path"),
        pytest.param(r"\b(TODO|TBD|FIXME|XXX)\b|(?i:lorem ipsum|coming soon)", id="a placeholder"),
    ],
)
def test_no_page_says(page: Path, unwanted: str):
    """What must not be in any page is in none."""
    assert re.findall(unwanted, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_exclaims(page: Path):
    """Outside code, sentences end quietly."""
    prose = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))

    assert re.findall(r"\w!(?=\s|$)", prose) == []


def test_every_page_can_be_reached_from_the_readme(docs: ModuleType):
    """Following links from the README comes to every page."""
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page.suffix == ".md" and page not in reached:
            reached.add(page)
            links = docs.links(page.read_text(encoding="utf-8"))
            ahead += [(page.parent / link.partition("#")[0]).resolve() for link in links]

    assert set(PAGES) - reached == set()


def test_every_page_the_code_names_exists():
    """What a docstring or message sends a reader to is there."""
    named = {
        name
        for path in CODE
        for name in re.findall(r"docs/(?:[\w-]+/)*[\w-]+\.md", path.read_text(encoding="utf-8"))
    }

    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_every_command_sends_its_reader_to_a_page_that_exists():
    """`Docs: docs/...` at the end of each help."""
    named = re.findall(r"^Docs: (docs/[^#\s]+)", text("reference/cli.md"), re.MULTILINE)

    assert len(named) > 20
    assert {name for name in named if not (ROOT / name).is_file()} == set()


def test_every_setting_is_documented():
    """Each argument of `init` and each variable it reads is on the page about them."""
    page = text("reference/configuration.md")
    arguments = inspect.signature(llmtrace.init).parameters
    variables = {
        name
        for path in (ROOT / "llmtrace").rglob("*.py")
        for name in re.findall(r'"((?:LLMTRACE|OTEL)_[A-Z_]+[A-Z])"', path.read_text("utf-8"))
    }

    assert variables
    assert [name for name in (*arguments, *variables) if f"`{name}" not in page] == []


def test_every_exporter_is_documented():
    """Each name an exporter goes by is on the page about them."""
    page = text("reference/configuration.md")

    assert [name for name in exporters.NAMES if f"| `{name}` |" not in page] == []


def test_every_stage_and_source_is_documented():
    """The vocabulary is explained where the stages are."""
    page = text("reference/stages.md")

    assert [name for name in (*STAGES, *get_args(Source)) if f"`{name}`" not in page] == []


def test_every_outcome_is_documented():
    """The page that says what ends a row says so for each way."""
    assert [
        name
        for name in llmtrace.OUTCOMES
        if f"`{name}`" not in text("instrument/instrumenting.md")
    ] == []


def test_the_architecture_has_every_ring():
    """The page names each part of each package, and none that is gone."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w*]+(?:\.py|/))`", page))
    packages = [
        ROOT / "llmtrace",
        ROOT / "collectors" / "llmtrace_collector",
        ROOT / "dashboards" / "llmtrace_dashboards",
    ]
    there = {path.name for root in packages for path in root.rglob("*")} | {"llmtrace", "tests"}
    parts = {p.name for root in packages for p in root.glob("*.py") if p.name[0] != "_"}
    parts |= {f"{p.parent.name}/" for root in packages for p in root.glob("*/__init__.py")}

    assert parts - named == set()
    assert {name for name in named if name.rstrip("/") not in there} == set()


def test_the_changelog_has_this_version():
    """What is released is what the changelog tells of."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    assert f"\n## [{llmtrace.__version__}]" in changelog


def test_the_picture_fetches_nothing():
    """It is drawn from the file alone: no font, script or image from a server."""
    svg = (ROOT / "docs" / "pictures" / "demo.svg").read_text(encoding="utf-8")

    assert "SIMULATED" in svg
    assert re.findall(r"url\((?!#)|<script|<image|@import|@font-face", svg) == []


# --- the check itself ---------------------------------------------------------------------------


def test_what_is_generated_is_made_anew(docs: ModuleType, project: Path):
    """A generated part that says something else is found, and rewritten without --check."""
    page = project / "README.md"
    page.write_text(
        "# Make\n\n<!-- generated: make -->\n\nold\n\n<!-- end -->\n", encoding="utf-8"
    )

    [wrong] = docs.refresh(project, check=True)
    assert "README.md is out of date" in wrong
    assert "-old" in wrong

    assert docs.refresh(project, check=False) == []
    assert "| `make demo` |" in page.read_text(encoding="utf-8")
    assert docs.refresh(project, check=True) == []


@pytest.mark.parametrize("inside", ["", "\n", "\n\n", "\nold\n"])
def test_an_empty_part_is_out_of_date(docs: ModuleType, project: Path, inside: str):
    """Nothing between the markers is as wrong as something else, and is filled."""
    page = project / "README.md"
    page.write_text(f"<!-- generated: make -->\n{inside}<!-- end -->\n", encoding="utf-8")

    [wrong] = docs.refresh(project, check=True)
    assert "README.md is out of date" in wrong
    assert docs.refresh(project, check=False) == []
    assert "| `make demo` |" in page.read_text(encoding="utf-8")
    assert docs.refresh(project, check=True) == []


@pytest.mark.parametrize("after", ["", "\nmore text\n", "\n<!-- ende -->\n"])
def test_a_part_without_an_end_is_named(docs: ModuleType, project: Path, after: str):
    """It would never be filled."""
    page = project / "README.md"
    page.write_text(f"<!-- generated: make -->\n{after}", encoding="utf-8")

    [wrong] = docs.refresh(project, check=True)
    assert "has no <!-- end -->" in wrong


def test_what_nothing_generates_is_named(docs: ModuleType, project: Path):
    """A page cannot name a part that is not made."""
    page = project / "README.md"
    page.write_text("<!-- generated: wishes -->\n\n<!-- end -->\n", encoding="utf-8")

    [wrong] = docs.refresh(project, check=True)
    assert "nothing generates 'wishes'" in wrong


def test_an_example_that_fails_is_shown_by_its_line(docs: ModuleType, project: Path):
    """The traceback names the page and the line in it."""
    page = project / "README.md"
    page.write_text("# One\n\n```python run\nx = 1\nx / 0\n```\n", encoding="utf-8")

    [wrong] = docs.refresh(project, check=True)
    assert 'File "README.md", line 5' in wrong
    assert "ZeroDivisionError" in wrong


def test_the_examples_of_a_page_run_one_after_the_other(docs: ModuleType, project: Path):
    """A later block sees what an earlier one made, and its output is put after it."""
    page = project / "README.md"
    blocks = (
        "```python run\nx = 20\n```\n\n```python run\nprint(x + 1)\n```\n\n```text output\n```\n"
    )
    page.write_text(blocks, encoding="utf-8")

    assert docs.refresh(project, check=False) == []
    assert page.read_text(encoding="utf-8").endswith("```text output\n21\n```\n")


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("docs/nowhere.md", "leads nowhere"),
        ("#no-such-part", "no such heading"),
        ("../elsewhere.md", "leads nowhere"),
    ],
)
def test_a_dead_link_is_found(docs: ModuleType, project: Path, link: str, problem: str):
    """A link to a missing page or heading, or out of the project, is wrong."""
    (project / "README.md").write_text(f"# One\n\n[there]({link})\n", encoding="utf-8")
    (project.parent / "elsewhere.md").write_text("# Elsewhere\n", encoding="utf-8")

    assert docs.refresh(project, check=True) == [f"README.md: {link}: {problem}"]


def test_links_in_code_are_none(docs: ModuleType):
    """What a code block shows leads nowhere and need not."""
    page = "[a](a.md) `[b](b.md)`\n\n```text\n[c](c.md)\n```\n"

    assert list(docs.links(page)) == ["a.md"]


def test_anchors_are_githubs(docs: ModuleType):
    """Capitals, code and punctuation go; a second heading of a name gets a number."""
    page = "# One `two`\n\n## What's new?\n\n## What's new?\n"

    assert docs.anchors(page) == {"one-two", "whats-new", "whats-new-1"}
