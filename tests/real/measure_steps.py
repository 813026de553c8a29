"""What do requests of a real vLLM take, by the length of their prompts and how many run at once?

    python -m tests.real.measure_steps FILE

Asks a real vLLM on the CPU in a grid of prompt lengths and concurrencies, and writes what the
engine itself reported of every request (queue, prefill, decode), as JSON lines. The simulator's
engine model is fitted to them (`tests.simulator.calibrate`, docs/develop/simulator.md).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from llmtrace.engines import local_vllm

FLAGS: Final = ("--max-num-seqs", "8", "--max-num-batched-tokens", "2048",
                "--no-enable-prefix-caching")  # fmt: skip
PROMPTS: Final = (64, 512, 2000)
AT_ONCE: Final = (1, 4, 16)
_OUTPUT: Final = 40
_EACH: Final = 3


async def _ask(session: aiohttp.ClientSession, url: str, prompt: int, began: float) -> Any:
    """Ask once; return what the engine reported, in seconds."""
    text = "".join(random.choice("abcdefghij ") for _ in range(prompt))
    body = {
        "model": "tiny", "prompt": text, "max_tokens": _OUTPUT, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    start = time.monotonic()
    timings: dict[str, Any] = {}
    async with session.post(f"{url}/v1/completions", json=body) as answer:
        async for line in answer.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if chunk.get("metrics") or chunk.get("usage"):
                    timings |= chunk.get("metrics") or {}
                    timings |= chunk.get("usage") or {}
    return {
        "start": round(start - began, 5),
        "e2e_s": round(time.monotonic() - start, 5),
        "prompt": timings["prompt_tokens"],
        "output": timings["completion_tokens"],
        "queue_s": round(timings["queue_time_ms"] / 1000, 6),
        "prefill_s": round(timings["time_to_first_token_ms"] / 1000, 6),
        "decode_s": round(timings["generation_time_ms"] / 1000, 6),
    }


async def measure(url: str) -> list[dict[str, Any]]:
    """Ask in every cell of the grid, everyone in it again and again."""
    found: list[dict[str, Any]] = []
    # A connection each: the server closes idle ones after five seconds.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=120)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began = time.monotonic()
        await asyncio.gather(*(_ask(session, url, 300, began) for _ in range(4)))  # warm up
        for at_once in AT_ONCE:
            for prompt in PROMPTS:

                async def client(at_once: int = at_once, prompt: int = prompt) -> None:
                    for _ in range(_EACH if at_once > 1 else 2 * _EACH):
                        timings = await _ask(session, url, prompt, began)
                        found.append({"cell": f"{at_once}x{prompt}", "at_once": at_once} | timings)

                await asyncio.gather(*(client() for _ in range(at_once)))
    return found


if __name__ == "__main__":
    with local_vllm.start(flags=FLAGS, log=print) as server:
        rows = asyncio.run(measure(server.url))
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    print(f"{len(rows)} requests")
