"""How is a real engine, and what stands before it, brought into real trouble?

`serving` puts up what a group needs. Each of `ACTS` is a context in which something is wrong; it
yields the address that the client has to use meanwhile, `None` = the usual one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from llmtrace.engines import local_vllm
from tests.bench.incident_plan import Group
from tests.real.delays import delayed_network
from tests.real.proxies import envoy, haproxy, nginx
from tests.real.record_faults import GATHERS, HOLDS, again

# Clients and proxies are on machines of their own elsewhere: here they go before the engine.
_AHEAD: Final = -10
_ROUTER: Final = "          - name: envoy.filters.http.router"
_TYPE: Final = "type.googleapis.com/envoy.extensions"
_DELAYS: Final = f"""\
          - name: envoy.filters.http.fault
            typed_config:
              "@type": {_TYPE}.filters.http.fault.v3.HTTPFault
              delay: {{fixed_delay: VALUEs, percentage: {{numerator: 60, denominator: HUNDRED}}}}
"""
_LIMITS: Final = f"""\
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": {_TYPE}.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: limit
              token_bucket: {{max_tokens: 2, tokens_per_fill: 1, fill_interval: VALUEs}}
              filter_enabled: {{default_value: {{numerator: 100, denominator: HUNDRED}}}}
              filter_enforced: {{default_value: {{numerator: 100, denominator: HUNDRED}}}}
"""


@dataclass
class Site:
    """A running engine, and the address that the client uses."""

    server: local_vllm.Server
    url: str
    flags: tuple[str, ...]
    proxy_log: Path | None = None

    @property
    def port(self) -> int:
        """The engine's port."""
        return int(self.server.url.rpartition(":")[2])

    def restart(self, flags: tuple[str, ...]) -> None:
        """Stop the engine and start it at the same address."""
        port = self.port
        self.server.stop()
        self.server, self.flags = _started(flags, port), flags

    def engine_pids(self) -> list[int]:
        """Return the processes of the engine itself, which are the API server's children."""
        return _children(self.server.pid)


def _children(parent: int) -> list[int]:
    def parent_of(entry: Path) -> int:
        try:
            return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return -1

    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(entry.name) for entry in entries if parent_of(entry) == parent]


def _started(flags: tuple[str, ...], port: int = 0) -> local_vllm.Server:
    """Start vLLM on every address of this network, since the delayed one appears later."""
    server = local_vllm.start(
        flags=flags, port=port, host="0.0.0.0", log=lambda line: print("  ", line, flush=True)
    )
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    return server


@contextlib.contextmanager
def serving(group: Group) -> Iterator[Site]:
    """Run what a group needs."""
    site = Site(_started(group.flags), "", group.flags)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)
    try:
        with contextlib.ExitStack() as stack:
            engine = site.server.url
            if group.path == "nginx":
                site.url, site.proxy_log = stack.enter_context(nginx(engine))
            elif group.path == "haproxy":
                site.url = stack.enter_context(haproxy(engine))
            elif group.path == "envoy":
                site.url = stack.enter_context(envoy(engine))
            else:
                site.url = engine
            yield site
    finally:
        site.server.stop()


# --- what goes wrong -----------------------------------------------------------------------------


@contextlib.contextmanager
def _nothing(_site: Site, _value: float) -> Iterator[None]:
    yield None


@contextlib.contextmanager
def _round_trip(site: Site, value: float) -> Iterator[str]:
    with delayed_network(value) as host:
        yield f"http://{host}:{site.port}"


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def _pauses(site: Site, value: float) -> Iterator[None]:
    """Stop the engine for so many seconds, again and again."""

    def pause() -> None:
        _send(site.engine_pids(), signal.SIGSTOP)
        time.sleep(value)
        _send(site.engine_pids(), signal.SIGCONT)

    pause()
    with again(pause, every_s=5.0):
        yield None


@contextlib.contextmanager
def _impatient(site: Site, value: float) -> Iterator[str]:
    """Put a proxy before the engine that waits for no silence as long as the engine's pauses."""
    timeout = f"proxy_read_timeout {int(value * 600)}ms;"
    with (
        nginx(site.server.url, {"proxy_read_timeout 3600s;": timeout}) as (url, _),
        _pauses(site, value),
    ):
        yield url


@contextlib.contextmanager
def _dies(site: Site, value: float) -> Iterator[None]:
    """Kill the engine after so many seconds; it stays down."""
    timer = threading.Timer(value, lambda: _send(site.engine_pids(), signal.SIGKILL))
    timer.start()
    try:
        yield None
    finally:
        timer.join()


@contextlib.contextmanager
def _restarts(site: Site, _value: float) -> Iterator[str]:
    """Restart the engine while requests come, which a proxy holds until it accepts them."""
    with haproxy(site.server.url, HOLDS) as url, ThreadPoolExecutor(1) as pool:
        done = pool.submit(site.restart, site.flags)
        try:
            yield url
        finally:
            done.result()


@contextlib.contextmanager
def _refuses(site: Site, value: float) -> Iterator[str]:
    """Refuse what is more than so many requests a second, at nginx."""
    limits = "limit_req zone=llm burst=2 nodelay; limit_req_status 429; proxy_pass "
    zone = f"limit_req_zone $binary_remote_addr zone=llm:1m rate={int(value * 60)}r/m;\nserver {{"
    with nginx(site.server.url, {"server {": zone, "proxy_pass ": limits}) as (url, _):
        yield url


@contextlib.contextmanager
def _gathers(site: Site, _value: float) -> Iterator[str]:
    """Compress and buffer streams at an nginx; Envoy's compressor was tried, and holds nothing."""
    with nginx(site.server.url, GATHERS) as (url, _):
        yield url


@contextlib.contextmanager
def _workers_die(site: Site, value: float) -> Iterator[None]:
    """Kill nginx's worker every few seconds, as a machine short of memory does."""
    assert site.proxy_log is not None
    master = int((site.proxy_log.parent / "pid").read_text())
    with again(lambda: _send(_children(master), signal.SIGKILL), every_s=value):
        yield None


def _envoy_with(text: str) -> Callable[[Site, float], contextlib.AbstractContextManager[str]]:
    def act(site: Site, value: float) -> contextlib.AbstractContextManager[str]:
        return envoy(site.server.url, {_ROUTER: text.replace("VALUE", f"{value:g}") + _ROUTER})

    return act


def _threads(pid: int) -> list[int]:
    return [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]


@contextlib.contextmanager
def _short_of_cpu(site: Site, part: str, nice: float) -> Iterator[None]:
    """Let another program compete for the core with one part of the engine; the rest is first."""
    parts = {"frontend": [site.server.pid], "engine": site.engine_pids()}
    for name, pids in parts.items():
        for thread in [thread for pid in pids for thread in _threads(pid)]:
            os.setpriority(os.PRIO_PROCESS, thread, int(nice) if name == part else _AHEAD)
    busy = subprocess.Popen(["nice", "-n", str(-_AHEAD), "sh", "-c", "while :; do :; done"])
    try:
        yield None
    finally:
        busy.kill()
        busy.wait()
        for thread in [t for pids in parts.values() for pid in pids for t in _threads(pid)]:
            os.setpriority(os.PRIO_PROCESS, thread, 0)


Act = Callable[[Site, float], contextlib.AbstractContextManager[str | None]]
ACTS: Final[Mapping[str, Act]] = {
    "": _nothing,
    "round trip": _round_trip,
    "pauses": _pauses,
    "impatient": _impatient,
    "dies": _dies,
    "restarts": _restarts,
    "refuses": _refuses,
    "workers die": _workers_die,
    "delays": _envoy_with(_DELAYS),
    "gathers": _gathers,
    "limits": _envoy_with(_LIMITS),
    "frontend cpu": lambda site, value: _short_of_cpu(site, "frontend", value),
    "engine cpu": lambda site, value: _short_of_cpu(site, "engine", value),
}
