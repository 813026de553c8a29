"""How does a test program get a network of its own, where real delays disturb nothing else?

`python tests/real/netns_run.py SCRIPT ARGS` runs a Python program (or `-m MODULE`) in a new
network namespace that holds nothing but loopback. Exit status 77: the machine does not allow it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

# Tells a program which namespace was made for it.
NAMESPACE_VARIABLE: Final = "LLMTRACE_TEST_NAMESPACE"

_HERE: Final = Path(__file__).resolve()
_NOT_POSSIBLE: Final = 77
_INSIDE: Final = "--inside"
_PROBE: Final = (
    "import fcntl, os, struct; fd = os.open('/dev/net/tun', os.O_RDWR); "
    "fcntl.ioctl(fd, 0x400454CA, struct.pack('16sH', b'probe0', 0x1001))"
)


class NamespaceError(Exception):
    """A program in a namespace failed, or there can be no namespace."""


def namespace() -> str:
    """Return the name of the network namespace this program runs in."""
    return str(Path("/proc/self/ns/net").readlink())


def command(*program: str | Path) -> list[str]:
    """Return the command that runs a Python program in a namespace of its own."""
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    inside = (sys.executable, str(_HERE), _INSIDE, namespace())
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
    if namespace() == outside:
        raise NamespaceError("unshare made no new network namespace")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ[NAMESPACE_VARIABLE] = namespace()
    # The programs import `llmtrace` and `tests` from the checkout.
    paths = (str(_HERE.parents[2]), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
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
