"""How does a test program get a network of its own, where real delays disturb nobody?

`python tests/real/netns_run.py SCRIPT ARGS` runs a Python program (or `-m MODULE`) in a new
network namespace that holds nothing but loopback. Exit status 77: the machine does not allow it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve()
_VARIABLE: Final = "LLMTRACE_TEST_NAMESPACE"
_NOT_POSSIBLE: Final = 77
_INSIDE: Final = "--inside"
_PROBE: Final = (
    "import fcntl, os, struct; fd = os.open('/dev/net/tun', os.O_RDWR); "
    "fcntl.ioctl(fd, 0x400454CA, struct.pack('16sH', b'probe0', 0x1001))"
)


class NamespaceError(Exception):
    """A program in a namespace failed, or there can be no namespace."""


def command(*program: str | Path) -> list[str]:
    """Return the command that runs a Python program in a namespace of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    ours = os.readlink("/proc/self/ns/net")
    inside = (sys.executable, str(_HERE), _INSIDE, ours)
    return ["unshare", *user, "--net", "--", *inside, *map(str, program)]


def why_not() -> str | None:
    """Return what keeps this machine from making such networks, or `None` if nothing does."""
    try:
        probe = subprocess.run(
            command("-c", _PROBE), capture_output=True, text=True, check=False, timeout=30
        )
    except OSError as error:
        return f"a network namespace needs Linux with unshare and ip: {error}"
    if probe.returncode == 0:
        return None
    return (
        "a network namespace with a TUN device needs CAP_NET_ADMIN and /dev/net/tun (run as root "
        f"or allow user namespaces): {probe.stderr.strip().splitlines()[-1]}"
    )


def run(*program: str | Path, timeout_s: float = 60.0) -> str:
    """Run a Python program in a namespace of its own and return what it printed.

    Raises:
        NamespaceError: It failed; carries its messages.
    """
    done = subprocess.run(
        command(*program), capture_output=True, text=True, check=False, timeout=timeout_s
    )
    if done.returncode != 0:
        raise NamespaceError(f"{program[0]} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def _enter(outside: str, program: list[str]) -> None:
    namespace = os.readlink("/proc/self/ns/net")
    if namespace == outside:
        raise NamespaceError("unshare made no new network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ[_VARIABLE] = namespace
    # The programs import `llmtrace` from the checkout and `real` from its tests.
    ours = [str(_HERE.parents[2]), str(_HERE.parents[1])]
    os.environ["PYTHONPATH"] = os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])
    os.execv(sys.executable, [sys.executable, *program])


def main(arguments: list[str]) -> None:
    """Run the program named, here if this is the inside, else in a new namespace."""
    if arguments[0] == _INSIDE:
        _enter(arguments[1], arguments[2:])
    if reason := why_not():
        print(reason, file=sys.stderr)
        sys.exit(_NOT_POSSIBLE)
    os.execvp("unshare", command(*arguments))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
