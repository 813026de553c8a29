"""Is what a user imports small, documented, typed, and light?"""

from __future__ import annotations

import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import llmtrace

HERE = Path(__file__).parent
MAX_NAMES = 25
CONSTANTS = ("OUTCOMES", "STAGES")
PUBLIC = [name for name in llmtrace.__all__ if name not in CONSTANTS]


def python(program: str) -> str:
    """Return what a program prints in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def by_kind(name: str) -> tuple[int, str]:
    """Order names as the list does: constants, then classes, then functions."""
    return 0 if name.isupper() else 1 if name[0].isupper() else 2, name


# --- names --------------------------------------------------------------------------------------


def test_the_public_names_are_sorted():
    """`__all__` is in order, and names nothing twice."""
    assert llmtrace.__all__ == sorted(set(llmtrace.__all__), key=by_kind)


def test_the_public_names_are_all_there_is():
    """What can be had from `llmtrace` is in `__all__`, and nothing else is."""
    program = """
import types, llmtrace
print(*(n for n, v in vars(llmtrace).items()
        if not n.startswith("_") and not isinstance(v, types.ModuleType)))
"""

    assert set(python(program).split()) == set(llmtrace.__all__)


def test_there_are_few_public_names():
    """A newcomer can read all of the public names at once."""
    assert len(llmtrace.__all__) <= MAX_NAMES


def test_no_public_name_is_a_module():
    """Modules are reached by importing them."""
    assert [
        name for name in llmtrace.__all__ if isinstance(getattr(llmtrace, name), ModuleType)
    ] == []


# --- documentation ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_documented(name):
    """Each class and function says in its own words what it is for."""
    thing = getattr(llmtrace, name)
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__

    assert own
    assert not own.startswith(f"{name}(")  # what a dataclass writes for itself
    assert own.partition("\n")[0].endswith((".", ":"))


@pytest.mark.parametrize("name", [n for n in PUBLIC if not n[0].isupper()])
def test_every_parameter_is_documented(name):
    """A function's documentation speaks of each of its parameters."""
    thing = getattr(llmtrace, name)
    said = set(re.findall(r"\w+", thing.__doc__))

    assert set(inspect.signature(thing).parameters) - said == set()


@pytest.mark.parametrize("name", [n for n in PUBLIC if n[0].isupper()])
def test_every_public_member_is_documented(name):
    """Methods and properties of public classes say what they do."""
    bare = [
        member
        for member, value in vars(getattr(llmtrace, name)).items()
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property) or hasattr(value, "func"))
        and not value.__doc__
    ]

    assert bare == []


# --- types --------------------------------------------------------------------------------------


def test_the_package_is_typed():
    """Type checkers are directed to believe the annotations."""
    assert (Path(llmtrace.__file__).parent / "py.typed").exists()


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_users_of_the_api_pass_a_strict_check():
    """Code that uses every public name type-checks strictly, and its slips are found."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "tests/typing_api.py",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
    )

    assert (done.stdout.splitlines()[-1:], done.returncode) == (
        ["Success: no issues found in 1 source file"],
        0,
    )


def test_the_typed_example_uses_every_public_name():
    """No public name is left out of the strict check."""
    used = set(
        re.findall(r"llmtrace\.(\w+)", (HERE / "typing_api.py").read_text(encoding="utf-8"))
    )

    assert set(llmtrace.__all__) - used == set()


# --- weight -------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["llmtrace", "llmtrace.testing"])
def test_importing_brings_nothing_heavy_along(module):
    """Neither clients nor exporters nor the demo's packages are imported until they are needed."""
    program = f"import sys, {module}; print(*(n.partition('.')[0] for n in sys.modules))"
    loaded = set(python(program).split())

    assert loaded & {
        "openai", "anthropic", "httpx", "httpx2", "httpcore", "aiohttp", "requests", "urllib3",
        "grpc", "google", "prometheus_client", "yaml", "rich", "starlette", "uvicorn", "numpy",
        "vllm", "pydantic", "hypothesis", "pytest",
    } == set()  # fmt: skip


def test_importing_brings_no_opentelemetry_sdk_along():
    """Only OpenTelemetry's API is imported: its SDK and exporters come when they are used."""
    program = "import sys, llmtrace; print(*(n for n in sys.modules if 'telemetry' in n))"
    loaded = {".".join(name.split(".")[:2]) for name in python(program).split()}

    assert loaded & {"opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto"} == set()


def test_importing_takes_no_time_to_speak_of():
    """Importing costs less than half a second of CPU, on a machine however busy."""
    program = """
import time
begun = time.process_time()
import llmtrace
print(time.process_time() - begun)
"""

    assert min(float(python(program)) for _ in range(2)) < 0.5


def test_importing_starts_and_patches_nothing():
    """Importing alone starts no thread and touches no other module."""
    program = """
import socket, threading
before = socket.getaddrinfo
import llmtrace
print(threading.active_count(), socket.getaddrinfo is before)
"""

    assert python(program) == "1 True"
