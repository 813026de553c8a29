"""The metrics page, with a budget's limits as exact bucket bounds."""

from __future__ import annotations

import os

import openai
import prometheus_client
from engine import endpoint

import llmtrace

budget = {"name": "chat", "total": "2s", "ttft": "700ms", "stages": {"queue": "75ms"}}
llmtrace.init("metrics", exporters=["prometheus"], budget=budget)

with endpoint() as (url, model):
    client = openai.OpenAI(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    for _ in range(3):
        for _ in client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=10,
            stream=True,
        ):
            pass

page = prometheus_client.generate_latest().decode()
wanted = ('stage="queue"', "llmtrace_ttft_seconds_bucket", "llmtrace_budget_seconds{")
for line in page.splitlines():
    if any(part in line for part in wanted) and not line.endswith(" 0.0"):
        print(line)

llmtrace.shutdown()
