"""Say which other cause the same evidence fits, and what would tell the two apart.

The pairs are data, as all relations of causes: relations.toml.
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
_A_LINE: Final = WEIGHTS["required"][0]  # points: one line of evidence separates nothing


def look_alikes(first: Finding, weighed: Mapping[str, Finding]) -> tuple[OrElse, ...]:
    """Return the causes that the evidence cannot separate from the first, best supported first.

    Those within one line's points of it, and, if it has no proof, those of which what is known
    says nothing against them and what would decide is missing.

    Args:
        first: the cause that is named first.
        weighed: what each rule says by itself, before one cause explains another.
    """
    mine = weighed[first.id].score

    def fits(one: Finding) -> bool:
        if one.status in NAMED:
            return abs(one.score - mine) <= _A_LINE
        unseen = one.status == "unknown" and one.missing and not one.against
        return bool(unseen) and first.status != "confirmed"

    others = [
        one for one in weighed.values()
        if frozenset((first.id, one.id)) in LOOK and fits(one)
    ]  # fmt: skip
    others.sort(key=lambda one: -one.score)
    return tuple(OrElse(one.id, LOOK[frozenset((first.id, one.id))]) for one in others)
