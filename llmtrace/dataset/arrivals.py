"""Read when real requests came and how long they were, to replay them as load.

Two published formats, plain or gzipped: `TIMESTAMP,ContextTokens,GeneratedTokens` (the Azure LLM
inference traces, CSV), and JSON lines of `timestamp` (ms), `input_length`, `output_length` and
`hash_ids` (the Mooncake traces), where equal ids are equal blocks of 512 tokens of the prompt.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from llmtrace.core.errors import ConfigError, explain_error
from llmtrace.stats.arrays import Floats

BLOCK_TOKENS: Final = 512  # of a Mooncake block
_HEAD: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
# Of 2023 without an offset and with seven digits of a second, which `datetime` would cut; of 2024
# with an offset.
_TIME: Final = re.compile(r"^(.*?)(\.\d+)?(Z|[+-]\d\d:\d\d)?$")
_MAX_TOKENS: Final = 10_000_000
_Line = tuple[float, int, int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of a trace, by time; as long as each other.

    Attributes:
        start_s: seconds since the first.
        prompt, output: tokens, 1 or more.
        group: requests with the same number share the start of their prompt; -1 = with none.
        shared: tokens of that start, 0 where there is none.
    """

    start_s: Floats
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    group: NDArray[np.int64]
    shared: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def rate(self) -> float:
        """Mean requests a second between the first and the last one."""
        return (len(self) - 1) / max(float(self.start_s[-1]), 1e-9)


def read_arrivals(path: Path) -> Arrivals:
    """Read a trace, of either format.

    Raises:
        ConfigError: the file cannot be read, is of neither format, or holds fewer than two
            requests; the message names the line.
    """
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode("utf-8-sig")
        lines = list(_lines(path, text.splitlines()))
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path}: {explain_error(error)}") from error
    if len(lines) < 2:  # noqa: PLR2004 - one request has no rate
        raise ConfigError(f"{path}: fewer than two requests")
    lines.sort(key=lambda line: line[0])
    start = np.array([line[0] for line in lines])
    if start[-1] <= start[0]:
        raise ConfigError(f"{path}: all requests have the same time")
    group, shared = _shared([line[3] for line in lines])
    prompt = np.array([line[1] for line in lines], np.int64)
    return Arrivals(
        start_s=start - start[0],
        prompt=prompt,
        output=np.array([line[2] for line in lines], np.int64),
        group=group,
        shared=np.minimum(shared, prompt - 1),
    )


def _lines(path: Path, file: Iterable[str]) -> Iterator[_Line]:
    """Yield time in seconds, prompt and output tokens, and block ids of each request."""
    read = None
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            if read is None:
                read = _mooncake if text.lstrip().startswith("{") else _azure
                if read is _azure:
                    _check_head(text)
                    continue
            line = read(text)
        except (ValueError, KeyError, TypeError) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else error
            raise ConfigError(f"{path}: line {number}: {why}") from error
        yield line


def _check_head(text: str) -> None:
    if tuple(next(csv.reader([text.strip()]))) != _HEAD:
        raise ValueError(f"the first line is not {','.join(_HEAD)}")


def _azure(text: str) -> _Line:
    at, prompt, output = next(csv.reader([text.strip()]))
    whole, fraction, offset = _TIME.findall(at)[0]
    moment = datetime.fromisoformat(whole + (offset or "+00:00")).timestamp()
    return moment + float(fraction or 0), _tokens(prompt), _tokens(output), ()


def _mooncake(text: str) -> _Line:
    found = json.loads(text)
    blocks = [int(one) for one in found.get("hash_ids") or ()]
    at = float(found["timestamp"]) / 1e3
    if not np.isfinite(at):
        raise ValueError("timestamp is not a number")
    return at, _tokens(found["input_length"]), _tokens(found["output_length"]), blocks


def _tokens(value: object) -> int:
    tokens = int(value)  # type: ignore[call-overload]
    if not 0 <= tokens <= _MAX_TOKENS:
        raise ValueError(f"{tokens} tokens")
    return max(int(tokens), 1)


def _shared(blocks: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each prompt's group and shared tokens: up to the last block that it has in common."""
    times = Counter(block for one in blocks for block in one)
    group, depth = np.full(len(blocks), -1, np.int64), np.zeros(len(blocks), np.int64)
    numbers: dict[tuple[int, int], int] = {}
    for i, one in enumerate(blocks):
        deep = next((k for k, block in enumerate(one) if times[block] < 2), len(one))  # noqa: PLR2004
        if deep:
            group[i] = numbers.setdefault((deep, one[deep - 1]), len(numbers))
            depth[i] = deep
    return group, depth * BLOCK_TOKENS
