"""Does a generated response have exactly the requested length, parts and JSON?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrace.core.errors import DataError
from llmtrace.simulator.api.fault_header import Faults, read_faults
from llmtrace.simulator.api.wire_format import parts
from llmtrace.simulator.engine.text import count_tokens, natural_tokens, write_answer


@given(
    tokens=st.integers(1, 80),
    stops=st.booleans(),
    reasoning_tokens=st.integers(0, 90),
    tool_calls=st.integers(0, 6),
)
def test_an_answer_has_a_piece_a_token(
    tokens: int,
    stops: bool,
    reasoning_tokens: int,
    tool_calls: int,
) -> None:
    """Whatever the mix, there are as many pieces as tokens, and tool calls are valid JSON."""
    pieces = write_answer(
        "prompt", 0, tokens, stops=stops, reasoning_tokens=reasoning_tokens, tool_calls=tool_calls
    )

    assert len(pieces) == tokens
    assert (pieces[-1].text == "") == stops or tool_calls > 0
    assert sum(piece.kind == "reasoning" and piece.text != "" for piece in pieces) == min(
        reasoning_tokens, tokens - stops
    )
    assert all(json.loads(text) is not None for piece, text in parts(pieces) if piece.call)


def test_the_same_prompt_gets_the_same_answer() -> None:
    """Words and length depend on prompt and seed alone."""
    first = write_answer("prompt", 1, 50, stops=False)

    assert first == write_answer("prompt", 1, 50, stops=False)
    assert first != write_answer("prompt", 2, 50, stops=False)
    assert natural_tokens("prompt", 1, 100) == natural_tokens("prompt", 1, 100)


def test_natural_lengths_spread_around_the_median() -> None:
    """Over many prompts half the answers are longer than the median, within sampling."""
    drawn = sorted(natural_tokens(f"prompt {n}", 0, 100) for n in range(500))

    assert 85 < drawn[250] < 115
    assert drawn[25] < 70
    assert drawn[475] > 150


def test_tokens_are_four_bytes() -> None:
    """Text is counted by bytes, so other scripts cost more; nothing counts as nothing."""
    assert [count_tokens(text) for text in ("", "abcd", "abcde", "ééé")] == [1, 1, 2, 2]


def test_fault_header_changes_only_what_it_names() -> None:
    """What the header does not name stays as the server was configured."""
    read = read_faults("cut_after=0, keep_alive_s=0.5", Faults(tool_calls=2))

    assert read == Faults(cut_after=0, keep_alive_s=0.5, tool_calls=2)


@pytest.mark.parametrize("header", ["cut", "cut_after=-1", "cut_after=1.5", "retry_after_s=inf"])
def test_unreadable_fault_headers_are_refused(header: str) -> None:
    """An unknown name, and a value that is no usable number, are errors."""
    with pytest.raises(DataError, match="x-llmtrace-sim"):
        read_faults(header)
