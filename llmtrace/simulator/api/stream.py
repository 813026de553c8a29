"""Turn tokens into the bytes of a stream, and inject faults into it.

Async generators between the engine's inbox and the HTTP server; they know neither.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from llmtrace.simulator.api.fault_header import Faults, StreamCutError, strike
from llmtrace.simulator.api.wire_format import Answer, Dialect, Reply
from llmtrace.simulator.engine.realtime import Inbox
from llmtrace.simulator.engine.scheduler import Figures

_COMMENT = b": keep-alive\n\n"


async def read_answer(reply: Reply, inbox: Inbox, faults: Faults) -> Answer:
    """Yield every piece of the answer when its token is there, or raise the fault that strikes.

    Raises:
        EngineFailedError, StreamCutError, StreamDroppedError: as `faults` say, or when the
            engine closes.
    """
    for number, piece in enumerate(reply.pieces):
        token = await inbox.get()
        if token is None:
            raise StreamCutError("the engine closed")
        strike(faults, number)
        yield piece, token


async def stream_bytes(
    dialect: Dialect, reply: Reply, inbox: Inbox, faults: Faults
) -> AsyncIterator[bytes]:
    """Yield the bytes of a streamed answer. A cut ends them; a drop is raised."""
    chunks = dialect.stream(reply, read_answer(reply, inbox, faults))
    if faults.keep_alive_s:
        chunks = _kept_alive(chunks, faults.keep_alive_s)
    try:
        async for chunk in chunks:
            yield chunk
    except StreamCutError:
        return


async def read_figures(reply: Reply, inbox: Inbox, faults: Faults) -> Figures:
    """Wait for the whole answer and return its figures."""
    async for _, token in read_answer(reply, inbox, faults):
        if token.figures is not None:
            return token.figures
    raise StreamCutError("the engine ended the answer without its last token")


async def _kept_alive(chunks: AsyncIterator[bytes], every_s: float) -> AsyncIterator[bytes]:
    """Pass chunks on, with a comment line whenever none came for `every_s` seconds."""
    while True:
        coming = asyncio.ensure_future(anext(chunks, None))
        try:
            while not (await asyncio.wait({coming}, timeout=every_s))[0]:
                yield _COMMENT
            chunk = coming.result()
        finally:
            coming.cancel()
        if chunk is None:
            return
        yield chunk
