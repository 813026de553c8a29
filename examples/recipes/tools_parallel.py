"""Tools in turn, and together where they can be: three, and five of which one needs another."""

import asyncio
from collections.abc import Awaitable, Callable

from recipe import capture, note, report, run

import llmtrace

SCALE = 0.1  # of the quoted times
Way = Callable[[], Awaitable[list[str]]]


@llmtrace.tool
async def look_up(source: str, about: str = "Rome", tool_s: float = 2.0) -> str:
    await asyncio.sleep(SCALE * tool_s)
    return f"{source} of {about}"


async def three_in_turn() -> list[str]:
    return [await look_up(source, tool_s=1.5) for source in ("weather", "news", "maps")]


async def three_together() -> list[str]:
    calls = (look_up(source, tool_s=1.5) for source in ("weather", "news", "maps"))
    return await asyncio.gather(*calls)


async def five_in_turn() -> list[str]:
    found = [await look_up(source) for source in ("weather", "news", "maps", "places")]
    return [*found, await look_up("prices", found[-1])]


async def five_together() -> list[str]:
    async def priced() -> str:
        return await look_up("prices", await look_up("places"))

    return await asyncio.gather(*(look_up(s) for s in ("weather", "news", "maps")), priced())


async def turns(way: Way, model_s: float, count: int) -> None:
    for _ in range(count):
        async with llmtrace.turn("assistant"):
            await asyncio.sleep(SCALE * model_s)  # the model chooses the tools
            await way()
            await asyncio.sleep(SCALE * model_s)  # and writes the answer


def compared(title: str, quoted: str, ways: tuple[Way, Way], model_s: float, count: int) -> bool:
    rows = []
    for way in ways:
        with capture() as seen:
            asyncio.run(turns(way, model_s, max(4, count // 6)))
        rows.append([row for row in seen if row.is_turn])
    return report(
        f"{title}, in turn and together", f"{quoted} (here a tenth of the time)", *rows,
        moved="tool_wall", still="tool_critical_path", shown="e2e",
        by="scripted tools and model",
    )  # fmt: skip


def main(count: int) -> bool:
    three = compared(
        "three tools of 1.5 s", "6.5 -> 3.5 s with two model round trips of 1 s",
        (three_in_turn, three_together), 1.0, count,
    )  # fmt: skip
    # The chain of two is the least that there can be.
    five = compared(
        "five sources of 2 s, one of which needs another's result", "9 to 12 s -> 2.8 s",
        (five_in_turn, five_together), 0.4, count,
    )  # fmt: skip
    note("2.8 s leaves no room for a chain of two: that and the model take 4.8 s here")
    return three and five


if __name__ == "__main__":
    run(main)
