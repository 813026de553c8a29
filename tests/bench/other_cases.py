"""Draw a case of `other_fleet` from a seed: an incident, a shift, a pair, a quiet day."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import numpy as np

from llmtrace.core.row import Row
from llmtrace.dataset.case import Case, Window, facts_from, signals_from
from llmtrace.dataset.columns import Columns, from_dicts, from_rows
from llmtrace.stats.significance import more_than
from tests.bench.other_faults import FAULTS, NEEDS, QUIET, SHIFTS, Change
from tests.bench.other_fleet import Fleet, World, draw_world
from tests.bench.other_path import Call
from tests.bench.other_rows import EPOCH, Recorder

MOVES: Final = 1.2  # a fault acts if it moves something by a fifth
FEWEST: Final = 40  # requests in the incident, or there is too little to say
BY_CHANCE: Final = 1e-4  # of as many slow, failed, unary or lost requests, had nothing changed
SEVERITIES: Final = ("mild", "medium", "severe")
KINDS: Final = ("fault",) * 14 + ("shift",) * 2 + ("pair",) + ("quiet",) * 3
PAIRS: Final = (
    ("gateway_overhead", "low_spec_acceptance"), ("network_path", "slow_renderer"),
    ("gateway_overhead", "slow_renderer"), ("prefix_cache_collapse", "midstream_errors"),
    ("gpu_throttle", "network_path"), ("rate_limit_retries", "busy_client"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What was done; as a recording's `truth.json` has it, and what kind of case it is."""

    kind: str
    causes: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    shift: bool = False
    severity: str = "none"
    what: str = "nothing"
    onset: float = 0.0
    end: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCase:
    """A case with its windows, what is true of it, and what the fault moved by how much."""

    seed: int
    case: Case
    truth: Truth
    style: str
    moved: Mapping[str, float] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether the fault moved anything by a fifth and beyond chance, or the day was quiet.

        A day on which people happened to ask for a fifth more, or less, is not quiet.
        """
        if self.truth.kind == "quiet":
            return not _other_work(self.case)
        seen = (factor for name, factor in self.moved.items() if name != "queue")
        return max(seen, default=0.0) >= MOVES and chance(self.case) < BY_CHANCE


def make(seed: int) -> OtherCase:
    """Draw a case; its fault may turn out not to act, which `acts` says."""
    draw = Random(f"other {seed}")
    kind = KINDS[seed % len(KINDS)] if seed % 2 else draw.choice(KINDS)
    names = _names(kind, draw)
    needs: dict[str, Any] = {}
    for name in names:
        for key, value in NEEDS.get(name, {}).items():
            needs[key] = needs.get(key, {}) | value if key == "seen" else value
    world = draw_world(draw, needs)
    grade = draw.random()
    table = {**FAULTS, **SHIFTS, **QUIET}
    changes = [table[name](world, grade, draw) for name in names]
    onset = world.seconds * draw.uniform(0.5, 0.75)
    end = min(world.seconds, onset + world.seconds * draw.uniform(0.12, 0.35))
    if draw.random() < 0.4 or world.seconds - end < 0.05 * world.seconds:
        end = world.seconds
    if draw.random() < 0.3:
        changes.append(_decoy(draw.uniform(0.1, 0.9) * world.seconds))
    fleet = _run(world, seed, changes, onset, end)
    moved: dict[str, float] = {}
    if kind != "quiet":
        without = (
            _run(world, seed, rest, onset, end) for rest in _without_each(changes[: len(names)])
        )
        moved = _least(_moved(other, fleet, onset, end) for other in without)
    causes, accept = _causes(names, moved) if kind != "quiet" else ((), ())
    truth = Truth(
        kind=kind,
        causes=causes,
        accept=(*accept, *(other for change in changes for other in change.accept)),
        shift=any(change.shift for change in changes),
        severity="none" if kind == "quiet" else SEVERITIES[min(2, int(grade * 3))],
        what=" and ".join(change.what for change in changes),
        onset=EPOCH + onset,
        end=EPOCH + end,
    )
    events = [{"t": e.t, "kind": e.kind, "text": e.text} for e in fleet.events]
    case = Case(
        rows=_rows(fleet, 0.0, world.seconds),
        # Nothing is recorded once the load has ended: what follows is no loss of traffic.
        signals=signals_from(
            one for one in fleet.scraper.samples if one["t"] < EPOCH + world.seconds
        )[0],
        facts=facts_from({**fleet.facts, "events": events})[0],
        before=Window(EPOCH, EPOCH + onset),
        after=Window(EPOCH + onset, EPOCH + end),
    )
    return OtherCase(seed=seed, case=case, truth=truth, style=world.style, moved=moved)


def _decoy(t: float) -> Change:
    """Return a deploy that has nothing to do with anything."""

    def begin(fleet: Fleet) -> None:
        fleet.loop.at(t, fleet.say, "deploy", "billing 7.3")

    return Change(what="a deploy of something else", begin=begin)


def _names(kind: str, draw: Random) -> tuple[str, ...]:
    if kind == "pair":
        return draw.choice(PAIRS)
    table = {"fault": FAULTS, "shift": SHIFTS, "quiet": QUIET}[kind]
    return (draw.choice(list(table)),)


def _causes(
    names: Sequence[str], moved: Mapping[str, float]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the causes as triage has names for them, and others that are as right.

    More requests are a queue where they wait in one, else a larger batch where tokens take longer,
    else but a surge; a shift of the work that makes a queue may be called by the queue.
    """
    queue = moved.get("queue", 1.0) >= MOVES and moved.get("ttft_s", 1.0) >= MOVES
    if names == ("more_requests",):
        volume = ["queue_saturation", "batch_size", "traffic_surge"]
        found = volume[0 if queue else 1 if moved.get("tpot_s", 1.0) >= MOVES else 2]
        return (found,), tuple(name for name in volume if name != found)
    named = {"other_routes": "long_prompts", "one_tenant": "long_prompts"}
    full = names[0] in SHIFTS and queue
    return tuple(named.get(name, name) for name in names), ("queue_saturation",) if full else ()


def _without_each(changes: Sequence[Change]) -> list[list[Change]]:
    """Return the changes without each of them: what a change did is what is missing without it."""
    return [[*changes[:i], *changes[i + 1 :]] for i in range(len(changes))]


def _run(world: World, seed: int, changes: Sequence[Change], onset: float, end: float) -> Fleet:
    fleet = Fleet(world, seed)
    for change in changes:
        fleet.loop.at(onset, change.begin, fleet)
        if change.event:
            fleet.loop.at(onset, fleet.say, *change.event)
    fleet.loop.at(min(end, world.seconds - 1e-3), fleet.note_facts)
    for change in changes if end < world.seconds else ():
        fleet.loop.at(end, change.finish, fleet)
    fleet.run()
    return fleet


def _rows(fleet: Fleet, since: float, until: float) -> Columns:
    """Return what was recorded of the requests that began in a time, by their start."""
    recorder = Recorder(fleet.path, fleet.world.seen, Random(f"{fleet.seed} rows"))
    inside = [c for c in fleet.calls if since <= c.t < until and c.end is not None]
    made = {call.number: recorder.row(call) for call in inside}
    if not fleet.world.agents:
        return from_rows([*made.values()])
    flat = []
    for first, second, tools in fleet.turns:
        if first.number in made and (second is None or second.number in made):
            both = [made[c.number] for c in (first, second) if c is not None]
            flat += [row.as_dict() | {"nested": True} for row in both]
            flat.append(_turn(first, both, tools))
    flat.sort(key=lambda row: row["start"])
    return from_dicts(flat)


def _turn(call: Call, parts: list[Row], tools: tuple[float, float, float, int]) -> dict[str, Any]:
    """Return the row of an agent's turn: the sums of its requests, and its tools in `render`."""
    wall, serial, longest, count = tools
    rows = [row.as_dict() for row in parts]
    turn = {key: rows[0][key] for key in ("start", "service", "provider", "outcome", "trace_id")}
    turn |= {"span_id": f"{call.number:016x}", "operation": "invoke_agent", "nested": False}
    for stage in ("network", "gateway", "queue", "prefill", "first_chunk", "decode", "render"):
        known = [row[f"{stage}_s"] for row in rows if row.get(f"{stage}_s") is not None]
        if known:
            turn[f"{stage}_s"] = sum(known)
    turn["render_s"] = turn.get("render_s", 0.0) + wall
    turn["unattributed_s"] = sum(row["unattributed_s"] for row in rows)
    turn["e2e_s"] = sum(row["e2e_s"] for row in rows) + wall
    turn |= {"outcome": rows[-1]["outcome"], "stream": True, "inference_calls": len(rows)}
    for name in ("route", "tenant", "region", "version", "model"):
        if name in rows[0]:
            turn[name] = rows[0][name]
    if count:
        turn |= {
            "tool_calls": count, "tool_wall_s": wall, "tool_serial_s": serial,
            "tool_critical_path_s": longest, "tool_serial_loss_s": max(0.0, wall - longest),
        }  # fmt: skip
    return turn


def _moved(without: Fleet, fleet: Fleet, onset: float, end: float) -> dict[str, float]:
    """Return by what factor each figure of the incident differs from the same time without it."""
    was, now = (_figures(one, onset, end) for one in (without, fleet))
    if max(was["requests"], now["requests"]) < FEWEST:
        return {}
    moved = {}
    for name in was.keys() & now.keys():
        if name.startswith("share"):
            moved[name] = 1 + 5 * max(0.0, abs(now[name] - was[name]) - 0.01)
        elif min(was[name], now[name]) > 0:
            moved[name] = max(was[name] / now[name], now[name] / was[name])
    return moved


def _figures(fleet: Fleet, onset: float, end: float) -> dict[str, float]:
    """Return the p95s, the shares of what ended badly or came whole, and the count of requests."""
    rows = _rows(fleet, onset, end)
    found: dict[str, float] = {"requests": float(len(rows))}
    columns = {name: rows.numbers[name] for name in ("ttft_s", "tpot_s", "e2e_s", "tool_wall_s")}
    jobs = [call.job for call in fleet.calls if onset <= call.t < end and call.job]
    waits = [job.scheduled - job.arrived for job in jobs if job.scheduled is not None]
    columns["queue"] = np.array(waits, np.float64) + 0.001
    for name, column in columns.items():
        known = column[~np.isnan(column)]
        if len(known) >= FEWEST // 2:
            found[name] = float(np.quantile(known, 0.95))
    if len(rows):
        bad = ~rows.words["outcome"].where("success")
        found["share ended badly"] = float(bad.mean())
        found["share streamed"] = float(np.nanmean(rows.numbers["stream"]))
    return found


def chance(case: Case) -> float:
    """Return how likely what the windows of a case show would be if nothing had changed."""
    assert case.before is not None
    assert case.after is not None
    before, after = (case.rows.within(w.start, w.end) for w in (case.before, case.after))
    found = [1.0]
    for name in ("ttft_s", "tpot_s", "e2e_s", "tool_wall_s"):
        was, now = (r.numbers[name][~np.isnan(r.numbers[name])] for r in (before, after))
        if min(len(was), len(now)) >= FEWEST // 4:
            found.append(_more(now > np.quantile(was, 0.95), was > np.quantile(was, 0.95)))
            found.append(_more(now < np.quantile(was, 0.05), was < np.quantile(was, 0.05)))
    bad = [~rows.words["outcome"].where("success") for rows in (after, before)]
    whole = [rows.numbers["stream"] == 0 for rows in (after, before)]
    found += [_more(*bad), _more(*whole)]
    share = case.after.seconds / (case.before.seconds + case.after.seconds)
    n, expected = len(after), share * (len(before) + len(after))
    spread = (expected * (1 - share)) ** 0.5
    found.append(math.erfc(abs(n - expected) / (2 * max(spread, 1e-9)) / 2**0.5))
    return min(found)


def _other_work(case: Case) -> bool:
    """Return whether prompts or answers became longer or shorter by themselves."""
    assert case.before is not None
    assert case.after is not None
    sides = [case.rows.within(w.start, w.end) for w in (case.before, case.after)]
    for name in ("prompt_tokens", "output_tokens"):
        means = [float(np.nanmean(rows.numbers[name])) if len(rows) else 1.0 for rows in sides]
        if max(means) > MOVES * min(means):
            return True
    return False


def _more(now: Any, was: Any) -> float:
    """Return the chance of as large a share as now, were it as it was."""
    return more_than(int(now.sum()), len(now), int(was.sum()), len(was)) if len(now) else 1.0


def _least(found: Any) -> dict[str, float]:
    """Of several changes, keep what the one that did least has done."""
    return min(found, key=lambda moved: max(moved.values(), default=0.0))
