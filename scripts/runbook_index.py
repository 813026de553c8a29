"""Make the page that lists the runbooks of all causes, and name all pages of runbooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from llmtrace.triage.causes import RULES
from llmtrace.triage.causes.scoring import CONFIRMED, LIKELY, POSSIBLE, RULED_OUT, WEIGHTS
from llmtrace.triage.report.runbooks import INDEX, page, title

_INDEX: Final = """\
# Runbooks

One page per cause that `llmtrace triage` knows: what it looks like, how to confirm it, what to do
now and later. `llmtrace triage runbook CAUSE` prints it.

{causes}

## How a cause is weighed

Every line of evidence has points, printed before it. Lines that state the same fact count once,
unknown lines not at all. If a gate or a requirement is unknown, the cause is `unknown`, with the
data that would settle it.

{table}

| points | status |
|---|---|
| {confirmed} or more, and one line is proof | `confirmed` |
| {likely} or more | `likely` |
| {possible} or more | `possible` |
| {ruled_out} or less, or a gate or requirement fails | `ruled_out` |

A cause that would follow from another, well supported one is at most `possible`. Of several causes
of the same change, all but the first lose 6. How often each status is right:
[benchmarks](../../reference/benchmarks.md).

```{{toctree}}
:hidden:
:glob:

*
```
"""


def index() -> str:
    """Return the page that lists all causes and says how they are weighed."""
    rows = []
    for cause, rule in RULES.items():
        summary = (inspect.getdoc(rule) or "").splitlines()[0]
        rows.append(f"| [{title(cause)}]({cause}.md) | {summary} |")
    kinds = {
        "gate": "the latency rose where the cause would raise it",
        "required": "without it the cause is impossible",
        "proof": "a counter or state that is the cause itself",
        "support": "the cause would make it likely",
        "note": "explains the other lines",
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


PAGES: Final[Mapping[str, Callable[[], str]]] = {
    INDEX: index,
    **{f"{cause}.md": partial(page, cause) for cause in RULES},
}
