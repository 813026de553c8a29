"""Five sources, one of which needs another's result: in turn, and together where they can be."""

import asyncio
from collections.abc import Awaitable, Callable

from recipe import capture, report, run

import llmtrace

QUOTED = "five sources 9 to 12 s -> 2.8 s (here a tenth of the time)"
TOOL_S = 0.2
MODEL_S = 0.1


@llmtrace.tool
async def look_up(source: str, about: str | None = None) -> str:
    await asyncio.sleep(TOOL_S)
    return f"{source} of {about or 'Rome'}"


async def in_turn() -> list[str]:
    found = [await look_up(source) for source in ("weather", "news", "maps", "places")]
    return [*found, await look_up("prices", found[-1])]


async def together() -> list[str]:
    async def priced() -> str:
        return await look_up("prices", await look_up("places"))

    return await asyncio.gather(*(look_up(s) for s in ("weather", "news", "maps")), priced())


async def turns(way: Callable[[], Awaitable[list[str]]], count: int) -> None:
    for _ in range(count):
        async with llmtrace.turn("assistant"):
            await asyncio.sleep(MODEL_S)  # the model chooses the tools
            await way()
            await asyncio.sleep(MODEL_S)  # and writes the answer


def main(count: int) -> bool:
    rows = []
    for way in (in_turn, together):
        with capture() as seen:
            asyncio.run(turns(way, max(4, count // 6)))
        rows.append([row for row in seen if row.is_turn])
    # The chain of two is the least that there can be.
    print(f"two sources need each other: {2 * TOOL_S:.1f} s of tools at least")
    return report(
        "tools in turn and together", QUOTED, *rows,
        moved="tool_wall", still="tool_critical_path", shown="e2e",
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
