"""Does the spool keep what it took, and hand it on once?"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from contextlib import contextmanager

import pytest

from llmtrace.core.errors import ConfigError
from llmtrace_collector.receive import Spool, SpoolLimits
from llmtrace_collector.receive.rejections import RejectedError
from tests.collector.receive.parts import body, numbers, spooled
from tests.support.waiting import auntil

MIB = 1 << 20


@contextmanager
def opened(folder, **limits):
    """Open a spool, and close it."""
    spool = Spool(folder, SpoolLimits(**{"free_bytes": 0, **limits}))
    try:
        yield spool
    finally:
        spool.close()


def append(spool, *spans):
    """Append one request a span, all at once; return what went wrong with each."""

    async def run():
        return await asyncio.gather(
            *(spool.append(body(n), 1) for n in spans), return_exceptions=True
        )

    return asyncio.run(run())


def segments(folder):
    """Return the files."""
    return sorted(folder.glob("*.spool"))


@pytest.mark.parametrize("sync", ["always", "interval", "never"])
def test_what_goes_in_comes_out_in_order(tmp_path, sync):
    """Whatever the policy."""
    with opened(tmp_path, sync=sync) as spool:
        append(spool, *range(20))

        assert list(range(20)) == spooled(spool)
        assert spool.backlog_bytes == 0


def test_a_request_larger_than_a_batch_comes_whole(tmp_path):
    """Also where the process that took it allowed larger requests than this one does."""
    large = bytes(9 * MIB)
    with opened(tmp_path) as spool:
        asyncio.run(spool.append(large, 1))
    with opened(tmp_path) as spool:
        batch = spool.next_batch(MIB, 100)

        assert batch is not None
        assert [record.payload == large for record in batch.records] == [True]


def test_what_comes_together_is_synced_together(tmp_path, monkeypatch):
    """One sync answers all that came while the one before was under way."""
    came = threading.Event()
    syncs = []

    def slow(file):
        syncs.append(file)
        came.wait(30)

    async def run(spool):
        tasks = [asyncio.create_task(spool.append(body(n), 1)) for n in range(200)]
        await asyncio.sleep(0)
        came.set()
        await asyncio.gather(*tasks)

    with opened(tmp_path, sync="always") as spool:
        monkeypatch.setattr(os, "fdatasync", slow)
        asyncio.run(run(spool))

        assert spool.counted.records == 200
        assert len(syncs) <= 3


def test_under_always_the_disk_has_it_before_the_answer(tmp_path, monkeypatch):
    """The sync of its file comes first."""
    order = []
    monkeypatch.setattr(os, "fdatasync", lambda _file: order.append("sync"))
    with opened(tmp_path, sync="always") as spool:
        order.clear()

        append(spool, 0)
        order.append("answer")

    assert order[:2] == ["sync", "answer"]


def test_under_interval_the_disk_is_synced_without_another_request(tmp_path):
    """A lone request does not wait for the next."""
    with opened(tmp_path, sync="interval", sync_s=0.01) as spool:
        append(spool, 0)
        with asyncio.Runner() as runner:
            assert runner.run(auntil(lambda: spool.counted.syncs)) == 1


def test_the_next_process_goes_on(tmp_path):
    """What was not stored is there; what was is not."""
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        batch = spool.next_batch(MIB, 4)
        spool.stored(batch)

    with opened(tmp_path) as spool:
        append(spool, 10)

        assert list(range(4, 11)) == spooled(spool)


def test_a_batch_that_was_begun_is_the_same_in_the_next_life(tmp_path):
    """Same token, same requests, however much has come since."""
    with opened(tmp_path) as spool:
        append(spool, *range(10))
        begun = spool.next_batch(MIB, 4)

    with opened(tmp_path) as spool:
        append(spool, *range(10, 20))
        again = spool.next_batch(MIB, 1000)

    assert begun == again


def test_tokens_are_of_one_spool_alone(tmp_path):
    """An emptied folder does not repeat the tokens of before."""
    tokens = []
    for _ in range(2):
        with opened(tmp_path / "spool") as spool:
            append(spool, 0)
            tokens.append(spool.next_batch(MIB, 10).token)
        shutil.rmtree(tmp_path / "spool")

    assert len(set(tokens)) == 2


def test_files_are_deleted_when_they_are_stored(tmp_path):
    """The disk holds what is needed, and one file more."""
    with opened(tmp_path, segment_bytes=1000) as spool:
        for number in range(50):
            append(spool, number)
        many = len(segments(tmp_path))

        assert list(range(50)) == spooled(spool)
        assert many > 5
        assert len(segments(tmp_path)) == 1


def test_a_batch_is_bounded_in_spans_and_in_bytes(tmp_path):
    """But a request larger than that still goes."""
    with opened(tmp_path) as spool:
        append(spool, *range(10))

        assert len(spool.next_batch(MIB, 3).records) == 3
    with opened(tmp_path) as spool:
        spool.stored(spool.next_batch(MIB, 3))
        one = len(body(1)) + 16

        assert len(spool.next_batch(2 * one, 100).records) in {1, 2}
        spool.stored(spool.next_batch(1, 100))
        assert len(spool.next_batch(1, 100).records) == 1


def test_a_torn_end_is_cut_and_counted(tmp_path):
    """What a killed process had half written was never acknowledged."""
    with opened(tmp_path) as spool:
        append(spool, *range(5))
    [file] = segments(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])

    with opened(tmp_path) as spool:
        assert list(range(4)) == spooled(spool)
        assert spool.counted.torn_bytes == len(whole) // 5 - 7
        assert spool.counted.damaged_bytes == 0


def test_zeros_at_the_end_are_torn(tmp_path):
    """As after a power failure."""
    with opened(tmp_path) as spool:
        append(spool, *range(5))
    with segments(tmp_path)[0].open("ab") as file:
        file.write(bytes(5000))

    with opened(tmp_path) as spool:
        append(spool, 5)

        assert list(range(6)) == spooled(spool)
        assert spool.counted.torn_bytes == 5000


@pytest.mark.parametrize("where", [2, 20])
def test_damage_among_good_records_is_put_aside(tmp_path, where):
    """In a head or in a payload: one request is lost, counted and kept for people."""
    with opened(tmp_path) as spool:
        append(spool, *range(5))
    [file] = segments(tmp_path)
    raw = bytearray(file.read_bytes())
    size = len(raw) // 5
    raw[2 * size + where] ^= 0xFF
    file.write_bytes(raw)

    with opened(tmp_path) as spool:
        assert spooled(spool) == [0, 1, 3, 4]
        assert spool.counted.damaged_bytes == size
    [kept] = (tmp_path / "aside").iterdir()
    assert bytes(raw[2 * size : 3 * size]) == kept.read_bytes()


def test_a_length_that_cannot_be_does_not_hide_what_follows(tmp_path):
    """A record that claims gigabytes is damage."""
    with opened(tmp_path) as spool:
        append(spool, *range(3))
    [file] = segments(tmp_path)
    raw = bytearray(file.read_bytes())
    raw[4:8] = (0xFFFFFFF0).to_bytes(4, "little")
    file.write_bytes(raw)

    with opened(tmp_path) as spool:
        assert spooled(spool) == [1, 2]


def test_a_file_that_is_gone_is_counted(tmp_path):
    """It was deleted: the others are still handed on."""
    with opened(tmp_path, segment_bytes=200) as spool:
        append(spool, 0)
        append(spool, 1)
        append(spool, 2)
        segments(tmp_path)[1].unlink()

        assert spooled(spool) == [0, 2]
        assert spool.counted.errors == {"ENOENT": 1}


def test_a_full_spool_takes_nothing_and_keeps_what_it_has(tmp_path):
    """The sender is asked to retry later; when there is room it may."""
    with opened(tmp_path, segment_bytes=500, disk_bytes=2000) as spool:
        answers = [one for number in range(30) for one in append(spool, number)]
        taken = answers.count(None)

        assert 5 < taken < 30
        assert {"spool_full"} == {one.reason for one in answers[taken:]}
        assert spool.disk_bytes <= 2000
        assert list(range(taken)) == spooled(spool)
        assert append(spool, 30) == [None]


def test_room_is_left_on_the_disk(tmp_path):
    """Other programs need it."""
    with opened(tmp_path, free_bytes=1 << 60) as spool:
        [answer] = append(spool, 0)
        full = spool.why_full()

    assert (answer.reason, full.reason) == ("disk_full", "disk_full")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_disk_that_does_not_write_is_survived(tmp_path, monkeypatch, error):
    """Nothing half-written is seen, the sender may come back, and then all is well."""
    with opened(tmp_path) as spool:
        append(spool, 0)
        real = os.pwritev

        def half(file, pieces, place):
            real(file, pieces[:1], place)
            raise OSError(error, os.strerror(error))

        with monkeypatch.context() as broken:
            broken.setattr(os, "pwritev", half)
            answers = append(spool, 1, 2)
        answers += append(spool, 3)

        assert [one.reason for one in answers[:2]] == ["spool_error", "spool_error"]
        assert answers[2] is None
        assert spooled(spool) == [0, 3]
        assert {errno.errorcode[error]} == set(spool.counted.errors)


def test_a_sync_that_fails_is_not_acknowledged(tmp_path, monkeypatch):
    """What the disk may not have is not kept, and the next goes to another file."""
    with opened(tmp_path, sync="always") as spool:
        append(spool, 0)

        def broken(_file):
            raise OSError(errno.EIO, "input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", broken)
            [answer] = append(spool, 1)
        append(spool, 2)

        assert answer.reason == "spool_error"
        assert spooled(spool) == [0, 2]


def test_a_writer_that_breaks_in_an_unknown_way_goes_on(tmp_path, monkeypatch):
    """The thread outlives it, and the sender is answered."""
    with opened(tmp_path) as spool:
        with monkeypatch.context() as patch:
            patch.setattr(Spool, "why_full", lambda *_: 1 / 0)
            [answer] = append(spool, 0)

        assert answer.reason == "spool_error"
        assert append(spool, 1) == [None]


def test_a_closed_spool_says_so(tmp_path):
    """Senders go elsewhere, or come back."""
    with opened(tmp_path) as spool:
        pass

    [answer] = append(spool, 0)

    assert isinstance(answer, RejectedError)
    assert answer.reason == "stopping"


def test_two_collectors_do_not_share_a_spool(tmp_path):
    """The second one says at set-up what is wrong."""
    with opened(tmp_path), pytest.raises(ConfigError, match="another collector uses it"):
        Spool(tmp_path)


def test_a_folder_that_cannot_be_is_reported_at_set_up(tmp_path):
    """With its path, and what would do."""
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="give a folder"):
        Spool(tmp_path / "file" / "spool")


@pytest.mark.parametrize(
    "wrong", [{"sync": "often"}, {"disk_bytes": 0}, {"segment_bytes": 1 << 60}, {"free_bytes": -1}]
)
def test_wrong_limits_are_reported_at_set_up(wrong):
    """With the setting's name."""
    with pytest.raises(ConfigError, match=f"spool.{next(iter(wrong))}"):
        SpoolLimits(**wrong)


def test_a_lost_cursor_loses_nothing(tmp_path):
    """What is still there is handed on again."""
    with opened(tmp_path) as spool:
        append(spool, 0, 1)
        spool.stored(spool.next_batch(MIB, 1))
    (tmp_path / "cursor").write_bytes(b"?" * 1024)

    with opened(tmp_path) as spool:
        assert spooled(spool) == [0, 1]


def test_a_record_across_the_search_s_chunks_is_found(tmp_path):
    """After damage the next good record is found wherever it begins."""
    with opened(tmp_path, segment_bytes=8 * MIB) as spool:
        append(spool, 0, 1)
    [file] = segments(tmp_path)
    raw = file.read_bytes()
    size = len(raw) // 2
    for filler in range(MIB - 20 + size, MIB + size, 3):
        file.write_bytes(raw[:size] + b"\xf1" * filler + raw[size:])
        (tmp_path / "cursor").unlink()
        with opened(tmp_path, segment_bytes=8 * MIB) as spool:
            assert spooled(spool) == [0, 1]
            assert spool.counted.damaged_bytes == filler
        file.write_bytes(raw)


def test_numbers_come_back_from_bytes():
    """The tests' own reading is right."""
    assert numbers(body(3, 2)) == [3, 4]
