"""Find targets by DNS SRV records, whose answers name host and port of each.

The system's resolver looks up addresses alone, so the question is put to the first server of
`/etc/resolv.conf` here: one datagram, and over TCP if the answer does not fit into one.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from llmtrace_collector.scrape.fetch import FetchError
from llmtrace_collector.scrape.targets import Target

_RESOLV_CONF: Final = Path("/etc/resolv.conf")
_SERVICE: Final = re.compile(r"_[A-Za-z0-9-]+\._(?:tcp|udp)\.[A-Za-z0-9._-]+")
_PORT: Final = 53
_TIMEOUT_S: Final = 5.0
_SRV: Final = 33
_IN: Final = 1
_OPT: Final = 41
_FLAGS: Final = 0x0100  # recursion desired
_TRUNCATED: Final = 0x0200
_NO_SUCH_NAME: Final = 3
_DATAGRAM: Final = 4_096
_POINTER: Final = 0xC0
_MAX_LABELS: Final = 128
_HEADER: Final = struct.Struct("!6H")
_RECORD: Final = struct.Struct("!2HIH")


def is_srv(name: str) -> bool:
    """Return whether a name is one of SRV records.

    Example:
        >>> is_srv("_metrics._tcp.engines.llm.svc"), is_srv("engines.llm.svc:8000")
        (True, False)
    """
    return _SERVICE.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class SrvTargets:
    """The hosts and ports that the SRV records of a name have: one target each.

    Attributes:
        service: the name, whole: no search domains are tried.
        path: of the page.
        server: host and port of a DNS server; `None` = the system's first.
    """

    service: str
    path: str = "/metrics"
    server: tuple[str, int] | None = None

    @property
    def name(self) -> str:
        """The name that is resolved, for the log and the metrics."""
        return f"dns {self.service}"

    async def targets(self, session: aiohttp.ClientSession) -> Sequence[Target]:
        """Look the records up again, and return a target for each; none if the name is gone.

        Raises:
            FetchError: no server answers, or not with such records.
        """
        del session
        number = secrets.randbits(16)
        question = _question(number, self.service)
        host, port = self.server or _system_server()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await _datagram(host, port, question)
                if _HEADER.unpack_from(answer)[1] & _TRUNCATED:
                    answer = await _stream(host, port, question)
            found = _records(answer, number)
        except TimeoutError:
            raise FetchError("timeout", f"{self.name}: {host} did not answer") from None
        except OSError as error:
            raise FetchError("connect", f"{self.name}: {error.strerror or error}") from error
        except (struct.error, ValueError, IndexError) as error:
            raise FetchError("protocol", f"{self.name}: no answer of SRV records") from error
        return [Target(f"http://{host}:{port}{self.path}") for host, port in sorted(found)]


def _system_server() -> tuple[str, int]:
    try:
        lines = _RESOLV_CONF.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        lines = []
    words = (line.split() for line in lines)
    return next((w[1] for w in words if len(w) > 1 and w[0] == "nameserver"), "127.0.0.1"), _PORT


def _question(number: int, name: str) -> bytes:
    labels = b"".join(
        bytes([len(one)]) + one for one in name.rstrip(".").encode("ascii").split(b".")
    )
    room = b"\0" + _RECORD.pack(_OPT, _DATAGRAM, 0, 0)  # how long a datagram may be
    return (
        _HEADER.pack(number, _FLAGS, 1, 0, 0, 1) + labels + b"\0" + struct.pack("!2H", _SRV, _IN)
    ) + room


class _Once(asyncio.DatagramProtocol):
    """Takes the first datagram."""

    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """Keep it."""
        del addr
        if not self.came.done():
            self.came.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """Fail with what the system says, such as that the port is closed."""
        if not self.came.done():
            self.came.set_exception(exc)


async def _datagram(host: str, port: int, question: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    transport, once = await loop.create_datagram_endpoint(_Once, remote_addr=(host, port))
    try:
        transport.sendto(question)
        return await once.came
    finally:
        transport.close()


async def _stream(host: str, port: int, question: bytes) -> bytes:
    incoming, outgoing = await asyncio.open_connection(host, port)
    try:
        outgoing.write(struct.pack("!H", len(question)) + question)
        [length] = struct.unpack("!H", await incoming.readexactly(2))
        return await incoming.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ValueError("cut short") from error
    finally:
        outgoing.close()


def _records(answer: bytes, number: int) -> set[tuple[str, int]]:
    """Return host and port of each SRV record in an answer.

    Raises:
        ValueError: it is no answer to this question, or a failure of the server.
    """
    theirs, flags, questions, answers, _, _ = _HEADER.unpack_from(answer)
    failure = flags & 0xF
    if theirs != number or failure not in {0, _NO_SUCH_NAME}:
        raise ValueError(f"DNS failure {failure}")
    at = _HEADER.size
    for _ in range(questions):
        at = _name(answer, at)[1] + 4
    found = set()
    for _ in range(answers):
        at = _name(answer, at)[1]
        kind, _, _, length = _RECORD.unpack_from(answer, at)
        at += _RECORD.size
        if kind == _SRV:
            [port] = struct.unpack_from("!H", answer, at + 4)
            host = _name(answer, at + 6)[0]
            if host:  # "." = there is decidedly no such service
                found.add((host, port))
        at += length
    return found


def _name(answer: bytes, at: int) -> tuple[str, int]:
    """Return a name, and where what follows it begins."""
    labels: list[str] = []
    end: int | None = None
    for _ in range(_MAX_LABELS):
        length = answer[at]
        if length >= _POINTER:
            end = end or at + 2
            at = struct.unpack_from("!H", answer, at)[0] & 0x3FFF
        elif length == 0:
            return ".".join(labels), end or at + 1
        else:
            labels.append(answer[at + 1 : at + 1 + length].decode("ascii"))
            at += 1 + length
    raise ValueError("a name without an end")
