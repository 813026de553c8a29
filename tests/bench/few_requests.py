"""How busy is a whole collector that gets a few requests a second, and with what?

    python -m tests.bench.few_requests [--per-s 2 30] [--seconds 60] [--bar 0.08]

`llmtrace collect` as a process of its own, with its request metrics; each request comes with its
engine's span, one OTLP request each. CPU of the process, all threads, once it is warm; then by
thread, what each took of it. Ends with 1 if the first rate takes more of a core than the bar.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

from tests.bench.bench_store import requests_sent
from tests.support.free_ports import free_port

TICKS = os.sysconf("SC_CLK_TCK")
START_S = 60.0
WARM_S = 15.0
SHOWN = 8


def threads(pid: int) -> Counter[str]:
    """Return the CPU seconds of a process's threads, by name."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            name, _, rest = (task / "stat").read_text().partition(" (")[2].rpartition(") ")
            fields = rest.split()
            found[name] += (int(fields[11]) + int(fields[12])) / TICKS
    return found


def total_s(pid: int) -> float:
    """Return the CPU seconds of a process, of threads that have ended too."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def send(url: str, per_s: float, seconds: float) -> None:
    """Send requests, evenly."""
    began = time.monotonic()
    for number in range(round(per_s * seconds)):
        time.sleep(max(0.0, began + number / per_s - time.monotonic()))
        body = requests_sent(1, engine=True)[0]
        post = urllib.request.Request(
            url, data=body, headers={"Content-Type": "application/x-protobuf"}
        )
        with urllib.request.urlopen(post, timeout=60) as answer:
            answer.read()


def measure(per_s: float, seconds: float, folder: Path) -> float:
    """Run a collector under so many requests a second; return the share of a core it took."""
    web, http, grpc = free_port(), free_port(), free_port()
    command = [
        sys.executable, "-m", "llmtrace", "collect", "--data-dir", str(folder),
        "--web", f"127.0.0.1:{web}", "--otlp-http", f"127.0.0.1:{http}",
        "--otlp-grpc", f"127.0.0.1:{grpc}",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        try:
            until = time.monotonic() + START_S
            while time.monotonic() < until and child.poll() is None:
                with suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{web}/readyz", timeout=5).close()
                    break
                time.sleep(0.2)
            url = f"http://127.0.0.1:{http}/v1/traces"
            send(url, per_s, WARM_S)
            by_thread, cpu_s, began = threads(child.pid), total_s(child.pid), time.monotonic()
            send(url, per_s, seconds)
            took_s = time.monotonic() - began
            share = (total_s(child.pid) - cpu_s) / took_s
            by_thread = threads(child.pid) - by_thread
        finally:
            child.send_signal(signal.SIGTERM)
    print(f"{per_s:g} requests a second: {share:.1%} of a core", flush=True)
    for name, used_s in by_thread.most_common(SHOWN):
        print(f"  {name:16} {used_s / took_s:6.1%}")
    return share


def main() -> int:
    """Measure, print, and return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--per-s", type=float, nargs="+", default=[2.0, 30.0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--bar", type=float, default=0.08, help="of a core, at the first rate")
    given = parser.parse_args()
    shares = []
    for per_s in given.per_s:
        with tempfile.TemporaryDirectory(prefix="llmtrace-few-") as folder:
            shares.append(measure(per_s, given.seconds, Path(folder)))
    good = shares[0] <= given.bar
    print(f"the bar, {given.bar:.0%}, is {'met' if good else 'missed'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
