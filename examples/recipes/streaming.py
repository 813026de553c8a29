"""Streaming instead of waiting for all, over OpenAI's and Anthropic's API."""

from typing import Any

import anthropic
from recipe import Engine, capture, engine, report, run

import llmtrace

QUOTED = "first character after 0.45 instead of 8.5 s; total about the same"


def main(count: int) -> bool:
    # On vLLM a model that is slower than its clients: what a chunk costs them must not count.
    with engine(size=(1024, 8)) as to:
        messages = anthropic.Anthropic(base_url=to.root, api_key="none").messages
        clients = {"OpenAI": to.client.chat.completions, "Anthropic": messages}
        right = [compared(name, api, to, max(4, count // 4)) for name, api in clients.items()]
    return all(right)


def compared(name: str, api: Any, to: Engine, count: int) -> bool:
    create = llmtrace.trace(api.create)
    asked = {
        "model": to.model, "max_tokens": 60, "messages": [{"role": "user", "content": "Hi"}],
        "extra_body": to.options,
    }  # fmt: skip
    rows = {}
    for stream in (False, True):
        with capture() as rows[stream]:
            for _ in range(count + 1):
                answer = create(**asked, stream=stream)
                for _chunk in answer if stream else ():
                    pass
    return report(
        f"streaming, {name}", QUOTED, rows[False][1:], rows[True][1:],
        moved="first content", still="e2e",
    )  # fmt: skip


if __name__ == "__main__":
    run(main)
