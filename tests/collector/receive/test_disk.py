"""Does the collector outlive a real disk that is full, or read-only, and a file-size limit?"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from llmtrace_collector.receive import Ingest, IngestSettings, Spool, SpoolLimits
from llmtrace_collector.store import open_store
from tests.collector.receive.parts import MemoryStore, body, receiving, spooled
from tests.collector.receive.test_http import posted
from tests.collector.receive.test_ingest import until


def mount(*words):
    """Mount something; say whether that was allowed."""
    done = subprocess.run(["mount", *words], check=False, capture_output=True)
    return done.returncode == 0


@contextmanager
def small_disk(folder, size):
    """Mount a disk of so many bytes, in memory; skip without the permission."""
    folder.mkdir()
    if not mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)):
        pytest.skip("mounting a small disk needs a system that lets this user do so")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_survived(tmp_path):
    """Senders are asked to come back; what was taken is stored; then they are welcome again."""

    async def run(disk):
        async with (
            receiving(disk / "spool") as receiver,
            aiohttp.ClientSession(receiver.url) as session,
        ):
            statuses = [(await posted(session, body(n * 300, 300)))[0] for n in range(60)]
            taken = statuses.count(200)
            store = MemoryStore()
            Ingest(receiver.spool, store).drain()
            again = (await posted(session, body(10**6)))[0]
        return statuses, taken, store, again, receiver

    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        statuses, taken, store, again, receiver = asyncio.run(run(disk))

    assert {200, 503} == set(statuses)
    assert list(range(taken * 300)) == sorted(store.stored)
    assert again == 200
    assert receiver.spool.counted.errors["ENOSPC"] > 0


def test_a_disk_that_becomes_read_only_is_survived(tmp_path):
    """As a filesystem does after an error: 503, until it can be written to again."""

    async def run(disk):
        async with (
            receiving(disk / "spool") as receiver,
            aiohttp.ClientSession(receiver.url) as session,
        ):
            first = (await posted(session, body(0)))[0]
            # What is open for writing keeps a disk from being made read-only.
            receiver.spool._leave_file()
            receiver.spool._cursor.close()
            assert mount("-o", "remount,ro", str(disk))
            while_read_only = [(await posted(session, body(n)))[0] for n in (1, 2)]
            assert mount("-o", "remount,rw", str(disk))
            receiver.spool._cursor = type(receiver.spool._cursor)(
                disk / "spool" / "cursor", sync=False
            )
            then = (await posted(session, body(3)))[0]
            return first, while_read_only, then, spooled(receiver.spool), receiver

    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        first, while_read_only, then, kept, receiver = asyncio.run(run(disk))

    assert (first, while_read_only, then) == (200, [503, 503], 200)
    assert kept == [0, 3]
    assert receiver.spool.counted.errors["EROFS"] == 2


LIMITED = """
import asyncio, json, resource, sys
from pathlib import Path
from llmtrace_collector.receive import Spool, SpoolLimits
from tests.collector.receive.parts import body, spooled

async def append(spool, n):
    try:
        await spool.append(body(n), 1)
    except Exception as error:
        return error.reason
    return None

async def main():
    spool = Spool(Path(sys.argv[1]), SpoolLimits(free_bytes=0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    answers = [await append(spool, n) for n in range(60)]
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    answers.append(await append(spool, 60))
    kept = spooled(spool)
    errors = dict(spool.counted.errors)
    spool.close()
    print(json.dumps([answers, kept, errors]))

asyncio.run(main())
"""


def test_a_limit_on_files_is_survived(tmp_path):
    """A file that may not grow is left, and another begun."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=Path(__file__).parents[3], check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    answers, kept, errors = json.loads(done.stdout)

    taken = [n for n, reason in enumerate(answers) if reason is None]
    assert taken == kept
    assert {None, "spool_error"} == set(answers)
    assert answers[60] is None
    assert set(errors) == {"EFBIG"}


def test_a_full_disk_under_the_store_loses_nothing(tmp_path):
    """The store says so, and what was taken waits in the spool until there is room."""
    requests = [body(n * 300, 300) for n in range(10)]
    spool = Spool(tmp_path / "spool", SpoolLimits(free_bytes=0))
    with small_disk(tmp_path / "disk", 60 << 20) as disk, closing(spool):
        asyncio.run(append_all(spool, requests))
        with closing(open_store(disk / "store")) as store:
            fill(disk / "filler")
            ingest = Ingest(spool, store, IngestSettings(backoff_s=0.01, join_s=600))
            ingest.start()
            assert until(lambda: ingest.counted.failures["insert"])
            assert spool.backlog_bytes > 0
            (disk / "filler").unlink()

            assert ingest.stop(timeout_s=60)
            counted = "SELECT count(), uniqExact(TraceId) FROM otel_traces"
            assert [list(map(int, one)) for one in store.query(counted)] == [[3000, 3000]]


def fill(path):
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


async def append_all(spool, requests):
    """Append requests of 300 spans each."""
    for one in requests:
        await spool.append(one, 300)


def test_the_cursor_needs_no_room_on_a_full_disk(tmp_path):
    """What is stored can be noted, and so deleted, when nothing more fits."""
    with small_disk(tmp_path / "disk", 256 << 10) as disk:
        spool = Spool(disk / "spool", SpoolLimits(free_bytes=0, segment_bytes=32 << 10))
        try:

            async def append():
                for n in range(10_000):
                    try:
                        await spool.append(body(n), 1)
                    except Exception:
                        return n
                return None

            taken = asyncio.run(append())
            fill(disk / "filler")

            assert list(range(taken)) == spooled(spool)
        finally:
            spool.close()


def test_a_folder_that_is_gone_is_a_reason_to_reject(tmp_path):
    """Probes and people see it, rather than an error of the collector."""
    folder = tmp_path / "spool"
    spool = Spool(folder)
    shutil.rmtree(folder)
    assert spool.why_full().words == "this collector's data folder is gone"
    spool.close()
