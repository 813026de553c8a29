"""Streaming instead of waiting for all, over OpenAI's and Anthropic's API."""

from typing import Any

import anthropic
import openai
from recipe import capture, report, run

import llmtrace
from llmtrace.simulator import serve

QUOTED = "first character after 0.45 instead of 8.5 s; total about the same"
ASK = {"model": "llmtrace-sim", "max_tokens": 60, "messages": [{"role": "user", "content": "Hi"}]}


def main(count: int) -> bool:
    with serve() as engine:
        clients = {
            "OpenAI": openai.OpenAI(base_url=engine.url, api_key="none").chat.completions,
            "Anthropic": anthropic.Anthropic(base_url=engine.root, api_key="none").messages,
        }
        right = [compared(name, client, max(4, count // 4)) for name, client in clients.items()]
    return all(right)


def compared(name: str, client: Any, count: int) -> bool:
    rows = {}
    create = llmtrace.trace(client.create)
    for stream in (False, True):
        with capture() as rows[stream]:
            for _ in range(count + 1):
                answer = create(**ASK, stream=stream)
                for _chunk in answer if stream else ():
                    pass
    return report(
        f"streaming, {name}", QUOTED, rows[False][1:], rows[True][1:],
        moved="first content", still="e2e",
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
