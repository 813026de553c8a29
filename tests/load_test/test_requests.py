"""Does a workload say what is sent, the same each time?"""

from __future__ import annotations

import gzip
import json

import pytest

from llmtrace.core.errors import ConfigError, DataError, SourceError
from llmtrace.load_test.dataset_requests import from_dataset
from llmtrace.load_test.lengths import read_lengths
from llmtrace.load_test.requests import at_rate, drawn, from_trace, hash_of


def words(request):
    """Return the words of a request's only message."""
    return request.messages[0]["content"].split()


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("256", 256, 256), ("100-400", 100, 400), ("lognormal:100,0.5", 1, 1_000_000)],
)
def test_lengths_are_drawn_within_their_bounds(text, low, high):
    """And two seeds draw two workloads, unless there is but one length."""
    requests = drawn(200, read_lengths(text), read_lengths("10"))
    assert all(low <= len(words(request)) <= high for request in requests)
    assert all(request.max_tokens == 10 for request in requests)


def test_a_log_normal_has_its_median():
    """Half of the lengths are below it."""
    requests = drawn(2001, read_lengths("lognormal:100,0.8"), read_lengths("1"))
    assert 90 < sorted(len(words(request)) for request in requests)[1000] < 111


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "5-", "400-100", "lognormal:100", "1e3", "99999999"]
)
def test_what_is_no_length_is_an_error(text):
    """With the forms there are."""
    with pytest.raises(ConfigError, match="length"):
        read_lengths(text)


def test_the_same_seed_is_the_same_workload():
    """By its hash, which changes with anything that is sent."""
    lengths = read_lengths("50-100")
    first, again, other = (drawn(20, lengths, lengths, seed=seed) for seed in (1, 1, 2))
    assert hash_of(first) == hash_of(again)
    hashes = {
        hash_of(first), hash_of(other), hash_of(first[:-1]), hash_of(first, stream=False),
        hash_of(at_rate(first, 2.0)),
    }  # fmt: skip
    assert len(hashes) == 5


def test_a_shared_prefix_is_shared():
    """And what follows is each prompt's own."""
    one, other = drawn(2, read_lengths("100"), read_lengths("1"), shared_prefix=60)
    assert words(one)[:60] == words(other)[:60]
    assert words(one)[60:] != words(other)[60:]
    assert len(words(one)) == 100


def test_poisson_arrivals_have_their_rate():
    """In order, the first at once."""
    requests = at_rate(drawn(2000, read_lengths("1"), read_lengths("1")), 20.0)
    times = [request.at_s for request in requests]
    assert times[0] == 0
    assert times == sorted(times)
    assert 90 < times[-1] < 110


def test_a_dataset_is_read_again_where_it_is_short(tmp_path):
    """Its own limits win over the one given."""
    path = tmp_path / "set.jsonl.gz"
    lines = [
        {"prompt": "one", "max_tokens": 7},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "two"}]},
    ]
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    requests = from_dataset(path, 3, read_lengths("5"), seed=0)
    assert [len(request.messages) for request in requests] == [1, 2, 1]
    assert [request.max_tokens for request in requests] == [7, 5, 7]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"messages": []}', '{"messages": ["x"]}', "{",
             '{"prompt": "x", "max_tokens": 0}', '{"prompt": "x", "max_tokens": "9"}'],
)  # fmt: skip
def test_a_line_that_is_no_request_is_an_error(tmp_path, text):
    """The file and the line are named."""
    path = tmp_path / "odd.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=r"odd\.jsonl: (line 1|no request)"):
        from_dataset(path, None, None, seed=0)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    """It is named."""
    with pytest.raises(SourceError, match="missing"):
        from_dataset(tmp_path / "missing", None, None, seed=0)


def test_a_trace_is_replayed_at_its_times(tmp_path):
    """Mooncake's: blocks of a group are the same text, the rest is not."""
    path = tmp_path / "mooncake.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 500, "input_length": 1000, "output_length": 6, "hash_ids": [1, 3]},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    first, second = from_trace(path, None)
    assert (first.at_s, second.at_s) == (0.0, 0.5)
    assert (first.max_tokens, second.max_tokens) == (5, 6)
    assert [len(words(request)) for request in (first, second)] == [1000, 1000]
    assert words(first)[:512] == words(second)[:512]
    assert words(first)[512:] != words(second)[512:]
