"""Requests are printed as they end, each once, and only those that are wanted."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from llmtrace.cli import main
from llmtrace.cli.tail import FILTERS, ended
from llmtrace.core.row import from_dict
from llmtrace.exporters.console.sink import line
from tests.collector.web import serving
from tests.dataset.test_explain import NS, START, request


def row(number, decode_ms=200, start=START):
    """Make a row of its own ids, flat."""
    made = request(decode_ms=decode_ms, start=start, request_id=f"lt-{number}",
                   span_id=f"{number:016x}", trace_id=f"{number:032x}")  # fmt: skip
    return made.as_dict()


class Fake:
    """A collector that has other rows at each look, and keeps what it was queried for."""

    def __init__(self, *looks):
        self._looks = list(looks)
        self.queries = []

    def lines(self, path, **parameters):
        """Return the rows of one look."""
        self.queries.append((path, parameters))
        return iter(self._looks.pop(0))


@pytest.fixture
def collector():
    """Serve three requests."""
    body = "".join(json.dumps(row(number, 100 * number)) + "\n" for number in (1, 2, 30))
    with serving({"/api/v1/rows": (200, body)}) as url:
        yield url


def test_the_last_requests_are_printed(collector, capsys):
    """As the console exporter writes them, the one that ended last at the end."""
    assert main(["tail", "--url", collector, "--no-follow", "-n", "2"]) == 0
    expected = [line(from_dict(row(number, 100 * number))) for number in (2, 30)]

    assert capsys.readouterr().out.splitlines() == expected


def test_an_outcome_that_does_not_exist_is_refused(collector, capsys):
    """Nothing would be printed, and it would not end."""
    with pytest.raises(SystemExit, match="2"):
        main(["tail", "--url", collector, "--no-follow", "--outcome", "nope"])
    assert "unknown value 'nope': use one of success, " in capsys.readouterr().err


def test_only_slow_ones_as_json(collector, capsys):
    """One object a line, for programs."""
    assert main(["tail", "--url", collector, "--no-follow", "--slower-than", "1", "--json"]) == 0
    [found] = map(json.loads, capsys.readouterr().out.splitlines())

    assert found["request_id"] == "lt-30"


def test_each_request_comes_once_and_when_it_ends():
    """One that began long before the others comes last, since it ended last."""
    early = row(9, 60_000, START - 50 * NS)
    fake = Fake([row(1), row(2)], [row(1), row(2)], [early, row(2), row(3)])
    looks = [[flat["request_id"] for flat in found]
             for found in islice(ended(fake, {"model": "tiny"}, longest_s=600), 3)]  # fmt: skip

    assert looks == [["lt-1", "lt-2"], [], ["lt-3", "lt-9"]]
    assert fake.queries[0] == (
        "rows",
        {"start": "-600s", "limit": 5_000, "after": None, "model": "tiny"},
    )


def test_more_than_one_page_is_read(monkeypatch):
    """The newest requests of a busy collector are on its last page."""
    monkeypatch.setattr("llmtrace.cli.tail._PAGE", 2)
    fake = Fake([row(1), row(2)], [row(3)])

    assert len(next(ended(fake, {}, longest_s=600))) == 3
    assert [query["after"] for _, query in fake.queries] == [
        None,
        f"{START}:{2:032x}:{2:016x}",
    ]


def test_what_is_remembered_does_not_grow():
    """A request that is out of the look's time is forgotten: memory is that of one look."""
    fake = Fake(*[[row(number)] for number in range(50)], [row(0)])
    times = iter(range(100))
    *_, last = islice(ended(fake, {}, longest_s=1, clock=lambda: float(next(times))), 51)

    assert [flat["request_id"] for flat in last] == ["lt-0"]


def test_the_filters_are_the_collectors():
    """No filter is offered that the read API would refuse."""
    read = pytest.importorskip("llmtrace_collector.store.read")

    assert set(FILTERS) <= set(read.FILTERS)


def test_a_collector_that_is_not_there_is_said(capsys):
    """An error in words, and no traceback."""
    assert main(["tail", "--url", "http://127.0.0.1:9", "--no-follow"]) == 1
    assert "no collector responds" in capsys.readouterr().err
