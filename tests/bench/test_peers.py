"""Does the comparison read what each SDK reports, and is llmtrace's part of it right?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import peers
from tests.bench.peers_server import FIRST_S

HERE = {sdk.name: sdk for sdk in peers.SDKS}
REPORTED = {
    "late_ttft_error_s", "slow_ttft_error_s", "slow_charged_error_s",
}  # fmt: skip


@pytest.fixture(scope="module")
def endpoint():
    """The server of the comparison."""
    with peers._served() as url:
        yield url


def reported_errors(name, endpoint, hows):
    """Return what an SDK that is installed here says of late and slow readers."""
    result = peers.Results("here")
    with peers.probe(Path(sys.executable), name=name, endpoint=endpoint) as one:
        for how in hows:
            one.ask(
                "requests", how=how, times=2
            )  # what the first one imports counts in no latency
            peers._truth(how, HERE[name], one, endpoint, result)
    return {(name, how): getattr(result, name)[how] for name in REPORTED for how in hows}


def test_a_late_reader_and_a_slow_one_are_not_a_slow_server(endpoint):
    """The first token is reported as the server sent it; consumer time is not the model's."""
    errors = reported_errors("llmtrace", endpoint, peers.HOWS)

    assert {what for what, error in errors.items() if abs(error) > peers.LATE_S / 4} == set()


def test_a_peer_is_read_too(endpoint):
    """What Langfuse's own integration reports is found, and charges the reader to the model."""
    errors = reported_errors("langfuse", endpoint, ["sync"])

    assert errors["late_ttft_error_s", "sync"] > (peers.LATE_S - FIRST_S) / 2
    assert errors["slow_charged_error_s", "sync"] > peers.SLOW_S * 10


def test_the_cpu_is_measured(endpoint):
    """A probe answers each command with a figure."""
    with peers.probe(Path(sys.executable), name="bare", endpoint=endpoint) as one:
        for how in peers.HOWS:
            assert one.ask("chunks", how=how, tokens=20, times=1) > 0
            assert one.ask("requests", how=how, times=2) > 0
            assert one.ask("requests", how=how, times=2, cold=True) > 0
            assert isinstance(one.ask("growth", how=how, tokens=200), int)


def test_the_table_shows_what_is_not_reported():
    """An SDK that does not report a figure is not shown with an error of 0."""
    result = peers.Results("1.0")
    for field in ("chunk_us", "request_us", "cold_us", "growth_bytes"):
        getattr(result, field)["sync"] = 1
    for field in REPORTED:
        getattr(result, field)["sync"] = None
    shown = peers.table({"bare": result, "logfire": result}, "sync")

    assert "Logfire 1.0" in shown
    assert shown.count("not reported") == 3
