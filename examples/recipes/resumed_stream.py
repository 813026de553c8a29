"""A stream that is cut in the middle: asked for again from its start, and from a checkpoint."""

from recipe import ask, capture, engine, report, run

QUOTED = "a cut stream leaves partial output: take it up again from a checkpoint"
TOKENS = 60
CUT = {"x-llmtrace-sim": "cut_after=45"}


def main(count: int) -> bool:
    rows = []
    with engine() as client:
        for from_checkpoint in (False, True):
            with capture() as seen:
                for _ in range(max(4, count // 6)):
                    chunks = [c for c in ask(client, "Hi", TOKENS, extra_headers=CUT) if c.choices]
                    have = "".join(c.choices[0].delta.content or "" for c in chunks)
                    left = TOKENS - len(chunks) if from_checkpoint else TOKENS
                    prompt = f"Hi. Go on after: {have}" if from_checkpoint else "Hi"
                    list(ask(client, prompt, max(1, left)))
            rows.append([row for row in seen if row.outcome == "success"])
            print(f"outcomes: {sorted({row.outcome for row in seen})}")
    return report(
        "the second request after a cut", QUOTED, *rows, moved="e2e", still="ttft"
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
