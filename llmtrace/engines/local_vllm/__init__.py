"""Start and stop a real vLLM on this machine's CPU.

Behind `llmtrace demo --vllm` and the tests against a real engine. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from llmtrace.core.errors import SourceError
from llmtrace.engines.local_vllm.install import (
    OFFLINE,
    PYTHON_VARIABLE,
    VERSION,
    cache_folder,
    find_python,
    make_tiny_model,
    tail,
)

__all__ = ["DEFAULT_FLAGS", "Server", "find_python", "make_tiny_model", "start"]

# Without these vLLM reports nothing about a single request.
DEFAULT_FLAGS: Final = (
    "--enable-per-request-metrics",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
)

_SERVED_NAME: Final = "tiny"
_LOG_NAME: Final = "vllm.log"
_SCRATCH_NAME: Final = "scratch"
# Eager: no compiler needed and up in half the time; tokens take 2.6 ms instead of 1.8 ms.
# A gigabyte of cache is touched at start, so take what 64 requests of full length need.
_SIZE_FLAGS: Final = (
    *("--dtype", "bfloat16", "--max-model-len", "4096", "--enforce-eager"),
    *("--kv-cache-memory-bytes", str(512 * 2**20)),
)
# Below those that a system hands out by itself: vLLM takes its port half a minute later, and until
# then any connection of this machine might get one of those.
_PORTS: Final = range(20_000, 32_768)
_STOP_S: Final = 15.0
_LOG_EVERY_S: Final = 5.0
# Ends the engine when this program dies without stopping it: `read` returns at end of file.
_LEASH: Final = 'read _; kill -TERM "$1"; sleep 10; kill -KILL -"$1"'


class Server:
    """A running vLLM: `url` without a path, `model` as served, `pid` of its process group."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, folder: Path) -> None:
        """Keep what `start` made; `stop` runs at exit at the latest."""
        self.url = url
        self.model = _SERVED_NAME
        self.pid = process.pid
        self.log_path = folder / _LOG_NAME
        self._folder = folder
        self._process = process
        self._owner = os.getpid()
        self._is_stopped = False
        self._leash = subprocess.Popen(
            ["/bin/sh", "-c", _LEASH, "sh", str(process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.stop)

    def __repr__(self) -> str:
        """Show what one needs to find it."""
        return f"Server(url={self.url!r}, pid={self.pid})"

    def __enter__(self) -> Self:
        """Return the server, to be stopped at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server and its processes."""
        self.stop()

    def is_running(self) -> bool:
        """Return whether its process is alive."""
        return self._process.poll() is None

    def log_tail(self) -> str:
        """Return the last lines the server wrote, also where its log was cleaned away."""
        if not self.log_path.exists():
            return tail("")
        return tail(self.log_path.read_text(encoding="utf-8", errors="replace"))

    def stop(self) -> None:
        """End the server and every process it started: SIGTERM first, killed after 15 s.

        The log of a server that had ended by itself stays; every other trace of it goes. Stopping
        twice does nothing.
        """
        # A forked child runs its parent's exit functions and must not stop its parent's server.
        if self._is_stopped or os.getpid() != self._owner:
            return
        self._is_stopped = True
        has_died = not self.is_running()
        atexit.unregister(self.stop)
        # Only the API server gets the signal: it ends its engine in order. A process
        # stopped by SIGSTOP gets it only once it continues.
        self._process.terminate()
        _signal_group(self.pid, signal.SIGCONT)
        deadline = time.monotonic() + _STOP_S
        while _signal_group(self.pid, 0) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(0.02)
        _signal_group(self.pid, signal.SIGKILL)
        # The leash only now: should this process be killed while it waits, vLLM ends all the same.
        self._leash.kill()
        self._leash.communicate()
        self._process.wait()
        unneeded = self._folder / _SCRATCH_NAME if has_died else self._folder
        shutil.rmtree(unneeded, ignore_errors=True)


def start(
    model: Path | None = None,
    flags: Sequence[str] = (),
    port: int = 0,
    log: Callable[[str], None] = lambda _line: None,
    *,
    host: str = "127.0.0.1",
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = ("-m", "vllm.entrypoints.openai.api_server"),
    timeout_s: float = 300.0,
) -> Server:
    """Start vLLM with its per-request figures switched on and wait until it responds.

    Args:
        model: A model folder; a tiny random model is made when left out.
        flags: More flags of vLLM's API server. A flag given here wins over the same one of ours.
        port: Where to listen; 0 takes a free port.
        log: called every few seconds with the progress.
        host: The address to listen on.
        env: Environment variables on top of ours, such as `VLLM_CPU_KVCACHE_SPACE` in GiB.
        program: Which of vLLM's programs to run, as arguments of Python.
        timeout_s: How long it may take until it responds, in seconds.

    Raises:
        SourceError: vLLM is not installed, died, or did not respond in time.
    """
    python = find_python()
    if python is None:
        raise SourceError(
            "vLLM is not installed: from a checkout of llmtrace run `make vllm`, or set "
            f"{PYTHON_VARIABLE} to a Python interpreter that can import vllm"
        )
    if model is None:
        log("making a tiny random model, unless it is there")
        model = make_tiny_model(python, cache_folder() / "tiny-llama-256-4")
    port = port or _free_port(host)
    folder = Path(tempfile.mkdtemp(prefix="llmtrace-vllm-"))
    scratch = folder / _SCRATCH_NAME
    scratch.mkdir()
    places = {"TMPDIR": str(scratch), "VLLM_RPC_BASE_PATH": str(scratch)}
    with (folder / _LOG_NAME).open("wb") as log_file:
        # -P: a folder in the current working directory must not hide a module of vLLM's.
        process = subprocess.Popen(
            _command((str(python), "-P", *program), model, host, port, flags),
            env=os.environ | OFFLINE | places | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = Server(process, f"http://{host}:{port}", folder)
    log(f"starting vLLM {VERSION}, pid {server.pid}, log {server.log_path}")
    try:
        _wait_until_healthy(server, host, port, timeout_s, log)
    except BaseException:
        server.stop()
        raise
    return server


def _command(
    serve: Sequence[str], model: Path, host: str, port: int, flags: Sequence[str]
) -> Sequence[str]:
    what = ("--model", str(model), "--served-model-name", _SERVED_NAME)
    where = ("--host", host, "--port", str(port))
    return (*serve, *what, *where, *_SIZE_FLAGS, *DEFAULT_FLAGS, *flags)


def _wait_until_healthy(
    server: Server, host: str, port: int, timeout_s: float, log: Callable[[str], None]
) -> None:
    began = time.monotonic()
    logged_s = 0.0
    while not _is_healthy(host, port):
        waited_s = time.monotonic() - began
        if not server.is_running():
            raise SourceError(
                f"vLLM ended while starting; the end of {server.log_path}:\n{server.log_tail()}"
            )
        if waited_s > timeout_s:
            late = f"vLLM did not respond within {timeout_s:.0f} s"
            raise SourceError(f"{late}; the end of its log:\n{server.log_tail()}")
        if waited_s - logged_s >= _LOG_EVERY_S:
            logged_s = waited_s
            log(f"waiting for vLLM: {waited_s:.0f} s")
        time.sleep(0.1)
    log(f"vLLM responds at {server.url} after {time.monotonic() - began:.0f} s")


def _is_healthy(host: str, port: int) -> bool:
    # http.client, since proxies named in the environment are not for this.
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _signal_group(pid: int, number: int) -> bool:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _free_port(host: str) -> int:
    for port in random.sample(_PORTS, len(_PORTS)):
        with contextlib.suppress(OSError), socket.create_server((host, port)):
            return port
    raise SourceError(f"no port from {_PORTS.start} to {_PORTS.stop - 1} of {host} is free")
