"""A voice turn: text is spoken once all of it is there, or from its first words on."""

import time
from typing import Any

from recipe import Engine, ask, capture, engine, note, report, run

import llmtrace

QUOTED = "voice pipelines: under 800 ms from the end of speech to the first sound"
HEARD_S = 0.12  # speech to text
SPOKEN_S = 0.09  # text to speech, until its first sound
LIMIT_S = 0.8
FIRST_WORDS = 8


def take_turn(to: Engine, *, first_words: bool) -> None:
    with llmtrace.turn("voice") as turn:
        time.sleep(HEARD_S)
        for number, _chunk in enumerate(ask(to, "What is the weather?", 60)):
            if first_words and number == FIRST_WORDS:
                speak(turn)
        if not first_words:
            speak(turn)


def speak(turn: Any) -> None:
    time.sleep(SPOKEN_S)
    turn.first_content()  # the user hears something: the TTFT of the turn


def main(count: int) -> bool:
    rows = []
    with engine(size=(1024, 8)) as to:  # on vLLM, a model that writes no faster than one speaks
        list(ask(to, "connect", 1))
        for first_words in (False, True):
            with capture() as seen:
                for _ in range(max(4, count // 6)):
                    take_turn(to, first_words=first_words)
            rows.append([row for row in seen if row.is_turn])
    right = report("voice turns, to the first sound", QUOTED, *rows, moved="ttft", still="e2e")
    worst = max(row.ttft_s for row in rows[1])
    note(f"the slowest of {len(rows[1])} after {1e3 * worst:.0f} ms")
    return right and worst < LIMIT_S


if __name__ == "__main__":
    run(main)
