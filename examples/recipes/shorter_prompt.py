"""The same question with a quarter of the prompt left out."""

from recipe import ask, engine, measure, report, run

QUOTED = "prompt compression: 10 to 20 % less"


def main(count: int) -> bool:
    rows = []
    for words in (6000, 4500):
        prompt = "word " * words
        with engine() as client:
            rows.append(measure(lambda i, c=client, p=prompt: list(ask(c, f"{i} {p}", 8)), count))
    return report("shorter prompt", QUOTED, *rows, moved="prefill", still="decode", shown="e2e")


if __name__ == "__main__":
    run(main)
