"""Parse a page's beacon, and reject what cannot be true.

One flat JSON object from an untrusted browser: bounded in size, known names only, numbers finite
and in range. It is believed about the page's own time, and about nothing else.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from llmtrace.core.browser_timing import IN_BEACON, Browser, unflatten
from llmtrace.core.errors import DataError
from llmtrace.core.row import OUTCOMES

MAX_BYTES: Final = 4096  # what the script sends is below 1.2 kB

_KINDS: Final = ("fetch", "eventsource", "whole")
_TRACE_ID: Final = re.compile(r"(?!0{32})[0-9a-f]{32}")
_SPAN_ID: Final = re.compile(r"(?!0{16})[0-9a-f]{16}")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,63}")
# What only `with_beacon` fills in.
_NOT_THE_PAGES: Final = ("app_e2e_ms", "app_ttft_ms", "app_held_ms", "inconsistent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beacon:
    """The report of one page on one response.

    Attributes:
        trace_id: that the page made and sent along, 32 hex digits.
        span_id: the page's own span, parent of what the server did; 16 hex digits.
        age_ns: from the end of the response to the sending of this.
    """

    trace_id: str
    span_id: str
    browser: Browser
    age_ns: int = 0


def read_beacon(body: bytes) -> Beacon:
    """Read a beacon; unknown names in it are ignored.

    Raises:
        DataError: it is too long, not JSON, or contains a value that cannot be; the message says
            which, and repeats nothing of it.
    """
    if len(body) > MAX_BYTES:
        raise DataError(f"a beacon of {len(body)} bytes: at most {MAX_BYTES} are read")
    try:
        flat = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DataError("a beacon must be JSON in UTF-8") from error
    if not isinstance(flat, dict):
        raise DataError(f"a beacon must be a JSON object, not {type(flat).__name__}")
    for name in _NOT_THE_PAGES:
        flat.pop(name, None)
    try:
        browser = unflatten(flat, IN_BEACON)
        if browser is None:
            raise DataError("a beacon without e2e_ms")
        age = unflatten({"e2e_ms": flat.get("age_ms", 0)}, IN_BEACON)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"not a beacon: {error}") from error
    _one_of("kind", browser.kind, _KINDS)
    _one_of("outcome", browser.outcome or "success", OUTCOMES)
    for name in ("error_type", "protocol"):
        value = getattr(browser, name)
        if value is not None and not _WORD.fullmatch(value):
            raise DataError(f"a beacon's {name} must be a word of at most 64 characters")
    return Beacon(
        trace_id=_id("trace_id", flat, _TRACE_ID),
        span_id=_id("span_id", flat, _SPAN_ID),
        browser=browser,
        age_ns=0 if age is None else age.e2e_ns,
    )


def _no_constant(_: str) -> NoReturn:
    raise ValueError  # NaN and Infinity are not JSON


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise DataError(f"a beacon's {name} must be one of {', '.join(known)}")


def _id(name: str, flat: dict[str, Any], pattern: re.Pattern[str]) -> str:
    value = flat.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise DataError(f"a beacon's {name} must be lower-case hex, as in a traceparent")
    return value
