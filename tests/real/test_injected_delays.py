"""Does every known delay land in its stage, within 5 % or 2 ms?

Delays are injected between real SDKs and a real vLLM. Each figure is the best of several, since on
two shared cores whatever else runs only adds.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from llmtrace.core.row import Row
from llmtrace.testing import capture

from .best_of import settles
from .delays import DelayProxy, self_signed

_TRACED = Path(__file__).with_name("programs") / "traced_stream.py"
_TIMES = 12
MESSAGES: Any = [{"role": "user", "content": "Hello"}]


def near(expected_s: float) -> Any:
    """Within 5 % or 2 ms, whichever is more."""
    return pytest.approx(expected_s, rel=0.05, abs=0.002)


def rows_of(
    url: str, *, fresh: bool = False, times: int = _TIMES, verify: ssl.SSLContext | None = None
) -> list[Row]:
    """Stream a few answers; with `fresh`, each over a connection of its own."""

    def client() -> openai.OpenAI:
        http = httpx2.Client(verify=verify) if verify else httpx2.Client()
        return openai.OpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http, timeout=30
        )

    with capture() as rows:
        shared = client()
        for _ in range(times):
            one = client() if fresh else shared
            list(
                one.chat.completions.create(
                    model="tiny", messages=MESSAGES, max_tokens=8, stream=True
                )
            )
            if fresh:
                one.close()
        shared.close()
    for row in rows:
        assert row.outcome == "success"
        assert row.stages.total == row.e2e_ns
    return rows


def least(rows: list[Row], pick: Callable[[Row], int | None]) -> float:
    """Return the least of a duration over rows, in seconds."""
    return min(pick(row) or 0 for row in rows) / 1e9


def moved(plain: list[Row], delayed: list[Row], stage: str) -> float:
    """Return by how much a stage is longer over some rows than over others, in seconds."""
    return least(delayed, lambda r: getattr(r.stages, stage)) - least(
        plain, lambda r: getattr(r.stages, stage)
    )


def test_a_slow_way_there_is_first_chunk(vllm: Any) -> None:
    """A proxy that holds the request is invisible to the kernel; the engine's figures show it."""
    plain: list[Row] = []
    delayed: list[Row] = []

    def check() -> None:
        assert moved(plain, delayed, "first_chunk") == near(0.3)
        for stage in ("network", "queue", "prefill"):
            assert moved(plain, delayed, stage) == pytest.approx(0, abs=0.01)

    with DelayProxy(vllm.url) as proxy, DelayProxy(vllm.url, request_s=0.3) as slow:
        settles(
            lambda: (plain.extend(rows_of(proxy.url)), delayed.extend(rows_of(slow.url))), check
        )


def test_a_slow_way_back_is_first_chunk(vllm: Any) -> None:
    """A proxy that holds the answer's headers delays the first chunk, and no engine stage."""
    plain: list[Row] = []
    delayed: list[Row] = []

    def check() -> None:
        # The engine works while the headers are held: what a request needed of it, be that more
        # or less than another, is not waited for again.
        held = least(delayed, lambda r: (r.stages.queue or 0) + (r.stages.prefill or 0)
                     + (r.stages.first_chunk or 0))  # fmt: skip
        assert held >= 0.3 - 0.02
        assert 0.3 / 2 <= moved(plain, delayed, "first_chunk") <= 0.3 * 1.05

    with DelayProxy(vllm.url) as proxy, DelayProxy(vllm.url, response_s=0.3) as slow:
        settles(
            lambda: (plain.extend(rows_of(proxy.url)), delayed.extend(rows_of(slow.url))), check
        )


def test_a_lost_syn_is_the_networks_connect(vllm: Any) -> None:
    """The kernel sends a lost SYN again after a second, and all of it is in connect."""
    with DelayProxy(vllm.url, drop_syns=1) as proxy:
        began = time.perf_counter()
        rows = rows_of(proxy.url, fresh=True, times=3)
        whole = time.perf_counter() - began

    for row in rows:
        assert 0.9e9 < row.timeline.network.connect < whole * 1e9
        assert row.stages.network >= row.timeline.network.connect
    assert least(rows, lambda r: r.stages.first_chunk) < 0.5


def test_a_slow_handshake_is_the_networks_tls(vllm: Any, tmp_path: Path) -> None:
    """Seconds before the TLS handshake are seconds of TLS, not of connect or the engine."""
    context, certificate = self_signed(tmp_path)
    trusting = ssl.create_default_context(cafile=str(certificate))
    plain: list[Row] = []
    delayed: list[Row] = []

    def tls(rows: list[Row]) -> float:
        return least(rows, lambda r: r.timeline.network.tls)

    def more() -> None:
        plain.extend(rows_of(proxy.url, fresh=True, times=3, verify=trusting))
        delayed.extend(rows_of(slow.url, fresh=True, times=3, verify=trusting))

    def check() -> None:
        assert tls(delayed) - tls(plain) == near(0.3)
        assert least(delayed, lambda r: r.timeline.network.connect) < 0.05

    with (
        DelayProxy(vllm.url, tls=context) as proxy,
        DelayProxy(vllm.url, tls=context, tls_s=0.3) as slow,
    ):
        settles(more, check)


def test_a_slow_relay_of_chunks_is_decode(vllm: Any) -> None:
    """A proxy that holds every chunk after the first slows decode, and nothing before it."""
    tokens, each_s = 8, 0.05
    with DelayProxy(vllm.url, chunk_s=each_s) as proxy:
        rows = rows_of(proxy.url)

    for row in rows:
        # Every chunk with content after the first, and up to the usage chunk and [DONE].
        assert row.stages.decode >= (row.chunks - 1) * each_s * 0.95e9
        assert (row.max_gap_s or each_s) >= each_s * 0.95
    assert least(rows, lambda r: r.stages.decode) <= (tokens + 4) * each_s * 1.05
    assert min(r.stages.render for r in rows) < 0.05e9


@pytest.mark.parametrize("rtt_s", [0.04, 0.09])
def test_a_true_network_delay_is_the_networks_round_trip(
    own_network: Callable[..., str], rtt_s: float
) -> None:
    """On a network with a known round trip, connect and rtt are each one of them."""
    printed: list[str] = []

    def check() -> None:
        first, *pooled = [json.loads(line) for line in printed[-1].splitlines()]
        assert first["exact"]
        assert first["network_connect_s"] == near(rtt_s)
        assert first["network_rtt_s"] == near(rtt_s)
        assert first["network_rtt_source"] == "kernel"
        for row in pooled:
            assert row["exact"]
            assert row["network_connect_s"] in (0, near(rtt_s))  # kept alive, or made anew
            assert row["network_rtt_s"] == near(rtt_s)
            assert row["ttft_s"] >= rtt_s + 0.05

    settles(lambda: printed.append(own_network(_TRACED, str(rtt_s), "5")), check)
