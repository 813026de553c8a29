"""Limits of the receiver and the spool.

Every limit has a default that an ordinary application never reaches. What exceeds one is rejected,
with a response that says so, and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf
from typing import Any, Final, Literal

from llmtrace.core.errors import ConfigError

MIB: Final = 1 << 20

Sync = Literal["always", "interval", "never"]
SYNCS: Final = ("always", "interval", "never")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveLimits:
    """Limits of one request, and of all requests in progress.

    Attributes:
        body_bytes: of one request as it comes over the wire.
        inflated_bytes: of one request after decompression.
        json_bytes: of one request in JSON, which takes some 20 times as much memory to parse.
        json_depth: of nested objects and lists in JSON.
        attributes: of one span, one resource, one scope.
        span_bytes: of one whole span.
        expanded_bytes: of one request as it is stored: each of its spans with a copy of its
            resource and scope.
        memory_bytes: of all requests between their first byte and the spool.
        connections: open at a time, HTTP; and requests in progress at a time, gRPC.
        head_s: for a request's headers, from the connection or the end of the last response.
        body_s: for a request's body.
        idle_s: how long a connection may be idle between requests.
        beacons_per_s: browsers' beacons, of all pages together.
        retry_after_s: how long a sender should wait before it retries.
    """

    body_bytes: int = 8 * MIB
    inflated_bytes: int = 8 * MIB
    json_bytes: int = 4 * MIB
    json_depth: int = 32
    attributes: int = 256
    span_bytes: int = 1 * MIB
    expanded_bytes: int = 128 * MIB
    memory_bytes: int = 128 * MIB
    connections: int = 10_000
    head_s: float = 10.0
    body_s: float = 30.0
    idle_s: float = 75.0
    beacons_per_s: float = 500.0
    retry_after_s: float = 5.0

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigError: one is out of range.
        """
        above_zero("receive", self)
        for name in ("body_bytes", "inflated_bytes"):
            if getattr(self, name) > self.memory_bytes:
                raise ConfigError(
                    f"receive.{name}: {getattr(self, name)} is more than receive.memory_bytes, "
                    f"{self.memory_bytes}: no such request could ever be taken"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How the spool keeps what was acknowledged until it is stored.

    Attributes:
        sync: when to sync to the disk. `always`: before each acknowledgement, once for all
            requests that came together. `interval`: every `sync_s`. `never`: left to the operating
            system. If this process is killed, nothing is lost in any case; a power failure loses
            nothing, `sync_s`, or some 30 s.
        sync_s: interval of `interval`, in seconds.
        segment_bytes: size at which a new file is begun.
        disk_bytes: of all files together. Above, senders have to retry later.
        free_bytes: to leave on the disk.
        quarantine_bytes: of requests that cannot be stored. Above, the oldest of them are deleted,
            and counted.
    """

    sync: Sync = "interval"
    sync_s: float = 1.0
    segment_bytes: int = 64 * MIB
    disk_bytes: int = 4096 * MIB
    free_bytes: int = 256 * MIB
    quarantine_bytes: int = 1024 * MIB

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            ConfigError: one is out of range.
        """
        if self.sync not in SYNCS:
            raise ConfigError(f"spool.sync: {self.sync!r} must be one of {', '.join(SYNCS)}")
        above_zero("spool", self, but=("sync", "free_bytes"))
        if self.free_bytes < 0:
            raise ConfigError(f"spool.free_bytes: {self.free_bytes!r} must be 0 or more")
        if self.segment_bytes > self.disk_bytes:
            raise ConfigError(
                f"spool.segment_bytes: {self.segment_bytes} is more than spool.disk_bytes, "
                f"{self.disk_bytes}"
            )


def above_zero(what: str, limits: Any, but: tuple[str, ...] = ()) -> None:
    """Raise `ConfigError` where a limit is not above 0, except those of `but`."""
    for name in (field.name for field in fields(limits)):
        if name not in but and not 0 < getattr(limits, name) < inf:
            raise ConfigError(f"{what}.{name}: {getattr(limits, name)!r} must be above 0")
