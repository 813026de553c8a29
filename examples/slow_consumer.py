"""The same server, read fast and slowly: `render` grows, and nothing of the server's does."""

from __future__ import annotations

import os
import time

import openai
from engine import endpoint

from llmtrace.testing import capture

with endpoint() as (url, model), capture(service="slow-consumer") as rows:
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    for pause_s in (0.0, 0.03):
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=40,
            stream=True,
        )
        for _ in stream:
            time.sleep(pause_s)  # what rendering markdown on every token does

fast, slow = rows
print(f"{'stage':12} {'read at once':>14} {'30 ms a chunk':>14}")
for (stage, before), (_, after) in zip(fast.stages, slow.stages, strict=True):
    shown = [
        f"{ns / 1e6:11.1f} ms" if ns is not None else "not reported" for ns in (before, after)
    ]
    print(f"{stage:12} {shown[0]:>14} {shown[1]:>14}")
print(f"{'e2e':12} {fast.e2e_s * 1e3:11.1f} ms {slow.e2e_s * 1e3:11.1f} ms")
