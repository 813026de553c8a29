"""The frame and style of every HTML page that llmtrace writes.

Each is one HTML file that loads nothing from elsewhere: light or dark as the system is, readable
in black and white, without a mouse, and on paper.
"""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Final

STYLE: Final = files(__package__).joinpath("html_page.css").read_text(encoding="utf-8")


def document(title: str, body: str, style: str = "") -> str:
    """Return a whole page with a plain title, a body and CSS in addition to `STYLE`.

    The body is HTML; what came from outside in it is escaped already.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{STYLE}{style}</style></head><body>\n{body}\n</body></html>\n"
    )
