"""Does the fit find what a step costs, and how true is the simulator to a real vLLM?"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from llmtrace.core.errors import DataError
from llmtrace.simulator.fleet.step_cost import MODELS, StepCost
from tests.simulator.calibrate import Served, fit, read_served, replay

TRUE = StepCost(
    base_s=0.006, prefill_token_s=120e-6, attention_s=0.0, sequence_s=600e-6, context_s=0.0,
    jitter=0.05, front_request_s=0.004, front_prompt_s=0.0, front_token_s=0.0,
)  # fmt: skip


def workload(n: int = 200) -> Served:
    """Return questions of all lengths, alone and many at once."""
    rng = np.random.default_rng(3)
    pace = np.where(np.arange(n) < n // 2, 0.9, 0.12)
    nothing = np.zeros(n)
    return Served(
        start=np.cumsum(rng.exponential(pace)),
        prompt=rng.choice([64.0, 500.0, 1800.0], n),
        output=np.full(n, 40.0),
        queue_s=nothing, prefill_s=nothing, decode_s=nothing, front_s=nothing,
    )  # fmt: skip


def test_the_fit_finds_the_cost_that_made_the_times():
    """From the times alone, within a fifth."""
    replayed = replay(workload(), TRUE, seats=16, max_tokens=2048)
    found = fit(replayed, 2048)

    assert found.measured
    for name in ("base_s", "prefill_token_s", "sequence_s", "front_request_s"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.2), name


def test_replaying_what_was_fitted_gives_the_same_times():
    """The p50 of every stage within a tenth."""
    replayed = replay(workload(), TRUE, seats=16, max_tokens=2048)
    again = replay(replayed, fit(replayed, 2048), seats=16, max_tokens=2048)

    for name in ("prefill_s", "decode_s", "ttft_s"):
        real, simulated = (np.median(getattr(one, name)) for one in (replayed, again))
        assert simulated == pytest.approx(real, rel=0.1), name


def test_too_little_to_fit_is_an_error(tmp_path):
    """So is a file that holds something else."""
    with pytest.raises(DataError, match="too few"):
        fit(workload(5), 2048)
    (tmp_path / "x.jsonl").write_text(json.dumps({"start": 1}) + "\n")
    with pytest.raises(DataError, match="lacks"):
        read_served(tmp_path / "x.jsonl")


REAL = read_served(Path(__file__).parent / "measured_steps.jsonl")
MAX_TOKENS = 2048  # measure_steps.py starts vLLM so, with seats for eight


def test_the_measured_model_is_the_fit_of_what_was_measured():
    """The constants are those of the fit."""
    found, kept = fit(REAL, MAX_TOKENS), MODELS["cpu-tiny"]

    assert kept.measured
    for name in ("base_s", "prefill_token_s", "attention_s", "jitter", "front_request_s"):
        assert getattr(kept, name) == pytest.approx(getattr(found, name), rel=0.01), name


def test_the_simulator_is_as_true_to_a_real_vllm_as_the_document_says():
    """docs/develop/simulator.md: p50 of prefill and TPOT within 35 %, p95 within 30 %."""
    simulated = replay(REAL, MODELS["cpu-tiny"], seats=8, max_tokens=MAX_TOKENS)

    for name in ("prefill_s", "tpot_s"):
        for percent, off in ((50, 0.35), (95, 0.30)):
            real = np.percentile(getattr(REAL, name), percent)
            assert np.percentile(getattr(simulated, name), percent) == pytest.approx(
                real, rel=off
            ), (name, percent)
