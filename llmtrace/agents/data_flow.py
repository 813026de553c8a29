"""Decide whether a call's arguments contain an earlier call's result.

Values are compared by fingerprints: hashes of their texts and numbers, and of words and runs of
words in them. Arguments that share a specific enough one with a result contain some of it. No
value is kept.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

# How much of a value is looked at: what lies beyond makes no dependency.
MAX_CHARACTERS: Final = 16_384
_MAX_LEAVES: Final = 1_024
_MAX_WORDS: Final = 2_048
_MAX_DEPTH: Final = 8

# Shorter texts and numbers turn up in two places by chance: "ok", "Paris", 2024, 0.5.
_MIN_LETTERS: Final = 8
_MIN_WITH_DIGITS: Final = 6
_MIN_DIGITS: Final = 4  # of a number with a fraction, such as a coordinate
_MIN_WHOLE: Final = 10_000
_MIN_RUN: Final = 16
_MAX_BITS: Final = 1_024

_WORD: Final = re.compile(r"[^\s\"'`,;()\[\]{}<>|]+")
_FRACTION: Final = re.compile(r"-?\d*\.\d+")
_PUNCTUATION: Final = ".:!?"
# Types that are written as text when they are passed on.
_WRITTEN: Final = frozenset({"datetime", "decimal", "fractions", "pathlib", "uuid"})

_NONE: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """The fingerprints of a value.

    Attributes:
        whole: of each text and number in it that is specific enough.
        words: of single words and short runs of them inside texts.
        runs: those of them that no two texts share by chance.
        objects: objects that are neither text nor number, if they can be recognised again.
    """

    whole: frozenset[int] = _NONE
    words: frozenset[int] = _NONE
    runs: frozenset[int] = _NONE
    objects: Mapping[int, weakref.ref[Any]] = field(default_factory=dict)

    @property
    def hashes(self) -> frozenset[int]:
        """The numbers of the texts: whole, words and runs; without the objects."""
        return self.whole | self.words | self.runs

    @property
    def size(self) -> int:
        """The number of prints and objects that are kept."""
        return len(self.whole) + len(self.words) + len(self.runs) + len(self.objects)

    def seen_in(self, other: Fingerprints) -> set[int]:
        """Return the prints by which this result shows in a later call's arguments.

        A text or number of the result shows if it is an argument, or words of one; words of the
        result, if they are an argument; and so does a long run of words in both.
        """
        shared = set(self.whole & (other.whole | other.words))
        shared |= self.words & other.whole
        shared |= self.runs & other.runs
        for key in self.objects.keys() & other.objects.keys():
            one = self.objects[key]()
            if one is not None and one is other.objects[key]():
                shared.add(key)
        return shared

    def knows(self, shared: Iterable[int]) -> set[int]:
        """Return the prints in `shared` that are among these."""
        return {
            one
            for one in shared
            if one in self.whole or one in self.words or one in self.runs or one in self.objects
        }


def prints_of(value: Any) -> Fingerprints:
    """Take the prints of a value: an argument, a result, or a list of them."""
    look = _Look()
    for text in look.texts(value):
        look.at(text)
    return Fingerprints(
        frozenset(look.whole), frozenset(look.words), frozenset(look.runs), look.objects
    )


class _Look:
    """One look at one value, within bounds."""

    __slots__ = ("characters", "leaves", "objects", "runs", "whole", "words")

    def __init__(self) -> None:
        self.characters = MAX_CHARACTERS
        self.leaves = _MAX_LEAVES
        self.whole: set[int] = set()
        self.words: set[int] = set()
        self.runs: set[int] = set()
        self.objects: dict[int, weakref.ref[Any]] = {}

    def texts(self, value: Any, depth: int = 0) -> Iterator[str]:
        """Yield every text in a value, and notice its numbers and objects on the way."""
        self.leaves -= 1
        if self.leaves < 0 or self.characters <= 0 or depth > _MAX_DEPTH:
            return
        if isinstance(value, str):
            text = value[: self.characters]
            self.characters -= len(text)
            inside = _parsed(text)
            if inside is None:
                yield text
            else:
                yield from self.texts(inside, depth + 1)
        elif value is None or isinstance(value, bool):
            return
        elif isinstance(value, int | float):
            self._number(value)
        elif isinstance(value, bytes | bytearray):
            yield from self.texts(bytes(value[: self.characters]).decode("latin-1"), depth)
        elif isinstance(value, Mapping):
            yield from self._each(value.values(), depth)
        elif isinstance(value, list | tuple | set | frozenset):
            yield from self._each(value, depth)
        elif type(value).__module__ in _WRITTEN:
            yield from self.texts(str(value), depth)
        else:
            yield from self._object(value, depth)

    def _each(self, values: Iterable[Any], depth: int) -> Iterator[str]:
        for one in values:
            yield from self.texts(one, depth + 1)
            if self.leaves <= 0 or self.characters <= 0:
                return  # even counting millions of values takes time

    def _object(self, value: Any, depth: int) -> Iterator[str]:
        """Notice an object as itself, and look into its plain attributes."""
        if isinstance(value, type) or callable(value):
            return
        with suppress(TypeError):  # it cannot be recognised again
            self.objects[id(value)] = weakref.ref(value)
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from self.texts(attributes, depth)
            return
        slots = getattr(type(value), "__dataclass_fields__", {})
        yield from self.texts({name: getattr(value, name, None) for name in slots}, depth)

    def _number(self, value: float) -> None:
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            return  # Python refuses to write the longest
        text = repr(value)
        if abs(value) >= _MIN_WHOLE if isinstance(value, int) else _tells(text):
            self.whole.add(hash(text))

    def at(self, text: str) -> None:
        """Take the prints of a text: as a whole, and of its words and short runs of them."""
        words = [word.strip(_PUNCTUATION) for word in _WORD.findall(text)][:_MAX_WORDS]
        whole = " ".join(words)
        if _tells(whole):
            self.whole.add(hash(whole))
        if len(words) < 2:  # noqa: PLR2004 - one word is the whole
            if _tells_much(whole):
                self.runs.add(hash(whole))
            return
        telling = [word for word in {*words} if len(word) > _MIN_DIGITS and _tells(word)]
        pairs = map(" ".join, pairwise(words))
        triples = map(" ".join, zip(words, words[1:], words[2:], strict=False))
        self.words.update(map(hash, telling))
        self.words.update(hash(run) for run in (*pairs, *triples) if len(run) >= _MIN_LETTERS)
        self.runs.update(hash(word) for word in telling if _tells_much(word))
        self.runs.update(map(hash, _runs(words)))


def _runs(words: list[str]) -> Iterator[str]:
    """Yield from each word on as many as are long enough together to be no chance.

    Where a run ends depends on its words alone, so that two texts that share them share the run.
    """
    end, length = 0, -1  # of the run from the word we are at, the spaces between included
    for start, word in enumerate(words):
        while length < _MIN_RUN and end < len(words):
            length += len(words[end]) + 1
            end += 1
        if length < _MIN_RUN:
            return
        yield " ".join(words[start:end])
        length -= len(word) + 1


def _tells(text: str) -> bool:
    """Say whether a text is unlikely to turn up in two places by chance."""
    if len(text) >= _MIN_LETTERS:
        return True
    if len(text) >= _MIN_WITH_DIGITS:
        return any(map(str.isdigit, text))
    if len(text) > _MIN_DIGITS and _FRACTION.fullmatch(text):
        return sum(map(str.isdigit, text.lstrip("-0."))) >= _MIN_DIGITS
    return False


def _tells_much(word: str) -> bool:
    """Say the same of a word inside two texts: a number, an address, an id, or a very long one."""
    return len(word) >= _MIN_RUN or (len(word) >= _MIN_LETTERS and not word.isalpha())


def _parsed(text: str) -> Any:
    """Return what a text says in JSON, as tools' arguments and results often do; else `None`."""
    if text[:1] not in "{[" or not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
