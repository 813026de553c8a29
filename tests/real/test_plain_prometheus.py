"""Is a Prometheus that scrapes a vLLM enough: boards filled by one command, a rush named?

No collector and no instrumented application: a real vLLM with two seats, a real Prometheus, and
the rules that `llmtrace dashboards import --engines-only` has it load. Clients ask one at a time,
then many at once.
"""

from __future__ import annotations

import io
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from llmtrace.cli import main
from llmtrace.engines.local_vllm import Server
from llmtrace.exporters.prometheus.sink import PrometheusSink
from llmtrace.testing import make_row
from tests.dashboards.grafana import TOKEN, Grafana, serving
from tests.support.waiting import until

from . import drawing
from .conftest import do_without
from .prometheus import missing, prometheus, query, scraping, wait_for
from .test_dashboards import iso

CALM_S: Final = 16.0  # after the rules are loaded
RUSH_S: Final = 30.0
ENOUGH: Final = 30  # answers in each of the two, however busy the machine is
CLIENTS: Final = 12
TOKENS: Final = 48
_ANY: Final = "llmtrace_requests_total > 0"


@dataclass(frozen=True)
class Plain:
    """A Prometheus that has seen a calm and a rush.

    Attributes:
        url: of the Prometheus.
        said: by the command that imported the boards.
        boards: that Grafana has of it.
        start, rush, end: when it began, when many asked at once, and the end; unix seconds.
    """

    url: str
    said: str
    boards: dict[str, Any]
    start: float
    rush: float
    end: float


@contextmanager
def clients(vllm: Server, number: int) -> Iterator[list[int]]:
    """Let so many clients send one request after the other; the list grows by each answer."""
    over = threading.Event()
    answered: list[int] = []

    def one(_: int) -> None:
        body = {"model": vllm.model, "prompt": "one two three", "max_tokens": TOKENS,
                "ignore_eos": True}  # fmt: skip
        while not over.is_set():
            request = urllib.request.Request(
                f"{vllm.url}/v1/completions", json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )  # fmt: skip
            with urllib.request.urlopen(request, timeout=120) as answer:
                answered.append(len(answer.read()))

    with ThreadPoolExecutor(number) as pool:
        running = [pool.submit(one, place) for place in range(number)]
        try:
            yield answered
        finally:
            over.set()
    for each in running:
        each.result()


def called(*arguments: str) -> tuple[int, str]:
    """Return the status of a command and what it printed."""
    out = io.StringIO()
    with redirect_stdout(out):
        status = main(list(arguments))
    return status, out.getvalue()


@pytest.fixture(scope="module")
def plain(vllm_two_seats: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    """Scrape, load the rules and import by one command, then let many ask at once."""
    if reason := missing("prometheus"):
        do_without(reason)
    folder = tmp_path_factory.mktemp("plain")
    (folder / "token").write_text(TOKEN)
    config = {
        **scraping({"vllm": f"{vllm_two_seats.url}/metrics"}),
        "rule_files": [f"{folder}/rules/*.yaml"],
    }
    with (
        prometheus(config, flags=["--web.enable-lifecycle"]) as url,
        serving(Grafana()) as grafana,
    ):
        start = time.time()
        with clients(vllm_two_seats, 1) as answered:
            status, said = called(
                "dashboards", "import", "--url", grafana.url, "--engines-only",
                "--token-file", str(folder / "token"), "--prometheus", url,
                "--rules", str(folder / "rules"),
            )  # fmt: skip
            assert status == 0, said
            time.sleep(CALM_S)
            until(lambda: len(answered) >= ENOUGH, "requests", within_s=60)
        rush = time.time()
        with clients(vllm_two_seats, CLIENTS) as answered:
            time.sleep(RUSH_S)
            until(lambda: len(answered) >= ENOUGH, "requests", within_s=60)
        yield Plain(url, said, grafana.dashboards, start, rush, time.time())


def test_one_command_fills_the_boards_of_engines(plain: Plain):
    """Drawn in Chromium by Grafana's packages: empty is what was said to stay empty, no more."""
    if reason := drawing.why_not():
        do_without(reason)
    assert "reloaded and records nothing" not in plain.said
    _, listed = called(
        "dashboards", "check", "--prometheus", plain.url, "--engines-only", "--json"
    )
    foretold = {(one["dashboard"], one["panel"]) for one in json.loads(listed)}
    boards = [one["dashboard"] for one in plain.boards.values()]
    jobs = [
        drawing.Job(dashboard=board, start=iso(plain.start), end=iso(plain.end))
        for board in boards
    ]
    empty = set()
    for board, report in zip(boards, drawing.draw(plain.url, jobs), strict=True):
        assert report.problems == []
        empty |= {(board["title"], panel) for panel in report.empty}

    assert {board["uid"] for board in boards} == {"llmtrace-engine", "llmtrace-engine-budget"}
    assert empty == foretold
    assert {board for board, _ in foretold} == {"llmtrace / Engine"}
    of_gpus = {"Power", "Utilization", "Temperature", "Multiprocessor clock"}
    assert of_gpus < {panel for _, panel in foretold}
    assert "no GPU exporter's metrics are in this Prometheus" in plain.said


@pytest.mark.timing  # a machine too busy to scrape each second leaves too few intervals
def test_a_rush_is_named_without_a_row(plain: Plain):
    """By what the engine counts: the queue grew, seats are full, and more requests came."""
    status, listed = called("triage", "--prometheus", plain.url, "--last", "3m", "--json")
    found = json.loads(listed)
    means = {one["name"]: one for one in found["means"]}
    parts = ("queue", "prefill", "decode", "rest")

    assert status == 10, listed
    best = found["causes"][0]  # the limit of seats is in no metric, which would confirm it
    assert best["id"] == "queue_saturation"
    assert best["status"] in {"possible", "likely"}
    # A queue shows with the requests that have waited in it, which on a busy machine is later.
    late = found["after"]["start"] - plain.rush
    assert -6 < late < 6 + 2 * means["e2e"]["after"]
    assert means["queue"]["after"] > 3 * means["queue"]["before"]
    for side in ("before", "after"):
        assert sum(means[one][side] for one in parts) == pytest.approx(means["e2e"][side])
    (p95,) = (
        one["after"]
        for one in found["percentiles"]
        if one["name"] == "queue" and one["quantile"] == 0.95
    )
    assert p95["over"] < p95["at_most"]
    assert {"network_path", "client_give_ups"} <= {*found["needs_rows"]}


def recipe() -> list[dict[str, Any]]:
    """Return the relabelling that the page on dashboards has, as Prometheus spells it."""
    page = Path(__file__).parents[2] / "docs" / "operate" / "dashboards.md"
    (block,) = (one for one in page.read_text().split("```yaml\n") if one.startswith("endpoints:"))
    (endpoint,) = yaml.safe_load(block.partition("```")[0])["endpoints"]

    def spelled(name: str) -> str:
        return "".join(f"_{one.lower()}" if one.isupper() else one for one in name)

    return [
        {spelled(key): value for key, value in one.items()}
        for one in endpoint["metricRelabelings"]
    ]


def test_the_operators_label_service_does_not_hide_the_applications():
    """Without the recipe `service` is the Kubernetes Service's name, with it the application's."""
    if reason := missing("prometheus"):
        do_without(reason)
    registry = CollectorRegistry()
    sink = PrometheusSink(registry=registry)
    sink.write(make_row(service="shop"))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    config = scraping({"app": f"http://127.0.0.1:{server.server_port}"})
    (job,) = config["scrape_configs"]
    job["static_configs"][0]["labels"] = {"service": "shop-metrics", "namespace": "prod"}
    found = []
    try:
        for relabelled in ([], recipe()):
            job["metric_relabel_configs"] = relabelled
            with prometheus(config) as url:
                series = wait_for(lambda at=url: query(at, _ANY), "it is scraped")
                found.append({labels["service"] for labels, _ in series})
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        sink.close()

    assert found == [{"shop-metrics"}, {"shop"}]
