"""Every protocol ends in every way with one correct row, and nothing else changed.

One test a cell of `table.py`, against a real server on loopback: what an application sees without
llmtrace it sees with it; there is one row, of the right outcome; its stages add up to the
nanosecond, and are unknown where they cannot be known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from llmtrace.core.failopen import internal_errors
from llmtrace.core.row import Row
from llmtrace.core.stages import STAGES
from llmtrace.instrumentation.registry import MODULES
from llmtrace.testing import capture
from tests.instrumentation import answers
from tests.instrumentation.reading import settled
from tests.support.internal_errors import reset_internal_errors
from tests.support.sse_server import Server, serve

from . import clients, servers, table
from .table import Cell

CELLS = [pytest.param(cell, id=cell.id) for cell in table.cells() if cell.reason is None]

RAW = ("httpx", "httpx2", "aiohttp")
# What a client measures itself, of a stream and of a whole response.
_OWN = {True: {"decode", "render"}, False: {"render"}}
_REPORTED = {"queue", "prefill", "first_chunk"}


@pytest.fixture(scope="module")
def sse() -> Iterator[Server]:
    """Serve scripted responses over SSE."""
    with serve(answers.chat()) as server:
        yield server


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    """Serve responses over WebSocket."""
    with servers.websocket() as address:
        yield address


@pytest.fixture(scope="module")
def rpc() -> Iterator[str]:
    """Serve responses over gRPC."""
    with servers.rpc() as target:
        yield target


@pytest.fixture
def run(cell: Cell, request: pytest.FixtureRequest) -> clients.Run:
    """Return what runs a cell's ending, with a client of its protocol."""
    name, sync = cell.protocol.name, cell.mode == table.SYNC
    if name in {"websocket", "events"}:
        make: Any = clients.websocket_sync if sync else clients.websocket_async
        return make(request.getfixturevalue("socket"), name)
    if name == "grpc":
        make = clients.rpc_sync if sync else clients.rpc_async
        return make(request.getfixturevalue("rpc"))
    if name in RAW:
        make = clients.raw_sync if sync else clients.raw_async
        return make(request.getfixturevalue("sse"), name)
    make = clients.sse_sync if sync else clients.sse_async
    return make(request.getfixturevalue("sse"), name)


def seen(run: clients.Run, cell: Cell) -> tuple[list[Any], Any]:
    """Run a cell's ending; return what the application read, and what was raised at it."""
    saw: list[Any] = []
    try:
        run(cell.ending.name, cell.stream, saw)
    except BaseException as error:  # a cancelled task's, too
        return saw, _described(error)
    return saw, None


def _described(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, grpc.RpcError):
        call: Any = error
        # A deadline is said in other words where the server notices it first.
        late = call.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return type(error), call.code(), None if late else call.details()
    if isinstance(error, asyncio.CancelledError):
        return (type(error),)  # anyio says which of its scopes it was, while it connects
    return type(error), str(error)


@pytest.mark.parametrize("cell", CELLS)
def test_cell(cell: Cell, run: clients.Run) -> None:
    """The row is right, and the application sees what it would see without llmtrace."""
    reset_internal_errors()
    bare = seen(run, cell)
    rows: list[Row] = []

    def measure() -> Row:
        with capture(instrument=(*MODULES, "aiohttp")) as made:
            assert seen(run, cell) == bare
        assert internal_errors() == {}
        [row] = made
        rows.append(row)
        return row

    def fits(row: Row) -> None:
        # A handshake that takes a busy machine as long as the response is two in a round trip.
        assert row.stages.inconsistent == ()

    settled(measure, fits)
    for row in rows:
        assert row.outcome == cell.ending.outcome
        assert row.stages.total == row.e2e_ns
        assert {name for name in STAGES if getattr(row.stages, name) is not None} == known(cell)
        content(cell, row)
        error_type(cell, row, bare[1])


def known(cell: Cell) -> set[str]:
    """Return the stages that can be known."""
    name, ending = cell.protocol.name, cell.ending.name
    stages = set(_OWN[cell.stream])
    if name != "grpc":
        stages.add("network")
    if ending == "refused" and name != "grpc":
        return stages | {"gateway"}
    if name in RAW and cell.stream:
        return stages  # no usage was requested
    if name in {"chat", "completions", "responses", *RAW} and ending in {"success", "empty"}:
        return stages | _REPORTED | {"decode"}
    if name == "websocket" and ending in {"success", "empty"}:
        return stages | _REPORTED
    if name == "grpc" and (ending in {"success", "empty"} or (cell.stream and _ended(ending))):
        return (
            stages | {"gateway", "queue", "prefill"} | ({"first_chunk"} if cell.stream else set())
        )
    return stages


def _ended(ending: str) -> bool:
    """Return whether gRPC's server had its say at the end, in trailing metadata."""
    return ending in {"broken", "truncated"}


def content(cell: Cell, row: Row) -> None:
    """Check what is reported of the content."""
    refused = cell.ending.name == "refused"
    assert row.stream == cell.stream
    if not cell.stream:
        assert row.ttft_ns is None
    elif refused or cell.ending.name == "empty":
        assert (row.ttft_ns, row.chunks) == (None, 0)
    else:
        assert row.ttft_ns is not None
        assert row.chunks >= servers.BEFORE
    if refused:
        assert row.http_status == (None if cell.protocol.name == "grpc" else servers.STATUS)


def error_type(cell: Cell, row: Row, raised: Any) -> None:
    """Check what is reported of the error."""
    if row.outcome in {"success", "truncated"}:
        assert row.error_type is None
    elif row.outcome == "error":
        kind = raised[0]
        named = f"{kind.__module__}.{kind.__qualname__}"
        if cell.protocol.name == "grpc":
            named = raised[1].name
        elif cell.protocol.name in RAW and cell.ending.name == "refused":
            named = str(int(servers.STATUS))  # what the application makes of it comes later
        assert row.error_type == named
    elif row.outcome == "timeout":
        assert "Timeout" in str(row.error_type) or row.error_type == "DEADLINE_EXCEEDED"


def test_every_cell_is_a_test_or_has_a_reason() -> None:
    """Nothing is left out in silence, and nothing that is possible is excused."""
    names = [cell.id for cell in table.cells()]
    kinds = [(key[0], key[1]) for key in table.NOT]

    assert len(names) == len(set(names))
    assert {name for name, _ in kinds} <= {protocol.name for protocol in table.PROTOCOLS}
    assert {ending for _, ending in kinds} <= {None, *(ending.name for ending in table.ENDINGS)}
