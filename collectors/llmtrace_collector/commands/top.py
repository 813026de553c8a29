"""Show stages, budget and engines as they are now, on a terminal.

`llmtrace top` requests the data of the live page from a running collector, and lays it out. Every
meaning is in words and symbols; colours only repeat it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from llmtrace.api_clients.collector_client import Collector
from llmtrace.core.errors import SourceError
from llmtrace.display.colours import STAGE_COLOURS
from llmtrace.display.summary_tables import console_for, ms, plain_table

_GAP: Final = 2
_WIDEST: Final = 140
_WIDE: Final = 96
_WIDER: Final = 120
_MAX_WORDS: Final = 28
_BLOCKS: Final = " ▁▂▃▄▅▆▇█"
_SPARK_MINUTES: Final = 30
_VERDICTS: Final = {
    "within": ("✓ within", "green"),
    "over": ("✗ over", "red"),
    "unclear": ("? unclear", "yellow"),
}

Ask = Callable[[], Mapping[str, Any]]


def run(url: str, *, token_file: Path | None, interval_s: float, once: bool) -> None:
    """Show a collector until Ctrl-C, or once: the command `llmtrace top`.

    Raises:
        SourceError: it does not answer, or requires a token.
        ConfigError: the address or the token file is invalid.
    """
    collector = Collector(url, token_file)
    console = console_for(sys.stdout)
    if once or not console.is_terminal:
        console.print(picture(ask(collector), width_of(console)))
        return
    watch(console, lambda: ask(collector), interval_s)


def watch(
    console: Console,
    look: Ask,
    interval_s: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    rounds: int | None = None,
) -> None:
    """Keep a screen up to date.

    Args:
        console: the terminal.
        look: requests the data.
        interval_s: between two requests.
        sleep: for tests.
        rounds: requests before it ends; `None` = until Ctrl-C.

    Raises:
        SourceError: the first request failed; later failures are shown above the last data.
    """
    last = look()
    with Live(picture(last, width_of(console)), console=console, screen=True) as live:
        done = 1
        while rounds is None or done < rounds:
            sleep(interval_s)
            done += 1
            try:
                last = look()
                live.update(picture(last, width_of(console)), refresh=True)
            except SourceError as error:
                age = time.time() - float(last["now"])
                words = Text(f"✗ {error}; shown is {age:.0f} s old", "red")
                live.update(Group(words, picture(last, width_of(console))), refresh=True)


def width_of(console: Console) -> int:
    """Return the maximum width of a line."""
    return min(console.width, _WIDEST)


def ask(collector: Collector) -> Mapping[str, Any]:
    """Return the data of a collector's live page.

    Raises:
        SourceError: it did not answer with them.
    """
    live = collector.get("live")
    if not isinstance(live, dict) or "stages" not in live:
        raise SourceError(f"{collector.url} is not an llmtrace collector")
    return live


def picture(live: Mapping[str, Any], width: int) -> RenderableType:
    """Lay out the data of `/api/v1/live` in lines of `width` characters."""
    parts: list[RenderableType] = [_head(live)]
    parts += [Text(f"✗ {words}", "red") for words in live["collector"]["problems"]]
    parts.append(Text())
    if live["window"]["requests"]:
        parts += [_stages(live, width), Text()]
    else:
        minutes = live["window"]["seconds"] / 60
        parts.append(Text(f"No requests in the last {minutes:.0f} minutes.\n", "dim"))
    if live["engines"]:
        parts += [_engines(live["engines"], width), Text()]
    if live["gpus"]:
        parts += [_gpus(live["gpus"]), Text()]
    if live["slowest"]:
        parts.append(_slowest(live["slowest"], width))
    return Group(*parts)


def _head(live: Mapping[str, Any]) -> Text:
    window = live["window"]
    clock = time.strftime("%H:%M:%S", time.localtime(float(live["now"])))
    head = Text.assemble(("llmtrace", "bold"), f"  {clock}")
    if n := window["requests"]:
        outcomes = ", ".join(f"{each:,} {name}" for name, each in window["outcomes"].items())
        head.append(f"  {n:,} request{'s' * (n != 1)} in {window['seconds'] / 60:.0f} min")
        head.append(f", {n / window['seconds']:.3g} a second: {outcomes}")
    return head


def _stages(live: Mapping[str, Any], width: int) -> Table:
    high, times = live["budget"]["high"], live["minutes"]["t"]
    wide, wider = width >= _WIDE, width >= _WIDER
    named = f"{live['budget']['name']}, ms"
    columns = [named, ">p50", f">{high}", f"{high} in budget?", ">share"]
    columns += ["last half hour"] * wide + [">known"] * wider
    table = plain_table(*columns)
    lines = [*live["stages"], None, *live["metrics"]]
    for line in lines:
        if line is None:
            table.add_row()
            continue
        name = line["name"]
        share = "" if line["share"] is None else f"{line['share']:.1%}"
        cells: list[Text | str] = [
            Text.assemble(("■ ", STAGE_COLOURS.get(name, "")), name)
            if name in STAGE_COLOURS
            else Text(f"  {name}"),
            ms(line["p50_s"]),
            ms(line["high_s"]),
            _verdict(line),
            share,
        ]
        if wide:
            values = live["minutes"]["high_s"].get(name, [])
            cells.append(
                Text(spark(times, values, float(live["now"])), STAGE_COLOURS.get(name, ""))
            )
        if wider:
            cells.append(f"{line['known']:,}/{live['window']['succeeded']:,}")
        table.add_row(*cells)
    return table


def _verdict(line: Mapping[str, Any]) -> Text:
    if not line["known"]:
        return Text("not reported", "dim")
    if line["verdict"] is None:
        return Text("no limit set", "dim")
    words, style = _VERDICTS[line["verdict"]]
    return Text(f"{words} {1000 * line['limit_s']:,g}", style)


def spark(
    times: Sequence[int], values: Sequence[float | None], now: float, minutes: int = _SPARK_MINUTES
) -> str:
    """Draw the last minutes as blocks, the highest one full; a space = not reported.

    Example:
        >>> spark([0, 60, 180], [1.0, 4.0, 2.0], now=240.0, minutes=4)
        '▂█ ▄'
    """
    by_minute = {t // 60: value for t, value in zip(times, values, strict=False)}
    last = int(now) // 60
    shown_ = [by_minute.get(minute) for minute in range(last - minutes, last)]
    most = max((value for value in shown_ if value is not None), default=0.0)
    full = len(_BLOCKS) - 1
    return "".join(
        " " if value is None else _BLOCKS[max(1, round(value / most * full))] if most else "▁"
        for value in shown_
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _whole(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _engines(engines: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Lay out the engines; on a narrow terminal the least important columns are dropped."""
    cells = [_engine(one) for one in engines]
    names = ["engine", "is", "model", ">running", ">waiting", ">KV", ">queue ms", ">prefill ms",
             ">decode ms", ">hits"]  # fmt: skip
    for dropped in (">hits", ">decode ms", ">prefill ms", "model", ">queue ms"):
        wide = sum(max(len(name) - 1, *(len(one[name]) for one in cells)) + _GAP for name in names)
        if wide <= width:
            break
        names.remove(dropped)
    table = plain_table(*names)
    for one in cells:
        table.add_row(*(one[name] for name in names))
    return table


def _engine(one: Mapping[str, Any]) -> Mapping[str, Text]:
    name = one["instance"]
    if one["replica"] not in (None, "0"):
        name += f" #{one['replica']}"
    state = Text("not read yet", "dim")
    if one["up"] is False:
        state = Text(f"✗ {one['problem'] or 'not reached'}"[:_MAX_WORDS], "red")
    elif one["up"]:
        known = one["engine"]
        state = Text(f"✓ {known}", "green") if known else Text("? no known metrics", "yellow")
    return {
        "engine": Text(name),
        "is": state,
        "model": Text((one["model"] or "-")[:_MAX_WORDS]),
        ">running": Text(_whole(one["running"])),
        ">waiting": Text(_whole(one["waiting"])),
        ">KV": Text(_share(one["kv_usage"])),
        ">queue ms": Text(ms(one["queue_s"])),
        ">prefill ms": Text(ms(one["prefill_s"])),
        ">decode ms": Text(ms(one["decode_s"])),
        ">hits": Text(_share(one["prefix_hit_ratio"])),
    }


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> Table:
    table = plain_table("GPU", "model", ">busy", ">memory", ">W", ">°C", "held down by")
    for one in gpus:
        table.add_row(
            Text(f"{one['instance']} #{one['gpu']}"), Text(one["model"] or "-"),
            _share(one["utilization"]), _share(one["memory"]), _whole(one["power_w"]),
            _whole(one["temperature_c"]),
            Text(", ".join(one["throttled"]) or "nothing", "red" if one["throttled"] else "dim"),
        )  # fmt: skip
    return table


def _slowest(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    wide = width >= _WIDE
    columns = ["slowest of the hour", ">e2e ms", "most of it in"]
    table = plain_table(*columns, *([">ttft ms", "ended"] if wide else []), "trace")
    room = max(19, width - (92 if wide else 64))
    for row in rows[:5]:
        stage, seconds = max(row["stages"].items(), key=lambda one: one[1], default=("-", 0.0))
        named = " ".join(filter(None, (row["model"], row["route"])))
        cells = [
            Text((named or "-")[:room]),
            Text(ms(row["e2e_s"])),
            Text(f"{stage} {ms(seconds)}", STAGE_COLOURS.get(stage, "")),
        ]
        if wide:
            good = row["outcome"] == "success"
            cells += [Text(ms(row["ttft_s"])), Text(row["outcome"], "" if good else "red")]
        table.add_row(*cells, Text(row["trace_id"]))
    return table
