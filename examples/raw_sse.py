"""A streamed response read over httpx, without any SDK: in your own function, and left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
from engine import endpoint

import llmtrace
from llmtrace.exporters.console import waterfall
from llmtrace.testing import capture


def body(model: str) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 10,
        "stream": True,
        # Request usage yourself: what you send is never changed, and tokens come no other way.
        "stream_options": {"include_usage": True},
    }


@llmtrace.trace(route="chat")
def words(client: httpx.Client, url: str, model: str) -> Iterator[str]:
    with client.stream("POST", f"{url}/chat/completions", json=body(model)) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    yield choice["delta"].get("content") or ""


def main(url: str, model: str) -> None:
    with httpx.Client() as client:
        print("decorated:", "".join(words(client, url, model)))
        # Nothing around it: a POST to a path that model servers have is a row all the same.
        answer = client.post(f"{url}/chat/completions", json={**body(model), "stream": False})
        print("left alone:", answer.json()["choices"][0]["message"]["content"])


# In an application: `llmtrace.init("my-app")` once.
with endpoint() as (url, model), capture(service="raw") as rows:
    main(url, model)

for row in rows:
    print(f"\n{row.route or 'no route'}, over {row.client}: {row.output_tokens} tokens")
    print(waterfall(row, width=96))
