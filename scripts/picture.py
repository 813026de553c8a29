"""Draw what `llmtrace demo --fault none` prints as an SVG, for the README: docs/pictures/demo.svg.

Run as `python scripts/picture.py`: it runs the demo, about half a minute. With `--rows FILE` it
draws what an earlier `llmtrace demo --fault none --rows-out FILE` wrote.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape, unescape
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console

from llmtrace.budget import DEFAULT
from llmtrace.core.row import Row
from llmtrace.demo import target as targets
from llmtrace.demo.final_report import print_report
from llmtrace.demo.options import DemoOptions, plan
from llmtrace.exporters.row_files.read_back import read_rows

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "demo.svg"
_WIDTH: Final = 100
_ID: Final = "llmtrace-demo"
_FONTS: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

# Rich draws a character 20 high and 12.2 wide, its line from 18.5 above the baseline.
_CHARACTER: Final = 12.2
_ABOVE: Final = 18.5
_LINE: Final = 24.4
_BLOCKS: Final = "▏▎▍▌▋▊▉█"
_TEXT: Final = re.compile(
    r'<text class="(?P<class>[^"]*)" x="(?P<x>[^"]*)" y="(?P<y>[^"]*)"[^>]*>(?P<text>[^<]*)</text>'
)
_BAR: Final = re.compile(f"[{_BLOCKS}]+")


def draw(rows: Sequence[Row], unseen: TextIO) -> str:
    """Return what the demo prints of its rows on a terminal 100 characters wide, as an SVG."""
    console = Console(
        record=True,
        width=_WIDTH,
        file=unseen,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
        markup=False,
        emoji=False,
    )
    with targets.simulated() as target:
        print_report(console, rows, target, DEFAULT, plan(DemoOptions()))
    return solid_bars(own_fonts(console.export_svg(title="llmtrace demo", unique_id=_ID)))


def own_fonts(svg: str) -> str:
    """Take out the font that Rich fetches from a server: a picture loads nothing."""
    svg = re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)
    return svg.replace("Fira Code, monospace", _FONTS)


def solid_bars(svg: str) -> str:
    """Draw block characters as the rectangles they stand for.

    Few fonts make them as wide as their other characters, so that a bar of text has gaps.
    """
    return _TEXT.sub(_solid, svg)


def _solid(found: re.Match[str]) -> str:
    text = unescape(found["text"])
    x, top = float(found["x"]), float(found["y"]) - _ABOVE
    bars = [
        f'<rect class="{found["class"]}" x="{x + bar.start() * _CHARACTER:.1f}" y="{top:.1f}" '
        f'width="{_width(bar[0]):.1f}" height="{_LINE}"/>'
        for bar in _BAR.finditer(text)
    ]
    if not bars:
        return found[0]
    blank = escape(_BAR.sub(lambda bar: "\xa0" * len(bar[0]), text)).replace("\xa0", "&#160;")
    return found[0].replace(found["text"], blank) + "".join(bars)


def _width(bar: str) -> float:
    eighths = sum(_BLOCKS.index(block) + 1 for block in bar)
    return eighths / len(_BLOCKS) * _CHARACTER


def measure(file: Path) -> None:
    """Run the demo without a fault, and have it write its rows."""
    demo = [sys.executable, "-m", "llmtrace", "demo", "--fault", "none", "--rows-out", str(file)]
    subprocess.run(demo, check=True)


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=Path, help="rows to draw in place of a new run's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = options.rows or Path(folder) / "rows.jsonl"
        if options.rows is None:
            measure(rows)
        with (Path(folder) / "unseen").open("w", encoding="utf-8") as unseen:
            svg = draw(read_rows(rows), unseen)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE.name}: {len(svg)} bytes")


if __name__ == "__main__":
    main()
