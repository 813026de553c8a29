"""Is a page read as prometheus_client reads it, fast, and whatever is on it?"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as stock

from llmtrace.core.errors import DataError
from llmtrace_collector.signals.exposition_parser import ExpositionParser, Limits
from llmtrace_collector.signals.normalise import Normaliser
from llmtrace_collector.signals.profile import builtin_profiles

from . import pages

Values = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def everything(_name: str) -> bool:
    """Want every series."""
    return True


def read(reader: ExpositionParser, text: str) -> Values:
    """Return what a reader makes of a page, by name and labels."""
    found = reader.read(text)
    return {
        (one.name, tuple(sorted(one.labels.items()))): value
        for one, value in zip(reader.series, found, strict=True)
        if value is not None
    }


def expected(text: str, parse: Callable = stock) -> Values:
    """Return what prometheus_client makes of it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in parse(text)
        for sample in family.samples
    }


@pytest.mark.parametrize("name", pages.SCRAPES)
def test_a_real_page_is_read_as_prometheus_client_reads_it(name):
    """The first time, when all is new, and the second, when all is known."""
    text, reader = pages.scrape(name), ExpositionParser(everything)

    first, second = read(reader, text), read(reader, text)

    assert first == expected(text)
    assert second == first
    assert not reader.stock
    assert reader.dropped == {}


def test_only_numbers_move_from_page_to_page():
    """A known page with other numbers makes no new series."""
    reader = ExpositionParser(everything)
    read(reader, 'a{x="1"} 1\nb 2\n')
    layout = reader.layout

    assert read(reader, 'b 20\na{x="1"} 10\n') == {("a", (("x", "1"),)): 10.0, ("b", ()): 20.0}
    assert reader.layout == layout


def test_lines_that_change_places_are_found_again():
    """New families in the middle, others gone, and back: each value is its own series'."""
    reader = ExpositionParser(everything)
    texts = [
        "".join(f"a{n} {n}\n" for n in range(40)),
        "z 5\n" + "a7 70\na3 30\n",
        "a0 9\nz 1\n\n",
    ]
    for text in [*texts, *reversed(texts)]:
        assert read(reader, text) == expected(text)


def test_what_was_not_requested_is_not_kept():
    """Only the series wanted are in memory."""
    reader = ExpositionParser(lambda name: name == "a")

    assert read(reader, 'a 1\nb{c="d"} 2\n') == {("a", ()): 1.0}
    assert read(reader, 'a 3\nb{c="d"} 2\n') == {("a", ()): 3.0}


@pytest.mark.parametrize(
    "line",
    [
        'a{x="b c"} 1',
        'a{x="} 5"} 3',
        'a{x="# HELP"} 2',
        'a{x="\\"q\\" \\\\ \\n"} 4',
        'a{x="1",} 5',
        "a NaN",
        "a +Inf",
        "a -Inf",
        "a 1e-7",
        "a\t1",
        '  a{x="1"}   7  ',
        'a{x="b c"}1',
        "a 5 1395066363000",
        'a{x="1"} 5 1395066363000',
        "a{} 1",
    ],
)
def test_odd_lines_are_read_as_prometheus_client_reads_them(line):
    """Spaces, escapes and braces in labels, numbers of every form, timestamps."""
    reader = ExpositionParser(everything)

    for _ in range(3):
        found = read(reader, f"{line}\nb 2\n")
        assert list(found) == list(expected(f"{line}\nb 2\n"))
        for one, other in zip(found.values(), expected(f"{line}\nb 2\n").values(), strict=True):
            assert one == other or (math.isnan(one) and math.isnan(other))


def test_pages_with_timestamps_are_left_to_the_real_parser():
    """The text before the last space is then not the series; nothing is taken for its value."""
    reader = ExpositionParser(everything)

    assert read(reader, "a 5 1395066363000\n") == {("a", ()): 5.0}
    assert reader.stock
    assert read(reader, "a 6 1395066363999\n") == {("a", ()): 6.0}


def test_exemplars_are_left_to_the_real_parser():
    """OpenMetrics with exemplars is read right, page after page."""
    reader = ExpositionParser(everything)
    text = (
        "# TYPE a histogram\n"
        'a_bucket{le="1.0"} 5 # {trace_id="x"} 0.5 1395066363.1\n'
        'a_bucket{le="+Inf"} 6\na_count 6\na_sum 9.5\n# EOF\n'
    )
    for _ in range(2):
        assert read(reader, text) == expected(text, openmetrics)


def test_a_page_that_only_says_it_is_openmetrics():
    """What cannot be read at all is an error with words, not a crash."""
    reader = ExpositionParser(everything)

    with pytest.raises(DataError, match="OpenMetrics"):
        reader.read('a 5 # {trace_id="x"} 1\n{{{ 3 4\n# EOF\n')


# --- bounds -------------------------------------------------------------------------------------


def test_a_page_that_is_too_large_is_not_read():
    """The bound on the whole page."""
    reader = ExpositionParser(everything, Limits(size=10))

    with pytest.raises(DataError, match="larger than 10"):
        reader.read("a 1\n" * 10)
    assert reader.dropped == {"size": 1}


@pytest.mark.parametrize(
    ("limits", "text", "kept", "dropped"),
    [
        (Limits(lines=2), "a 1\nb 2\nc 3\nd 4\n", 2, {"lines": 1}),
        (Limits(line=20), f'a{{x="{"y" * 50}"}} 1\nb 2\n', 1, {"line": 1}),
        (Limits(series=2), "a 1\nb 2\nc 3\nd 4\n", 2, {"series": 2}),
        (Limits(labels=1), 'a{x="1",y="2"} 1\nb 2\n', 1, {"labels": 1}),
        (Limits(value=3), 'a{x="1234"} 1\nb 2\n', 1, {"labels": 1}),
        (Limits(), "a one\nb 2\n{ 3\n", 1, {"malformed": 2}),
    ],
)
def test_what_is_over_a_bound_is_dropped_and_counted(limits, text, kept, dropped):
    """Lines, their length, series, labels, and what is no line of metrics."""
    reader = ExpositionParser(everything, limits)

    assert len(read(reader, text)) == kept
    assert reader.dropped == dropped


def test_labels_that_change_with_every_page_fill_no_memory():
    """Series that went make room for those that came, and not at every page."""
    reader = ExpositionParser(everything, Limits(series=50))
    for page in range(200):
        read(reader, "".join(f'a{{id="{page}-{n}"}} 1\n' for n in range(10)))

    assert len(reader.series) <= 50
    assert len(reader._known) <= 100
    assert reader.dropped["relearnt"] >= 2
    assert reader.dropped["series"] > 0


def test_a_hostile_page_takes_no_time():
    """Lines made to be parsed slowly are bounded in number and length."""
    lines = ['a{x="' + "\\\\" * 4000 + f'{n}"}} 1' for n in range(150)] + [
        "a{" + ",".join(f'l{n}="v"' for n in range(1500)) + "} 1"
    ] * 100
    reader = ExpositionParser(everything, Limits(series=200))
    started = time.process_time()

    for _ in range(2):
        read(reader, "\n".join(lines))

    assert time.process_time() - started < 20


_TEXT = st.text(alphabet=st.sampled_from('ab_:{}="\\,# \t\n01.e+-NaIf\u00e9\x00'), max_size=200)


@settings(max_examples=300, deadline=None)
@given(st.lists(_TEXT, max_size=5))
@example(['a{x="1"} 1', 'a{x="1"} 1 2', 'a{x="1"} 1 # {b="c"} 1\n# EOF'])
def test_no_text_breaks_the_reader(texts):
    """Any text, page after page, is read or refused with a DataError."""
    reader = ExpositionParser(everything, Limits(series=20, line=100))
    for text in texts:
        try:
            values = reader.read(text)
        except DataError:
            continue
        assert len(values) == len(reader.series)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(pages.SCRAPES[:1]), _TEXT, st.integers(0, 3000)), max_size=3
    )
)
def test_no_damage_to_a_real_page_breaks_what_is_made_of_it(damages):
    """A page with anything in the middle of it still comes to a reading, or a DataError."""
    normaliser = Normaliser(builtin_profiles())
    for name, text, place in damages:
        page = pages.scrape(name)
        try:
            normaliser.read(page[: place * 10] + text + page[place * 10 :])
        except DataError:
            continue


_NAME = st.from_regex(r"[a-z_:][a-z0-9_:]{0,5}", fullmatch=True)
_LABELS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True),
    st.text(
        alphabet=st.characters(
            codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
        ),
        max_size=8,
    ),
    max_size=3,
)
_NUMBER = st.one_of(st.floats(allow_nan=False), st.integers(-(10**12), 10**12))


# A proper page has each series once.
_PAGE = st.lists(
    st.tuples(_NAME, _LABELS, _NUMBER),
    max_size=6,
    unique_by=lambda line: (line[0], tuple(sorted(line[1].items()))),
)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    escaped = {key: text.replace("\\", "\\\\").replace('"', '\\"') for key, text in labels.items()}
    inside = ",".join(f'{key}="{text}"' for key, text in escaped.items())
    return f"{name}{{{inside}}} {value!r}" if labels else f"{name} {value!r}"


@settings(max_examples=80, deadline=None)
@given(st.lists(_PAGE, min_size=1, max_size=4))
def test_every_proper_page_is_read_as_prometheus_client_reads_it(written):
    """Whatever the names, labels and numbers, on every page of a target."""
    reader = ExpositionParser(everything)
    for page in written:
        text = "".join(_line(*line) + "\n" for line in page)

        assert read(reader, text) == expected(text)


# --- what others write --------------------------------------------------------------------------


def test_text_format_that_ends_like_openmetrics_is_read_as_text():
    """Exemplars, TYPE lines of the text format, and `# EOF`."""
    reader = ExpositionParser(everything)
    page = (
        "# TYPE a gauge\na 3.0\n# TYPE b_total counter\n"
        'b_total{x="1"} 10.0 # {trace_id="a"} 1 1.0\n# EOF\n'
    )
    for _ in range(2):
        assert read(reader, page) == {("a", ()): 3.0, ("b_total", (("x", "1"),)): 10.0}


def test_names_in_quotes_are_read():
    """As Prometheus 3 writes them."""
    reader = ExpositionParser(lambda name: name == "vllm:running")
    for value in (3.0, 4.0):
        page = f'{{"vllm:running",engine="0"}} {value}\n{{"other.name"}} 1\n'
        assert read(reader, page) == {("vllm:running", (("engine", "0"),)): value}
