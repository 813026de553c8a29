"""A long prompt among short ones, with a large and a small chunk of prefill in each step."""

import threading

from recipe import ask, capture, engine, report, run

QUOTED = "chunked prefill: long prompts stop blocking others"
LONG = "word " * 7000


def main(count: int) -> bool:
    rows = []
    for chunk in (8192, 512):
        with engine(max_num_batched_tokens=chunk) as client, capture() as seen:
            list(ask(client, "connect", 1))
            for i in range(max(4, count // 6)):
                short = threading.Thread(target=lambda c=client: list(ask(c, "Hi", 60)))
                short.start()
                short.join(0.3)  # it is in its decode by then
                list(ask(client, f"{i} {LONG}", 1))
                short.join()
        rows.append([row for row in seen if row.output_tokens == 60])
    return report(
        "chunk sizes: the longest gap in streams of others", QUOTED, *rows,
        moved="max_gap", still="ttft",
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
