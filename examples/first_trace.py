"""One decorator, one streamed response, its seven stages."""

from __future__ import annotations

import os
from collections.abc import Iterator

import openai
from engine import endpoint

import llmtrace

llmtrace.init("first-trace")  # a line a request here; OTLP where OTEL_EXPORTER_OTLP_ENDPOINT says

with endpoint() as (url, model):
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))

    @llmtrace.trace(route="greeting")
    def answer(question: str) -> Iterator[str]:
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": question}],
            max_tokens=40,
            stream=True,
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                yield chunk.choices[0].delta.content

    for text in answer("What is a token?"):
        print(text, end="", flush=True)
    print()

llmtrace.shutdown()
