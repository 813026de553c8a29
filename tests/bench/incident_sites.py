"""How is a real engine, and what stands before it, brought into real trouble?

`serving` puts up what a group needs. Each of `ACTS` is a context in which something is wrong; it
yields the address that the client has to use meanwhile, `None` = the usual one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from llmtrace.engines import local_vllm
from llmtrace.engines.local_vllm.install import cache_folder
from tests.bench.incident_plan import Group
from tests.real.delays import DelayProxy, delayed_network, self_signed
from tests.real.emulator import DEVICE
from tests.real.proxies import envoy, haproxy, nginx
from tests.real.record_faults import GATHERS, HOLDS, again
from tests.support.free_ports import free_port

# Clients and proxies are on machines of their own elsewhere: here they go before the engine.
_AHEAD: Final = -10
_GROUPS: Final = Path("/sys/fs/cgroup/cpu")
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
_DENIES: Final = """\
stick-table type ip size 16 expire 10s store http_req_rate(2s)
  http-request deny deny_status 429 if { src_http_req_rate(llm) ge VALUE }
  http-request track-sc0 src
  default_backend"""
_TOKENS: Final = """\
stick-table type ip size 16 expire 20s store bytes_in_rate(10s)
  http-request deny deny_status 429 hdr retry-after 1 if { src_bytes_in_rate(llm) ge VALUE }
  http-request track-sc0 src
  default_backend"""
_READS: Final = f"""\
          - name: envoy.filters.http.lua
            typed_config:
              "@type": {_TYPE}.filters.http.lua.v3.Lua
              default_source_code:
                inline_string: "function envoy_on_response(handle) handle:body() end"
"""
_SOON_S: Final = 6.0
# Run by vLLM's Python: the model's folder, then those of the adapters.
_ADAPTERS: Final = """
import json, sys, pathlib, torch
from safetensors.torch import save_file
model = json.loads((pathlib.Path(sys.argv[1]) / "config.json").read_text())
wide, parts = model["hidden_size"], ["q_proj", "o_proj"]
for seed, place in enumerate(map(pathlib.Path, sys.argv[2:])):
    torch.manual_seed(seed)
    place.mkdir(parents=True, exist_ok=True)
    weights = {}
    for layer in range(model["num_hidden_layers"]):
        for part in parts:
            at = f"base_model.model.model.layers.{layer}.self_attn.{part}.lora_"
            weights[at + "A.weight"] = torch.randn(8, wide) / 100
            weights[at + "B.weight"] = torch.randn(wide, 8) / 100
    save_file(weights, place / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16,
            "target_modules": parts, "bias": "none", "base_model_name_or_path": sys.argv[1]}
    (place / "adapter_config.json").write_text(json.dumps(said))
"""


@dataclass
class Site:
    """A running engine, and the address that the client uses."""

    server: local_vllm.Server
    url: str
    flags: tuple[str, ...]
    proxy_log: Path | None = None
    second: local_vllm.Server | None = None

    @property
    def servers(self) -> list[local_vllm.Server]:
        """Every engine that runs."""
        return [self.server] if self.second is None else [self.server, self.second]

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


@contextlib.contextmanager
def _meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Do something in a thread of its own, and wait until it is done."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(act)
        try:
            yield
        finally:
            done.result()


def _children(parent: int) -> list[int]:
    def parent_of(entry: Path) -> int:
        try:
            return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return -1

    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [int(entry.name) for entry in entries if parent_of(entry) == parent]


@contextlib.contextmanager
def _quota(pids: Sequence[int], share: float, period_us: int = 20000) -> Iterator[None]:
    """Give processes no more than a share of a core (control groups, version 1)."""
    group = _GROUPS / f"llmtrace-{pids[0]}"
    group.mkdir()
    (group / "cpu.cfs_period_us").write_text(str(period_us))
    (group / "cpu.cfs_quota_us").write_text(str(max(int(period_us * share), 1000)))
    try:
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (_GROUPS / "cgroup.procs").write_text(pid)
        group.rmdir()


def _below(parent: int) -> list[int]:
    """Return a process's children and theirs: the engine core, and what computes for it."""
    return [pid for child in _children(parent) for pid in (child, *_below(child))]


def _started(flags: tuple[str, ...], port: int = 0) -> local_vllm.Server:
    """Start vLLM on every address of this network, since the delayed one appears later."""
    server = local_vllm.start(
        flags=flags, port=port, host="0.0.0.0", env={"VLLM_SERVER_DEV_MODE": "1"},
        log=lambda line: print("  ", line, flush=True),
    )  # fmt: skip
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    return server


def _with_adapters(names: Sequence[str]) -> tuple[str, ...]:
    """Make small random adapters of the tiny model, and return the flags that serve them."""
    if not names:
        return ()
    python, folder = local_vllm.find_python(), cache_folder()
    assert python is not None
    model = local_vllm.make_tiny_model(python, folder / "tiny-llama-256-4")
    places = [folder / "adapters" / name for name in names]
    subprocess.run([python, "-c", _ADAPTERS, model, *places], check=True)
    served = (f"{name}={place}" for name, place in zip(names, places, strict=True))
    return ("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8", "--lora-modules", *served)


@contextlib.contextmanager
def serving(group: Group) -> Iterator[Site]:
    """Run what a group needs."""
    flags = (*group.flags, *_with_adapters(group.adapters))
    site = Site(_started(flags), "", flags)
    if group.replicas == 2:
        site.second = _started(flags)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)
    try:
        with contextlib.ExitStack() as stack:
            engine = site.server.url
            if group.quota is not None:
                for server in site.servers:
                    stack.enter_context(_quota(_below(server.pid), group.quota))
            if group.path == "nginx":
                site.url, site.proxy_log = stack.enter_context(nginx(engine))
            elif group.path == "limited":
                site.url = stack.enter_context(_limited(engine))
            elif group.path == "tls":
                site.url = stack.enter_context(_far_and_secret(engine))
            elif group.path == "cache":
                site.url, site.proxy_log = stack.enter_context(_caching(engine))
            elif group.path == "haproxy":
                site.url = stack.enter_context(haproxy(engine, _shared_out(site)))
            elif group.path == "envoy":
                site.url = stack.enter_context(envoy(engine))
            else:
                site.url = engine
            yield site
    finally:
        for server in site.servers:
            server.stop()


@contextlib.contextmanager
def _limited(engine: str, rate: int = 4) -> Iterator[str]:
    """Run an nginx that answers 429 to what is more than so many requests a second."""
    zone = f"limit_req_zone $binary_remote_addr zone=key:1m rate={rate}r/s;\nserver {{"
    limits = "limit_req zone=key burst=8 nodelay; limit_req_status 429; proxy_pass "
    with nginx(engine, {"server {": zone, "proxy_pass ": limits}) as (url, _):
        yield url


@contextlib.contextmanager
def _far_and_secret(engine: str, rtt_s: float = 0.024) -> Iterator[str]:
    """Run an nginx that speaks TLS, to which a round trip takes a while."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="llmtrace-tls-") as name:
        self_signed(Path(name))
        speaks = (
            f"server {{\nlisten 0.0.0.0:{port} ssl; ssl_certificate {name}/certificate.pem; "
            f"ssl_certificate_key {name}/key.pem;"
        )
        with nginx(engine, {"server {": speaks}), delayed_network(rtt_s) as host:
            yield f"https://{host}:{port}"


@contextlib.contextmanager
def _caching(
    engine: str, key: str = "$request_body", valid: str = "1h"
) -> Iterator[tuple[str, Path]]:
    """Run an nginx that keeps responses by a key for a time; yield its URL and access log."""
    with tempfile.TemporaryDirectory(prefix="llmtrace-answers-") as name:
        Path(name).chmod(0o755)  # nginx's workers are another user where it runs as root
        kept = f"proxy_cache_path {name}/answers keys_zone=answers:4m;\nserver {{"
        stores = (
            f'proxy_buffering on; proxy_cache answers; proxy_cache_key "{key}"; '
            f"proxy_cache_methods POST; proxy_cache_valid 200 {valid}; "
            "client_body_buffer_size 64k; "
            'add_header Server-Timing "cache;desc=$upstream_cache_status" always;'
        )
        with nginx(engine, {"server {": kept, "proxy_buffering off;": stores}) as running:
            yield running


def _shared_out(site: Site, *weights: int) -> dict[str, str]:
    """Return what HAProxy's configuration says of several engines: equal shares, or by weight."""
    if site.second is None:
        return {}
    places = [server.url.rpartition("/")[2] for server in site.servers]
    lines = [
        f"server engine{number} {place} maxconn 64 weight {weight}"
        for number, (place, weight) in enumerate(zip(places, weights or (1, 1), strict=True))
    ]
    return {f"server engine {places[0]} maxconn 64": "\n  ".join(lines)}


# --- what goes wrong -----------------------------------------------------------------------------


@contextlib.contextmanager
def _nothing(_site: Site, _value: float) -> Iterator[None]:
    yield None


@contextlib.contextmanager
def _round_trip(site: Site, value: float) -> Iterator[str]:
    with delayed_network(value) as host:
        yield f"http://{host}:{site.port}"


@contextlib.contextmanager
def _far(site: Site, value: float) -> Iterator[str]:
    """Take the client, and it alone, away from an Envoy that stands by the engine."""
    ahead = "listeners:\n  - address: {socket_address: {address: "
    everywhere = {f"{ahead}127.0.0.1": f"{ahead}0.0.0.0"}
    with envoy(site.server.url, everywhere) as url, delayed_network(value) as host:
        yield f"http://{host}:{url.rpartition(':')[2]}"


@contextlib.contextmanager
def _cuts_off(site: Site, value: float) -> Iterator[str]:
    """Let an Envoy end every response after so many seconds, as its routes do by default."""
    with envoy(site.server.url, {"timeout: 0s": f"timeout: {value:g}s"}) as url:
        yield url


@contextlib.contextmanager
def _leans(site: Site, value: float) -> Iterator[str]:
    """Send so many requests to the first engine for one that goes to the second."""
    with haproxy(site.server.url, _shared_out(site, int(value), 1)) as url:
        yield url


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _pause(site: Site, seconds: float) -> None:
    _send(site.engine_pids(), signal.SIGSTOP)
    time.sleep(seconds)
    _send(site.engine_pids(), signal.SIGCONT)


@contextlib.contextmanager
def _pauses(site: Site, value: float) -> Iterator[None]:
    """Stop the engine for so many seconds, again and again."""
    _pause(site, value)
    with again(lambda: _pause(site, value), every_s=5.0):
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
    with haproxy(site.server.url, HOLDS) as url, _meanwhile(lambda: site.restart(site.flags)):
        yield url


@contextlib.contextmanager
def _refuses(site: Site, value: float) -> Iterator[str]:
    """Refuse what is more than so many requests a second, at nginx."""
    limits = "limit_req zone=llm burst=2 nodelay; limit_req_status 429; proxy_pass "
    zone = f"limit_req_zone $binary_remote_addr zone=llm:1m rate={int(value * 60)}r/m;\nserver {{"
    with nginx(site.server.url, {"server {": zone, "proxy_pass ": limits}) as (url, _):
        yield url


@contextlib.contextmanager
def _misses(site: Site, _value: float) -> Iterator[str]:
    """Let the key of kept responses hold the time, so that none is found again."""
    with _caching(site.server.url, "$msec $request_body") as (url, _):
        yield url


@contextlib.contextmanager
def _asks_first(site: Site, value: float) -> Iterator[str]:
    """Let an nginx ask another service, which takes so many seconds, whether it may pass."""
    with DelayProxy(site.server.url, request_s=value) as slow:
        asked = (
            f"location = /may {{ internal; proxy_pass {slow.url}/health; "
            'proxy_pass_request_body off; proxy_set_header Content-Length ""; }\n'
            "    location / {\n        auth_request /may;"
        )
        with nginx(site.server.url, {"location / {": asked}) as (url, _):
            yield url


@contextlib.contextmanager
def _loses_patience(site: Site, value: float) -> Iterator[str]:
    """Put a HAProxy in between that takes no silence of so many seconds.

    nginx does not renew a timer of less than 300 ms: it ends what is that old.
    """
    waits = {"timeout server 1h": f"timeout server {int(value * 1000)}ms"}
    with haproxy(site.server.url, waits) as url:
        yield url


@contextlib.contextmanager
def _reloads(site: Site, value: float) -> Iterator[None]:
    """Let nginx read its configuration again after so many seconds; nothing has changed in it."""
    assert site.proxy_log is not None
    master = int((site.proxy_log.parent / "pid").read_text())
    timer = threading.Timer(value, lambda: _send([master], signal.SIGHUP))
    timer.start()
    try:
        yield None
    finally:
        timer.join()


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


@contextlib.contextmanager
def _expires(site: Site, value: float) -> Iterator[str]:
    """Keep responses for so many seconds only."""
    with _caching(site.server.url, valid=f"{int(value)}s") as (url, _):
        yield url


def _freezing(every_s: float) -> Callable[[Site, float], contextlib.AbstractContextManager[None]]:
    """Stop the engine and its API server for so many seconds, as a moved machine does."""

    @contextlib.contextmanager
    def act(site: Site, value: float) -> Iterator[None]:
        def freeze() -> None:
            pids = [site.server.pid, *site.engine_pids()]
            _send(pids, signal.SIGSTOP)
            time.sleep(value)
            _send(pids, signal.SIGCONT)

        with again(freeze, every_s=every_s):
            yield None

    return act


@contextlib.contextmanager
def _crashes(site: Site, value: float) -> Iterator[None]:
    """Kill the engine after so many seconds; 4 s later a supervisor starts it again."""

    def crash() -> None:
        time.sleep(value)
        _send(site.engine_pids(), signal.SIGKILL)
        time.sleep(4.0)
        site.restart(site.flags)

    with _meanwhile(crash):
        yield None


@contextlib.contextmanager
def _drops_old(site: Site, value: float) -> Iterator[None]:
    """Let nginx read its configuration every few seconds; old workers wait 20 ms for streams."""
    assert site.proxy_log is not None
    folder = site.proxy_log.parent
    file, master = folder / "nginx.conf", int((folder / "pid").read_text())
    was = file.read_text()
    file.write_text(f"worker_shutdown_timeout 20ms;\n{was}")
    with again(lambda: _send([master], signal.SIGHUP), every_s=value):
        yield None
    file.write_text(was)


@contextlib.contextmanager
def _breaks(site: Site, value: float) -> Iterator[str]:
    """Answer 500, at an nginx, to so many percent of requests, as a broken pod behind it does."""
    draws = f'split_clients "$msec$connection" $broken {{ {value:g}% 1; * 0; }}\nserver {{'
    answers = {"server {": draws, "location / {": "location / { if ($broken) { return 500; }"}
    with nginx(site.server.url, answers) as (url, _):
        yield url


@contextlib.contextmanager
def _few_at_once(site: Site, value: float) -> Iterator[str]:
    """Answer 429, at an nginx, to what is more than so many requests at once."""
    limits = f"limit_conn open {int(value)}; limit_conn_status 429; proxy_pass "
    zone = "limit_conn_zone $binary_remote_addr zone=open:1m;\nserver {"
    with nginx(site.server.url, {"server {": zone, "proxy_pass ": limits}) as (url, _):
        yield url


@contextlib.contextmanager
def _looks_in(site: Site, value: float) -> Iterator[str]:
    """Let a HAProxy look at the first 3,000 bytes of a response, or wait so many seconds."""
    looks = f"http-response wait-for-body time {int(value * 1000)}ms at-least 3000\n  "
    with haproxy(site.server.url, {"default_backend": f"{looks}default_backend"}) as url:
        yield url


@contextlib.contextmanager
def _one_by_one(site: Site, value: float) -> Iterator[str]:
    """Let a HAProxy send so many requests at once to the engine; the others wait in it."""
    with haproxy(site.server.url, {"maxconn 64": f"maxconn {int(value)}"}) as url:
        yield url


@contextlib.contextmanager
def _envoy_idles(site: Site, value: float) -> Iterator[str]:
    """Let an Envoy end what is silent for so many seconds."""
    idle = {"stream_idle_timeout: 3600s": f"stream_idle_timeout: {value:g}s"}
    with envoy(site.server.url, idle) as url:
        yield url


@contextlib.contextmanager
def _lossy(site: Site, value: float) -> Iterator[str]:
    """Lose a share of the packets between the client and an Envoy, 16 ms there and back."""
    ahead = "listeners:\n  - address: {socket_address: {address: "
    everywhere = {f"{ahead}127.0.0.1": f"{ahead}0.0.0.0"}
    with (
        envoy(site.server.url, everywhere) as url,
        delayed_network(0.016, lost=value) as host,
    ):
        yield f"http://{host}:{url.rpartition(':')[2]}"


@contextlib.contextmanager
def _updates_weights(site: Site, value: float) -> Iterator[None]:
    """Let vLLM itself hold all requests for so many seconds, as for new weights."""

    def tell(what: str) -> None:
        request = urllib.request.Request(f"{site.server.url}/{what}", method="POST")
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10):
            pass

    def update() -> None:
        tell("pause?mode=keep")
        time.sleep(value)
        tell("resume")

    with again(update, every_s=8.0):
        yield None


@contextlib.contextmanager
def _far_address(site: Site, value: float) -> Iterator[str]:
    """Let every second request, by chance, go to an address to which a round trip takes longer."""
    ahead = "listeners:\n  - address: {socket_address: {address: "
    everywhere = {f"{ahead}127.0.0.1": f"{ahead}0.0.0.0"}
    with envoy(site.server.url, everywhere) as url, delayed_network(value) as host:
        yield f"{url} http://{host}:{url.rpartition(':')[2]}"


@contextlib.contextmanager
def _short_of_quota(_site: Site, value: float) -> Iterator[None]:
    """Give the Envoy that stands there, in each 100 ms, so many times what it took on average."""
    (pid,) = (pid for pid in _children(os.getpid()) if "envoy" in _name(pid))
    took = _processor_s(pid)
    time.sleep(10.0)
    share = (_processor_s(pid) - took) / 10.0
    print(f"   Envoy took {share:.2%} of a core", flush=True)
    with _quota([pid], share * value, 100_000):
        yield None


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text()


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.contextmanager
def _own_gateway(pass_on: Serve) -> Iterator[str]:
    """Run a gateway of one's own in a thread; yield its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await pass_on(reader, writer)

    async def main() -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", port):
            listens.set()
            await asyncio.Event().wait()

    port, loop, listens = free_port(), asyncio.new_event_loop(), threading.Event()
    task = loop.create_task(main())
    thread = threading.Thread(target=lambda: _until_cancelled(loop, task))
    thread.start()
    listens.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join()


async def _to(site: Site) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = urlsplit(site.server.url)
    return await asyncio.open_connection(address.hostname, address.port)


@contextlib.contextmanager
def _in_pieces(site: Site, value: float) -> Iterator[str]:
    """Pass responses on in pieces of so many bytes, as a gateway of one's own may read them."""
    ends = b"0\r\n\r\n"

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await _to(site)

        async def ask() -> None:
            while data := await reader.read(2**16):
                to.write(data)
            to.close()

        asking = asyncio.create_task(ask())
        held = b""
        while data := await there.read(2**16):
            held += data
            if len(held) >= value or held.endswith(ends):
                writer.write(held)
                held = b""
        writer.close()
        await asking

    with _own_gateway(pass_on) as url:
        yield url


@contextlib.contextmanager
def _masks(site: Site, value: float) -> Iterator[str]:
    """Let a gateway of one's own ask a service for so long, and nothing else, for each request.

    That is what a blocking call in its event loop does.
    """

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await _to(site)

        async def ask() -> None:
            while data := await reader.read(2**18):
                if data.startswith(b"POST "):
                    time.sleep(value)  # noqa: ASYNC251 - this is the fault
                to.write(data)
            to.close()

        asking = asyncio.create_task(ask())
        while data := await there.read(2**16):
            writer.write(data)
        writer.close()
        await asking

    with _own_gateway(pass_on) as url:
        yield url


@contextlib.contextmanager
def _cuts_long(site: Site, value: float) -> Iterator[str]:
    """Let a gateway of one's own hang up where a response has more than so many bytes."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to = await _to(site)
        passed = 0

        async def ask() -> None:
            nonlocal passed
            while data := await reader.read(2**16):
                passed = 0
                to.write(data)
            to.close()

        asking = asyncio.create_task(ask())
        while data := await there.read(2**16):
            passed += len(data)
            if passed > value:
                break
            writer.write(data)
        writer.close()
        to.close()
        await asking

    with _own_gateway(pass_on) as url:
        yield url


def _until_cancelled(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(task)
    others = asyncio.all_tasks(loop)
    for other in others:
        other.cancel()
    loop.run_until_complete(asyncio.gather(*others, return_exceptions=True))
    loop.close()


@contextlib.contextmanager
def _restarts_bare(site: Site, _value: float) -> Iterator[None]:
    """Restart the engine while requests come, which nothing holds."""
    with _meanwhile(lambda: site.restart(site.flags)):
        yield None


@contextlib.contextmanager
def _second_replaced(site: Site, _value: float) -> Iterator[str]:
    """Restart the second engine; HAProxy holds its share of the requests until it is up."""

    def replace() -> None:
        assert site.second is not None
        port = int(site.second.url.rpartition(":")[2])
        site.second.stop()
        site.second = _started(site.flags, port)

    changes = {**HOLDS, **_shared_out(site)}
    with haproxy(site.server.url, changes) as url, _meanwhile(replace):
        yield url


@contextlib.contextmanager
def _api_server_killed(site: Site, value: float) -> Iterator[None]:
    """Kill the API server after so many seconds, as a kernel out of memory does.

    A supervisor starts it and its engine again 3 s later.
    """

    def crash() -> None:
        time.sleep(value)
        os.kill(site.server.pid, signal.SIGKILL)
        time.sleep(3.0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 0)
        site.restart(site.flags)

    with _meanwhile(crash):
        yield None


@contextlib.contextmanager
def _throttled(site: Site, value: float) -> Iterator[None]:
    """Give the engine no more than a share of a core."""
    with _quota(_below(site.server.pid), value):
        yield None


@contextlib.contextmanager
def _smaller_and_far(site: Site, value: float) -> Iterator[str]:
    """Give the engine no more than a share of a core, and let a round trip to it take 50 ms."""
    with _throttled(site, value), _round_trip(site, 0.05) as url:
        yield url


@contextlib.contextmanager
def _narrow(_site: Site, value: float) -> Iterator[None]:
    """Let so many bits a second pass where the network is far, there and back together."""
    place = ("dev", DEVICE, "root")
    rate = ("tbf", "rate", f"{int(value)}bit", "burst", "4kb", "latency", "4s")
    subprocess.run(["tc", "qdisc", "add", *place, *rate], check=True)
    try:
        yield None
    finally:
        subprocess.run(["tc", "qdisc", "del", *place], check=True)


@contextlib.contextmanager
def _emptied(site: Site, value: float) -> Iterator[None]:
    """Delete all kept responses every few seconds, as a job that frees a disk does."""
    assert site.proxy_log is not None
    said = (site.proxy_log.parent / "nginx.conf").read_text()
    kept = Path(said.partition("proxy_cache_path ")[2].split()[0])

    def empty() -> None:
        for file in kept.iterdir():
            file.unlink(missing_ok=True)

    with again(empty, every_s=value):
        yield None


@contextlib.contextmanager
def _forgets(site: Site, value: float) -> Iterator[None]:
    """Let vLLM forget the starts of prompts it has kept, every so many seconds."""

    def reset() -> None:
        request = urllib.request.Request(f"{site.server.url}/reset_prefix_cache", method="POST")
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=10):
            pass

    with again(reset, every_s=value):
        yield None


@contextlib.contextmanager
def _shares_key(site: Site, value: float) -> Iterator[None]:
    """Let a job of others use up the limit that both have, with short requests."""
    body = _body(prompt=_words(30), max_tokens=1)

    def ask() -> None:
        request = urllib.request.Request(f"{site.url}/v1/completions", body)
        request.add_header("content-type", "application/json")
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    with again(ask, every_s=value):
        yield None


@contextlib.contextmanager
def _mirrors(site: Site, value: float) -> Iterator[str]:
    """Let an Envoy send so many copies of each request to the same engine, unanswered."""
    copies = ", ".join(["{cluster: engine}"] * int(value))
    with envoy(
        site.server.url, {"timeout: 0s": f"timeout: 0s, request_mirror_policies: [{copies}]"}
    ) as url:
        yield url


@contextlib.contextmanager
def _breaker(site: Site, value: float) -> Iterator[str]:
    """Let an Envoy answer 503 to what is more than so many requests at once."""
    most = f"circuit_breakers: {{thresholds: [{{max_requests: {int(value)}}}]}}"
    with envoy(
        site.server.url, {"    type: STRICT_DNS": f"    {most}\n    type: STRICT_DNS"}
    ) as url:
        yield url


@contextlib.contextmanager
def _tries_idle(site: Site, value: float) -> Iterator[str]:
    """Let an Envoy end a try that is silent for so many seconds."""
    retry = f"retry_policy: {{num_retries: 0, per_try_idle_timeout: {value:g}s}}"
    with envoy(site.server.url, {"timeout: 0s": f"timeout: 0s, {retry}"}) as url:
        yield url


@contextlib.contextmanager
def _scaled_to_none(site: Site, value: float) -> Iterator[None]:
    """End the engine and its API server in order after so many seconds; none is started again."""
    timer = threading.Timer(value, lambda: _send([site.server.pid], signal.SIGTERM))
    timer.start()
    try:
        yield None
    finally:
        timer.join()


@contextlib.contextmanager
def _pauses_once(site: Site, value: float) -> Iterator[None]:
    """Stop the engine once for so many seconds, soon, as a snapshot of its machine does."""
    timer = threading.Timer(_SOON_S, _pause, (site, value))
    timer.start()
    try:
        yield None
    finally:
        timer.join()


def _haproxy_with(
    changes: Mapping[str, str],
) -> Callable[[Site, float], contextlib.AbstractContextManager[str]]:
    def act(site: Site, value: float) -> contextlib.AbstractContextManager[str]:
        said = {old: new.replace("VALUE", f"{value:g}") for old, new in changes.items()}
        return haproxy(site.server.url, {**said, **_shared_out(site)})

    return act


@contextlib.contextmanager
def _shuts_sessions(site: Site, value: float) -> Iterator[str]:
    """Let a HAProxy close what is open to the engine every few seconds.

    It does so by itself, with `on-marked-down shutdown-sessions`, when a health check fails.
    """
    with tempfile.TemporaryDirectory(prefix="llmtrace-admin-") as folder:
        place = f"{folder}/admin"

        def shut() -> None:
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(place)
                control.sendall(b"shutdown sessions server engines/engine\n")
                control.recv(64)

        listens = {"maxconn 4096": f"maxconn 4096\n  stats socket {place} level admin"}
        with haproxy(site.server.url, listens) as url, again(shut, every_s=value):
            yield url


@contextlib.contextmanager
def _evens_out(site: Site, value: float) -> Iterator[str]:
    """Let an nginx hold what is more than so many requests a second until its turn comes."""
    zone = f"limit_req_zone $binary_remote_addr zone=llm:1m rate={int(value)}r/s;\nserver {{"
    turns = {"server {": zone, "proxy_pass ": "limit_req zone=llm burst=90; proxy_pass "}
    with nginx(site.server.url, turns) as (url, _):
        yield url


@contextlib.contextmanager
def _nginx_idles(site: Site, value: float) -> Iterator[str]:
    """Let an nginx end what is silent for so many seconds."""
    idle = {"proxy_read_timeout 3600s;": f"proxy_read_timeout {int(value * 1000)}ms;"}
    with nginx(site.server.url, idle) as (url, _):
        yield url


@contextlib.contextmanager
def _resets(site: Site, value: float) -> Iterator[None]:
    """Reset all connections to what the client uses every few seconds, as a firewall does.

    It has no state of them any more, for example because it was replaced.
    """
    port = site.url.rpartition(":")[2]
    command = ["ss", "-K", "state", "established", "sport", "=", f":{port}"]
    with again(lambda: subprocess.run(command, capture_output=True, check=False), every_s=value):
        yield None


@contextlib.contextmanager
def _connects_late(site: Site, value: float) -> Iterator[str]:
    """Let the first packet of each connection take so many seconds more, as a firewall does."""
    with delayed_network(0.004, connect_s=value) as host:
        yield f"http://{host}:{site.port}"


def _others(
    path: str, body: Callable[[], bytes], at_once: int, every_s: float
) -> Callable[[Site, float], contextlib.AbstractContextManager[None]]:
    """Return an act in which others, who are not traced, ask the same engine."""

    @contextlib.contextmanager
    def act(site: Site, value: float) -> Iterator[None]:
        def ask() -> None:
            request = urllib.request.Request(f"{site.server.url}{path}", body() or None)
            request.add_header("content-type", "application/json")
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(request, timeout=30) as answer,
            ):
                answer.read()

        with contextlib.ExitStack() as stack:
            for _ in range(at_once or int(value)):
                stack.enter_context(again(ask, every_s=every_s or value))
            yield None

    return act


def _words(tokens: int) -> str:
    return "".join(random.choices("abcdefghijklmnopqrstuvwxyz ", k=tokens))


def _body(**said: Any) -> bytes:
    return json.dumps({"model": "tiny"} | said).encode()


def _completion(prompt: int, output: int, **said: Any) -> Callable[[], bytes]:
    return lambda: _body(prompt=_words(prompt), max_tokens=output, ignore_eos=True, **said)


# Encoded once: the client, which shares this process, is not to be held up.
_LONG_LIST: Final = _body(tokens=[*range(250)] * 400)


def _heard_first(
    others: Callable[[Site, float], contextlib.AbstractContextManager[None]],
) -> Callable[[Site, float], contextlib.AbstractContextManager[None]]:
    """Return an act in which others take the API server's time; the engine is not held up.

    It has cores of its own elsewhere: here it goes before the API server.
    """

    @contextlib.contextmanager
    def act(site: Site, value: float) -> Iterator[None]:
        threads = [thread for pid in _below(site.server.pid) for thread in _threads(pid)]
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, _AHEAD)
        try:
            with others(site, value):
                yield None
        finally:
            for thread in threads:
                os.setpriority(os.PRIO_PROCESS, thread, 0)

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
    "far": _far,
    "cuts off": _cuts_off,
    "leans": _leans,
    "pauses": _pauses,
    "impatient": _impatient,
    "dies": _dies,
    "restarts": _restarts,
    "refuses": _refuses,
    "workers die": _workers_die,
    "misses": _misses,
    "asks first": _asks_first,
    "loses patience": _loses_patience,
    "reloads": _reloads,
    "delays": _envoy_with(_DELAYS),
    "gathers": _gathers,
    "limits": _envoy_with(_LIMITS),
    "frontend cpu": lambda site, value: _short_of_cpu(site, "frontend", value),
    "expires": _expires,
    "freezes": _freezing(every_s=8.0),
    "checkpoints": _freezing(every_s=16.0),
    "crashes": _crashes,
    "drops old": _drops_old,
    "few at once": _few_at_once,
    "looks in": _looks_in,
    "one by one": _one_by_one,
    "envoy idles": _envoy_idles,
    "lossy": _lossy,
    "batch job": _others("/v1/completions", _completion(60, 400), 0, 0.05),
    "documents": _others("/v1/completions", _completion(6500, 3), 1, 0.0),
    "tokenizes": _heard_first(_others("/tokenize", lambda: _body(prompt=_words(150_000)), 0, 0.1)),
    "detokenizes": _heard_first(_others("/detokenize", lambda: _LONG_LIST, 0, 0.1)),
    "long reports": _others("/v1/completions", _completion(1250, 300), 0, 0.05),
    "evaluation": _others("/v1/completions", _completion(200, 250), 0, 0.05),
    "pauses once": _pauses_once,
    "packs": _haproxy_with({"  option http-no-delay\n": ""}),
    "denies": _haproxy_with({"default_backend": _DENIES}),
    "one address": _haproxy_with({"\nbackend engines": "\nbackend engines\n  balance source"}),
    "shuts sessions": _shuts_sessions,
    "evens out": _evens_out,
    "nginx idles": _nginx_idles,
    "connects late": _connects_late,
    "tokens": _haproxy_with({"default_backend": _TOKENS}),
    "breaks": _breaks,
    "updates weights": _updates_weights,
    "far address": _far_address,
    "short of quota": _short_of_quota,
    "resets": _resets,
    "in pieces": _in_pieces,
    "restarts bare": _restarts_bare,
    "scaled to none": _scaled_to_none,
    "metrics": _heard_first(_others("/metrics", lambda: b"", 0, 0.02)),
    "letters": _others("/v1/completions", _completion(80, 40, model="letters"), 1, 0.0),
    "probe": _others("/v1/completions", _completion(5000, 1), 1, 0.0),
    "candidates": _others("/v1/completions", _completion(120, 260, n=24), 1, 0.0),
    "masks": _masks,
    "cuts long": _cuts_long,
    "second replaced": _second_replaced,
    "api server killed": _api_server_killed,
    "throttled": _throttled,
    "smaller and far": _smaller_and_far,
    "narrow": _narrow,
    "emptied": _emptied,
    "forgets": _forgets,
    "shares key": _shares_key,
    "mirrors": _mirrors,
    "breaker": _breaker,
    "tries idle": _tries_idle,
    "reads": _envoy_with(_READS),
    "cron": _others("/v1/completions", _completion(60, 110), 12, 12.0),
    "samples": _others("/v1/completions", _completion(300, 300, n=6), 1, 0.05),
    "warms": _others("/v1/completions", _completion(3500, 1), 6, 6.0),
    "engine cpu": lambda site, value: _short_of_cpu(site, "engine", value),
}
