"""Turn a simulated day into the rows, signals and facts that would be recorded.

Rows as the SDK makes them, with `None` where it could not know: an engine reports only requests
that ended. Durations are rounded to nanoseconds before they become seconds, so that a row's stages
add up to its wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.row import OUTCOMES, TURN
from llmtrace.core.stages import STAGES
from llmtrace.dataset.case import Case, Event, Facts, Signals, Window
from llmtrace.dataset.columns import Builder, Columns, Words
from llmtrace.simulator.fleet.array_layout import BLOCK, Gateway, GatewayMeter, Meter, Outcome
from llmtrace.simulator.fleet.plan import WARM_UP_S
from llmtrace.simulator.fleet.run_fleet import FleetRun
from llmtrace.stats.arrays import Floats

_Ns = NDArray[np.int64]
_NS: Final = 1_000_000_000
_NO_NAMES: Final[tuple[str, ...]] = ()
_HTTP_OK: Final = 200
# A deployment is revision 41 until something is deployed.
_REVISIONS: Final = ("r41", "r42")
_ERRORS: Final = {429: "RateLimitError", 502: "InternalServerError", 503: "InternalServerError"}


def observe(ran: FleetRun, epoch_s: int, drop: Sequence[str]) -> Case:
    """Return a day as a case: what was seen of it, and nothing of what was done to it.

    Its first second is `epoch_s` in unix time; signals in `drop` (`*` = all) were not scraped.
    """
    day = ran.day
    return Case(
        rows=_rows(ran, epoch_s),
        signals=_signals(ran, epoch_s, drop),
        facts=_facts(ran, epoch_s),
        before=Window(epoch_s + WARM_UP_S, epoch_s + day.onset),
        after=Window(epoch_s + day.onset, epoch_s + day.end),
    )


# --- rows ---------------------------------------------------------------------------------------


def _ns(seconds: Floats) -> _Ns:
    known = np.where(np.isnan(seconds), 0.0, seconds)
    whole: _Ns = np.rint(known * _NS).astype(np.int64)
    return whole


def _rows(ran: FleetRun, epoch_s: int) -> Columns:
    builder = Builder()
    requests = _Requests(ran, epoch_s)
    builder.add_arrays(requests.start, requests.number, requests.word, requests.identity)
    turns = _Turns(requests)
    if len(turns.start):
        builder.add_arrays(turns.start, turns.number, turns.word, turns.identity)
    columns = builder.done()
    return columns.take(np.argsort(columns.start, kind="stable"))


class _Requests:
    """The columns of the requests that started in the two windows."""

    def __init__(self, ran: FleetRun, epoch_s: int) -> None:
        day, deployment = ran.day, ran.day.deployment
        fate = ran.fate
        kept = np.flatnonzero((fate.started >= WARM_UP_S) & (fate.started < day.end))
        kept = kept[fate.outcome[kept] >= 0]
        self.kept = kept
        self.ran = ran
        self.fate = fate = fate[kept]
        self.work = ran.demand.work[kept]
        self.deployment = deployment
        self.epoch_s = epoch_s
        self.start = epoch_s * _NS + _ns(fate.started)
        self.turn = ran.demand.turn[kept]
        had = ~np.isnan(fate.first)
        self.had = had
        source = deployment.engine_source
        success = fate.outcome == Outcome.SUCCESS
        self.success = success
        self.engine = success & had & (fate.retry_decode == 0) & (source is not None)
        self.routed = ~np.isnan(fate.routed) & (fate.status == _HTTP_OK)
        self._split()
        self.numbers = self._numbers()
        self.words = self._words()

    def _split(self) -> None:
        """Divide each request's wait among the stages, as far as it is known."""
        fate, kept, had, engine = self.fate, self.kept, self.had, self.engine
        deployment, success = self.deployment, self.success
        e2e = _ns(fate.end - fate.started)
        ttft = np.where(had, _ns(fate.first - fate.started), e2e)
        ttft = np.minimum(ttft, e2e)
        decode, render = np.where(had, _ns(fate.waited), 0), np.where(had, _ns(fate.held), 0)
        e2e = np.where(had, ttft + decode + render, e2e)
        demand = self.ran.demand
        first_try = fate.attempts <= 1
        sent = ~np.isnan(fate.sent)
        parts = {
            "client_wait": np.where(sent, _ns(fate.sent - fate.started), 0),
            **{
                name: np.where(first_try, _ns(getattr(demand, name)[kept]), 0)
                for name in ("dns", "connect", "tls")
            },
            "send": _ns(demand.send[kept]),
            "rtt": _ns(demand.rtt[kept]),
        }
        lost = ~had & (fate.retry_gateway > 0) & ~success  # every attempt was answered by a status
        left = sent & (fate.attempts > 0)
        for name in ("dns", "connect", "tls", "send", "rtt"):
            parts[name] = np.where(left & ~lost, parts[name], 0)
        rest = ttft.copy()
        network = _take(rest, sum(parts.values()))  # type: ignore[arg-type]
        retried = _ns(fate.retry_gateway)
        own = np.where(left & ~lost & deployment.gateway_tells, _ns(fate.gateway_s), 0)
        gateway = _take(rest, retried + own)
        queue = _take(rest, np.where(engine, _ns(fate.queue_s), 0))
        prefill = _take(rest, np.where(engine, _ns(fate.prefill_s), 0))
        always = np.ones(len(kept), bool)
        self.stages: dict[str, tuple[_Ns, NDArray[np.bool_]]] = {
            "network": (network, always),
            "gateway": (gateway, (retried > 0) | deployment.gateway_tells),
            "queue": (queue, engine),
            "prefill": (prefill, engine),
            "first_chunk": (np.where(engine, rest, 0), engine),
            "decode": (decode, always),
            "render": (render, always),
        }
        self.unattributed = np.where(engine, 0, rest)
        self.e2e, self.ttft = e2e, ttft
        self.parts = parts

    def _numbers(self) -> dict[str, Floats]:
        deployment, fate, work, kept = self.deployment, self.fate, self.work, self.kept
        had, success, engine, routed = self.had, self.success, self.engine, self.routed
        source = deployment.engine_source
        tokens = fate.produced.astype(np.float64)
        plugin = source == "engine_plugin"
        span = source in ("engine_span", "engine_plugin")
        spec = deployment.spec_tokens > 0 and source in ("engine_inband", "engine_plugin")
        # A proxy that gathers chunks keeps the headers as well.
        answered = np.where(
            _buffered(self.ran, fate.first), fate.first, fate.routed + 0.002 + work.back
        )
        many = had & (fate.chunks > 1)
        numbers: dict[str, Floats] = {
            "ttft_s": _known(self.ttft, had),
            "ttft_arrival_s": _known(self.ttft, had),
            "tpot_s": np.where(
                success & (tokens > 1),  # usage comes with the last chunk
                (fate.last - fate.first) / np.maximum(tokens - 1, 1),
                np.nan,
            ),
            "e2e_s": self.e2e / _NS,
            "unattributed_s": self.unattributed / _NS,
            "held_before_s": np.zeros(len(kept)),
            "held_after_s": self.stages["render"][0] / _NS,
            "retry_s": np.rint((fate.retry_gateway + fate.retry_decode) * 1e6) / 1e6,
            "max_gap_s": np.where(many | (had & ~success), fate.gap, np.nan),
            "answered_s": np.where(routed, answered - fate.started, np.nan),
            "last_content_s": np.where(had, np.fmax(fate.last, fate.first) - fate.started, np.nan),
            "first_chunk_frontend_s": np.where(engine & span, fate.front_s, np.nan),
            "prompt_tokens": np.where(success, work.prompt, np.nan),
            "cached_tokens": np.where(success, fate.cached, np.nan),
            "output_tokens": np.where(success, tokens, np.nan),
            "chunks": fate.chunks.astype(np.float64),
            "burst_chunks": np.where(many, fate.bursts, np.nan),
            "attempts": np.maximum(fate.attempts, 1).astype(np.float64),
            "http_status": np.where(fate.status > 0, fate.status, np.nan),
            "retried_status": np.where(fate.retried_status > 0, fate.retried_status, np.nan),
            "preemptions": np.where(engine & plugin, fate.preemptions, np.nan),
            "spec_drafted": np.where(engine & spec, fate.drafted, np.nan),
            "spec_accepted": np.where(engine & spec, fate.accepted, np.nan),
            "stream": np.ones(len(kept)),
            "nested": np.where(self.turn >= 0, 1.0, 0.0),
            "weight": np.ones(len(kept)),
        }
        for name, (ns, known) in self.stages.items():
            numbers[f"{name}_s"] = _known(ns, known)
        for name, ns in self.parts.items():
            numbers[f"network_{name}_s"] = ns / _NS
        return numbers

    def _words(self) -> dict[str, tuple[NDArray[np.int32], Sequence[str]]]:
        deployment, fate, kept = self.deployment, self.fate, self.kept
        demand = self.ran.demand
        happened = [h.at for h in self.ran.day.happenings if h.kind == "deploy"]
        deployed = fate.started >= min(happened) if happened else np.zeros(len(kept), bool)
        regions = [region.name for region in deployment.regions]
        base = deployment.model.rpartition("-")[2]
        source = deployment.engine_source
        failed = fate.outcome == Outcome.ERROR
        errors = sorted({*_ERRORS.values(), "APIError"})
        kind = np.full(len(kept), errors.index("APIError"))
        for status, error in _ERRORS.items():
            kind = np.where(fate.status == status, errors.index(error), kind)
        length = np.where(self.work.output % 16, 0, 1)
        words = {
            "service": _one("assistant", len(kept)),
            "operation": _one("chat", len(kept)),
            "model": (
                (self.work.adapter + 1),
                [f"llama-{base}", *(f"llama-{base}-lora-{k}" for k in range(deployment.adapters))],
            ),
            "provider": _one("vllm", len(kept)),
            "route": (demand.route[kept], [route.name for route in deployment.routes]),
            "tenant": (self.work.tenant, [f"tenant-{k}" for k in range(len(deployment.tenants))]),
            "region": (demand.region[kept], regions),
            "replica": (np.where(self.routed, fate.replica, -1), deployment.names),
            "version": (deployed.astype(np.int64), _REVISIONS),
            "gateway": (demand.region[kept], [f"gateway-{region}" for region in regions]),
            "client": (demand.app[kept], [app.name for app in deployment.apps]),
            "outcome": (fate.outcome, OUTCOMES),
            "finish_reason": (np.where(self.success, length, -1), ["stop", "length"]),
            "error_type": (np.where(failed, kind, -1), errors),
        }
        sources: dict[str, str | None] = {"queue": source, "prefill": source}
        if deployment.gateway_tells:
            sources["gateway"] = "server_timing"
        for stage, (_, known) in self.stages.items():
            code = np.where(known, 0, -1)
            words[f"{stage}_source"] = (code, [sources.get(stage) or "client"])
        return {
            name: (codes.astype(np.int32), list(names)) for name, (codes, names) in words.items()
        }

    def number(self, name: str) -> Floats:
        """Return one column of `columns.NUMBERS`."""
        column = self.numbers.get(name)
        return np.full(len(self.kept), np.nan) if column is None else column.astype(np.float64)

    def word(self, name: str) -> tuple[NDArray[np.int32], Sequence[str]]:
        """Return one column of `columns.WORDS`."""
        return self.words.get(name, (np.full(len(self.kept), -1, np.int32), _NO_NAMES))

    def identity(self, name: str) -> NDArray[np.bytes_]:
        """Return one column of `columns.IDS`; a turn and its requests are one trace."""
        trace = np.where(self.turn >= 0, self.turn, self.kept)
        return _ids(name, self.epoch_s, self.kept, trace)


class _Turns:
    """The columns of the turns whose requests all lie in the windows."""

    def __init__(self, requests: _Requests) -> None:
        self.requests = requests
        openers, which = np.unique(requests.turn, return_inverse=True)
        inside = requests.turn >= 0
        count = len(openers)
        skip = int(openers[0] < 0) if count else 0
        demand, fate = requests.ran.demand, requests.fate

        def total(values: NDArray[Any]) -> NDArray[Any]:
            sums = np.zeros(count, values.dtype)
            np.add.at(sums, which[inside], values[inside])
            return sums[skip:]

        def first(values: NDArray[Any]) -> NDArray[Any]:
            found = np.zeros(count, values.dtype)
            found[which[inside][::-1]] = values[inside][::-1]
            return found[skip:]

        # Tools run after a request that came to its end.
        went = requests.success & (fate.produced > 0)
        calls = total(np.where(went, demand.tool_calls[requests.kept], 0))
        wall = total(np.where(went, _ns(demand.tool_wall[requests.kept]), 0))
        serial = total(np.where(went, demand.tool_serial[requests.kept], 0.0))
        critical = total(np.where(went, demand.tool_critical[requests.kept], 0.0))
        self.openers = openers[skip:]
        whole = np.isin(self.openers, requests.kept)
        self.whole = whole
        ns = {name: total(np.where(known, value, 0)) for name, (value, known) in
              requests.stages.items()}  # fmt: skip
        known = {name: total((~k).astype(np.int64)) == 0 for name, (_, k) in
                 requests.stages.items()}  # fmt: skip
        ns["render"] = ns["render"] + wall
        unattributed = total(requests.unattributed)
        for name, all_known in known.items():  # a sum with an unknown part is unknown
            unattributed = unattributed + np.where(all_known, 0, ns[name])
            ns[name] = np.where(all_known, ns[name], 0)
        e2e = sum(ns.values()) + unattributed
        self.start = first(requests.start)[whole]
        bad = np.zeros(count, np.int64)
        np.maximum.at(bad, which[inside], fate.outcome[inside])
        self.outcome = bad[skip:][whole]
        size = len(self.start)
        self.numbers: dict[str, Floats] = {
            "e2e_s": (e2e / _NS)[whole],
            "unattributed_s": (unattributed / _NS)[whole],
            "tool_calls": calls[whole].astype(np.float64),
            "tool_wall_s": (wall / _NS)[whole],
            "tool_serial_s": serial[whole],
            "tool_critical_path_s": critical[whole],
            "tool_serial_loss_s": np.maximum(0.0, (wall / _NS) - critical)[whole],
            "retry_s": np.zeros(size),
            "attempts": np.ones(size),
            "stream": np.zeros(size),
            "nested": np.zeros(size),
            "weight": np.ones(size),
        }
        for name in STAGES:
            self.numbers[f"{name}_s"] = np.where(known[name], ns[name] / _NS, np.nan)[whole]
        self.known = {name: value[whole] for name, value in known.items()}
        self.first = first

    def number(self, name: str) -> Floats:
        """Return one column of `columns.NUMBERS`."""
        column = self.numbers.get(name)
        return np.full(len(self.start), np.nan) if column is None else column

    def word(self, name: str) -> tuple[NDArray[np.int32], Sequence[str]]:
        """Return one column of `columns.WORDS`: as of the turn's first request."""
        size = len(self.start)
        if name == "operation":
            return _one(TURN, size)[0].astype(np.int32), [TURN]
        if name == "outcome":
            return self.outcome.astype(np.int32), OUTCOMES
        codes, names = self.requests.word(name)
        if name in ("replica", "finish_reason", "error_type", "gateway"):
            return np.full(size, -1, np.int32), _NO_NAMES
        found = self.first(codes)[self.whole]
        if name.endswith("_source"):
            found = np.where(self.known[name.removesuffix("_source")], np.maximum(found, 0), -1)
        return found.astype(np.int32), names

    def identity(self, name: str) -> NDArray[np.bytes_]:
        """Return one column of `columns.IDS`."""
        openers = self.openers[self.whole]
        return _ids(name, self.requests.epoch_s, openers + (1 << 40), openers)


def _take(rest: _Ns, wanted: _Ns) -> _Ns:
    """Take what fits from what is left of a window."""
    taken = np.minimum(np.maximum(wanted, 0), rest)
    rest -= taken
    return taken


def _known(ns: _Ns, known: NDArray[np.bool_]) -> Floats:
    return np.where(known, ns / _NS, np.nan)


def _one(name: str, n: int) -> tuple[NDArray[np.int64], list[str]]:
    return np.zeros(n, np.int64), [name]


def _ids(
    name: str, epoch_s: int, number: NDArray[np.int64], trace: NDArray[np.int64]
) -> NDArray[np.bytes_]:
    which = trace if name == "trace_id" else number
    lead = {"trace_id": f"{epoch_s:016x}", "span_id": "", "request_id": f"{epoch_s:08x}-"}[name]
    return np.array([f"{lead}{k + 1:016x}" for k in which.tolist()], "S64")


def _buffered(ran: FleetRun, first: Floats) -> NDArray[np.bool_]:
    when = [c.at for c in ran.day.changes if c.what is Gateway.BUFFER and c.value > 1]
    return first >= min(when) if when else np.zeros(len(first), bool)


# --- signals and facts --------------------------------------------------------------------------

_PLAIN: Final = {
    "running": Meter.RUNNING,
    "waiting": Meter.WAITING,
    "waiting_deferred": Meter.DEFERRED,
    "kv_usage": Meter.KV_USAGE,
    "sleep": Meter.SLEEP,
    "prefix_hits": Meter.PREFIX_HITS,
    "prefix_queries": Meter.PREFIX_QUERIES,
    "preemptions": Meter.PREEMPTIONS,
    "tokens_in": Meter.TOKENS_IN,
    "tokens_out": Meter.TOKENS_OUT,
    "rejected": Meter.REJECTED,
}
_SPEC: Final = {"spec_drafted": Meter.DRAFTED, "spec_accepted": Meter.ACCEPTED}
_FINISHED: Final = {
    "stop": Meter.STOP, "length": Meter.LENGTH, "abort": Meter.ABORT, "error": Meter.ERROR,
}  # fmt: skip
_CLOCK_MHZ, _IDLE_W, _FULL_W, _MEMORY = 1410.0, 70.0, 400.0, 74 * 2**30


# Times, instance, signal, values, and which set of labels.
_Part = tuple[Floats, str, str, Floats, int]


def _signals(ran: FleetRun, epoch_s: int, drop: Sequence[str]) -> Signals:
    parts: list[_Part] = []
    labels: list[dict[str, str]] = [{}, *({"reason": reason} for reason in _FINISHED)]
    tick_s = ran.day.tick_s
    first = int(WARM_UP_S / tick_s)
    samples = ran.samples.engines
    t: Floats = np.arange(len(samples), dtype=np.float64) * tick_s
    rng = np.random.default_rng([epoch_s, 4])
    spec = _SPEC if ran.day.deployment.spec_tokens else {}
    for r, name in enumerate(ran.day.deployment.names):
        there = samples[:, r, Meter.UP] > 0
        there[:first] = False
        whole = samples[:, r, :]
        if not there.any():
            continue
        at = t[there]
        for signal, meter in (_PLAIN | spec).items():
            parts.append((at, name, signal, whole[there, meter], 0))
        for k, meter in enumerate(_FINISHED.values()):
            parts.append((at, name, "finished", whole[there, meter], k + 1))
        parts.append((at, name, "started", epoch_s + whole[there, Meter.STARTED], 0))
        # The three below are rates over the interval before; after a restart there is none.
        gone = np.diff(whole, axis=0, prepend=whole[:1])
        same = there & (gone[:, Meter.STARTED] == 0) & (gone[:, Meter.UP] == 0)
        counted = same & (gone[:, Meter.FRONT_N] > 0)
        front = gone[:, Meter.FRONT_S] / np.maximum(gone[:, Meter.FRONT_N], 1)
        parts.append((t[counted], name, "frontend_time", front[counted], 0))
        cpu = np.minimum(gone[:, Meter.FRONT_BUSY_S] / tick_s, 1.0) + 0.02
        parts.append((t[same], name, "api_cpu", cpu[same], 0))
        if ran.day.deployment.gpu:
            gpu = _gpu(whole, gone, rng, tick_s)
            parts += [(t[same], name, signal, value[same], 0) for signal, value in gpu.items()]
    for g, region in enumerate(ran.day.deployment.regions):
        for signal, which in (
            ("gateway_429", GatewayMeter.TOO_MANY), ("gateway_5xx", GatewayMeter.FAILED),
        ):  # fmt: skip
            value = ran.samples.gateways[first:, g, which]
            parts.append((t[first:], f"gateway-{region.name}", signal, value, 0))
    parts = [part for part in parts if part[2] not in drop and "*" not in drop]
    return _joined(parts, labels, epoch_s)


def _gpu(
    whole: Floats, gone: Floats, rng: np.random.Generator, tick_s: float
) -> dict[str, Floats]:
    n = len(whole)
    busy = np.clip(gone[:, Meter.BUSY_S] / tick_s, 0, 1)
    share = whole[:, Meter.CLOCK]
    hot = whole[:, Meter.THROTTLED]
    clock = _CLOCK_MHZ * share * (1 + 0.004 * rng.normal(size=n))
    power = (_IDLE_W + (_FULL_W - _IDLE_W) * 0.85 * busy * share**2) * (
        1 + 0.02 * rng.normal(size=n)
    )
    return {
        "gpu_util": busy,
        "gpu_sm_clock_mhz": clock,
        "gpu_power_w": power,
        "gpu_temp_c": 32 + 0.09 * power + 26 * hot + 0.5 * rng.normal(size=n),
        "gpu_mem_used_bytes": np.full(n, float(_MEMORY)),
        "gpu_throttle": hot,
        "gpu_xid": np.zeros(n),
    }


def _joined(parts: Sequence[_Part], labels: Sequence[dict[str, str]], epoch_s: int) -> Signals:
    instances: dict[str, int] = {}
    signals: dict[str, int] = {}
    columns: list[list[NDArray[Any]]] = [[np.empty(0)] for _ in range(5)]
    for at, instance, signal, value, labelled in parts:
        codes = (
            instances.setdefault(instance, len(instances)),
            signals.setdefault(signal, len(signals)),
            labelled,
        )
        for column, values in zip(
            columns, (at, *(np.full(len(at), code) for code in codes), value), strict=True
        ):
            column.append(values)
    t, whose, what, label, measured = (np.concatenate(column) for column in columns)
    order = np.argsort(t, kind="stable")
    return Signals(
        t=epoch_s + t[order],
        instance=Words(whose[order].astype(np.int32), tuple(instances)),
        signal=Words(what[order].astype(np.int32), tuple(signals)),
        value=measured[order],
        labels=label[order].astype(np.int32),
        label_sets=tuple(labels),
    )


def _facts(ran: FleetRun, epoch_s: int) -> Facts:
    day, deployment = ran.day, ran.day.deployment
    facts: dict[str, Any] = {
        "engine": "vllm",
        "version": deployment.version,
        "max_num_seqs": deployment.max_seqs,
        "max_num_batched_tokens": deployment.max_tokens,
        "max_model_len": deployment.max_model_len,
        "chunked_prefill": deployment.chunked,
        "prefix_caching": True,
        "kv_cache_tokens": deployment.blocks * BLOCK,
        "spec_decode": deployment.spec_tokens > 0,
        **({"kv_connector": "OffloadingConnector"} if deployment.kv_share else {}),
        **day.known,
    }
    last = ran.samples.engines[-1, :, Meter.STARTED]
    return Facts(
        instances={
            name: {**facts, "started": epoch_s + float(last[r])}
            for r, name in enumerate(deployment.names)
        },
        events=tuple(
            Event(epoch_s + h.at, h.kind, h.text)
            for h in sorted(day.happenings, key=lambda h: h.at)
        ),
    )
