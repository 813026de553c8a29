"""Keep a million rows in memory as columns, so that arithmetic over them is fast.

One numpy array a field: `Columns`. Invalid values (text where a number belongs, NaN, time that
runs backwards, a part that is longer than the whole) are kept out and counted: a field becomes
unknown, never a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.json_values import MAX_S, MAX_START_NS, start_ns
from llmtrace.core.row import Row
from llmtrace.core.row_fields import (
    FAILED,
    GRANULARITY_S,
    MARKS,
    NEARLY,
    NETWORK,
    OUTCOME_WORDS,
    OUTCOMES,
    PLAIN,
    RAW,
    REPORTED,
    UNSPLIT,
    outcome_of_status,
)
from llmtrace.core.sanitize import printable
from llmtrace.core.stages import STAGES
from llmtrace.exporters.row_files.csv_tables import quoting
from llmtrace.stats.arrays import Floats, Mask

# Different in every row: contiguous bytes, not a dictionary of names.
IDS: Final = ("request_id", "trace_id", "span_id")


def _plain(*kinds: str) -> tuple[str, ...]:
    return tuple(line.key for line in PLAIN if line.in_columns and line.kind in kinds)


# Durations in seconds, as `Row.as_dict` names them.
SECONDS: Final = (
    "ttft_s", "tpot_s", "e2e_s",
    *(f"{stage}_s" for stage in STAGES), "unattributed_s", "ttft_arrival_s", "retry_s",
    *(
        f"{line.key}_s"
        for line in (*UNSPLIT, *RAW, *MARKS, *REPORTED, *NETWORK)
        if line.in_columns
    ),
    *(name for name in _plain("double") if name.endswith("_s")),
)  # fmt: skip
COUNTS: Final = _plain("int")
FLAGS: Final = ("stream", "nested", *_plain("boolean"))
NUMBERS: Final = (*SECONDS, *COUNTS, *FLAGS, "weight")
WORDS: Final = (
    "service", "server", "finish_reason",
    *(name for name in _plain("string") if name not in IDS),
    *(f"{stage}_source" for stage in STAGES),
)  # fmt: skip

_STAGES: Final = (*(f"{stage}_s" for stage in STAGES), "unattributed_s")
# Where one of them is known, a row says itself how its response went on.
_AFTER_FIRST: Final = ("decode_s", "tpot_s", "last_content_s", "unattributed_s")
_MANY_TOKENS: Final = 8
_AT_END: Final = 0.01  # of the response
# Of one clock, and within the request: none is longer than `e2e_s`.
_WITHIN: Final = ("ttft_s", "tpot_s", "answered_s", "first_byte_s", "last_content_s", *_STAGES)
_INFERRED: Final = "whether a response was streamed is inferred from its times"
_MANY: Final = 0.05  # of the rows: if more values are kept out, the others are in doubt
_TRUTHS: Final = {"true": 1.0, "false": 0.0}
_MAX_COUNT: Final = 2.0**53
_MAX_WEIGHT: Final = 1e9
_WORD_LENGTH: Final = 256
_ID_BYTES: Final = 64


class Doubt(str):
    """A warning that puts every figure in doubt: a report has it before its verdict."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Words:
    """A column of text: `names[codes[i]]` is row i's word, and a code of -1 is an unknown one."""

    codes: NDArray[np.int32]
    names: tuple[str, ...]

    def where(self, *names: str) -> Mask:
        """Return a mask of the rows that have one of these words."""
        chosen = np.zeros(len(self.names) + 1, bool)  # the last is for the code of an unknown word
        chosen[[self.names.index(name) for name in names if name in self.names]] = True
        return chosen[self.codes]

    def word(self, index: int) -> str | None:
        """Return one row's word; `None` = unknown."""
        code = int(self.codes[index])
        return None if code < 0 else self.names[code]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows, a column each field. All columns are there, and as long as `n`.

    Attributes:
        n: how many rows.
        start: unix nanoseconds of each row's start.
        numbers: by the names in `NUMBERS`; durations in seconds, flags 0 or 1; NaN = unknown.
        words: by the names in `WORDS`.
        ids: by the names in `IDS`, as UTF-8; empty = unknown.
        warnings: what was kept out while reading, for people; a `Doubt` if it is much.
    """

    n: int
    start: NDArray[np.int64]
    numbers: Mapping[str, Floats]
    words: Mapping[str, Words]
    ids: Mapping[str, NDArray[np.bytes_]]
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.n

    def take(self, which: NDArray[Any] | slice) -> Columns:
        """Return the rows of a mask, at these indices, or of a slice (which copies nothing)."""
        if not isinstance(which, slice) and which.dtype == np.bool_ and which.all():
            return self
        start = self.start[which]
        return replace(
            self,
            n=len(start),
            start=start,
            numbers={name: column[which] for name, column in self.numbers.items()},
            words={name: Words(w.codes[which], w.names) for name, w in self.words.items()},
            ids={name: column[which] for name, column in self.ids.items()},
        )

    def within(self, start_s: float, end_s: float) -> Columns:
        """Return the rows that started from `start_s` on and before `end_s`, unix seconds."""
        low, high = _to_ns(start_s), _to_ns(end_s)
        if (self.start[1:] >= self.start[:-1]).all():
            first, last = np.searchsorted(self.start, (low, high))
            return self.take(slice(int(first), int(last)))
        return self.take((self.start >= low) & (self.start < high))

    @property
    def weights(self) -> Floats:
        """How many requests each row stands for; 1 where not reported."""
        weight = self.numbers["weight"]
        return np.where(np.isnan(weight), 1.0, weight)

    @property
    def failed(self) -> Mask:
        """Which requests failed, shape (n,); one that its client cancelled did not."""
        return self.words["outcome"].where(*FAILED)

    def id(self, name: str, index: int) -> str | None:
        """Return one row's id as text; `None` = unknown."""
        return bytes(self.ids[name][index]).decode("utf-8", "replace") or None

    def to_dicts(self) -> Iterator[dict[str, Any]]:
        """Yield each row as flat keys, unknown ones left out, as `from_dicts` reads them."""
        for i in range(self.n):
            flat: dict[str, Any] = {"start": int(self.start[i])}
            for name, column in self.numbers.items():
                value = float(column[i])
                if value == value:  # noqa: PLR0124 - not NaN
                    flat[name] = _as_plain(name, value)
            for name, words in self.words.items():
                if (word := words.word(i)) is not None:
                    flat[name] = word
            for name in self.ids:
                if (text := self.id(name, i)) is not None:
                    flat[name] = text
            yield flat


def empty() -> Columns:
    """Return columns without any rows."""
    return Builder().done()


def from_dicts(rows: Iterable[Mapping[str, Any]]) -> Columns:
    """Make columns of flat rows: `Row.as_dict`, a line of `rows.jsonl`, a result of a query."""
    builder = Builder()
    builder.add(rows)
    return builder.done()


def from_rows(rows: Iterable[Row]) -> Columns:
    """Return the columns of rows that are in memory."""
    return from_dicts(row.as_dict() for row in rows)


def concatenate(parts: Sequence[Columns]) -> Columns:
    """Return all rows of these, in this order."""
    if not parts:
        return empty()
    words = {}
    for name in WORDS:
        codes: dict[str, int] = {}
        column = [_recode(part.words[name], codes) for part in parts]
        words[name] = Words(np.concatenate(column), tuple(codes))
    return Columns(
        n=sum(part.n for part in parts),
        start=np.concatenate([part.start for part in parts]),
        numbers={name: np.concatenate([p.numbers[name] for p in parts]) for name in NUMBERS},
        words=words,
        ids={name: np.concatenate([p.ids[name] for p in parts]) for name in IDS},
        warnings=tuple(dict.fromkeys(line for part in parts for line in part.warnings)),
    )


def _recode(words: Words, codes: dict[str, int]) -> NDArray[np.int32]:
    """Translate codes to those of a common dictionary, which grows by what is new."""
    new = [codes.setdefault(name, len(codes)) for name in words.names]
    return np.array([*new, -1], np.int32)[words.codes]


class Builder:
    """Rows on their way into columns, block by block, and the count of what was kept out.

    Attributes:
        first: the first line of the file, as JSON, to be quoted.
        doubts: what puts all of it in doubt.
        notes: how it was read, for people.
        unsaid: how many rows do not say whether they were streamed, but their times do.
    """

    def __init__(self) -> None:
        self.kept_out: Counter[str] = Counter()
        self.first = b""
        self.doubts: list[str] = []
        self.notes: list[str] = []
        self.unsaid = 0
        self._start: list[NDArray[np.int64]] = []
        self._numbers: dict[str, list[Floats]] = {name: [] for name in NUMBERS}
        self._codes: dict[str, list[NDArray[np.int32]]] = {name: [] for name in WORDS}
        self._names: dict[str, dict[str, int]] = {name: {} for name in WORDS}
        self._ids: dict[str, list[NDArray[np.bytes_]]] = {name: [] for name in IDS}
        self.n = self._seen = 0

    def add(self, rows: Iterable[Mapping[str, Any]], block: int = 65_536) -> None:
        """Add flat rows; those without a start time cannot be placed, and are left out.

        A whole `start` is in nanoseconds; any other is read as `start_ns` does.
        """
        kept: list[Mapping[str, Any]] = []
        for row in rows:
            kept.append(row)
            if len(kept) == block:
                self._add_block(kept)
                kept = []
        if kept:
            self._add_block(kept)

    def _add_block(self, rows: Sequence[Mapping[str, Any]]) -> None:
        starts = [_in_ns(row.get("start")) for row in rows]
        if None in starts:
            self.kept_out["row: no usable start"] += starts.count(None)
            rows = [row for row, start in zip(rows, starts, strict=True) if start is not None]
        self.add_arrays(
            np.array([start for start in starts if start is not None], np.int64),
            lambda name: self._number_column(name, rows),
            lambda name: self._word_column(name, rows),
            lambda name: self._id_column(name, rows),
        )

    def add_arrays(
        self,
        start: NDArray[np.int64],
        number: Callable[[str], Floats],
        word: Callable[[str], tuple[NDArray[np.int32], Sequence[str]]],
        identity: Callable[[str], NDArray[np.bytes_]],
    ) -> None:
        """Add a block given column by column; numbers out of bounds become unknown.

        Args:
            start: unix nanoseconds.
            number: gives the column of a name in `NUMBERS`, NaN where unknown.
            word: gives the codes (-1 = unknown) and names of a name in `WORDS`.
            identity: gives the column of a name in `IDS`.
        """
        self.n += len(start)
        self._seen += len(start)
        self._start.append(start)
        numbers: dict[str, Floats] = {}
        for name in NUMBERS:
            numbers[name] = column = number(name)
            low, high = bounds(name)
            with np.errstate(invalid="ignore"):
                bad = (column < low) | (column > high)
            self._keep_out(f"{name}: out of bounds", bad, numbers, name)
        self._keep_parts_within(numbers)
        for name in WORDS:
            codes, names = word(name)
            if name == "outcome":
                codes, names = self._outcomes(codes, names), OUTCOMES
                codes = np.where(codes < 0, _by_status(numbers["http_status"]), codes)
                said = np.isfinite(numbers["stream"])
                numbers |= _after_first(numbers, whole=codes <= OUTCOMES.index("success"))
                self.unsaid += int((np.isfinite(numbers["stream"]) & ~said).sum())
            self._codes[name].append(_recode(Words(codes, tuple(names)), self._names[name]))
        for name, column in numbers.items():
            self._numbers[name].append(column)
        for name in IDS:
            self._ids[name].append(identity(name))

    def _outcomes(self, codes: NDArray[np.int32], names: Sequence[str]) -> NDArray[np.int32]:
        """Return the codes of outcomes, in `OUTCOMES`; of other words, -1."""
        known = [OUTCOME_WORDS.get(name.lower()) for name in names]
        new = [-1 if word is None else OUTCOMES.index(word) for word in known]
        found = np.array([*new, -1], np.int32)[codes]
        if bad := int(((found < 0) & (codes >= 0)).sum()):
            self.kept_out[f"outcome: not one of {', '.join(OUTCOMES)}"] += bad
        return found

    def _keep_parts_within(self, numbers: dict[str, Floats]) -> None:
        """Make unknown what is longer than the request that it is a part of."""
        most = NEARLY * numbers["e2e_s"] + GRANULARITY_S
        for name in _WITHIN:
            self._keep_out(f"{name}: longer than e2e_s", numbers[name] > most, numbers, name)
        total = sum(np.fmax(numbers[name], 0.0) for name in _STAGES)  # of NaN, it is 0
        self._keep_out("stages: sum to more than e2e_s", total > most, numbers, *_STAGES)

    def _keep_out(self, why: str, bad: Mask, numbers: dict[str, Floats], *names: str) -> None:
        if bad.any():
            self.kept_out[why] += int(bad.sum())
            numbers |= {name: np.where(bad, np.nan, numbers[name]) for name in names}

    def _number_column(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Floats:
        flag = name in FLAGS
        column = np.full(len(rows), np.nan)
        for i, row in enumerate(rows):
            value = row.get(name)
            if value is None:
                continue
            if isinstance(value, int | float) and (flag or not isinstance(value, bool)):
                try:
                    column[i] = value
                except OverflowError:
                    column[i] = np.inf
            elif isinstance(value, str):  # as some loggers quote numbers
                column[i] = _number_in(value, flag=flag)
            if column[i] != column[i]:  # NaN
                why = f"{name}: not {'true or false' if flag else 'a number'}"
                self.kept_out[quoting(why, value, self.kept_out)] += 1
        return column

    def _word_column(
        self, name: str, rows: Sequence[Mapping[str, Any]]
    ) -> tuple[NDArray[np.int32], Sequence[str]]:
        names: dict[str, int] = {}
        codes = np.full(len(rows), -1, np.int32)
        for i, row in enumerate(rows):
            value = row.get(name)
            if isinstance(value, str):
                if value:
                    codes[i] = names.setdefault(short(value), len(names))
            elif value is not None:
                self.kept_out[f"{name}: not text"] += 1
        return codes, tuple(names)

    def _id_column(self, name: str, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.bytes_]:
        column: list[str] = []
        for row in rows:
            value = row.get(name)
            if not isinstance(value, str):
                if value is not None:
                    self.kept_out[f"{name}: not text"] += 1
                value = ""
            column.append(value)
        return as_ids(column)

    def done(self) -> Columns:
        """Return everything added, with the counts of what was kept out."""
        return replace(self.flush(), warnings=self.warnings)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The doubts, the notes, and what was kept out so far: a text for each reason."""
        said: list[str] = [*map(Doubt, self.doubts), *self.notes]
        if self.unsaid:
            said.append(f"{_INFERRED}: {self.unsaid:,} of {self._seen:,} rows do not say")
        for why, count in sorted(self.kept_out.items()):
            unit = why.partition(":")[0]  # `line`, `row`, or the name of a value
            unit = f"{unit if unit in {'line', 'row'} else 'value'}{'s' if count > 1 else ''}"
            kind = Doubt if count > _MANY * self._seen else str
            said.append(kind(f"{why}: {count:,} {unit} ignored"))
        return tuple(said)

    def flush(self) -> Columns:
        """Return what was added since the last call, and forget it."""
        n, self.n = self.n, 0
        return Columns(
            n=n,
            start=_joined(self._start, np.int64),
            numbers={name: _joined(parts, np.float64) for name, parts in self._numbers.items()},
            words={
                name: Words(_joined(parts, np.int32), tuple(self._names[name]))
                for name, parts in self._codes.items()
            },
            ids={name: _joined(parts, "S1") for name, parts in self._ids.items()},
        )


def _in_ns(start: object) -> int | None:
    if isinstance(start, int) and not isinstance(start, bool) and 0 < start <= MAX_START_NS:
        return start
    return start_ns(start)


def _by_status(status: Floats) -> NDArray[np.int32]:
    """Return the codes, in `OUTCOMES`, of the outcomes that HTTP statuses mean; -1 = unknown."""
    distinct, index = np.unique(status, return_inverse=True)
    meant = [outcome_of_status(one) for one in distinct.tolist()]
    codes = np.array([-1 if one is None else OUTCOMES.index(one) for one in meant], np.int32)
    return codes[index]


def _after_first(numbers: Mapping[str, Floats], *, whole: Mask) -> dict[str, Floats]:
    """Return `decode_s`, `tpot_s` and `stream`; of rows without them or chunks, from the end.

    Such as a gateway logs, which has `ttft_s`, `e2e_s` and `output_tokens`. A response of several
    tokens whose first content comes at its end is not streamed.
    """
    decode, tpot, stream = (numbers[name] for name in ("decode_s", "tpot_s", "stream"))
    gaps, rest = numbers["output_tokens"] - 1, numbers["e2e_s"] - numbers["ttft_s"]
    reported = [np.isfinite(numbers[name]) for name in _AFTER_FIRST]
    known = whole & ~np.logical_or.reduce(reported) & np.isfinite(rest) & (gaps > 0)
    known &= ~(numbers["chunks"] <= 1)  # a single chunk has no time after it
    tells = known & np.isnan(stream) & (gaps >= _MANY_TOKENS)
    stream = np.where(tells, rest > _AT_END * numbers["e2e_s"], stream)
    computed = known & (stream != 0) & (rest > 0)
    waited = np.maximum(rest - np.nan_to_num(numbers["render_s"]), 0.0)
    return {"decode_s": np.where(computed, waited, decode), "stream": stream,
            "tpot_s": np.where(computed, rest / np.maximum(gaps, 1), tpot)}  # fmt: skip


def _number_in(text: str, *, flag: bool) -> float:
    """Return the number, or of a flag the truth, that a text is; NaN = it is none."""
    try:
        return _TRUTHS.get(text.strip().lower(), np.nan) if flag else float(text)
    except ValueError:
        return float("nan")


def as_ids(values: Sequence[str | None]) -> NDArray[np.bytes_]:
    """Return ids side by side, as UTF-8; what is longer than 64 bytes is cut."""
    encoded = [(value or "").encode("utf-8", "replace")[:_ID_BYTES] for value in values]
    return np.array(encoded, np.bytes_) if encoded else np.empty(0, "S1")


def bounds(name: str) -> tuple[float, float]:
    """Return the bounds within which a number is plausible."""
    if name in FLAGS:
        return 0.0, 1.0
    if name == "http_status":  # some gateways log 0 or -1 if there was no response
        return 100.0, 999.0
    if name in COUNTS:
        return 0.0, _MAX_COUNT
    if name == "weight":
        return 1e-9, _MAX_WEIGHT
    return 0.0, float(MAX_S)


def short(word: str) -> str:
    """Return a word as it is kept: not too long, on one line, and writable as UTF-8.

    Control characters are removed, since words are printed on terminals.
    """
    return printable(word[:_WORD_LENGTH].encode("utf-8", "replace").decode("utf-8"))


def _joined(parts: list[NDArray[Any]], kind: Any) -> NDArray[Any]:
    """Return parts as one array, and empty the list: only one column is in memory twice."""
    if len(parts) == 1:
        return parts.pop()
    joined = np.concatenate(parts) if parts else np.empty(0, kind)
    parts.clear()
    return joined


def _to_ns(seconds: float) -> int:
    return int(min(max(seconds, -9e9), 9e9) * 1e9)


def _as_plain(name: str, value: float) -> float | bool:
    if name in FLAGS:
        return bool(value)
    return int(value) if name in COUNTS and value.is_integer() else value
