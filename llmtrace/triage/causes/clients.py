"""Rules for causes in the client: start, pool, busy loop, rendering, tool calls, cancellations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from llmtrace.stats.arrays import Floats, Mask, finite
from llmtrace.triage.causes.scoring import against, gate, judge, proof, required, steady, support
from llmtrace.triage.evidence import format_figures as say
from llmtrace.triage.evidence.changes import HALF, MIN_COUNT, RATHER_SURE, SURE
from llmtrace.triage.evidence.client_stalls import stands_still
from llmtrace.triage.evidence.cut_streams import cut_by_deadline
from llmtrace.triage.evidence.evidence import METRICS, Evidence
from llmtrace.triage.evidence.refusals import REFUSED
from llmtrace.triage.evidence.window_rows import Side, in_progress
from llmtrace.triage.result import Finding

_LITTLE: Final = 0.25
_NEARLY_ALL: Final = 0.9  # of the requests that are alone in their client
_MOST: Final = 0.6  # of the requests with a longer set-up
_BUSIER: Final = 1.1  # ratio of requests in progress
_WORTH_SAVING: Final = 0.15  # of the tools' time
_MAX_COMPARED: Final = 500  # waits, each with all others
_SAME_END: Final = 0.02  # of a wait, by which the ends of such as end together differ
_SAME_START: Final = 0.05  # of a wait, by which their beginnings differ at least
_SAME_AGE: Final = 0.05  # of the median wait, by which times of one timer differ at most
_LOOKUPS: Final = "as many requests look names up as before, and each lookup takes longer"
_REUSED: Final = "hardly any of those that wait opens a connection: a limit does that"
_CLIENT_MADE: Final = 1.0  # relative rise of the client's own time if it is made for each request
_CLEARLY: Final = 0.2  # relative rise of a metric; clients do not leave for less


def slow_renderer(e: Evidence) -> Finding:
    """The consumer takes its time between chunks: painting, parsing, writing elsewhere.

    Looks like:
        `render` has the change; the server had finished earlier. Usually one client version or
        browser.

    Confirm:
            histogram_quantile(0.95,
              sum by (le, service) (
                rate(llmtrace_stage_duration_seconds_bucket{stage="render"}[5m])))
        In the browser: long animation frames while a response streams, and which script they name.

    Now:
        Roll back the client; or render in batches of about 50 ms instead of at every chunk.

    Later:
        Parse markdown incrementally, virtualise long responses, read streams in their own task.
    """
    own, tools = e.row("render_own_s"), e.row("tool_wall_s")
    more_tools = None if tools is None or own is None else (
        tools.mean_change > own.mean_change)  # fmt: skip
    rose = None if own is None else (
        bool(e.up("render_own_s")) or own.mean_rose(e.floor("render_s")))  # fmt: skip
    local = (e.local("client", "render_s") or e.local("version", "render_s")
             or e.local("service", "render_s"))  # fmt: skip
    decode, lag = e.row("decode_s"), e.row("client_lag_s")
    # If rendering blocks the event loop, the few responses that meet it wait as long (p95).
    held = 0.0 if own is None else own.mean_change
    late = None if lag is None or own is None else bool(e.up("client_lag_s")) and 0.5 * held <= (
        max(lag.after_p95 - lag.before_p95, 2 * lag.mean_change))  # fmt: skip
    lines = [
        gate(e.stage_rose("render"), say.durations("render", e.row("render_s")),
             "the consumer time of each request"),
        required(rose,
                 say.durations("render, tools left out", own), "the consumer's time"),
        proof(None if own is None else bool(rose) and not more_tools
              and e.stage_share("render") >= 0.5,
              f"render is {say.percent(e.stage_share('render'))} of the time added after the "
              "first chunk"),
        support(None if local is None else True, f"only {local}"),
        steady(support(None if decode is None else not e.up("decode_s"),
                       "the server was not slower: " + say.durations("decode", decode))),
        against(more_tools, say.durations("tools", tools), strongly=True),
        against(late, "the other responses waited for the client meanwhile: "
                + say.durations("received data", lag), strongly=True),
    ]  # fmt: skip
    where = f" It is {local}." if local else ""
    action = f"Fix the client: render in batches of about 50 ms, or roll it back.{where}"
    return judge("slow_renderer", lines, action, group=local)


def serial_tools(e: Evidence) -> Finding:
    """Tool calls that do not need each other's results run one after another.

    Looks like:
        A turn's tools take as long as the sum of all calls, far longer than their dependencies
        require. There are more calls per turn than before, or calls that used to overlap.

    Confirm:
        Rows of turns: `tool_serial_s` is near `tool_wall_s`, `tool_critical_path_s` far below.
        `llmtrace waterfall` of a slow turn shows them end to end.

    Now:
        Fix: run independent calls concurrently (`tool_serial_loss_s` is what that saves), with
        a timeout.

    Later:
        Prompt the model for parallel tool calls; cache tool results. Calls that use another's
        result must wait.
    """
    wall, waste = e.turn("tool_wall_s"), e.turn("tool_waste_s")
    calls, path, render = e.turn("tool_calls"), e.turn("tool_critical_path_s"), e.row("render_s")
    overlapped = (
        None if wall is None or path is None else wall.after_mean <= 1.15 * path.after_mean
    )
    more = None if waste is None else waste.rose(0.0) or waste.mean_rose(0.0)
    # Lost time is part of the tools' time; with few turns only the former may be beyond chance.
    longer = None if wall is None else wall.rose(0.0) or wall.mean_rose(0.0) or (
        bool(more) and wall.after_mean > wall.before_mean)  # fmt: skip
    part, is_most = None, False
    if wall is not None and waste is not None:
        part = waste.after_mean / max(wall.after_mean, 1e-9)
        is_most = waste.mean_change >= HALF * wall.mean_change
    lines = [
        gate(longer, say.durations("tools, a turn", wall),
             "tool times of turns (`llmtrace.tool`, `llmtrace.turn`)"),
        required(more, say.durations("waited for calls that could have overlapped", waste),
                 "`tool_wall_s` and `tool_critical_path_s` of turns"),
        proof(None if part is None else part >= _WORTH_SAVING and not overlapped and is_most,
              f"{say.percent(part or 0)} of the tools' time could be saved by overlapping"),
        support(None if calls is None else calls.mean_rose(0.0),
                say.amounts("calls a turn", calls)),
        support(bool(render) and e.stage_rose("render"), say.durations("render", render)),
        against(overlapped, "tools overlap as far as they can: one is slow itself"),
    ]  # fmt: skip
    action = "Fix: run the independent tool calls of a turn together, each with a time-out."
    return judge("serial_tools", lines, action)


def client_gate(e: Evidence) -> Finding:
    """Requests wait in the client for a connection or a semaphore before they are sent.

    Looks like:
        `client_s` or `network_client_wait_s` is up. The server sees nothing unusual, or even
        less load. One client has more concurrency than its pool allows.

    Confirm:
        Rows: `client_s` (the application's own time before the request, semaphores included)
        and `network_client_wait_s` (waiting for a connection). In the client: pool size (httpx:
        100 connections by default, 20 kept alive), semaphores, thread pools.

    Now:
        Raise the client's pool or semaphore, or rebalance work over more clients. The server is
        fine.

    Later:
        Record when work was meant to start, to make waiting in the client visible. Cap
        concurrency at the engine's limit, not below.
    """
    wait, whole = e.row("client_delay_s"), e.row("network_and_client_s")
    local = e.local("client", "client_delay_s") or e.local("service", "client_delay_s")
    running = e.gauge("running")
    share = e.part_of_metric("network_and_client_s")  # `network` has no semaphore's wait
    stalls, any_time = stands_still(e), _waits_under_load(e, "client_delay_s") is False
    by_limit = not (stalls or any_time)
    part = None
    if wait is not None and whole is not None:
        part = wait.mean_change / max(whole.mean_change, 1e-9)
    lines = [
        gate(e.stage_rose("network", "unattributed"), say.durations("network and client", whole),
             "network hooks of the client"),
        required(None if wait is None else bool(e.up("client_delay_s"))
                 or wait.mean_rose(e.floor("client_delay_s")),
                 say.durations("wait in the client", wait),
                 "`client_s` and `network_client_wait_s` (HTTP client hooks)"),
        proof(None if part is None else part >= 0.5 and by_limit,
              f"it is {say.percent(min(part or 0, 1))} of what network and client grew by"),
        steady(support(None if running is None else not running.rose(0.0, 0.2),
                       "the engines are not busier: " + say.gauge("running", running))),
        support(None if local is None else True, f"only {local}"),
        against(stalls, _LOOP_STALLS, strongly=True),
        against((_client_part(e) or 0.0) >= HALF,
                "received data is read as late: the client itself is busy", strongly=True),
        against(_clients_start_per_request(e, 0.0 if wait is None else wait.before_p95),
                "requests that wait open a connection, as none did before: it is not the pool",
                strongly=True),
        against(any_time, "requests that wait do not come while more are in progress",
                strongly=True),
        against(None if part is None else part < 0.2,
                f"it is only {say.percent(max(part or 0, 0))} of what network and client grew by"),
        against((e.stage_share("network") if share is None else share) < 0.4,
                "everything else got slower too: connections are in use for longer",
                strongly=True),
    ]  # fmt: skip
    action = "Fix the client: raise its pool or semaphore. It is not the server."
    return judge("client_gate", lines, action, group=local)


def client_cold(e: Evidence) -> Finding:
    """The first requests of a client's process wait for imports, connection pools and TLS.

    Looks like:
        The time before a request is on a connection is up, for the first requests after a
        deploy or scaling, and normal a little later. It stays up if each request creates its
        own client. Engines are unchanged.

    Confirm:
            histogram_quantile(0.95,
              sum by (le, version) (
                rate(llmtrace_stage_duration_seconds_bucket{stage="network"}[5m])))
        Rows: compare `client_s`, `network_client_wait_s`, `network_connect_s` and
        `network_tls_s` of each process's first requests with later ones.

    Now:
        Wait, if it was one rollout; if processes start all day (serverless), keep some warm.

    Later:
        Import and create the client when the process starts, send one request before it is
        ready, and keep connections alive for longer than the pauses between requests.
    """
    setup, pool = e.row("client_setup_s"), e.row("network_client_wait_s")
    floor, versions = e.floor("network_s"), e.new_values("version")
    new = [f"version {name} is new" for name in versions]
    new += [one.text for one in e.events("deploy", "scale", "restart")]
    grown, waits = (0.0 if one is None else one.mean_change for one in (setup, pool))
    part = max(1 - waits / grown, 0.0) if grown > 0 else 0.0  # without waiting for the pool
    usual = np.inf if setup is None else max(setup.before_p95, floor)
    fades, anew = _fades(e.after, versions, usual), _clients_start_per_request(e, usual)
    any_time = setup is not None and _waits_under_load(e, "client_setup_s") is False
    some, starts = _some_start(e, usual) if anew else (False, False)
    each = fades is False and not anew and _waiters_open_connections(e, usual)
    lines = [
        gate(e.stage_rose("network", "unattributed"),
             say.durations("before a request is on a connection", setup),
             "`client_s` and the network's phases (HTTP client hooks)"),
        required(None if setup is None else setup.rose(floor) or setup.mean_rose(floor),
                 say.durations("imports, pools, DNS, TCP and TLS", setup),
                 "`client_s` and the network's phases (HTTP client hooks)"),
        *([gate(holds=False, text=_LOOKUPS)] if _lookups_slower(e, floor) else []),
        *([gate(holds=False, text=_REUSED)] if _waiters_reuse_connections(e, usual) else []),
        required(True if new or starts else None,
                 f"clients started: {'; '.join(new[:2]) or 'requests import and connect anew'}",
                 "the rows' `version`, or an event for each deployment of a client"),
        proof((new and fades) or some if new or starts else None,
              "those are requests that open a connection" if anew
              else "those are the first requests; later ones are as before"),
        support(any_time and bool(new), "they wait at any time, however many are in progress"),
        # A searched window may not show that a start fades; but a small pool sets nothing up.
        against(None if fades is None or any_time else
                not (fades or anew) and (_shows_its_end(e, grown) or part < _LITTLE),
                "the wait lasts, so it is not due to a start", strongly=True),
        against(each, "each opens a connection, for as long as it lasts: none is kept alive",
                strongly=True),
        against(fades is None and part < _LITTLE, "nothing is set up: they wait for a connection"),
        against(not (fades or anew) and stands_still(e), _LOOP_STALLS, strongly=True),
    ]  # fmt: skip
    action = "Start clients warm: import and connect before a process takes requests."
    return judge("client_cold", lines, action)


def _shows_its_end(e: Evidence, grown: float) -> bool:
    """Return whether the window shows whether a start is over: a searched one may end before.

    In a given one, the client's own time or its pool has to be most of what the set-up grew by.
    """
    delay = e.row("client_delay_s")
    mostly = delay is not None and delay.mean_change >= HALF * grown
    return e.ongoing or (mostly and not e.searched)


def _clients_start_per_request(e: Evidence, usual: float) -> bool:
    """Return whether a client is made for each request: slow ones import and open a connection.

    If connections are merely not kept alive, or the pool is too small, nothing is imported. Slow
    are those that wait longer than `usual`, or longer than nearly all requests waited before.
    """
    setup, own, wait = (e.row(f"client_{name}") for name in ("setup_s", "s", "delay_s"))
    busy = (_client_part(e) or 0.0) >= _LITTLE  # a busy client is slow at everything
    bars = {usual, usual if wait is None or busy else wait.before_p95}
    every = wait is not None and (e.after.number("client_delay_s") > wait.before_p95).all()
    opened = e.share("opened", lambda side: side.number("network_connect_s") > 0)
    if setup is None or own is None or _let_in_together(e, usual):
        return False
    if not (every and opened.rose(_LITTLE)) and not any(
        _waiters_open_connections(e, bar) for bar in bars
    ):
        return False
    return own.mean_change >= HALF * setup.mean_change or _client_is_made(e)


def _let_in_together(e: Evidence, usual: float) -> bool:
    """Return whether waits in the client mostly end together, having begun at different times.

    A limit lets several in at once, as when a permit times out; each start takes its own time.
    """
    wait = e.after.number("client_s")
    slow = np.flatnonzero(wait > usual)[:_MAX_COMPARED]
    began, wait = e.after.t[slow], wait[slow]
    ends = began + wait
    apart, together = (np.abs(np.subtract.outer(one, one)) for one in (began, ends))
    alike = together <= _SAME_END * wait
    alike &= (apart > _SAME_START * wait) & (apart > together)
    return len(wait) >= MIN_COUNT and bool(alike.any(axis=1).mean() >= _MOST)


def _some_start(e: Evidence, usual: float) -> tuple[bool, bool]:
    """Return whether some requests start a client and others do not, and whether any do."""
    some = not (e.after.number("client_setup_s") > usual).all()
    return some, some or _client_is_made(e)


def _client_is_made(e: Evidence) -> bool:
    """Return whether the client's own time has multiplied, as making a client does."""
    own = e.row("client_s")
    return own is not None and own.rose(0.0, _CLIENT_MADE)


def _lookups_slower(e: Evidence, floor: float) -> bool:
    """Return whether slower name lookups make most of the longer set-up, at as many lookups.

    A process that starts looks names up that others have looked up already; a slow name server
    delays the lookups that there always were.
    """
    looked_up = e.share("looked up", _looks_up)
    each = e.row_among("network_dns_s", "looked up", _looks_up)
    dns, setup = e.row("network_dns_s"), e.row("client_setup_s")
    if each is None or dns is None or setup is None or looked_up.rose(_LITTLE):
        return False
    slower = each.rose(floor) or each.mean_rose(floor)
    return slower and dns.mean_change >= HALF * setup.mean_change


def _looks_up(side: Side) -> Mask:
    found: Mask = side.number("network_dns_s") > 0
    return found


def _waiters_reuse_connections(e: Evidence, usual: float) -> bool:
    """Return whether most requests with a longer set-up had a connection, so no process is new."""
    slow = e.after.number("client_setup_s") > usual
    connects = e.after.number("network_connect_s") + e.after.number("network_tls_s")
    connects = connects[slow & np.isfinite(connects)]
    return len(connects) >= MIN_COUNT and bool((connects > 0).mean() <= _LITTLE)


def _waiters_open_connections(e: Evidence, usual: float) -> bool:
    """Return whether most requests with a longer set-up open a connection, and few others do.

    Requests that wait for a pool get a connection that is open already.
    """
    opened, slow = (
        e.after.number("network_connect_s") > 0,
        e.after.number("client_setup_s") > usual,
    )
    others = e.before.number("network_connect_s") > 0 if slow.all() else opened[~slow]
    if min(slow.sum(), len(others)) < MIN_COUNT:
        return False
    return bool(opened[slow].mean() >= _MOST and others.mean() <= _LITTLE)


def _waits_under_load(e: Evidence, name: str) -> bool | None:
    """Return whether requests wait in the client when more of its requests are in progress.

    A limit makes them wait only then; a process that starts, at any time. If nearly all wait,
    those past that wait (`name`) show how many the limit lets through, and those that are alone
    that there is none. `None` = too few wait, or all do.
    """
    if _works_alone(e):
        return False
    wait, usual = e.after.number(name), e.row(name)
    slow = wait > (np.inf if usual is None else max(usual.before_p95, e.floor("network_s")))
    for past in (None, name):
        busy = in_progress(e.after, "client", past)
        known = np.isfinite(wait) & np.isfinite(busy)
        waited, others = busy[known & slow], busy[known & ~slow]
        if min(len(waited), len(others)) < MIN_COUNT:
            return None
        if waited.mean() >= _BUSIER * others.mean():
            return True
    return False


def _works_alone(e: Evidence) -> bool:
    """Return whether requests that are alone in their client spend longer in it: on work.

    That has to be most of the longer set-up: a pool may be full of connections that are in no row.
    """
    own, setup, spent = e.row("client_s"), e.row("client_setup_s"), e.after.number("client_s")
    if own is None or setup is None or e.after.rows.weights.max(initial=1.0) > 1:
        return False
    if own.mean_change < HALF * setup.mean_change:
        return False
    alone = (spent > own.before_p95)[in_progress(e.after, "client") <= 1]
    return len(alone) >= MIN_COUNT and bool(alone.mean() >= _NEARLY_ALL)


def _fades(side: Side, versions: Sequence[str], usual: float) -> bool | None:
    """Return whether slow set-ups are those of the first requests; `None` = too few are slow."""
    value = side.number("client_setup_s")
    mine = np.isfinite(value)
    if versions:
        mine &= side.where("version", *versions)
    slow = (value > usual)[mine][np.argsort(side.t[mine], kind="stable")]
    if slow.sum() < MIN_COUNT:
        return None
    half = len(slow) // 2
    return bool(slow[half:].mean() <= _LITTLE * slow[:half].mean())


def busy_client(e: Evidence) -> Finding:
    """The client is too busy to read what has arrived: a starved event loop, a full machine.

    Looks like:
        Data had been on the client's machine for a while before it was read (`client_lag_s`).
        That time is in whichever stage it fell into. Engines report nothing unusual.

    Confirm:
        Rows: `client_lag_s`, a lower bound from the kernel's socket times. In the client: an
        event loop's slow callbacks (asyncio's debug mode names them), CPU throttling of its
        container, many milliseconds of work between two awaits.

    Now:
        Move the work off the event loop (to a thread or a process), or give the client more
        CPU. The server is fine.

    Later:
        Alert on the loop's lag; keep parsing, templating and model code out of the loop.
    """
    lag, wait = e.row("client_lag_s"), e.row("client_delay_s")
    local = (e.local("client", "client_lag_s") or e.local("service", "client_lag_s")
             or e.local("version", "client_lag_s"))  # fmt: skip
    part = _client_part(e)
    text = f"it is {say.percent(min(max(part or 0, 0), 1))} of what the wait grew by"
    felt, stalls = part is not None and part >= 0.25, stands_still(e)
    running = e.gauge("running")
    # A loop that is blocked now and then delays few requests, but for long: use the mean.
    # If it is most of what the wait grew by, less certainty will do.
    late = None if lag is None else (
        bool(e.up("client_lag_s")) or lag.mean_rose(e.floor("client_lag_s"))
        or (part is not None and part >= HALF and lag.mean_z >= RATHER_SURE
            and lag.is_higher(e.floor("client_lag_s"))))  # fmt: skip
    lines = [
        gate(stalls or late, say.durations("received data waited for the client", lag)
             if late or not stalls else say.durations("wait in the client", wait),
             "`client_lag_s` of rows (Linux; HTTP libraries whose sockets can be seen)"),
        required(felt or (stalls and lag is None) or None, text if felt else _LOOP_STALLS),
        proof(None if part is None else part >= 0.5, text),
        # If the engine is slow, clients read a little late as well.
        against(None if part is None else part < 0.25, text),
        support(None if local is None else True, f"only {local}"),
        steady(support(None if running is None else not running.rose(0.0, 0.2),
                       "the engines are not busier: " + say.gauge("running", running))),
    ]  # fmt: skip
    where = f" It is {local}." if local else ""
    action = f"Free the client's event loop, or give it more CPU. It is not the server.{where}"
    return judge("busy_client", lines, action, group=local)


_LOOP_STALLS: Final = (
    "requests wait in the client, and what is received meanwhile is read late as well"
)


def _client_part(e: Evidence) -> float | None:
    """Return the client's share of the growth of a response's waits, by means; `None` = unknown.

    Its share is time for which data had arrived, unread or held before the first chunk, its wait
    before sending if it stood still then or reads as late, and rendering that others wait for. Or
    of the wait for the first chunk alone, if that share is larger.
    """
    lag, held, wait = e.row("client_lag_s"), e.row("held_before_s"), e.row("client_delay_s")
    first, per_token = e.row("ttft_s"), e.row("wait_per_token_s")
    if lag is None or first is None:
        return None
    to_first = max(first.mean_change, 0.0)
    grown = to_first
    if per_token is not None:  # scaled by the mean length, as response lengths vary
        tokens = e.after.number("output_tokens")
        grown += max(per_token.mean_change * float(np.nanmean(tokens)), 0.0)
    kept = 0.0 if held is None else max(held.mean_change, 0.0)
    read_as_late = bool(e.up("client_lag_s")) and (
        wait is not None and lag.after_p95 >= HALF * wait.after_p95)  # fmt: skip
    if wait is not None and (stands_still(e) or read_as_late):
        kept += max(wait.mean_change, 0.0)
    render = e.row("render_s")
    own = 0.0 if render is None or not e.up("client_lag_s") else max(render.mean_change, 0.0)
    part = (lag.mean_change + kept + own) / max(grown + own, 1e-9)
    unread = e.row("unread_s")
    if unread is None or not e.up("ttft_s"):
        return part
    return max(part, (unread.mean_change + kept) / max(to_first, 1e-9))


def client_give_ups(e: Evidence) -> Finding:
    """Clients cancel more of their requests before the response is complete.

    Looks like:
        The share of outcome `cancelled` rises, or of `timeout` after no longer than responses
        usually take (a shortened deadline). The other requests look *better*: the longest waits
        are missing from the percentiles, and vLLM does not count them. If timeouts come after
        longer than nearly all responses used to take, the server hangs instead.

    Confirm:
            sum by (outcome) (rate(llmtrace_requests_total[5m]))
            1 - sum(rate(llmtrace_engine_e2e_seconds_count[5m]))
              / sum(rate(llmtrace_engine_ttft_seconds_count[5m]))

    Now:
        Find the stage in which clients cancelled, and fix its cause. Until then, read the p95
        together with the share of cancelled requests.

    Later:
        Count cancelled requests in the objective. Cancel upstream too, so that engines do not
        finish responses without a consumer.
    """
    whole, left = e.row("e2e_s"), partial(_gave_up, e)
    gone = e.share("gave up", left)
    waited_b, waited = (_median(side.number("e2e_s")[left(side)]) for side in (e.before, e.after))
    typical = None if whole is None else whole.before_p50
    fewer = None if whole is None else whole.after_p95 <= whole.before_p95
    early = e.share("gave up early", lambda side: left(side) & ~np.isfinite(side.number("ttft_s")))
    cancelled = int(e.after.where("outcome", "cancelled").sum())
    lines = [
        # All after the same time: that is a setting, so less certainty will do.
        required(gone.rose(0.01, 5, RATHER_SURE if _left_at_one_age(e.after, left) else SURE),
                 f"ended by the client: {gone}: {cancelled:,} cancelled, "
                 f"{gone.after_k - cancelled:,} by a deadline shorter than usual responses"),
        proof(gone.after >= 0.03 and gone.after >= 2 * gone.before + 0.02,
              f"ended by the client {say.percent(gone.before)} → {say.percent(gone.after)}"),
        support(None if waited is None or typical is None else waited <= typical,
                f"they ended after {say.seconds(waited or 0)} (median; before: "
                f"{say.seconds(waited_b) if waited_b is not None else 'none'})"),
        support(fewer, "the other requests look better: " + say.durations("end to end", whole)),
        support(early.rose(0.005, 3), f"before the first chunk: {early}"),
    ]  # fmt: skip
    action = (
        "Fix the stage they waited for; until then read p95 together with the share of "
        "cancellations."
    )
    return judge("client_give_ups", lines, action)


def _left_at_one_age(side: Side, left: Callable[[Side], Mask]) -> bool:
    """Return whether all requests that clients gave up had waited for the same time."""
    waited = side.number("e2e_s")[left(side)]
    return bool(len(waited) and np.ptp(waited) <= _SAME_AGE * np.median(waited))


def _gave_up(e: Evidence, side: Side) -> Mask:
    """Return which requests clients cancelled, or gave less time than responses usually take."""
    whole = e.row("e2e_s")
    deadline = math.inf if whole is None or cut_by_deadline(e) else whole.before_p95
    own = side.where("outcome", "timeout") & ~(side.number("http_status") >= REFUSED)
    return side.where("outcome", "cancelled") | (own & ~(side.number("e2e_s") > deadline))


def could_be_slowness(e: Evidence) -> bool:
    """Return whether clients may leave because they wait longer than before.

    Either those that stay wait longer, too, or those that left waited for longer than a first
    chunk nearly always took.
    """
    if any(e.up(name, _CLEARLY) for name in METRICS):
        return True
    waited, first = _median(e.after.number("e2e_s")[_gave_up(e, e.after)]), e.row("ttft_s")
    return waited is None or first is None or waited > first.before_p95


def _median(values: Floats) -> float | None:
    known = finite(values)
    return float(np.median(known)) if len(known) else None
