"""How does a packet take a known time from one end of a network to the other?

A program: `emulator.py ONE_WAY_S SYN_EXTRA_S LOST_SHARE`, only in a network namespace of its own.
It prints `ready` when the network is up and ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from itertools import count
from typing import Final

DEVICE: Final = "delayed0"

_TUNSETIFF: Final = 0x400454CA
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000
_TCP: Final = 6
_FLAGS_AT: Final = 13
_SYN_AND_ACK: Final = 0x12
_SYN: Final = 0x02


def open_tun(name: str) -> int:
    """Open a TUN device and return its file descriptor; the device goes when that is closed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def turn_round(packet: bytes) -> bytes:
    """Swap source and destination of an IPv4 packet.

    Every checksum stays right: they add up both addresses, whatever the order.
    """
    return packet[:12] + packet[16:20] + packet[12:16] + packet[20:]


def opens_connection(packet: bytes) -> bool:
    """Return whether an IPv4 packet is a TCP SYN that is not an answer to one."""
    header = 4 * (packet[0] & 0x0F)
    return packet[9] == _TCP and packet[header + _FLAGS_AT] & _SYN_AND_ACK == _SYN


def relay(device: int, one_way_s: float, syn_extra_s: float, lost: float) -> None:
    """Hold each IPv4 packet for its time, then hand it back turned round, until stdin ends.

    A share of them is lost, by chance.
    """
    held: list[tuple[float, int, bytes]] = []
    order = count()
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        ready, _, _ = select.select([device, sys.stdin], [], [], wait_s)
        if sys.stdin in ready:
            return
        now = time.monotonic()
        if device in ready:
            packet = os.read(device, 65536)
            if packet[0] >> 4 == 4 and random.random() >= lost:
                due = now + one_way_s + (syn_extra_s if opens_connection(packet) else 0.0)
                heapq.heappush(held, (due, next(order), turn_round(packet)))
        while held and held[0][0] <= now:
            os.write(device, heapq.heappop(held)[2])


def main(one_way_s: float, syn_extra_s: float, lost: float) -> None:
    """Bring the network up and relay."""
    # A network is not slower when the machine is busy. Not allowed everywhere; then it may be.
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    device = open_tun(DEVICE)
    subprocess.run(["ip", "address", "add", "10.77.0.1/24", "dev", DEVICE], check=True)
    subprocess.run(["ip", "link", "set", DEVICE, "up"], check=True)
    print("ready", flush=True)
    relay(device, one_way_s, syn_extra_s, lost)


if __name__ == "__main__":
    main(*map(float, sys.argv[1:4]))
