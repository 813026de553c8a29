"""What is recorded of a real vLLM while its load changes and one thing after another goes wrong?

    python tests/real/netns_run.py -m tests.bench.record_incidents [GROUP ...] --out DIR
        [--arrivals FILE] [--list]

Each group of `incident_plan` is one timeline that does not stop: quiet, an incident, quiet again.
The client is our SDK around OpenAI's, what lies between is a real nginx, HAProxy or Envoy, the
metrics page is scraped. Each incident becomes a case folder in DIR, its truth in a file of its own
that no analysis reads. Lengths and gaps between arrivals are those of a published trace
(`--arrivals`, as for `llmtrace simulate`), scaled to what this machine serves, or drawn by seed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import openai
from numpy.typing import NDArray

import llmtrace
from llmtrace.core.row import Row
from llmtrace.dataset.arrivals import read_arrivals
from llmtrace.dataset.case import Case, Event, Facts, Window, signals_from, write_case
from llmtrace.dataset.columns import Columns, from_rows
from llmtrace.testing import capture
from tests.bench.incident_plan import Group, Incident, Load, Step, plan
from tests.bench.incident_sites import ACTS, Site, serving
from tests.real.record_faults import Signals

_WARM_UP_S: Final = 5.0
_SETTLE_S: Final = 5.0  # after an incident, until what follows is called quiet
_DRAIN_S: Final = 8.0
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz "
_SYSTEM: Final = (
    "Answer in full sentences, cite the source of every figure, and keep to the point. "
)
_LEAK_S: Final = 10.0
_CHECKED: Final = 20  # chunks
_KINDS: Final = 100  # of which an answer's schema lets one choose
_STALLS_EVERY_S: Final = 2.0
_FETCHES: Final = 16
_STORE_S: Final = 1.2
_COLUMNS: Final = 900
_TENANTS: Final = ("acme", "globex", "initech", "umbrella")
_PROMPT: Final = (20, 1500)  # what a prompt from a trace is cut to
_OUTPUT: Final = (4, 200)


class Demand:
    """Gaps (1 = the mean one) and tokens of prompts and outputs, one request after another."""

    def __init__(self, trace: Path | None, seed: int) -> None:
        rng = np.random.default_rng(seed)
        if trace is None:
            n = 4000
            self._gaps = rng.gamma(0.7, 1 / 0.7, n)
            self._prompt = rng.lognormal(np.log(900), 0.8, n)
            self._output = rng.lognormal(np.log(150), 0.8, n)
        else:
            read = read_arrivals(trace)
            gaps = np.diff(read.start_s)
            self._gaps = gaps / gaps.mean()
            self._prompt, self._output = read.prompt.astype(float), read.output.astype(float)
        self._at = int(rng.integers(len(self._gaps)))

    def draw(self, load: Load) -> tuple[float, int, int]:
        """Return seconds to the next request, and its tokens."""
        self._at = at = (self._at + 1) % len(self._gaps)
        prompt = np.clip(round(self._prompt[at] * load.prompt), *_PROMPT)
        output = np.clip(round(self._output[at] * load.output), *_OUTPUT)
        return float(self._gaps[at]) / load.rate, int(prompt), int(output)


class Client:
    """Sends requests when they are due, whether or not earlier ones were answered."""

    def __init__(self, demand: Demand, seed: int) -> None:
        self._demand = demand
        self._rng = random.Random(seed)
        self._load: Load | None = None
        self._sdk: dict[tuple[str, int, int, bool], openai.AsyncOpenAI] = {}
        self._pool: httpx.AsyncClient | None = None
        self._url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._last: asyncio.Task[None] | None = None
        self._sent = 0
        self._since = 0.0

    def use(self, load: Load | None, url: str) -> None:
        """Ask like this from now on; `None` = nothing."""
        if load != self._load:
            self._since = time.monotonic()
        self._load, self._url = load, url

    def _connected(self, load: Load) -> openai.AsyncOpenAI:
        url = self._rng.choice(self._url.split())
        key = url, load.connections, load.retries, load.kept
        if key not in self._sdk or load.fresh:
            limits = httpx.Limits(
                max_connections=load.connections,
                max_keepalive_connections=None if load.kept else 0,
            )
            # A certificate here is one that signed itself.
            self._pool = openai.DefaultAsyncHttpxClient(
                limits=limits, verify=not url.startswith("https")
            )
            made = openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="none", max_retries=load.retries, timeout=60,
                http_client=self._pool,
            )  # fmt: skip
            if load.fresh:
                return made
            self._sdk[key] = made
        return self._sdk[key]

    async def run(self) -> None:
        """Send until cancelled; what is open then is waited for."""
        due = time.monotonic()
        stalls = asyncio.create_task(self._stall())
        fetches = asyncio.create_task(self._fetch())
        try:
            while True:
                if self._load is None:
                    await asyncio.sleep(0.1)
                    due = time.monotonic()
                    continue
                gap, prompt, output = self._demand.draw(self._load)
                due += gap
                await asyncio.sleep(max(due - time.monotonic(), 0))
                for _ in range(self._load.copies if self._load is not None else 0):
                    self._begin(self._load, prompt, output)
        finally:
            stalls.cancel()
            fetches.cancel()
            if self._tasks:
                _, late = await asyncio.wait(self._tasks, timeout=_DRAIN_S)
                for task in late:
                    task.cancel()
                await asyncio.gather(*late, return_exceptions=True)
            for sdk in self._sdk.values():
                await sdk.close()

    @contextlib.asynccontextmanager
    async def _asking(self, load: Load) -> AsyncIterator[openai.AsyncOpenAI]:
        """Yield who asks: the one who always does, or one for this request alone."""
        sdk = self._connected(load)
        try:
            yield sdk
        finally:
            if load.fresh:
                await sdk.close()

    def _begin(self, load: Load, prompt: int, output: int) -> None:
        if self._last is not None and self._rng.random() < load.overtaken:
            self._last.cancel()
        asks = self._turn if load.tool_s else self._ask
        self._last = task = asyncio.create_task(asks(load, prompt, output))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _turn(self, load: Load, prompt: int, output: int) -> None:
        """Ask as an agent does: what to do, then tools, then for the answer."""
        async with llmtrace.turn("planner"):
            await self._ask(load, prompt, output)
            tools = _trains, _hotels, _forecast
            if load.serial:
                for tool in tools:
                    await tool(load.tool_s)
            else:
                await asyncio.gather(*(tool(load.tool_s) for tool in tools))
            await self._ask(load, prompt, output)

    async def _fetch(self) -> None:
        """Read documents from a slow store, several at once, by the requests' HTTP client."""
        async with await asyncio.start_server(_store, "127.0.0.1", 0) as store:
            place = "http://{}:{}/".format(*store.sockets[0].getsockname())

            async def one(number: int) -> None:
                while True:
                    if self._load is None or self._pool is None or self._load.fetches <= number:
                        await asyncio.sleep(0.2)
                        continue
                    with contextlib.suppress(httpx.HTTPError):
                        await self._pool.get(place)

            await asyncio.gather(*map(one, range(_FETCHES)))

    async def _stall(self) -> None:
        """Block the event loop now and then, as a report that is made in between does."""
        rng = random.Random(1)
        while True:
            await asyncio.sleep(rng.expovariate(1 / _STALLS_EVERY_S))
            if self._load is not None and self._load.stall_s:
                time.sleep(self._load.stall_s)  # noqa: ASYNC251 - this is the fault

    def _extras(self, load: Load) -> dict[str, Any]:
        """Return what only vLLM knows of a request."""
        if "query" in load.form:
            return {
                "structured_outputs": {"grammar": _query(self._sent if "new" in load.form else 0)}
            }
        if "code" in load.form:
            return {
                "structured_outputs": {"regex": _code(self._sent if "new" in load.form else 0)}
            }
        if load.form:
            kinds = _kinds(self._sent // load.form_every if load.form == "new" else 0)
            return {"structured_outputs": {"json": kinds}}
        salt = {"cache_salt": f"user {self._rng.randrange(load.salted)}"} if load.salted else {}
        seeded = load.seeded > 0 and self._rng.random() < load.seeded
        penalty = {"frequency_penalty": load.penalty} if load.penalty else {}
        seed = {"seed": self._sent} if seeded else {}
        return {"ignore_eos": True, **salt, **penalty, **seed}

    def _text(self, load: Load, tokens: int) -> str:
        """Return a prompt; a byte is a token."""
        rng = self._rng
        if rng.random() < load.long_share:
            tokens = load.long
        lead = (_SYSTEM * (load.shared // len(_SYSTEM) + 1))[: load.shared]
        if load.tools:
            tools = [f"Tool {number:02d}. {_SYSTEM * 2}" for number in range(load.tools)]
            lead = "".join(rng.sample(tools, load.tools) if load.shuffled else tools)
        if load.starts:
            lead = f"Assistant {rng.randrange(load.starts):03d}. {lead}"
        if load.stamped:
            lead = f"{time.time_ns()} {lead}"
        if load.repeat:
            word = "".join(rng.choices(_LETTERS[:-1], k=4))
            return lead + (f"{word} " * (tokens // 5 + 1))[:tokens]
        tokens += load.passages
        return lead + "".join(rng.choices(_LETTERS, k=tokens))

    def _question(self, load: Load, prompt: int, output: int) -> tuple[str, int]:
        """Return a prompt and the tokens of its answer; a known one is always the same."""
        if self._rng.random() >= load.known_share:
            return self._text(load, prompt), output
        own = random.Random(self._rng.randrange(load.known))
        return "".join(own.choices(_LETTERS, k=own.randint(80, 500))), own.randint(20, 70)

    async def _ask(self, load: Load, prompt: int, output: int) -> None:
        self._sent += 1
        if load.count_s:
            time.sleep(load.count_s)  # noqa: ASYNC251 - a blocking call in async code is the fault
        longer = 1 + load.growth * (time.monotonic() - self._since)
        text, output = self._question(load, min(round(prompt * longer), _PROMPT[1]), output)
        output += load.thinks if self._rng.random() < load.thinks_share else 0
        stream = self._rng.random() < load.streamed
        if self._rng.random() >= load.leak_share:
            load = replace(load, leak_share=0.0)
        hot = self._rng.random() < load.heated
        messages: Any = [{"role": "user", "content": text}]
        with contextlib.suppress(openai.OpenAIError, httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(load.give_up_s) as patience, self._asking(load) as sdk:
                answer: Any = await sdk.chat.completions.create(
                    model=self._rng.choice(load.models), messages=messages, stream=stream,
                    max_tokens=output, temperature=1.2 if hot else load.temperature,
                    extra_body=self._extras(load),
                )  # fmt: skip
                llmtrace.annotate(tenant=self._rng.choice(_TENANTS), route="chat")
                if not stream:
                    return
                async with answer as stream:
                    await _read(stream, load, patience)
                if load.saves_s:
                    time.sleep(load.saves_s)  # noqa: ASYNC251 - and so is this one
        if load == self._load and self._rng.random() < load.again:
            self._begin(load, prompt, output)


def _kinds(number: int) -> dict[str, Any]:
    """Return a schema of many kinds of answers, another one for every number."""
    rng = random.Random(number)
    words = ["".join(rng.choices(_LETTERS[:-1], k=8)) for _ in range(_KINDS)]
    fields = {f"{word}_{at}": {"enum": words} for at, word in enumerate(words[:12])}
    return {"type": "object", "properties": fields, "required": list(fields)}


def _code(number: int) -> str:
    """Return a pattern of words out of many, other ones for every number."""
    rng = random.Random(number)
    words = "|".join("".join(rng.choices(_LETTERS[:-1], k=8)) for _ in range(_KINDS))
    return f"({words})(-({words})){{12}}"


def _query(number: int) -> str:
    """Return a grammar of queries to a table that has other columns for every number."""
    rng = random.Random(number)
    words = ("".join(rng.choices(_LETTERS[:-1], k=9)) for _ in range(_COLUMNS))
    names = " | ".join(f'"{word}"' for word in words)
    return f"""root ::= "select " column (", " column){{20}} " from " column
column ::= {names}"""


@llmtrace.tool(name="trains")
async def _trains(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "three before noon"


@llmtrace.tool(name="hotels")
async def _hotels(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "two by the river"


@llmtrace.tool(name="forecast")
async def _forecast(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "showers"


async def _store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a slow store of documents does."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(_STORE_S)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        await writer.drain()
    writer.close()


async def _read(stream: Any, load: Load, patience: asyncio.Timeout) -> None:
    """Read a response as the application does, which may take its time or block its loop."""
    number = 0
    leave = None if load.leave_s is None else asyncio.get_running_loop().time() + load.leave_s
    async for chunk in stream:
        patience.reschedule(leave)
        number += 1
        if number == load.stop_after:
            return
        if load.leak_share and number == 3:
            await asyncio.sleep(_LEAK_S)
            return
        if load.block_s:
            time.sleep(load.block_s)  # noqa: ASYNC251 - a blocking call in async code is the fault
            load = replace(load, block_s=0.0)
        held_s = load.hold_s + load.render_s * number
        held_s += load.checks_s if number % _CHECKED == 0 else 0.0
        if load.keep_s and chunk.choices and chunk.choices[0].finish_reason:
            await asyncio.sleep(load.keep_s)
        if held_s:
            await asyncio.sleep(held_s)


@dataclass(frozen=True)
class Recorded:
    """A timeline: when each step began and ended, and all that was recorded meanwhile."""

    spans: tuple[Window, ...]
    rows: Sequence[Row]
    samples: Sequence[dict[str, Any]]


async def _timeline(group: Group, site: Site, demand: Demand, seed: int) -> tuple[Window, ...]:
    client = Client(demand, seed)
    client.use(group.steps[0].load, site.url)
    running = asyncio.create_task(client.run())
    spans = []
    await asyncio.sleep(_WARM_UP_S)
    with contextlib.ExitStack() as kept:
        try:
            for step in group.steps:
                spans.append(await _play(step, site, client, kept))
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    return tuple(spans)


async def _play(step: Step, site: Site, client: Client, kept: contextlib.ExitStack) -> Window:
    """Play a step; return from when to when it lasted."""
    if step.flags is not None:
        client.use(None, site.url)
        await asyncio.to_thread(site.restart, step.flags)
    with contextlib.ExitStack() as act:
        url = await asyncio.to_thread(act.enter_context, ACTS[step.act](site, step.value))
        start = time.time()
        client.use(step.load, url or site.url)
        await asyncio.sleep(step.seconds)
        end = time.time()
        if url is not None:  # what goes through it still is no part of the incident's end
            client.use(step.load, site.url)
            kept.push(act.pop_all())
        await asyncio.to_thread(act.close)
    return Window(start, end)


def record(group: Group, trace: Path | None) -> Recorded:
    """Start what a group needs, and record its timeline."""
    seed = sum(map(ord, group.name))
    demand = Demand(trace, seed)
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(serving(group))
        signals = [
            stack.enter_context(Signals(server.url, group.scrape_s, f"vllm-{number}"))
            for number, server in enumerate(() if group.hosted else site.servers)
        ]
        rows = stack.enter_context(capture(service="shop"))
        spans = asyncio.run(_timeline(group, site, demand, seed))
    return Recorded(spans, rows, [sample for one in signals for sample in one.samples])


def case_of(group: Group, number: int, recorded: Recorded) -> Case:
    """Cut an incident out of its timeline."""
    step = group.steps[number]
    incident = step.incident
    assert incident is not None
    before, after = recorded.spans[number - 1], recorded.spans[number]
    if number > 1:
        before = Window(before.start + _SETTLE_S, before.end)
    over = incident.over and number + 1 < len(recorded.spans)
    end = recorded.spans[number + 1].end if over else after.end
    rows = [row for row in recorded.rows if before.start <= row.start / 1e9 < end]
    samples = [one for one in recorded.samples if before.start <= one["t"] < end]
    signals, odd = signals_from(samples)
    assert not odd, odd
    known = {
        "engine": "vllm", "version": "0.32.0", "max_model_len": 4096, "chunked_prefill": True,
        "prefix_caching": True, "spec_decode": False, "max_num_seqs": 16,
        **group.facts, **step.facts,
    }  # fmt: skip
    return Case(
        rows=from_rows(rows),
        signals=signals,
        facts=Facts(
            instances={
                f"vllm-{number}": known for number in range(0 if group.hosted else group.replicas)
            },
            events=tuple(
                Event(after.start + at, kind, text) for at, kind, text in incident.events
            ),
        ),
        before=before,
        after=after,
        metric=incident.metric,
    )


def severity(incident: Incident, case: Case) -> str:
    """Return how much of the metric moved: p95 under twice is mild, under five times medium.

    What is planned stands where there is no cause, or none of the metrics shows it.
    """
    if not incident.causes or incident.metric is None:
        return incident.severity
    assert case.before is not None
    assert case.after is not None
    sides = [case.rows.within(w.start, w.end) for w in (case.before, case.after)]
    before, after = (np.nanquantile(_seen(side, incident.metric), 0.95) for side in sides)
    return "mild" if after < 2 * before else "medium" if after < 5 * before else "severe"


def _seen(rows: Columns, metric: str) -> NDArray[np.float64]:
    """Return a metric as users see it: the first content of what is not streamed is all of it."""
    values = rows.numbers[f"{metric}_s"]
    if metric != "ttft":
        return values
    return np.where(rows.numbers["stream"] == 0, rows.numbers["e2e_s"], values)


def truth_of(group: Group, number: int, recorded: Recorded) -> dict[str, Any]:
    """Return what happened in an incident, for people and for the bench."""
    incident = group.steps[number].incident
    assert incident is not None
    over = incident.over and number + 1 < len(recorded.spans)
    span = recorded.spans[number]
    return {
        "causes": list(incident.causes),
        "accept": list(incident.accept),
        "shift": incident.shift,
        "severity": severity(incident, case_of(group, number, recorded)),
        "what": incident.what,
        "onset": span.start if incident.causes or not incident.quiet else None,
        "end": span.end if over and not incident.quiet else None,
    }


def _shown(name: str, case: Case) -> None:
    """Print whether the fault acted, by the rows alone."""
    assert case.before is not None
    assert case.after is not None
    sides = [case.rows.within(w.start, w.end) for w in (case.before, case.after)]
    print(
        f"{name}: {sides[0].n} + {sides[1].n} of {case.rows.n} rows, {len(case.signals)} samples"
    )
    for metric in ("ttft_s", "tpot_s", "e2e_s", "attempts"):
        values = [side.numbers[metric] for side in sides]
        said = [
            "/".join(f"{np.nanquantile(v, q) * 1000:.0f}" for q in (0.5, 0.95))
            if np.isfinite(v).any() else "-"
            for v in values
        ]  # fmt: skip
        print(f"   {metric:9} p50/p95 {' -> '.join(said)} (thousandths)")
    for side in sides:
        print("   ", dict(Counter(side.words["outcome"].word(i) for i in range(side.n))))


def save(group: Group, recorded: Recorded, folder: Path) -> None:
    """Write every incident of a timeline as a case."""
    for number, step in enumerate(group.steps):
        if step.incident is None:
            continue
        case = case_of(group, number, recorded)
        write_case(folder / step.incident.name, case, compress=True)
        truth = json.dumps(truth_of(group, number, recorded), indent=1)
        (folder / step.incident.name / "truth.json").write_text(truth + "\n", encoding="utf-8")
        _shown(step.incident.name, case)


def main() -> int:
    """Record the groups that are named, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="*", help="names of groups; default: all")
    parser.add_argument("--out", type=Path, help="folder for the cases")
    parser.add_argument("--arrivals", type=Path, help="a trace of real arrivals and lengths")
    parser.add_argument("--list", action="store_true", help="print what there is to record")
    given = parser.parse_args()
    groups = {group.name: group for group in plan()}
    unknown = [name for name in given.groups if name not in groups]
    if unknown or (given.out is None and not given.list):
        parser.error(f"no group {unknown}: {', '.join(groups)}" if unknown else "--out is missing")
    chosen = [groups[name] for name in given.groups or groups]
    for group in chosen:
        seconds = sum(step.seconds for step in group.steps)
        names = [step.incident.name for step in group.steps if step.incident]
        print(f"{group.name}: {seconds:.0f} s, {', '.join(names)}", flush=True)
        if not given.list:
            save(group, record(group, given.arrivals), given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
