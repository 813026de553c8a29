"""Fixtures of the tests against real programs: a vLLM for the session, a network of one's own.

What is not installed skips its tests on a developer's machine and fails them in CI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from llmtrace.engines import local_vllm

from . import chromium, netns_run
from .engine_spans import SpanReceiver, receiving

_HERE = Path(__file__).parent
# vLLM's worker in the engine's own process: two processes that wait for each other on a CPU turn
# for a second after each message, and take a core from all else that runs. Started as users do, in
# three processes, vLLM is in test_vllm_plugin.py and test_vllm_server.py.
ONE_PROCESS: Final = ("--distributed-executor-backend", "uni")
IN_ONE_PROCESS: Final = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.real)


def do_without(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI, where nothing may be missing unseen."""
    if os.environ.get("CI") == "true" or os.environ.get("LLMTRACE_REAL") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Chromium]:
    """Run a browser."""
    program = chromium.find()
    if program is None:
        do_without("Chromium is not installed: run `make programs`")
    with chromium.running(program) as running:
        yield running


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """Return an interpreter that can import vLLM."""
    python = local_vllm.find_python()
    if python is None:
        do_without("vLLM is not installed: run `make vllm`")
    return python


@pytest.fixture(scope="session")
def engine_spans() -> Iterator[tuple[SpanReceiver, str]]:
    """Receive the engine's own spans; yield where they are kept and where to send them."""
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="session")
def vllm(
    vllm_python: Path,
    engine_spans: tuple[SpanReceiver, str],
) -> Iterator[local_vllm.Server]:
    """Serve a tiny random model, with spans; all tests share the server."""
    with local_vllm.start(
        flags=[*ONE_PROCESS, "--otlp-traces-endpoint", engine_spans[1]],
        env={
            **IN_ONE_PROCESS,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_BSP_SCHEDULE_DELAY": "200",  # ms; spans wait for company, 5 s by default
        },
        log=print,
    ) as server:
        yield server


@pytest.fixture(scope="session")
def vllm_two_seats(vllm_python: Path) -> Iterator[local_vllm.Server]:
    """Serve the same model with room for two requests at a time."""
    flags = [*ONE_PROCESS, "--max-num-seqs", "2"]
    with local_vllm.start(flags=flags, env=IN_ONE_PROCESS, log=print) as server:
        yield server


@pytest.fixture(scope="session")
def own_network() -> Callable[..., str]:
    """Return `netns_run.run`: it runs a program in a network of its own."""
    if reason := netns_run.why_not():
        do_without(reason)
    return netns_run.run
