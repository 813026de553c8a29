"""Is each request of other people's clients, frameworks and instrumentations one right row?

Whichever was set up first. The real packages, in the environment of scripts/install_contact.py;
each case in a process of its own (`program`), against a server that responds as vLLM does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

from tests.contact.program import ORDERS
from tests.contact.servers import SUBJECTS as SERVERS
from tests.contact.subjects import SUBJECTS as CLIENTS
from tests.instrumentation import answers
from tests.real.conftest import do_without
from tests.support.sse_server import Answer, Request, Server, serve

ROOT: Final = Path(__file__).parents[2]
SUBJECTS: Final = {**CLIENTS, **SERVERS}
SAID: Final = "".join(answers.WORDS)
_SUBJECT_S: Final = 300
# What a row of a chat by the OpenAI SDK says.
CHAT: Final = {
    "adds_up": True, "outcome": "success", "model": "tiny", "provider": "openai",
    "client": "openai", "http_status": 200, "attempts": 1, "finish_reason": "stop",
    "response_id": "chatcmpl-1", "prompt_tokens": 10, "output_tokens": 5, "operation": "chat",
    "queue_s": 0.0015, "prefill_s": 0.02025, "chunks": 5,
}  # fmt: skip
GATEWAYS: Final = {name for name in SERVERS if name != "otel-grpc"}
# JSON that an answer is made of where the request wants some.
_JSON: Final = ('{"te', 'xt": "', *answers.WORDS[:-1], answers.WORDS[-1] + '"}')


def respond(request: Request, answer: Answer) -> None:
    """Respond by the protocol that the path is of; to spans and the like, as a receiver does."""
    path = request.path.partition("?")[0]
    if path.endswith("/chat/completions"):
        wants_json = "response_format" in request.body
        words = _JSON if wants_json else answers.WORDS
        answers.chat(words, head_s=0.06)(request, answer)
    elif path.endswith("/responses"):
        answer.wait(0.06)
        answers.responses(request, answer)
    elif path.endswith("/messages"):
        answer.wait(0.06)
        answers.messages(request, answer)
    else:
        answer.whole({})


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Serve what all subjects request, for all tests of this module."""
    with serve(respond) as running:
        yield running


def environment() -> Path:
    """Return the Python that has the packages."""
    folder = subprocess.run(
        [sys.executable, ROOT / "scripts" / "install_contact.py", "--where"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    python = Path(folder) / "bin" / "python"
    if not (Path(folder) / "complete").exists():
        do_without("no contact suite: run `make contact`")
    return python


@cache
def recorded(name: str, root: str) -> dict[tuple[str, bool], dict[str, Any]]:
    """Run all cases of a subject; return what each came to, by order and kind."""
    given = {**os.environ, "PYTHONPATH": str(ROOT), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    given.pop("PYTHONDONTWRITEBYTECODE", None)  # or each subject compiles all that it imports
    done = subprocess.run(
        [environment(), "-m", "tests.contact.program", name, root],
        cwd=ROOT,
        env=given,
        capture_output=True, text=True, timeout=_SUBJECT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"order"')]
    return {(case["order"], case["stream"]): {**case, "stderr": done.stderr} for case in found}


CASES: Final = [
    pytest.param(name, order, stream, id=f"{name}-{order}-{'stream' if stream else 'whole'}")
    for name, subject in SUBJECTS.items()
    for order in ORDERS
    for stream in subject.streams
]


@pytest.mark.parametrize(("name", "order", "stream"), CASES)
def test_one_right_row(server: Server, name: str, order: str, stream: bool) -> None:
    """The application gets its text, and each request is one row with all that was reported."""
    subject = SUBJECTS[name]
    case = recorded(name, server.root)[order, stream]
    kept: dict[str, list[Any]] = {}
    for kind, value in case["kept"]:
        kept.setdefault(kind, []).append(value)

    assert "raised" not in kept, kept["raised"][0]
    assert (kept["text"], kept["internal"]) == ([SAID], [{}]), case["stderr"]
    rows = kept["row"]
    assert len(rows) == subject.rows
    wanted: dict[str, Any] = {**CHAT, **subject.expects, "stream": stream}
    if not stream:
        wanted["chunks"] = 0
    if wanted["operation"] is None:
        del wanted["operation"]
    for row in rows:
        assert {field: row.get(field) for field in wanted} == wanted
        assert (row.get("ttft_s") is not None) == stream
        assert row["e2e_s"] > 0.02
    # On the gateway's own span, or on the span that another instrumentation makes of a request.
    served = [span["attributes"] for span in kept.get("span", []) if span["kind"] == "server"]
    outcomes = [one["llmtrace.outcome"] for one in served if "llmtrace.outcome" in one]
    assert outcomes == (["success"] if name in GATEWAYS else [])
