"""Cold and warm start: a gateway starts the engine when the first request comes, and keeps it."""

import asyncio
import threading
import time
from contextlib import ExitStack

from recipe import ON_VLLM, OURS, Engine, ask, capture, note, report, run, simulated, vllm
from servers import before, pass_on
from starlette.requests import Request
from starlette.responses import Response

QUOTED = "the first request after idle is slow; the remedy is a warm pool, or replicas kept"
LOAD_S = 1.0  # of a simulated engine: weights, container, compilation


class Replica:
    """An engine that is started by its first request."""

    def __init__(self) -> None:
        self._held = ExitStack()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self.start_s = 0.0

    def ready(self) -> Engine:
        """Return the engine, and start it first if need be."""
        with self._lock:
            if self._engine is None:
                began = time.monotonic()
                if ON_VLLM:
                    self._engine = vllm()
                else:
                    time.sleep(LOAD_S)
                    self._engine = self._held.enter_context(simulated())
                self.start_s = time.monotonic() - began
            return self._engine

    def stop(self) -> None:
        """Stop the simulated engine; vLLM ends with the program."""
        self._held.close()


def main(count: int) -> bool:
    replica = Replica()

    async def chat(request: Request) -> Response:
        behind = await asyncio.to_thread(replica.ready)
        return await pass_on(request, behind.root)

    model = "tiny" if ON_VLLM else "llmtrace-sim"
    with capture() as seen, before(model, chat, "scale-to-zero") as to:
        for _ in range(1 + max(4, count // 4)):
            list(ask(to, "Hi"))
        replica.stop()
    rows = [row for row in seen if row.gateway]
    right = report(
        "cold and warm start", QUOTED, rows[:1], rows[1:],
        moved="gateway", still="decode", shown="ttft", by=OURS,
    )  # fmt: skip
    note(f"the engine's start took {replica.start_s:.1f} s of it")
    return right


if __name__ == "__main__":
    run(main)
