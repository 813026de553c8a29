"""Make runs whose durations are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

START_NS = 1_790_000_000_000_000_000


def make_rows(
    seed: int = 0,
    count: int = 400,
    *,
    ttft: float = 1.0,
    correlation: float = 0.0,
    prompt_tokens: int = 500,
    **more: Any,
) -> list[dict[str, Any]]:
    """Return flat rows whose TTFT is log-normal about 300 ms times `ttft`, spread by 0.4.

    Args:
        seed: the same seed gives the same rows.
        count: rows to make.
        ttft: factor of the TTFT, and of the prefill alone.
        correlation: of a request's TTFT with the one before it.
        prompt_tokens: of each request.
        **more: fields of every row.
    """
    draws = np.random.default_rng(seed)
    noise = np.empty(count)
    state = draws.normal()
    for i in range(count):
        state = correlation * state + np.sqrt(1 - correlation**2) * draws.normal()
        noise[i] = state
    prefill = 0.3 * np.exp(0.4 * noise) * ttft
    decode = np.exp(0.3 * draws.normal(size=count))
    starts = np.cumsum(draws.exponential(0.2, count))
    return [
        {
            "trace_id": f"{i + 1:032x}", "span_id": f"{i + 1:016x}", "service": "shop",
            "start": START_NS + int(starts[i] * 1e9), "outcome": "success", "stream": True,
            "e2e_s": float(prefill[i] + decode[i]), "ttft_s": float(prefill[i]),
            "tpot_s": float(decode[i] / 50), "prefill_s": float(prefill[i]),
            "decode_s": float(decode[i]), "unattributed_s": 0.0,
            "prompt_tokens": prompt_tokens, "output_tokens": 51, "chunks": 26,
            "last_content_s": float(prefill[i] + decode[i]), "finish_reason": "stop", **more,
        }
        for i in range(count)
    ]  # fmt: skip


def write_run(
    folder: Path,
    rows: list[dict[str, Any]],
    *,
    workload: str | None = None,
    answers: dict[int, str] | None = None,
    signals: list[dict[str, Any]] | None = None,
    **about: Any,
) -> Path:
    """Write a run as `llmtrace bench` does, with more of `bench.json`."""
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if workload is not None or about:
        (folder / "bench.json").write_text(json.dumps({"workload": workload, **about}))
    if signals is not None:
        (folder / "signals.jsonl").write_text("\n".join(map(json.dumps, signals)))
    if answers is not None:
        lines = [json.dumps({"request": i, "sha256": text}) for i, text in answers.items()]
        (folder / "answers.jsonl").write_text("\n".join(lines))
    return folder
