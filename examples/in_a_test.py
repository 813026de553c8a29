"""`llmtrace.testing.capture` in your own tests, with a clock you move."""

from __future__ import annotations

from collections.abc import Iterator

import llmtrace
from llmtrace.testing import FakeClock, capture, fake_stream

clock = FakeClock()


@llmtrace.trace(route="story", model="tiny")
def story() -> Iterator[str]:
    yield from fake_stream(["Once ", "upon ", "a time"], clock, gaps=[0.5, 0.02, 0.02])


def test_the_story_streams_and_its_reader_is_quick() -> None:
    """First content after 0.5 s, then 20 ms a chunk, and no consumer time."""
    with capture(clock=clock) as rows:
        text = "".join(story())

    (row,) = rows
    assert text == "Once upon a time"
    assert (row.outcome, row.ttft_s, row.e2e_s) == ("success", 0.5, 0.54)
    assert row.stages.decode == 40_000_000
    assert row.stages.render == 0


if __name__ == "__main__":
    test_the_story_streams_and_its_reader_is_quick()
    print("passed")
