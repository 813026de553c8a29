"""A stream that is cut in the middle: asked for again from its start, and from a checkpoint."""

from recipe import SIMULATED, Engine, ask, capture, report, run, simulated

QUOTED = "a cut stream leaves partial output: take it up again from a checkpoint"
TOKENS = 60
CUT = {"x-llmtrace-sim": "cut_after=45"}  # what no real engine can be told to do


def main(count: int) -> bool:
    rows = []
    with simulated() as to:
        for from_checkpoint in (False, True):
            with capture() as seen:
                for _ in range(max(4, count // 6)):
                    cut_and_again(to, from_checkpoint=from_checkpoint)
            cut, again = seen[:2]
            print(
                f"{'from a checkpoint' if from_checkpoint else 'from the start'}: "
                f"{cut.outcome} after {cut.chunks} tokens, {again.outcome} after {again.chunks}"
            )
            rows.append([row for row in seen if row.outcome == "success"])
    return report(
        "the second request after a cut", QUOTED, *rows, moved="e2e", still="ttft", by=SIMULATED
    )


def cut_and_again(to: Engine, *, from_checkpoint: bool) -> None:
    chunks = [c for c in ask(to, "Hi", TOKENS, extra_headers=CUT) if c.choices]
    have = [text for c in chunks if (text := c.choices[0].delta.content)]
    if from_checkpoint:
        list(ask(to, f"Hi. Go on after: {''.join(have)}", TOKENS - len(have)))
    else:
        list(ask(to, "Hi", TOKENS))


if __name__ == "__main__":
    run(main)
