"""Say which other causes the same evidence fits, and what to look at to tell them apart.

The pairs are data, like all relations of causes: relations.toml.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from llmtrace.triage.causes.scoring import WEIGHTS
from llmtrace.triage.result import NAMED, Finding, OrElse

RELATIONS: Final = tomllib.loads(
    files(__package__).joinpath("relations.toml").read_text(encoding="utf-8")
)
LOOK: Final[Mapping[frozenset[str], str]] = {
    frozenset(one["causes"]): one["look"] for one in RELATIONS["pair"]
}
_ONE_LINE: Final = WEIGHTS["required"][0]  # points: a difference of one line decides nothing


def look_alikes(first: Finding, weighed: Mapping[str, Finding]) -> tuple[OrElse, ...]:
    """Return the causes that the evidence cannot tell from the first, best supported first.

    These are the named causes within one line's points of it and, unless the first is confirmed,
    the unknown ones that nothing speaks against and whose deciding data is missing.

    Args:
        first: the cause that is named first.
        weighed: each rule's own finding, before one cause explains another.
    """
    mine = weighed[first.id].score

    def fits(one: Finding) -> bool:
        if one.status in NAMED:
            return abs(one.score - mine) <= _ONE_LINE
        unseen = one.status == "unknown" and one.missing and not one.against
        return bool(unseen) and first.status != "confirmed"

    others = [
        one for one in weighed.values()
        if frozenset((first.id, one.id)) in LOOK and fits(one)
    ]  # fmt: skip
    others.sort(key=lambda one: -one.score)
    return tuple(OrElse(one.id, LOOK[frozenset((first.id, one.id))]) for one in others)
