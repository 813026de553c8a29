"""Six requests at a time, by an engine that takes one after the other, and by one that batches."""

from concurrent.futures import ThreadPoolExecutor

from recipe import ask, capture, engine, report, run

QUOTED = "continuous batching: GPU use 40 -> 80 %, the queue gets shorter"


def main(count: int) -> bool:
    rows = []
    for places in (1, 6):
        with engine(max_num_seqs=places) as to, capture() as seen, ThreadPoolExecutor(6) as six:
            for done in [six.submit(lambda e=to: list(ask(e, "Hi"))) for _ in range(3 * count)]:
                done.result()
        rows.append(seen[6:])
    return report("batching", QUOTED, *rows, moved="queue", still="prefill", shown="e2e")


if __name__ == "__main__":
    run(main)
