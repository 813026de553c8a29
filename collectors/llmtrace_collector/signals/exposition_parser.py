"""Parse a metrics page, fast enough for thousands of engines.

A page is nearly the same text each time: only the numbers after the last space change. So
prometheus_client parses a series once; after that its text identifies it, first at the line where
it was on the previous page, else by a look-up. Pages whose lines continue after the value
(timestamps, exemplars) are always left to prometheus_client. Input is bounded in bytes, lines and
series, and what is dropped is counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as openmetrics_families,
)
from prometheus_client.parser import text_string_to_metric_families as text_families
from prometheus_client.samples import Sample

from llmtrace.core.errors import DataError

_IGNORED: Final = -1
# A line up to its last space, the length of that text, and the slot of its series.
_Known = tuple[str, int, int]
_COMMENT: Final[_Known] = ("#", 1, _IGNORED)
_UNKNOWN: Final[_Known] = ("\n", 1, _IGNORED)  # begins no line
_KEY: Final = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?|\{".*\}', re.DOTALL)
# A name in quotes within the brackets: Prometheus's way to write names of any UTF-8.
_QUOTED: Final = re.compile(r'\{\s*"((?:[^"\\]|\\.)*)"\s*[,}]')
_NAME_END: Final = re.compile(r"[{ \t]")
# What prometheus_client raises for lines that are not samples.
_PARSE_ERRORS: Final = (ValueError, IndexError, KeyError, OverflowError, AttributeError, TypeError)
# The fewest pages between two resets, for a page that keeps changing its series.
_PAGES_BETWEEN_RESETS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much of a page is read; the rest is dropped and counted.

    Attributes:
        size: bytes of a page.
        lines: of a page.
        line: characters of a line that was not seen before.
        series: kept of a page.
        labels: of a series; more, and the series is dropped.
        value: characters of a label's value; more, and the series is dropped.
    """

    size: int = 8 << 20
    lines: int = 100_000
    line: int = 8_192
    series: int = 20_000
    labels: int = 96
    value: int = 4_096


@dataclass(frozen=True, slots=True)
class Series:
    """One time series: a sample's name and its labels."""

    name: str
    labels: dict[str, str]


class ExpositionParser:
    """Reads the pages of one target, one after another.

    Attributes:
        series: by slot, the index into what `read` returns.
        layout: changes whenever slots are added or change their meaning.
        helps: HELP texts of the families that are wanted.
        dropped: how much was not read, by reason.
        stock: whether this target's pages are left to prometheus_client.
    """

    def __init__(self, wanted: Callable[[str], bool], limits: Limits | None = None) -> None:
        self.series: list[Series] = []
        self.layout = 0
        self.helps: dict[str, str] = {}
        self.dropped: Counter[str] = Counter()
        self.stock = False
        self._wanted = wanted
        self._limits = limits or Limits()
        self._known: dict[str, _Known] = {}
        self._order: list[_Known] = []
        self._by_series: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
        self._since_reset = 0
        self._parsed = 0

    @staticmethod
    def check(text: str) -> None:
        """Raise `DataError` if the first line is not one of a metrics page, as in HTML or JSON."""
        try:
            list(text_families(text.lstrip()[: Limits().line].partition("\n")[0]))
        except _PARSE_ERRORS:
            raise DataError("not a metrics page") from None

    def read(self, text: str) -> list[float | None]:
        """Return the value of each series; `None` = not on this page.

        Raises:
            DataError: it is not a metrics page.
        """
        if len(text) > self._limits.size:
            self.dropped["size"] += 1
            raise DataError(f"the page is larger than {self._limits.size} characters")
        self._reset_if_full()
        self._parsed = 0
        before = self.layout
        values = self._read_stock(text) if self.stock else self._read_fast(text)
        if self.layout != before:
            self._learn_helps(text)
        return values

    def _read_fast(self, text: str) -> list[float | None]:
        limits = self._limits
        lines = text.split("\n", limits.lines)
        if len(lines) > limits.lines:
            self.dropped["lines"] += 1
            lines.pop()
        values: list[float | None] = [None] * len(self.series)
        order = self._order
        odd: list[str] = []
        for line, (text_before, length, slot) in zip(lines, order, strict=False):
            if line.startswith(text_before):
                if slot >= 0:
                    try:
                        values[slot] = float(line[length:])
                    except ValueError:
                        odd.append(line)
            else:
                odd.append(line)
        odd += lines[len(order) :]
        for line in odd:
            known = self._find(line)
            if known is not None:
                if known[2] >= 0:
                    values[known[2]] = float(line[known[1] :])
            elif not self._learn(line, values):
                self.stock = True
                self._known.clear()
                self._order.clear()
                return self._read_stock(text)
        if len(odd) > len(lines) // 16:
            self._order = [self._find(line) or _UNKNOWN for line in lines]
        return values

    def _find(self, line: str) -> _Known | None:
        """Look a line up by its text; `None` = it is not known, or has no number."""
        if line[:1] == "#":
            return _COMMENT
        known = self._known.get(line[: line.rfind(" ") + 1])
        if known is not None and known[2] >= 0:
            try:
                float(line[known[1] :])
            except ValueError:
                return None
        return known

    def _learn(self, line: str, values: list[float | None]) -> bool:
        """Read a new line; return whether its text can identify it from now on."""
        stripped = line.strip()
        if not stripped or stripped[0] == "#":
            return True
        if len(line) > self._limits.line:
            self.dropped["line"] += 1
            return True
        key, space, value = line.rpartition(" ")
        before = key + space
        whole = _KEY.fullmatch(key) is not None
        if not self._wanted(_name(stripped)):
            # Not wanted: remember it, so that it is skipped quickly.
            if whole and len(self._known) < 2 * self._limits.series:
                self._known[before] = (before, len(before), _IGNORED)
            return True
        sample = self._parse(stripped)
        if sample is None:
            return True
        slot = self._slot(sample, values)
        if slot is None:
            return True
        number = float(sample.value)
        values[slot] = number
        try:
            same = whole and sample.timestamp is None and _equal(float(value), number)
        except ValueError:
            same = False
        if same:
            self._known[before] = (before, len(before), slot)
        return same

    def _parse(self, line: str) -> Sample | None:
        """Parse a line, within the limit of lines parsed per page; `None` = dropped."""
        self._parsed += 1
        if self._parsed > self._limits.series:
            self.dropped["series"] += 1
            return None
        try:
            return _parse_line(line)
        except _PARSE_ERRORS:
            self.dropped["malformed"] += 1
            return None

    def _slot(self, sample: Sample, values: list[float | None]) -> int | None:
        """Return the slot of a sample's series, adding one if it is new; `None` = dropped."""
        limits = self._limits
        labels = sample.labels
        if len(labels) > limits.labels or any(len(v) > limits.value for v in labels.values()):
            self.dropped["labels"] += 1
            return None
        known = (sample.name, tuple(sorted(labels.items())))
        slot = self._by_series.get(known)
        if slot is None:
            if len(self.series) >= limits.series:
                self.dropped["series"] += 1
                return None
            slot = self._by_series[known] = len(self.series)
            self.series.append(Series(sample.name, dict(labels)))
            values.append(None)
            self.layout += 1
        return slot

    def _read_stock(self, text: str) -> list[float | None]:
        values: list[float | None] = [None] * len(self.series)
        for sample in self._stock_samples(text):
            if self._wanted(sample.name):
                slot = self._slot(sample, values)
                if slot is not None:
                    values[slot] = float(sample.value)
        return values

    def _stock_samples(self, text: str) -> Iterator[Sample]:
        if not text.rstrip().endswith("# EOF"):
            yield from self._text_samples(text)
            return
        try:
            families = list(openmetrics_families(text.rstrip() + "\n"))  # type: ignore[no-untyped-call]
        except _PARSE_ERRORS as error:
            # Some exporters write the text format, with exemplars, and end it as OpenMetrics ends.
            # Then every line must be parsed, including those that are not wanted.
            try:
                families = list(text_families(text))
            except _PARSE_ERRORS:
                self.dropped["malformed"] += 1
                raise DataError("not an OpenMetrics page, though it ends like one") from error
        for family in families:
            yield from family.samples

    def _text_samples(self, text: str) -> Iterator[Sample]:
        lines = text.split("\n", self._limits.lines)
        for line in lines[: self._limits.lines]:
            stripped = line.strip()
            if not stripped or stripped[0] == "#":
                continue
            if len(line) > self._limits.line:
                self.dropped["line"] += 1
                continue
            if self._wanted(_name(stripped)):
                sample = self._parse(stripped)
                if sample is not None:
                    yield sample
        if len(lines) > self._limits.lines:
            self.dropped["lines"] += 1

    def _reset_if_full(self) -> None:
        """Forget everything when the memory is full, to make room for the present series."""
        self._since_reset += 1
        full = (
            len(self.series) >= self._limits.series or len(self._known) >= 2 * self._limits.series
        )
        if full and self._since_reset > _PAGES_BETWEEN_RESETS:
            self._since_reset = 0
            self._known.clear()
            self._order.clear()
            self._by_series.clear()
            self.series.clear()
            self.layout += 1
            self.dropped["relearnt"] += 1

    def _learn_helps(self, text: str) -> None:
        names = {series.name for series in self.series}
        for name, words in helps(text, self._limits):
            if name in names or f"{name}_total" in names or f"{name}_count" in names:
                self.helps[name] = words


def helps(text: str, limits: Limits) -> Iterable[tuple[str, str]]:
    """Yield the family and the words of each HELP line."""
    start = 0
    for _ in range(limits.lines):
        start = text.find("# HELP ", start)
        if start < 0:
            return
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)]
        start += len(line)
        if len(line) <= limits.line:
            name, _, words = line[7:].partition(" ")
            yield name, words


def _name(line: str) -> str:
    if line[:1] == "{":
        quoted = _QUOTED.match(line)
        return quoted[1] if quoted else ""
    end = _NAME_END.search(line)
    return line[: end.start()] if end else line


def _parse_line(line: str) -> Sample:
    for family in text_families(line):
        for sample in family.samples:
            float(sample.value)
            return sample
    raise ValueError(line)


def _equal(one: float, other: float) -> bool:
    return one == other or (one != one and other != other)  # noqa: PLR0124 - NaN equals NaN here
