"""The frame and style of every HTML page that llmtrace writes.

Each is one HTML file that loads nothing from elsewhere: light or dark as the system is, readable
in black and white, without a mouse, and on paper.
"""

from __future__ import annotations

from html import escape
from typing import Final

STYLE: Final = """
:root { color-scheme: light dark; --ground: #ffffff; --ink: #1c2128; --soft: #57606a;
  --line: #d8dee4; --track: #eceff2; --card: #f7f8fa; }
@media (prefers-color-scheme: dark) { :root { --ground: #111418; --ink: #e6e9ec;
  --soft: #9aa4af; --line: #2d333b; --track: #262c34; --card: #181c22; } }
@media print { :root { color-scheme: light; --ground: #ffffff; --ink: #1c2128; --soft: #57606a;
  --line: #d8dee4; --track: #eceff2; --card: #ffffff; }
  * { print-color-adjust: exact; } section { break-inside: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.5rem 3rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 0; }
p { margin: .35rem 0; } .soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.3rem 1.5rem; margin: 1.4rem 0; }
.verdict { font-size: 1.9rem; font-weight: 650; margin: .1rem 0 .9rem; letter-spacing: -.01em; }
.verdict small { font-size: 1rem; font-weight: 400; color: var(--soft); }
.pill { border-radius: 99px; padding: .1rem .6rem; font-size: .82rem; font-weight: 600;
  white-space: nowrap; border: 1.5px solid var(--c); color: var(--ink); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; color: var(--soft); font-size: .82rem; }
th, td { padding: .38rem .7rem .38rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
td.n, th.n { text-align: right; } tr.sum td { font-weight: 600; }
.chip { display: inline-block; width: .75rem; height: .75rem; border-radius: 3px;
  margin-right: .5rem; vertical-align: -.06rem; }
"""


def document(title: str, body: str, style: str = "") -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML; what came from outside in it is escaped already.
        style: CSS in addition to `STYLE`.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{STYLE}{style}</style></head><body>\n{body}\n</body></html>\n"
    )
