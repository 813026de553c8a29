"""Does a trace come back as it was, and is a world no more than another scale of the same day?"""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

pytest.importorskip("numba", reason="the fleet simulator needs the extra `simulate`")

from llmtrace.core.errors import ConfigError
from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.simulator.fleet.scenario import Scenario, simulate
from llmtrace.triage.result import CAUSES, NOT_SIMULATED
from tests.bench import worlds_beyond
from tests.bench.worlds import KNOWN_BY, draw_world

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:04.5319600,3180,8
2023-11-16 18:17:03.0319600,4808,10
"""
MOONCAKE = [
    {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 500, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]},
    {"timestamp": 2500, "input_length": 600, "output_length": 9, "hash_ids": [4, 5]},
]


def test_an_azure_trace_is_read_in_order_of_time(tmp_path):
    """Times are seconds from the first request on, whatever the order of the lines."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)

    found = read_arrivals(path)

    assert found.start_s.tolist() == pytest.approx([0.0, 1.5])
    assert (found.prompt.tolist(), found.output.tolist()) == ([4808, 3180], [10, 8])
    assert found.group.tolist() == [-1, -1]


def test_an_azure_trace_of_2024_is_read(tmp_path):
    """Its times have a UTC offset, and some have no fraction of a second."""
    path = tmp_path / "azure.csv"
    head = AZURE.splitlines()[0]
    times = ["2024-05-10 00:00:00+00:00", "2024-05-10 00:00:00.250000+00:00"]
    path.write_text("\n".join([head, *(f"{at},2162,5" for at in times)]))

    assert read_arrivals(path).start_s.tolist() == pytest.approx([0.0, 0.25])


def test_equal_blocks_of_a_mooncake_trace_are_shared_prefixes(tmp_path):
    """Two prompts share their first two blocks of 512 tokens; the third shares nothing."""
    path = tmp_path / "mooncake.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, MOONCAKE)).encode()))

    found = read_arrivals(path)

    assert found.start_s.tolist() == [0.0, 0.5, 2.5]
    assert found.group[0] == found.group[1] >= 0
    assert found.group[2] == -1
    assert found.shared.tolist() == [1024, 1024, 0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n1,2,3\n", "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,2,3\n", "line 2"),
        (json.dumps(MOONCAKE[0]), "fewer than two"),
        (json.dumps({**MOONCAKE[0], "input_length": -5}), "line 1"),
        ("", "fewer than two"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path, text, said):
    """A message names the file, and the line where there is one."""
    path = tmp_path / "trace"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_arrivals(path)


def test_a_replayed_day_has_the_lengths_of_its_trace(tmp_path):
    """Every request of the day is one of the trace's."""
    path = tmp_path / "azure.csv"
    lengths = [(100 + 7 * k % 900, 3 + k % 50) for k in range(200)]
    lines = [
        f"2023-11-16 18:{k // 60:02}:{k % 60:02}.0,{p},{o}" for k, (p, o) in enumerate(lengths)
    ]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]))

    played = simulate(Scenario(seed=3, before_s=120, after_s=60, arrivals=read_arrivals(path)))

    numbers = played.case.rows.numbers
    done = np.isfinite(numbers["prompt_tokens"])
    found = set(zip(numbers["prompt_tokens"][done], numbers["output_tokens"][done], strict=True))
    assert len(found) > 50
    assert found <= set(lengths)


def test_a_world_records_what_the_cause_can_be_known_by():
    """Every cause in a world has a way to be known, and its world hides none of one."""
    assert set(worlds_beyond.KNOWN_BY) <= NOT_SIMULATED
    assert set(KNOWN_BY) == (set(CAUSES) - NOT_SIMULATED) | set(worlds_beyond.KNOWN_BY)
    for cause, ways in KNOWN_BY.items():
        for seed in range(20):
            hidden = draw_world(seed, [cause]).hidden
            assert any(not hidden & {*way} for way in ways), (cause, seed)


def test_a_world_scales_all_times_alike():
    """Stages add up to the wait at any scale, and windows hold the rows."""
    world = draw_world(5, ["gateway_overhead"])
    played = simulate(Scenario(seed=5, faults=(("gateway_overhead", 3.0),), world=world))

    case = played.case
    assert case.before.end == pytest.approx(case.after.start)
    first = case.rows.numbers
    parts = sum(
        np.nan_to_num(first[f"{name}_s"])
        for name in ("network", "gateway", "queue", "prefill", "first_chunk", "unattributed")
    )
    known = np.isfinite(first["ttft_s"]) & (first["nested"] != 1)
    assert parts[known] == pytest.approx(first["ttft_s"][known], rel=1e-6, abs=1e-6)
    t = case.rows.start / 1e9
    assert case.before.start - 1 <= t.min()
    assert t.max() <= case.after.end + 1
