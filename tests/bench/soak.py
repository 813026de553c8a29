"""Does a collector lose or double a row in an hour of an operator's bad luck?

    python -m tests.bench.soak [--minutes 4] [--rows 6000]

Ten applications at changing rates, compressed into minutes: `llmtrace collect` is ended in order
and killed, its clock steps, its disk is full for a while (the system's error where the spool
writes), and every fifth request is sent twice, one in ten of these a while later. Senders repeat
what was not acknowledged, as exporters do. At the end it prints memory, lag, and the rows that
were lost or doubled, and ends with 1 if there are any, if something is still waiting, or if memory
grew beyond its bound. The clock that steps is `time.time_ns`; the engine's own is right
throughout, so that what is stored while the other is ahead makes rows when that is right again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from llmtrace.exporters.otlp.encode import Resources, encode
from tests.bench.crash import row
from tests.support.free_ports import free_port

APPLICATIONS = 10
MAX_RSS_MB = 2_000.0
FULL = 503
DRAIN_S = 120.0
START_S = 90.0
LATER_S = 5.0
TWICE = 0.2
LATE = 0.1
# A life of the collector: for what share of the time, how it ends, how far its clock is off, and
# whether its disk is full at some time.
LIVES = (
    (0.25, signal.SIGTERM, 0, False),
    (0.2, signal.SIGKILL, 3_600, False),
    (0.2, signal.SIGKILL, -120, True),
    (0.35, signal.SIGTERM, 0, False),
)

# Runs `llmtrace collect` with a clock that is off, and a disk that is full while a file is there.
CHILD = """
import errno, os, sys, time
from pathlib import Path
real_time, offset_ns, full = time.time_ns, int(sys.argv[1]) * 10**9, Path(sys.argv[2])
time.time_ns = lambda: real_time() + offset_ns
from llmtrace_collector.receive import spool
write = spool._pwritev
def pwritev(*given):
    if full.exists():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return write(*given)
spool._pwritev = pwritev
from llmtrace import cli
sys.exit(cli.main(["collect", *sys.argv[3:]]))
"""


@dataclass
class Seen:
    """What the senders and the watcher saw.

    Attributes:
        acknowledged: numbers of the rows whose request was answered with 200.
        answers: how many of each status; 0 = none came.
        rss_mb: the most memory that the collector held.
        lived_s: for how long it ran so far, over all its lives.
    """

    acknowledged: set[int] = field(default_factory=set)
    answers: dict[int, int] = field(default_factory=dict)
    rss_mb: float = 0.0
    lived_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


def post(url: str, body: bytes) -> int:
    """Send one request; return the status, 0 = no answer."""
    asked = urllib.request.Request(url, body, {"Content-Type": "application/x-protobuf"})
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def application(number: int, url: str, count: int, over_s: float, seen: Seen) -> None:
    """Send one application's requests: slowly, then fast, then slowly, some of them again."""
    drawn = random.Random(number)
    later: list[tuple[float, bytes]] = []
    for n in range(count):
        # Half of the requests in the middle third of the time.
        share = n / count
        at = share * 4 / 3 if share < 1 / 4 else 1 / 3 + (share - 1 / 4) * 2 / 3
        at = at if share < 3 / 4 else 2 / 3 + (share - 3 / 4) * 4 / 3
        while seen.lived_s < at * over_s:
            time.sleep(0.1)
        name = number * count + n + 1
        [(body, _)] = encode([row(name)], Resources(), 1 << 20)
        deliver(url, body, seen)
        with seen.lock:
            seen.acknowledged.add(name)
        if drawn.random() < TWICE:
            if drawn.random() < LATE:
                later.append((time.monotonic() + LATER_S, body))
            else:
                deliver(url, body, seen)
        while later and later[0][0] <= time.monotonic():
            deliver(url, later.pop(0)[1], seen)


def deliver(url: str, body: bytes, seen: Seen) -> None:
    """Send until it is acknowledged."""
    while (status := post(url, body)) != 200:
        with seen.lock:
            seen.answers[status] = seen.answers.get(status, 0) + 1
        time.sleep(0.3)
    with seen.lock:
        seen.answers[200] = seen.answers.get(200, 0) + 1


class Collector:
    """One life of the collector, on ports that stay the same."""

    def __init__(self, folder: Path, ports: list[int], offset_s: int) -> None:
        self.web, http, grpc = ports
        self.full = folder / "full"
        self.child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(offset_s), str(self.full), "--data-dir",
             str(folder / "data"), "--web", f"127.0.0.1:{self.web}", "--otlp-http",
             f"127.0.0.1:{http}", "--otlp-grpc", f"127.0.0.1:{grpc}"],
            stderr=(folder / "log").open("ab"),
        )  # fmt: skip
        until = time.monotonic() + START_S
        while time.monotonic() < until and self.child.poll() is None:
            if self.get("/readyz") is not None:
                return
            time.sleep(0.3)
        sys.exit(f"the collector did not start: {(folder / 'log').read_text()[-800:]}")

    def get(self, path: str) -> bytes | None:
        """Return what the web address answers; `None` = nothing, or an error."""
        with (
            suppress(OSError, ValueError),
            urllib.request.urlopen(f"http://127.0.0.1:{self.web}{path}", timeout=30) as answer,
        ):
            return bytes(answer.read())
        return None

    def metric(self, name: str) -> float:
        """Return the sum of a metric's samples; -1 = it could not be read."""
        page = self.get("/metrics")
        if page is None:
            return -1.0
        lines = (one for one in page.decode().splitlines() if one.startswith(name))
        return sum(float(one.rpartition(" ")[2]) for one in lines)

    def rss_mb(self) -> float:
        """Return the memory it holds now."""
        with suppress(OSError, ValueError, IndexError):
            pages = int(Path(f"/proc/{self.child.pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return 0.0

    def live(self, seconds: float, *, full: bool, seen: Seen) -> None:
        """Run for so long; with a full disk in the middle third of it, if so wanted."""
        began, before_s = time.monotonic(), seen.lived_s
        while (passed := time.monotonic() - began) < seconds:
            seen.rss_mb = max(seen.rss_mb, self.rss_mb())
            seen.lived_s = before_s + passed
            if full and seconds / 3 < passed < 2 * seconds / 3:
                self.full.touch()
            else:
                self.full.unlink(missing_ok=True)
            time.sleep(0.5)
        self.full.unlink(missing_ok=True)
        seen.lived_s = before_s + seconds

    def end(self, how: signal.Signals) -> None:
        """End it, in order or not."""
        self.child.send_signal(how)
        self.child.wait(60)


def judge(collector: Collector, seen: Seen, sent: int) -> bool:
    """Wait until all is stored; print and return whether nothing is lost, doubled or waiting."""
    until = time.monotonic() + DRAIN_S
    rows: list[int] = []
    while time.monotonic() < until and len(set(rows)) < len(seen.acknowledged):
        time.sleep(2.0)
        end = time.time() + 10_800
        text = collector.get(f"/api/v1/rows?start={end - 21_600:.0f}&end={end:.0f}")
        rows = [int(json.loads(line)["span_id"], 16) for line in (text or b"").splitlines()]
    lost = seen.acknowledged - set(rows)
    doubled = len(rows) - len(set(rows))
    backlog = collector.metric("llmtrace_spool_backlog_bytes")
    lag_s = collector.metric("llmtrace_ingest_lag_seconds")
    aside = collector.metric("llmtrace_quarantine_requests")
    print(f"sent {sent:,} rows, acknowledged {len(seen.acknowledged):,}; answers {seen.answers}")
    print(
        f"stored {len(set(rows)):,}: lost {len(lost):,}, doubled {doubled:,}, set aside {aside:g}"
    )
    print(f"most memory {seen.rss_mb:,.0f} MB; lag {lag_s:.1f} s, {backlog:g} B wait")
    was_full = seen.answers.get(FULL, 0) > 0
    if not was_full:
        print("no request was refused for the full disk: it was not tried")
    return not (lost or doubled or backlog) and was_full and seen.rss_mb <= MAX_RSS_MB


def main() -> int:
    """Run all of it; return 1 if something was lost, doubled or left waiting."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--rows", type=int, default=6_000, help="of all applications together")
    given = parser.parse_args()
    seen, ports, over_s = Seen(), [free_port() for _ in range(3)], given.minutes * 60
    count = given.rows // APPLICATIONS
    with tempfile.TemporaryDirectory(prefix="llmtrace-soak-") as name:
        folder = Path(name)
        collector = Collector(folder, ports, LIVES[0][2])
        senders = [
            threading.Thread(
                target=application,
                args=(n, f"http://127.0.0.1:{ports[1]}/v1/traces", count, over_s, seen),
                daemon=True,
            )
            for n in range(APPLICATIONS)
        ]
        for one in senders:
            one.start()
        for number, (share, ends, offset_s, full) in enumerate(LIVES):
            if number:
                collector = Collector(folder, ports, offset_s)
            print(f"life {number + 1}: clock {offset_s:+d} s{', disk full' * full}", flush=True)
            collector.live(share * over_s, full=full, seen=seen)
            if number < len(LIVES) - 1:
                collector.end(ends)
        for one in senders:
            one.join(DRAIN_S)
        good = judge(collector, seen, count * APPLICATIONS)
        good = good and not any(one.is_alive() for one in senders)
        collector.end(signal.SIGTERM)
    print("nothing lost, nothing doubled" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
