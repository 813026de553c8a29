"""Markdown rendered for each token, and at most every 50 ms."""

import time

from recipe import ask, engine, measure, report, run

QUOTED = "clients that re-render on every token become the bottleneck: buffer about 50 ms"
DRAW_S = 0.006
EVERY_S = 0.05


def main(count: int) -> bool:
    with engine() as to:

        def at_once(_: int) -> None:
            for _chunk in ask(to, "Hi", 40):
                time.sleep(DRAW_S)

        def batched(_: int) -> None:
            drawn = time.monotonic()
            for _chunk in ask(to, "Hi", 40):
                if time.monotonic() - drawn > EVERY_S:
                    time.sleep(DRAW_S)
                    drawn = time.monotonic()

        rows = [measure(way, max(4, count // 4)) for way in (at_once, batched)]
    return report("batches of renders", QUOTED, *rows, moved="render", still="ttft", shown="e2e")


if __name__ == "__main__":
    run(main)
