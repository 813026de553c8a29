"""Two models, each on an engine of its own: asked in turn, so that what drifts drifts for both."""

from collections.abc import Iterator
from contextlib import contextmanager

from recipe import (
    ON_VLLM,
    OURS,
    Engine,
    ask,
    capture,
    note,
    report,
    run,
    simulated,
    tiny_model,
    vllm,
)

QUOTED = "nothing: another model or engine is to be measured, on your own requests"


@contextmanager
def models() -> Iterator[tuple[Engine, Engine]]:
    if ON_VLLM:
        yield vllm(model=tiny_model(1024, 8)), vllm()
        return
    with simulated(base_s=0.015, prefill_token_s=200e-6) as large, simulated() as small:
        yield large, small


def main(count: int) -> bool:
    rows = ([], [])
    with models() as both:
        for to in both:
            list(ask(to, "connect", 1))
        for i in range(max(6, count // 2)):
            order = (0, 1) if i % 2 else (1, 0)
            for which in order:
                with capture() as rows_of_one:
                    list(ask(both[which], f"{i} {'word ' * 300}", 20))
                rows[which].extend(rows_of_one)
    right = report(
        "a large model and a small one", QUOTED, *rows,
        moved="decode", still="network", shown="e2e", by=OURS,
    )  # fmt: skip
    note(f"{rows[0][0].output_tokens} tokens each; whether they are as good is another question")
    return right


if __name__ == "__main__":
    run(main)
