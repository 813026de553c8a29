"""Speculative decoding on a real vLLM: what of each draft is accepted, and when that pays."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from recipe import LENGTH, VLLM, Engine, ask, capture, note, quartile, report, run, vllm

from llmtrace import Row

QUOTED = "TPOT 42 -> 13 ms where 0.84 is accepted, 28 at 0.52; slower than none below about 0.4"
DRAFTED = 3  # tokens a draft
CONFIG = {
    "method": "ngram",  # drafts what followed the same tokens before
    "num_speculative_tokens": DRAFTED,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}
TOKENS = 200
REPEATS, RANDOM = 0.0, 1.0  # what the model writes at these temperatures


@dataclass(frozen=True)
class Drafts:
    """What an engine drafted: how often, and how many tokens were accepted at each position."""

    made: float
    accepted: tuple[float, ...]

    @property
    def share(self) -> float:
        """The accepted share of what was drafted."""
        return sum(self.accepted) / (DRAFTED * self.made)

    def since(self, before: Drafts) -> Drafts:
        """Return what came after an earlier look."""
        accepted = zip(self.accepted, before.accepted, strict=True)
        return Drafts(self.made - before.made, tuple(now - then for now, then in accepted))


def read_drafts(page: str) -> Drafts:
    """Read vLLM's metrics page."""
    found: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name + sample.labels.get("position", "")] += sample.value
    accepted = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    return Drafts(
        found["vllm:spec_decode_num_drafts_total"],
        tuple(found[f"{accepted}{position}"] for position in range(DRAFTED)),
    )


@dataclass(frozen=True)
class Work:
    """Requests of one kind, without drafts and with them."""

    plain: list[Row]
    drafting: list[Row]
    drafts: Drafts

    @property
    def slowdown(self) -> float:
        """TPOT with drafts, of that without."""
        return quartile("tpot", self.drafting) / quartile("tpot", self.plain)

    @property
    def steps(self) -> float:
        """Steps of the engine with drafts: each yields a token and what was accepted."""
        return sum(row.output_tokens - 1 for row in self.drafting) - sum(self.drafts.accepted)

    @property
    def draft_cost(self) -> float:
        """What a draft adds to a step, in steps without one."""
        tokens = self.steps + sum(self.drafts.accepted)
        return (self.slowdown * tokens / self.steps - 1) * self.steps / self.drafts.made

    @property
    def break_even(self) -> float:
        """The share to accept above which a draft yields more steps than it costs."""
        return self.draft_cost / DRAFTED


def measured(temperature: float, count: int) -> Work:
    plain, drafting = vllm(), vllm("--speculative-config", json.dumps(CONFIG))
    before = drafts_of(drafting)
    with capture() as rows:
        for i in range(count):
            for to in (plain, drafting):  # in turn, so that what drifts drifts for both
                asked = f"{i}: what is next?"
                # All tokens are allowed: a mask of them would count as a cost of the draft.
                list(ask(to, asked, TOKENS, temperature=temperature, extra_body=LENGTH))
    return Work(rows[::2], rows[1::2], drafts_of(drafting).since(before))


def drafts_of(to: Engine) -> Drafts:
    with urllib.request.urlopen(f"{to.root}/metrics") as page:
        return read_drafts(page.read().decode())


def show(name: str, work: Work) -> None:
    by_position = ", ".join(f"{n / work.drafts.made:.0%}" for n in work.drafts.accepted)
    print(f"{name}: {work.drafts.share:.0%} of what was drafted was accepted")
    print(f"  {work.drafts.made:.0f} drafts in {work.steps:.0f} steps; by position: {by_position}")
    print(f"  TPOT is {work.slowdown:.2f}-fold: a draft adds {work.draft_cost:.2f} to a step,")
    print(f"  and pays where more than {work.break_even:.0%} is accepted")


def main(count: int) -> bool:
    measured(REPEATS, 1)  # connects
    repeats, random = measured(REPEATS, count), measured(RANDOM, count)
    show("text that repeats itself", repeats)
    show("random text", random)
    faster = report(
        "speculative decoding of text that repeats itself", QUOTED, repeats.plain,
        repeats.drafting, moved="decode", still="prefill", shown="tpot", by=VLLM,
    )  # fmt: skip
    slower = random.slowdown > 1
    note(f"random text: TPOT {random.slowdown:.2f}-fold, {'' if slower else 'NOT '}as quoted")
    return faster and slower


if __name__ == "__main__":
    run(main)
