"""Time-outs of other schedulers are time-outs, and no cancellations."""

import subprocess
import sys

import pytest

from . import answers

_HEAD = """
import sys, time, openai, llmtrace
from llmtrace.testing import capture
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
"""
_TRIO = """
import trio
async def main():
    client = openai.AsyncOpenAI(base_url=sys.argv[1], api_key="x", max_retries=0)
    with trio.CancelScope() as scope:
        if sys.argv[2] == "deadline":
            scope.deadline = trio.current_time() + 1
        else:
            trio.lowlevel.current_trio_token().run_sync_soon(scope.cancel)
        stream = await client.chat.completions.create(**REQUEST)
        async for _ in stream: pass
with capture() as rows:
    trio.run(main)
print(rows[-1].outcome)
"""
_GEVENT = """
import gevent
client = openai.OpenAI(base_url=sys.argv[1], api_key="x", max_retries=0)
def ask():
    for _ in client.chat.completions.create(**REQUEST): pass
with capture() as rows:
    if sys.argv[2] == "deadline":
        with gevent.Timeout(1, False): ask()
    else:
        running = gevent.spawn(ask)
        gevent.sleep(0.5)
        running.kill()
print(rows[-1].outcome)
"""


@pytest.mark.parametrize(("how", "outcome"), [("deadline", "timeout"), ("cancel", "cancelled")])
@pytest.mark.parametrize("scheduler", ["trio", "gevent"])
def test_a_deadline_is_a_timeout(server, scheduler, how, outcome):
    """A deadline of trio or gevent is a time-out; a cancellation by hand stays one."""
    pytest.importorskip(scheduler)
    server.play(answers.chat(first_s=5))
    patched = "from gevent import monkey; monkey.patch_all()\n" if scheduler == "gevent" else ""
    program = patched + _HEAD + (_TRIO if scheduler == "trio" else _GEVENT)
    done = subprocess.run(
        [sys.executable, "-c", program, f"{server.url}/v1", how],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.stdout.strip() == outcome, done.stderr[-500:]
