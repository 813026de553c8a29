"""The same as first_trace.py with Anthropic's SDK: one decorator, one streamed message."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anthropic

import llmtrace
from llmtrace.simulator import serve

llmtrace.init("anthropic-trace")

with serve() as engine:  # with ANTHROPIC_API_KEY set, Anthropic's own API is called instead
    own = "ANTHROPIC_API_KEY" in os.environ
    client = (
        anthropic.Anthropic() if own else anthropic.Anthropic(base_url=engine.root, api_key="-")
    )
    model = os.environ.get("MODEL", "claude-haiku-4-5") if own else "llmtrace-sim"

    @llmtrace.trace(route="greeting")
    def answer(question: str) -> Iterator[str]:
        messages = [{"role": "user", "content": question}]
        with client.messages.stream(model=model, max_tokens=40, messages=messages) as stream:
            yield from stream.text_stream

    for text in answer("What is a token?"):
        print(text, end="", flush=True)
    print()

llmtrace.shutdown()
