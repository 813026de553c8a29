"""Is a record read as it was written, and nothing else taken for one?"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from llmtrace_collector.receive.spool_format import MARK, head, length_at, next_mark, records

PAYLOADS = st.lists(st.binary(max_size=60) | st.just(MARK * 3), max_size=6)


def written(payloads: list[bytes]) -> bytes:
    """Write records."""
    return b"".join(head(one, place) + one for place, one in enumerate(payloads))


@given(PAYLOADS, st.integers(0, 1000))
def test_records_come_back(payloads, start):
    """What was written is read, at its place."""
    data = written(payloads)

    found = list(records(data, start))

    assert payloads == [one.payload for one in found]
    assert list(range(len(payloads))) == [one.spans for one in found]
    assert start + len(data) == (found[-1].end if found else start)


@given(PAYLOADS, st.data())
def test_a_cut_costs_the_record_it_goes_through_alone(payloads, data):
    """Of a file that ends too early all whole records are read, and nothing more."""
    raw = written(payloads)
    cut = data.draw(st.integers(0, len(raw)))

    found = [one.payload for one in records(raw[:cut])]

    assert payloads[: len(found)] == found
    assert len(written([*found])) <= cut


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=6), st.data())
def test_a_changed_byte_is_seen(payloads, data):
    """No byte can change without its record being rejected."""
    raw = bytearray(written(payloads))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] ^= data.draw(st.integers(1, 255))

    found = list(records(bytes(raw)))

    assert all(one.end <= place for one in found)


def test_a_mark_in_a_payload_is_found_and_is_no_record():
    """A place where a record may begin is only that."""
    data = head(MARK + b"rest", 1) + MARK + b"rest"

    assert next_mark(data, 1) == len(data) - len(MARK + b"rest")
    assert list(records(data[next_mark(data, 1) :])) == []
    assert next_mark(data, len(data) - 4) == len(data)


def test_a_head_says_how_long_its_record_is():
    """The length is known before the payload is there."""
    data = head(b"abc", 1) + b"abc"

    assert length_at(data[:16], 0) == len(data)
    assert length_at(data[:15], 0) is None
    assert length_at(b"x" + data, 0) is None
