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
_DEFLATE: Final = zlib.MAX_WBITS

Inflate = Callable[[bytes, int], bytes]


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
    unpack = ENCODINGS.get(encoding.strip().lower())
    if unpack is None:
        known = ", ".join(ENCODINGS)
        raise RejectedError("encoding", f"Content-Encoding must be one of: {known}")
    found = unpack(body, most)
    if len(found) > most:
        raise RejectedError("too_large", f"more than {most} bytes after decompression")
    return found


def _identity(body: bytes, _: int) -> bytes:
    return body


def _unpacked(
    body: bytes, most: int, *, unpacker_of: Callable[[], Any], broken: type[Exception]
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


def _zlib(kind: int) -> Inflate:
    return partial(_unpacked, unpacker_of=partial(zlib.decompressobj, kind), broken=zlib.error)


def _zstd() -> Mapping[str, Inflate]:
    """Return the decompression of zstd, if Python (from 3.14 on) or a library has it."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        return {}
    library: Any = zstd
    unpack = partial(_unpacked, unpacker_of=library.ZstdDecompressor, broken=library.ZstdError)
    return {"zstd": unpack}


ENCODINGS: Final[Mapping[str, Inflate]] = {
    "identity": _identity,
    "gzip": _zlib(_GZIP),
    "deflate": _zlib(_DEFLATE),
    **_zstd(),
}
