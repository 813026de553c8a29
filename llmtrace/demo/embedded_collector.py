"""Run a collector for the demo, and stop it again.

`llmtrace collect` in a process of its own, on free ports of loopback, with its data in a folder
that is removed with it: as a user runs it, except for the addresses.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from llmtrace.api_clients.collector_client import Collector
from llmtrace.api_clients.http_client import opener
from llmtrace.core.errors import SourceError

_HOST: Final = "127.0.0.1"
_START_S: Final = 60.0
_STOP_S: Final = 20.0
_SCRAPE_S: Final = 2.0
_PATIENCE_S: Final = 30.0
_SAID: Final = 2_000


@dataclass(frozen=True, slots=True)
class EmbeddedCollector:
    """A running collector: where rows are sent to, and where they are queried."""

    otlp: str
    url: str

    def wait_for(self, rows: int, start: float) -> int:
        """Wait until it has so many rows that began after `start`, unix seconds; return how many.

        Raises:
            SourceError: it does not answer.
        """
        collector, give_up = Collector(self.url), time.monotonic() + _PATIENCE_S
        while True:
            found = sum(1 for _ in collector.lines("rows", start=f"{start:.3f}", limit=rows))
            if found >= rows or time.monotonic() > give_up:
                return found
            time.sleep(0.5)


@contextlib.contextmanager
def running_collector(pages: Sequence[str]) -> Iterator[EmbeddedCollector]:
    """Run a collector that reads these metrics pages.

    Raises:
        SourceError: it did not start; the message has its output.
    """
    with tempfile.TemporaryDirectory(prefix="llmtrace-demo-") as name:
        folder = Path(name)
        web, otlp = _free_port(), _free_port()
        config = folder / "collect.yaml"
        config.write_text(json.dumps(_config(folder / "data", web, otlp, pages)), encoding="utf-8")
        log = folder / "collect.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "llmtrace", "collect", "--config", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops it in order
            )
        try:
            _wait(process, f"http://{_HOST}:{web}/readyz", log)
            yield EmbeddedCollector(f"http://{_HOST}:{otlp}", f"http://{_HOST}:{web}")
        finally:
            _stop(process)


def _config(data: Path, web: int, otlp: int, pages: Sequence[str]) -> dict[str, Any]:
    return {
        "data": str(data),
        "listen": {"web": f"{_HOST}:{web}", "otlp_http": f"{_HOST}:{otlp}", "otlp_grpc": "off"},
        "scrape": {"targets": list(pages), "interval": f"{_SCRAPE_S:g}s", "timeout": "2s"},
    }


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as listener:
        return int(listener.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    direct = opener(proxies=False)
    give_up = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < give_up:
        with contextlib.suppress(OSError), direct.open(url, timeout=2.0):
            return
        time.sleep(0.1)
    said = log.read_text(encoding="utf-8", errors="replace")[-_SAID:].strip()
    raise SourceError(f"the collector did not start; it said:\n{said}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
