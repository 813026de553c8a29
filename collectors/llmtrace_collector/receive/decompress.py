"""Decompress a body, up to a limit.

Never more than the limit is decompressed, whatever the body claims.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from llmtrace_collector.receive.rejections import RejectedError

_GZIP: Final = 16 + zlib.MAX_WBITS

# Makes a decompressor, and the error that this raises.
Format = tuple[Callable[[], Any], type[Exception]]


def _zstd() -> Mapping[str, Format]:
    """Return the format zstd, if Python (from 3.14 on) or a library has it."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return {}
    library: Any = zstd
    return {"zstd": (library.ZstdDecompressor, library.ZstdError)}


_FORMATS: Final[Mapping[str, Format]] = {
    "gzip": (partial(zlib.decompressobj, _GZIP), zlib.error),
    "deflate": (zlib.decompressobj, zlib.error),
    **_zstd(),
}
ENCODINGS: Final = ("identity", *_FORMATS)


def inflate(body: bytes, encoding: str, most: int) -> bytes:
    """Decompress a body.

    Args:
        body: as it came.
        encoding: the value of Content-Encoding.
        most: maximum number of bytes after decompression.

    Raises:
        RejectedError: `encoding`: not one of `ENCODINGS`; `bad_data`: not compressed like that;
            `too_large`: more than `most`.
    """
    name = encoding.strip().lower()
    if name not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        raise RejectedError("encoding", f"Content-Encoding must be one of: {known}")
    found = body if name == "identity" else _unpacked(body, most, *_FORMATS[name])
    if len(found) > most:
        raise RejectedError("too_large", f"more than {most} bytes after decompression")
    return found


def _unpacked(
    body: bytes, most: int, unpacker_of: Callable[[], Any], broken: type[Exception]
) -> bytes:
    out = bytearray()
    while body:  # a body may be several gzip files, one after the other
        unpacker = unpacker_of()
        try:
            out += unpacker.decompress(body, max_length=most + 1 - len(out))
        except broken:
            raise RejectedError("bad_data", "the body is not compressed as it says") from None
        if len(out) > most:
            break
        if not unpacker.eof:
            raise RejectedError("bad_data", "the compressed body ends too early")
        body = unpacker.unused_data
    return bytes(out)
