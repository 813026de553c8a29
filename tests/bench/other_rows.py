"""What llmtrace would have recorded of the calls and engines of `other_fleet`: rows and samples.

A row is cut into stages by `llmtrace.core.stages`, as of a real request; what this world cannot
see is unknown in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.attempts import Attempt
from llmtrace.core.row import Row
from llmtrace.core.stages import Network, Reported, Timeline
from tests.bench.other_engine import Engine, Job
from tests.bench.other_path import Call, Path

EPOCH: Final = 1_790_000_000.0
_AT_ONCE: Final = 0.001


@dataclass(slots=True, kw_only=True)
class Seen:
    """What of this world is recorded at all."""

    figures: bool
    gateway: bool
    kernel: bool
    phases: bool
    replica: bool
    tenant: bool
    route: bool
    region: bool
    cached: bool
    drafts: bool
    preemptions: bool
    version: bool
    connector: bool
    signals: bool
    gpus: bool
    events: bool
    interval: float


def _ns(seconds: float) -> int:
    return max(0, round(seconds * 1e9))


@dataclass(slots=True, kw_only=True)
class Reading:
    """How a client read an answer; seconds since the start of the call."""

    first: float
    last: float
    end: float
    held: float
    chunks: int
    bursts: int
    max_gap: float
    lag: float
    arrived: float
    tokens: int


def _blocked(times: NDArray[Any], call: Call) -> NDArray[Any]:
    """Return how long each chunk lies there while the client's event loop does other things."""
    share, long = call.blocks
    if share <= 0:
        return np.zeros(len(times))
    period = long / share
    place = (times + call.t + 0.37 * call.process) % period
    return np.where(place < long, long - place, 0.0)


def read_stream(call: Call, times: NDArray[Any], size: int, random: Random) -> Reading:
    """Let a client read chunks as they arrive: buffered, silent, cut, or read too late.

    Args:
        call: whose answer it is.
        times: when each token is on the client's machine, in order, from the start of the call.
        size: tokens of a chunk.
        random: of this row.
    """
    arrivals = np.concatenate([times[:1], times[1:][size - 1 :: size]])
    if len(times) > 1 and arrivals[-1] != times[-1]:
        arrivals = np.append(arrivals, times[-1])
    if call.pause and len(arrivals) > 2:
        arrivals[1 + len(arrivals) // 4 :] += call.pause
    tokens = len(times)
    waits = np.diff(arrivals)
    silent = np.flatnonzero(waits > call.idle_s)
    gap_at_end = 0.0
    if len(silent):
        cut = int(silent[0])
        gap_at_end = call.idle_s
    elif random.random() < call.breaks and len(arrivals) > 2:
        cut = random.randrange(1, len(arrivals) - 1)
        gap_at_end = float(waits[cut]) * random.random()
    else:
        cut = -1
    if cut >= 0:
        call.outcome, call.error = "truncated", "RemoteProtocolError"
        arrivals, tokens = arrivals[: cut + 1], min(tokens, 1 + cut * size)
    if call.flush and len(arrivals) > 1:
        step = max(1, call.flush // size)
        ends = np.minimum((np.arange(len(arrivals)) // step + 1) * step - 1, len(arrivals) - 1)
        arrivals = arrivals[ends]
    lag = _blocked(arrivals, call)
    steps = np.arange(len(arrivals)) * call.render_s
    read = np.maximum.accumulate(np.maximum.accumulate(arrivals + lag) - steps) + steps
    free = np.concatenate([[0.0], read[:-1] + call.render_s])
    waited = np.maximum(read - free, 0.0)
    held = call.render_s * len(arrivals)
    return Reading(
        first=float(read[0]),
        last=float(read[-1]),
        end=float(read[-1]) + call.render_s + gap_at_end,
        held=held,
        chunks=len(arrivals),
        bursts=int((waited[1:] < _AT_ONCE).sum()),
        max_gap=float(max(waited[1:].max(initial=0.0), gap_at_end)),
        lag=float(np.minimum(lag, waited).sum()),
        arrived=float(arrivals[0]),
        tokens=tokens,
    )


class Recorder:
    """Makes rows of calls."""

    def __init__(self, path: Path, seen: Seen, random: Random) -> None:
        self.path, self.seen, self.random = path, seen, random
        self.draws = np.random.default_rng(random.getrandbits(32))
        self.knots = {
            engine.name: (np.array(engine.knots_t), np.array(engine.knots_v))
            for engine in path.engines
            if isinstance(engine, Engine)
        }

    def row(self, call: Call) -> Row | None:
        """Return the row of a call that came to an end."""
        assert call.end is not None
        reading = None if call.outcome in ("error", "cancelled", "timeout") else self._read(call)
        e2e = call.end - call.t if reading is None else reading.end
        if not call.stream and reading is not None and reading.lag == 0.0:
            e2e = reading.last
        first = reading.first if reading and call.stream else None
        timeline = self._timeline(call, e2e, first, reading)
        random, seen = self.random, self.seen
        done = call.outcome == "success"
        job, world = call.job, self.path.world
        engine = call.engine if isinstance(call.engine, Engine) else None
        cached = None
        if seen.cached and job and done and not call.cached_answer:
            cached = job.cached if engine else None
        spec = seen.drafts and engine and engine.setup.drafts and job and done
        return Row(
            timeline=timeline,
            trace_id=f"{random.getrandbits(128):032x}",
            span_id=f"{random.getrandbits(64):016x}",
            request_id=f"lt-{call.number}",
            start=int((EPOCH + call.t) * 1e9),
            service=world.service,
            provider=world.style,
            model=call.adapter or call.route.model,  # adapters are requested as models
            route=call.route.name if seen.route else None,
            tenant=call.tenant if seen.tenant else None,
            region=call.region if seen.region else None,
            replica=engine.name if engine and seen.replica and job else None,
            gateway=world.gateway or None,
            client="openai",
            version=call.version if seen.version else None,
            server=world.server,
            outcome=call.outcome,
            finish_reason="stop" if done else None,
            error_type=call.error,
            http_status=call.status,
            prompt_tokens=call.prompt if done or world.style == "vllm" else None,
            output_tokens=reading.tokens if reading and done else None,
            cached_tokens=cached,
            cache_hit=call.cached_answer if world.response_cache else None,
            attempts=len(call.attempts) + (call.outcome != "error" or not call.attempts),
            attempt_log=self._attempts(call, e2e),
            chunks=reading.chunks if reading and call.stream else 0,
            burst_chunks=reading.bursts if reading and call.stream else None,
            preemptions=job.preemptions if seen.preemptions and job and done else None,
            spec_drafted=round(job.drafted) if spec and job else None,
            spec_accepted=round(job.accepted) if spec and job else None,
            kv_connector=world.connector if seen.connector and engine else None,
            max_gap_ns=_ns(reading.max_gap) if reading and call.stream else None,
            last_content_ns=_ns(reading.last) if reading and call.stream else None,
            arrived_by_ns=(
                _ns(reading.arrived) if reading and seen.kernel and call.stream else None
            ),
            client_lag_ns=_ns(reading.lag) if reading and seen.kernel else None,
        )

    def _read(self, call: Call) -> Reading | None:
        job = call.job
        if call.cached_answer:
            assert call.end is not None
            times = np.linspace(0.0, 0.02, max(2, min(call.out, 40))) + call.end - call.t
            return read_stream(call, times, 4, self.random)
        if job is None or job.first is None or call.engine is None:
            return None
        knots = self.knots.get(call.engine.name, (np.empty(0), np.empty(0)))
        later = call.engine.token_times(job, knots)
        way = call.rtt / 2 - call.t
        wait = job.first + way
        if wait > call.idle_s:
            call.outcome, call.status, call.error = "error", 504, "504"
            call.end = call.t + call.idle_s
            return None
        jitter = 0.15 * np.diff(later, prepend=job.first)
        draws = self.draws.random(len(later))
        times = np.concatenate([[wait], later + way + call.dribble + jitter * draws])
        return read_stream(call, np.maximum.accumulate(times), self._size(call), self.random)

    def _size(self, call: Call) -> int:
        if isinstance(call.engine, Engine):
            return max(1, call.engine.setup.drafts - 1)
        return self.path.world.provider_chunk

    def _timeline(
        self, call: Call, e2e: float, first: float | None, reading: Reading | None
    ) -> Timeline:
        seen, job = self.seen, call.job
        dns, connect, tls = call.connected
        log = call.attempts
        with_status = sum(took + backoff for _, took, backoff, status in log if status)
        without = sum(took + backoff for _, took, backoff, status in log if not status)
        answered = call.outcome in ("success", "truncated")
        network = Network(client_wait=_ns(call.client_wait))
        if seen.phases:
            network = Network(
                client_wait=_ns(call.client_wait), dns=_ns(dns), connect=_ns(connect),
                tls=_ns(tls), send=_ns(0.0002), rtt=_ns(call.rtt) if answered else None,
                rtt_source="kernel" if answered else None,
            )  # fmt: skip
        figures: dict[str, Reported | None] = {}
        whole = job is not None and job.done is not None and call.outcome == "success"
        if seen.figures and whole and job and isinstance(call.engine, Engine):
            figures = _figures(job, call.engine)
        gateway = Reported(_ns(call.gateway_s), "server_timing") if seen.gateway else None
        held = reading.held if reading and call.stream else 0.0
        return Timeline(
            e2e=_ns(e2e),
            ttft=None if first is None else _ns(first),
            client=_ns(call.client_s),
            held_after=_ns(held),
            network=network,
            retry_network=_ns(without),
            retry_gateway=_ns(with_status),
            gateway=gateway if answered else None,
            stream=call.stream,
            **figures,
        )

    def _attempts(self, call: Call, e2e: float) -> tuple[Attempt, ...]:
        found = [
            Attempt(
                start_ns=_ns(at - call.t), duration_ns=_ns(took), backoff_ns=_ns(backoff),
                status=status, error_type=None if status else "ConnectError",
            )
            for at, took, backoff, status in call.attempts
        ]  # fmt: skip
        if found and call.outcome != "error":
            rest = call.sent - call.t
            took = _ns(e2e - rest)
            found.append(Attempt(start_ns=_ns(rest), duration_ns=took, status=call.status))
        return tuple(found)


def _figures(job: Job, engine: Engine) -> dict[str, Reported | None]:
    """Return what an engine says of one request."""
    assert job.first is not None
    assert job.seen is not None
    assert job.scheduled is not None
    assert job.done is not None
    prefilled = job.prefilled or job.first
    found: dict[str, Reported | None] = {
        "queue": Reported(_ns(job.scheduled - job.seen), "engine_inband"),
        "prefill": Reported(_ns(prefilled - job.scheduled), "engine_inband"),
        "engine_decode": Reported(_ns(job.done - job.first), "engine_inband"),
    }
    if engine.setup.apart is not None:
        found["kv_transfer"] = Reported(_ns(job.first - prefilled), "engine_inband")
    return found


# The signals of each engine's page; `x_sum` stands for `x_count` too.
PAGES: Final = {
    "vllm": (
        "running waiting waiting_by_reason kv_usage preemptions prefix_queries prefix_hits"
        " external_prefix_queries external_prefix_hits prompt_tokens cached_tokens"
        " generation_tokens finished spec_drafts spec_drafted spec_accepted queue_sum"
        " prefill_sum decode_sum ttft_sum itl_sum tpot_sum e2e_sum awake started api_cpu_seconds"
        " kv_transfer_time_sum frontend_time"
    ),
    "sglang": (
        "running waiting waiting_by_reason kv_usage preemptions prefix_hit_ratio cached_tokens"
        " prompt_tokens generation_tokens finished spec_accept_ratio spec_accept_length queue_sum"
        " ttft_sum itl_sum tpot_sum e2e_sum lora_slots lora_slots_used grammar_compile_sum"
        " kv_transfer_time_sum started"
    ),
    "tgi": (
        "running waiting queue_sum inference_sum tpot_sum e2e_sum prompt_tokens"
        " generation_tokens finished spec_accepted"
    ),
}  # fmt: skip


class Scraper:
    """Reads the pages of engines and GPUs every so often, as long as it is let."""

    def __init__(self, path: Path, seen: Seen, random: Random, until: float) -> None:
        self.path, self.seen, self.random, self.until = path, seen, random, until
        self.samples: list[dict[str, Any]] = []
        self._before: dict[str, dict[str, float]] = {}
        late = 0.4 * until
        self.blind = (late, late + 3 * seen.interval) if random.random() < 0.3 else (-1.0, -1.0)

    def begin(self) -> None:
        """Read each page for the first time, at a moment of its own."""
        for engine in self.path.engines:
            self.watch(engine)

    def watch(self, engine: Any) -> None:
        """Read an engine's page from now on."""
        if isinstance(engine, Engine) and (self.seen.signals or self.seen.gpus):
            now = engine.loop.now
            engine.loop.at(now + self.random.random() * self.seen.interval, self._read, engine)

    def _read(self, engine: Engine) -> None:
        loop = engine.loop
        engine.touch()
        if loop.now < self.until:
            loop.at(
                loop.now + self.seen.interval * self.random.uniform(0.98, 1.02), self._read, engine
            )
        if self.blind[0] < loop.now < self.blind[1]:
            return
        if self.seen.signals:
            answers = engine.alive and not (engine.frozen and engine.paused_at is not None)
            self._say(engine, "up", float(answers))
            if answers:
                self._page(engine)
        if self.seen.gpus:
            self._gpu(engine)

    def _say(self, engine: Engine, signal: str, value: float, **labels: str) -> None:
        sample = {
            "t": EPOCH + engine.loop.now, "instance": engine.name, "signal": signal, "value": value
        }  # fmt: skip
        self.samples.append(sample | ({"labels": labels} if labels else {}))

    def _page(self, engine: Engine) -> None:
        tally, setup = engine.tally, engine.setup
        paused = engine.paused_at is not None
        cpu = self.path.busy.get(engine.name, 0.0)
        deferred = engine.deferred()
        gauges: dict[str, float] = {
            "running": len(engine.running) + len(engine.group),
            "waiting": len(engine.waiting),
            "kv_usage": min(1.0, engine.kv_used / setup.kv_tokens),
            "awake": float(not paused), "started": EPOCH + engine.started,
            "api_cpu_seconds": cpu,
            "spec_accept_ratio": (engine.accepted_share() if setup.drafts else float("nan")),
            "spec_accept_length": engine.accept_length() if setup.drafts else float("nan"),
            "lora_slots": setup.loras or float("nan"),
            "lora_slots_used": len(engine.adapters) if setup.loras else float("nan"),
        }  # fmt: skip
        before = self._before.get(engine.name, {})
        for name in PAGES[self.path.world.style].split():
            if name == "waiting_by_reason":
                compiling = engine.compiling()
                if self.path.world.style == "vllm":
                    self._say(engine, name, deferred, reason="deferred")
                    self._say(engine, name, len(engine.waiting) - deferred, reason="capacity")
                else:
                    self._say(engine, name, compiling, reason="grammar")
            elif name == "frontend_time":
                self._frontend(engine, before)
            elif name == "prefix_hit_ratio":
                asked = tally["prefix_queries"] - before.get("prefix_queries", 0.0)
                found = tally["cached_tokens"] - before.get("cached_tokens", 0.0)
                if asked > 0:
                    self._say(engine, name, found / asked)
            elif name in gauges:
                if gauges[name] == gauges[name]:
                    self._say(engine, name, gauges[name])
            elif name.endswith("_sum"):
                if tally[name.replace("_sum", "_count")] or "kv_" not in name:
                    self._say(engine, name, tally[name])
                    self._say(engine, name.replace("_sum", "_count"), tally[name[:-4] + "_count"])
            elif setup.drafts or "spec" not in name:
                self._say(engine, name, tally[name])
        self._before[engine.name] = dict(tally)

    def _frontend(self, engine: Engine, before: dict[str, float]) -> None:
        """Say the front end's mean time, as the collector makes it of means."""
        tally, means = engine.tally, {}
        for name in ("ttft", "queue", "prefill"):
            n = tally[f"{name}_count"] - before.get(f"{name}_count", 0.0)
            gain = tally[f"{name}_sum"] - before.get(f"{name}_sum", 0.0)
            if n <= 0:
                return
            means[name] = gain / n
        self._say(
            engine, "frontend_time", max(0.0, means["ttft"] - means["queue"] - means["prefill"])
        )

    def _gpu(self, engine: Engine) -> None:
        draw = self.random
        busy = float(bool(engine.running or engine.group) and engine.paused_at is None)
        held = engine.slow > 1.0 and engine.alive
        self._say(engine, "gpu_utilization", min(1.0, max(0.0, busy * draw.gauss(0.93, 0.05))))
        self._say(
            engine, "gpu_sm_clock", 1.98e9 / max(1.0, engine.slow) * draw.uniform(0.985, 1.0)
        )
        self._say(engine, "gpu_power", 120 + busy * (480 - 190 * held) * draw.uniform(0.9, 1.0))
        self._say(engine, "gpu_temperature", 41 + 24 * busy + 19 * held + draw.gauss(0, 1))
        if self.path.world.throttle_told:
            self._say(engine, "gpu_throttled", float(held), reason="hw_thermal")
