"""The same question with a third of the prompt left out."""

from recipe import ask, engine, measure, report, run

QUOTED = "prompt compression: 10 to 20 % less"


def main(count: int) -> bool:
    rows = []
    with engine() as to:
        for words in (750, 500):
            # Each begins with something of its own: no prefix of it is in a cache.
            prompt = f"{words} {{}} " + "word " * words
            rows.append(measure(lambda i, p=prompt, e=to: list(ask(e, p.format(i), 8)), count))
    return report("shorter prompt", QUOTED, *rows, moved="prefill", still="decode", shown="e2e")


if __name__ == "__main__":
    run(main)
