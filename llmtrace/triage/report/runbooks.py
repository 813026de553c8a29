"""Make the runbook of each cause from the docstring of its rule, so that the two cannot diverge.

`scripts/docs.py` writes them to docs/on-call/runbooks/.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final

from llmtrace.triage.causes import RULES, may_be_behind
from llmtrace.triage.causes.engine_flags import of_cause

INDEX: Final = "index.md"
_HEADINGS: Final[Mapping[str, str]] = {
    "Looks like": "What it looks like",
    "Confirm": "How to confirm it",
    "Now": "What to do now",
    "Later": "What to do later",
}
_SECTION: Final = re.compile(r"^(Looks like|Confirm|Now|Later):$", re.MULTILINE)


def title(cause: str) -> str:
    """Return a cause in words.

    Example:
        >>> title("kv_exhaustion")
        'KV exhaustion'
    """
    words = cause.replace("_", " ").capitalize()
    for short in ("Kv", "kv", "Gpu", "cpu", "Lora"):
        words = re.sub(rf"\b{short}\b", short.upper() if short != "Lora" else "LoRA", words)
    return words


def summary_of(cause: str) -> str:
    """Return a cause in one sentence, the first of its runbook.

    Example:
        >>> summary_of("gpu_throttle")
        'A GPU runs slower than it should: heat, power, a fault, or another program that uses it.'
    """
    doc = inspect.getdoc(RULES[cause]) or ""
    return doc.partition("\n\n")[0].replace("\n", " ")


def page(cause: str) -> str:
    """Return the runbook of a cause, as Markdown.

    Raises:
        KeyError: no such cause.
    """
    doc = inspect.getdoc(RULES[cause]) or ""
    summary, *rest = _SECTION.split(doc)
    parts = [f"# {title(cause)}", f"`{cause}` · [all causes]({INDEX})", summary.strip()]
    for name, text in zip(rest[::2], rest[1::2], strict=True):
        parts += [f"## {_HEADINGS[name]}", _body(text)]
    if settings := of_cause(cause):
        rows = [
            f"| {flag.engine} | {'.'.join(map(str, flag.since)) if flag.since else 'any'} "
            f"| {flag.text} |"
            for flag in settings
        ]
        parts += [
            "## Settings, by engine and version",
            "\n".join(["| engine | since | what |", "|---|---|---|", *rows]),
        ]
    behind = may_be_behind(cause)
    if behind and len(behind) < len(RULES) - 1:
        links = ", ".join(f"[{title(name)}]({name}.md)" for name in behind)
        parts += ["## Look behind it", f"It may be an effect of: {links}."]
    return "\n\n".join(parts) + "\n"


def _body(text: str) -> str:
    """Format a section: lines that are indented further are queries, each in its own paragraph."""
    out: list[str] = []
    query = False
    for line in text.strip("\n").splitlines():
        line = line.removeprefix("    ")  # noqa: PLW2901
        indented = line.startswith("    ")
        if indented and not query:
            out += ["", "```promql"]
        elif query and not indented:
            out += ["```", ""]
        elif query and not line.startswith("      "):
            out.append("")
        query = indented
        out.append(line.removeprefix("    "))
    if query:
        out.append("```")
    return "\n".join(out).strip()
