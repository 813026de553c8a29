"""A long prompt among short ones, with a large and a small chunk of prefill in each step."""

import threading

from recipe import Engine, ask, capture, engine, report, run

QUOTED = "chunked prefill: long prompts stop blocking others"
LONG = "word " * 1550
SHORT_TOKENS = 80


def main(count: int) -> bool:
    rows = []
    for chunk in (8192, 512):
        with engine(max_num_batched_tokens=chunk, max_model_len=8192) as to, capture() as seen:
            list(ask(to, "connect", 1))
            for i in range(max(4, count // 6)):
                long_among_short(to, f"{chunk} {i} {LONG}")
        rows.append([row for row in seen if row.output_tokens == SHORT_TOKENS])
    return report(
        "chunk sizes: the longest gap in streams of others", QUOTED, *rows,
        moved="max_gap", still="ttft",
    )  # fmt: skip


def long_among_short(to: Engine, prompt: str) -> None:
    decodes = threading.Event()

    def short() -> None:
        try:
            for _ in ask(to, "Hi", SHORT_TOKENS):
                decodes.set()
        finally:
            decodes.set()  # should it fail, too

    reader = threading.Thread(target=short)
    reader.start()
    decodes.wait()
    list(ask(to, prompt, 1))
    reader.join()


if __name__ == "__main__":
    run(main)
