"""Make the runbook of each cause, and their index.

A runbook is made of the docstring of its rule, so that the two cannot diverge; `scripts/docs.py`
writes them to docs/on-call/runbooks/.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Final

from llmtrace.triage.causes import BEHIND, RULES
from llmtrace.triage.causes.engine_flags import of_cause
from llmtrace.triage.causes.scoring import CONFIRMED, LIKELY, POSSIBLE, RULED_OUT, WEIGHTS

INDEX: Final = "index.md"
_HEADINGS: Final[Mapping[str, str]] = {
    "Looks like": "What it looks like",
    "Confirm": "How to confirm it",
    "Now": "What to do now",
    "Later": "What to do later",
}
_INDEX: Final = """\
# Runbooks

One page for every cause that `llmtrace triage` knows: what it looks like, how to confirm it, what
to do now and later.

{causes}

## How a cause is weighed

Every line of evidence counts points, printed before it; lines that state the same fact count once.
A line that is unknown counts nothing; a gate or a requirement that is unknown leaves the cause
`unknown`, with the data that would settle it.

{table}

From {confirmed} on a cause is `confirmed`, from {likely} `likely`, from {possible} `possible`; at
{ruled_out} or below, or if a gate or requirement fails, it is `ruled_out`. A cause that would
follow from another, well supported one is at most `possible`; of causes of the same change all but
the first lose 6. How often each status is right: [benchmarks](../../reference/benchmarks.md).

```{{toctree}}
:hidden:
:glob:

*
```
"""
_SECTION: Final = re.compile(r"^(Looks like|Confirm|Now|Later):$", re.MULTILINE)


def title(cause: str) -> str:
    """Return a cause in words.

    Example:
        >>> title("kv_exhaustion")
        'KV exhaustion'
    """
    words = cause.replace("_", " ").capitalize()
    for short in ("Kv", "Gpu", "cpu", "Lora"):
        words = re.sub(rf"\b{short}\b", short.upper() if short != "Lora" else "LoRA", words)
    return words


def page(cause: str) -> str:
    """Return the runbook of a cause, as Markdown.

    Raises:
        KeyError: there is no such cause.
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
    behind = [name for name in RULES if name in BEHIND.get(cause, ())]
    if behind and len(behind) < len(RULES) - 1:
        links = ", ".join(f"[{title(name)}]({name}.md)" for name in behind)
        parts += ["## Look behind it", f"It may be the mere effect of: {links}."]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the page that lists all causes and says how they are weighed."""
    rows = []
    for cause, rule in RULES.items():
        summary = (inspect.getdoc(rule) or "").splitlines()[0]
        rows.append(f"| [{title(cause)}]({cause}.md) | {summary} |")
    kinds = {
        "gate": "the latency rose where the cause would raise it",
        "required": "without it the cause is impossible",
        "proof": "a counter or mark that is the cause itself",
        "support": "the cause would make it likely",
        "note": "how the other lines come about",
        "against": "unlikely under the cause",
        "strongly_against": "very unlikely under the cause",
    }
    weights = [
        f"| {kind.replace('_', ' ')} | {kinds[kind]} | {holds:+} | {fails:+} |"
        for kind, (holds, fails) in WEIGHTS.items()
    ]
    causes = "\n".join(["| cause | in a sentence |", "|---|---|", *rows])
    table = "\n".join(["| line | meaning | if so | if not |", "|---|---|---|---|", *weights])
    return _INDEX.format(
        causes=causes,
        table=table,
        confirmed=CONFIRMED,
        likely=LIKELY,
        possible=POSSIBLE,
        ruled_out=RULED_OUT,
    )


def _body(text: str) -> str:
    """Return a section: lines set in further than the rest are queries, one below the other."""
    out: list[str] = []
    query = False
    for line in text.strip("\n").splitlines():
        line = line.removeprefix("    ")  # noqa: PLW2901
        set_in = line.startswith("    ")
        if set_in and not query:
            out += ["", "```promql"]
        elif query and not set_in:
            out += ["```", ""]
        elif query and not line.startswith("      "):
            out.append("")
        query = set_in
        out.append(line.removeprefix("    "))
    if query:
        out.append("```")
    return "\n".join(out).strip()


def _maker(cause: str) -> Callable[[], str]:
    return lambda: page(cause)


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    INDEX: index,
    **{f"{cause}.md": _maker(cause) for cause in RULES},
}
